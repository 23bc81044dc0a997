"""A lock that cannot be made is one line that names it; one that is freed leaves no file."""

import errno
import multiprocessing

import pytest

from coset._files.locks import locked, locked_if_free, remove_if_free
from coset.errors import InputError


def test_a_lock_below_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(InputError, match=r"the lock .*file/inner.lock cannot be made: "),
        locked(tmp_path / "file" / "inner.lock", "an entry"),
    ):
        pass


def test_a_lock_with_a_name_that_no_disk_takes(tmp_path):
    with pytest.raises(InputError, match="cannot be made: File name too long"), locked(tmp_path / ("x" * 300), "it"):
        pass


def test_a_disk_without_locks(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")

    def refused(handle, operation):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refused)
    with (
        pytest.raises(InputError, match=r"the folder .* cannot be locked \(.*not implemented\); choose one on a local"),
        locked(tmp_path / "a.lock", "it"),
    ):
        pass


def test_who_needs_itself_is_told(tmp_path):
    path = tmp_path / "a.lock"
    with locked(path, "the entry a"):
        with pytest.raises(InputError, match="the entry a needs itself"), locked(path, "the entry a"):
            pass
        assert path.exists()
    assert not path.exists()


def test_what_is_held_is_not_free(tmp_path):
    path = tmp_path / "a.lock"
    with locked_if_free(path) as free:
        assert free
        with locked_if_free(path) as again:
            assert not again
        assert not remove_if_free(path)
        assert path.exists()
    assert not path.exists()


def test_a_file_that_nobody_holds_is_removed_unless_tried(tmp_path):
    path = tmp_path / "a.lock"
    path.write_text("")
    assert remove_if_free(path, dry_run=True)
    assert path.exists()
    assert remove_if_free(path)
    assert not path.exists()


def test_a_forked_worker_does_not_keep_the_lock(tmp_path):
    """A loader's workers may outlive the block in which they were made."""
    if "fork" not in multiprocessing.get_all_start_methods():
        pytest.skip("needs fork")
    context, path = multiprocessing.get_context("fork"), tmp_path / "a.lock"
    done = context.Event()
    with locked(path, "it"):
        worker = context.Process(target=done.wait, args=(30,))
        worker.start()
    try:
        with locked_if_free(path) as free:
            assert free
    finally:
        done.set()
        worker.join()
