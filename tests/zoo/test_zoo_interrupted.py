"""A zoo whose training is killed, or done by two processes, has the same bytes."""

import os
import shutil
import signal
import subprocess
import sys
from multiprocessing import get_context

import pytest
from small_zoos import files, small

from coset._files import sealed
from coset.errors import InputError
from coset.zoo import _group, _work, open_zoo, train_zoo

SPEC = small(snapshots={"steps": [0, 3]})
"""That of the fixture ``trained``: two groups of 8 steps."""

LONGER = small({"epochs": 10}, seeds=6, group=2, snapshots={"epochs": [3, 10]})


def start(spec, folder, **options):
    """A process that trains; forked, since importing torch anew would take longer than all the rest."""
    given = {"show": False, **options}
    process = get_context("fork").Process(target=train_zoo, args=(spec, folder), kwargs=given)
    process.start()
    return process


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The zoo of a run that nobody stopped."""
    folder = tmp_path_factory.mktemp("whole") / "zoo"
    train_zoo(LONGER, folder, show=False)
    return files(folder)


def killing(function, number, *, within=False):
    """Does what ``function`` does until its call ``number``, where it kills its process; before it, or ``within``."""
    calls = []

    def call(*given):
        calls.append(given)
        if len(calls) < number:
            return function(*given)
        if within:
            given[0].write_bytes(b"half of a file")
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    return call


@pytest.mark.parametrize(
    ("module", "name", "number", "left"),
    [
        (_group, "_step", 1, ["zoo.json"]),
        (
            _group,
            "_step",
            13,
            ["checkpoints/00001.safetensors", "shards/00000.safetensors", "shards/00001-3.safetensors"],
        ),
        # Snapshot 0, a checkpoint, another: killed while it is written.
        (sealed, "write_tensors", 3, ["checkpoints/00000.safetensors", "shards/00000-0.safetensors"]),
        # The weights of the first group, behind its two snapshots and seven checkpoints.
        (sealed, "write_tensors", 10, ["checkpoints/00000.safetensors", "shards/00000-3.safetensors"]),
        (_work, "change_index", 2, ["checkpoints/00001.safetensors", "shards/00001.safetensors"]),
    ],
)
def test_a_killed_run_goes_on_to_the_same_bytes(module, name, number, left, trained, tmp_path, monkeypatch):
    folder = tmp_path / "zoo"
    with monkeypatch.context() as patched:
        patched.setattr(module, name, killing(getattr(module, name), number, within=name == "write_tensors"))
        process = start(SPEC, folder, checkpoint_seconds=0.0)
        process.join()
    assert process.exitcode == -signal.SIGKILL
    there = files(folder)
    assert set(left) <= there.keys()
    assert any(".part/" in file for file in there) == (name == "write_tensors")
    assert train_zoo(SPEC, folder, show=False).indices == tuple(range(6))
    assert files(folder) == files(trained)


def test_an_exception_in_a_group_goes_on_from_its_checkpoint(trained, tmp_path, monkeypatch):
    taken = []
    step = _group._step

    def failing(*given):
        taken.append(1)
        if len(taken) == 10:
            raise KeyboardInterrupt
        return step(*given)

    monkeypatch.setattr(_group, "_step", failing)
    with pytest.raises(KeyboardInterrupt):
        train_zoo(SPEC, tmp_path / "zoo", show=False, checkpoint_seconds=0.0)
    assert list((tmp_path / "zoo" / "checkpoints").iterdir())
    train_zoo(SPEC, tmp_path / "zoo", show=False)
    # 2 groups of 8 steps, of which the one that failed is the only one that is done twice.
    assert len(taken) == 2 * 8 + 1
    assert files(tmp_path / "zoo") == files(trained)


def test_two_processes_share_the_groups_of_one_zoo(whole, tmp_path):
    both = [start(LONGER, tmp_path / "zoo", checkpoint_seconds=0.05) for _ in range(2)]
    for process in both:
        process.join()
    assert [process.exitcode for process in both] == [0, 0]
    assert files(tmp_path / "zoo") == whole


def test_worker_processes_give_the_same_bytes_and_one_that_fails_is_made_up_for(whole, tmp_path, monkeypatch, caplog):
    started, popen = [], subprocess.Popen

    def begin(command, **options):
        """The first is what it should be, the second fails at once."""
        started.append(command)
        return popen(command if len(started) == 1 else [sys.executable, "-S", "-c", "raise SystemExit(3)"], **options)

    monkeypatch.setattr(subprocess, "Popen", begin)
    zoo = train_zoo(LONGER, tmp_path / "zoo", workers=2, show=False)
    assert len(started) == 2
    assert zoo.indices == tuple(range(6))
    assert files(tmp_path / "zoo") == whole
    assert [record.getMessage() for record in caplog.records] == ["1 of 2 processes ended with code 3"]


def test_a_group_that_another_holds_is_left_to_it(tmp_path):
    """Who waits takes other groups first, and trains the last one itself when its holder is gone."""
    from coset._files.locks import locked
    from coset._show.progress import SILENT
    from coset.zoo._begin import prepared
    from coset.zoo._spec import as_spec
    from coset.zoo._work import Workshop, work

    folder = tmp_path / "zoo"
    folder.mkdir()
    prepared(as_spec(small(seeds=4, group=2)), folder)
    (folder / "locks").mkdir()
    with locked(folder / "locks" / "00000.lock", "a test"):
        shop = Workshop(folder, 1.0, SILENT, None)
        assert [shop.take(group) for group in shop.left()] == [False, True]
        assert shop.left() == [0]
    work(folder, 1.0)
    assert open_zoo(folder).indices == (0, 1, 2, 3)


def test_a_zoo_of_another_specification_is_refused(trained, tmp_path):
    with pytest.raises(InputError, match="zoo of another specification: its seeds is"):
        train_zoo(small(seeds=7, snapshots={"steps": [0, 3]}), trained)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"is not empty and has no zoo\.json"):
        train_zoo(small(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("file", ["00000.safetensors", "00000-3.safetensors"])
@pytest.mark.parametrize("harm", ["missing", "damaged"])
def test_groups_of_which_a_file_is_lost_are_trained_again_to_the_same_bytes(trained, tmp_path, harm, file):
    folder = shutil.copytree(trained, tmp_path / "copied")
    path = folder / "shards" / file
    content = path.read_bytes()
    path.unlink() if harm == "missing" else path.write_bytes(content[:-4] + bytes(4))
    zoo = train_zoo(small(snapshots={"steps": [0, 3]}), folder)
    assert not zoo.problems
    assert files(folder / "shards") == files(trained / "shards")
    assert (folder / "zoo.json").read_bytes() == (trained / "zoo.json").read_bytes()
