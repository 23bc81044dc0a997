"""Fetches that are interrupted, or meet each other: the next one ends well, and nothing half-done is visible."""

import errno
import gzip
import threading
import time
from pathlib import Path

import pytest
from small_datasets import ONE, TWO, listing, register, sha256, tar

from coset.data import _fetching as unpack
from coset.data import fetch
from coset.data._content import Part
from coset.data._sources import Download
from coset.errors import InputError


@pytest.fixture
def boxed(server, monkeypatch):
    """A dataset of two files in one archive, "boxed", on the server."""
    members = {"box/one.bin": ONE, "box/two.bin": TWO}
    server.files["box.tar.gz"] = tar(members)
    parts = tuple(Part((name,), "bytes", sha256(content)) for name, content in members.items())
    files = tuple((name, name) for name in members)
    register(monkeypatch, "boxed", parts, (Download("box.tar.gz", files, sha256(server.files["box.tar.gz"])),))
    return server


def interrupt_the_second(monkeypatch, owner: object, name: str, where: Path) -> None:
    """The second call of ``owner.name`` that has a path in the folder ``where`` as an argument is interrupted."""
    call, calls = getattr(owner, name), []

    def interrupted(*arguments: object, **options: object) -> object:
        if any(isinstance(argument, Path) and argument.parent == where for argument in arguments):
            calls.append(arguments)
            if len(calls) == 2:
                raise KeyboardInterrupt
        return call(*arguments, **options)

    monkeypatch.setattr(owner, name, interrupted)


def test_extraction(boxed, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        interrupt_the_second(patch, unpack, "write_bytes", tmp_path / ".fetch-boxed" / "box")
        with pytest.raises(KeyboardInterrupt):
            fetch("boxed", root=tmp_path, source=boxed.address)
    assert listing(tmp_path) == [".fetch-boxed/box.tar.gz", ".fetch-boxed/box/one.bin"]
    fetch("boxed", root=tmp_path, source=boxed.address)
    assert listing(tmp_path) == ["box/one.bin", "box/two.bin"]
    assert (tmp_path / "box" / "two.bin").read_bytes() == TWO
    assert len(boxed.asked) == 1


def test_installation_of_an_archive(boxed, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        interrupt_the_second(patch, Path, "replace", tmp_path / "box")
        with pytest.raises(KeyboardInterrupt):
            fetch("boxed", root=tmp_path, source=boxed.address)
    assert listing(tmp_path) == [".fetch-boxed/box.tar.gz", ".fetch-boxed/box/two.bin", "box/one.bin"]
    fetch("boxed", root=tmp_path, source=boxed.address)
    assert listing(tmp_path) == ["box/one.bin", "box/two.bin"]
    assert len(boxed.asked) == 1


def test_installation_of_files(tiny, tmp_path, monkeypatch):
    """The first file is in its place, the second waits in the staging folder; what was wrong is gone."""
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "two").write_bytes(b"damaged")
    with monkeypatch.context() as patch:
        interrupt_the_second(patch, Path, "replace", tmp_path / "tiny")
        with pytest.raises(KeyboardInterrupt):
            fetch("tiny", root=tmp_path, source=tiny.address)
    assert listing(tmp_path) == [".fetch-tiny/tiny/two.gz", "tiny/one.gz"]
    fetch("tiny", root=tmp_path, source=tiny.address)
    assert listing(tmp_path) == ["tiny/one.gz", "tiny/two.gz"]
    assert len(tiny.asked) == 2


def test_a_full_disk(boxed, tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(unpack, "write_bytes", full)
        with pytest.raises(InputError, match=f"boxed: writing to {tmp_path} failed: No space left on device"):
            fetch("boxed", root=tmp_path, source=boxed.address)
    assert listing(tmp_path) == [".fetch-boxed/box.tar.gz"]
    fetch("boxed", root=tmp_path, source=boxed.address)
    assert listing(tmp_path) == ["box/one.bin", "box/two.bin"]
    assert len(boxed.asked) == 1


def test_a_folder_in_the_place_of_a_file(tiny, tmp_path):
    (tmp_path / "tiny" / "two.gz" / "full").mkdir(parents=True)
    with pytest.raises(InputError, match=r"tiny/two.gz: cannot be put in place: "):
        fetch("tiny", root=tmp_path, source=tiny.address)
    (tmp_path / "tiny" / "two.gz" / "full").rmdir()
    (tmp_path / "tiny" / "two.gz").rmdir()
    fetch("tiny", root=tmp_path, source=tiny.address)
    assert listing(tmp_path) == ["tiny/one.gz", "tiny/two.gz"]
    assert len(tiny.asked) == 2


def test_a_root_that_cannot_be_written_to(tiny, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match=r"root .*file/deep cannot be written to"):
        fetch("tiny", root=tmp_path / "file" / "deep", source=tiny.address)
    assert tiny.asked == []


def test_two_at_once_share_the_work(tiny, tmp_path, monkeypatch):
    answer, asked, go = tiny.answer, threading.Event(), threading.Event()

    def slow(handler) -> None:
        asked.set()
        go.wait(20)
        answer(handler)

    monkeypatch.setattr(tiny, "answer", slow)
    found: list[object] = []

    def ask() -> None:
        try:
            found.append(fetch("tiny", root=tmp_path, source=tiny.address))
        except InputError as error:
            found.append(error)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    threads[0].start()
    assert asked.wait(20)
    threads[1].start()
    time.sleep(0.3)  # Time enough for the second to ask the server, if nothing held it back.
    go.set()
    for thread in threads:
        thread.join()
    assert found == [(tmp_path / "tiny" / "one.gz", tmp_path / "tiny" / "two.gz")] * 2
    assert [path for path, _ in tiny.asked] == ["/one.gz", "/two.gz"]
    assert listing(tmp_path) == ["tiny/one.gz", "tiny/two.gz"]
    assert gzip.decompress((tmp_path / "tiny" / "two.gz").read_bytes()) == TWO
