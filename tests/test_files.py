"""Files are whole or absent; what killed processes left is swept; folders are tried before work is done."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from coset._files import atomic as files
from coset._files.atomic import atomic_path, output_folder, parse_json, write_bytes, write_text
from coset.errors import InputError


def test_a_failed_write_leaves_the_old_file_and_no_part(tmp_path: Path) -> None:
    target = tmp_path / "file"
    write_text(target, "old")

    def fail_after(part: Path) -> None:
        part.write_text("half")
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"), atomic_path(target) as part:
        fail_after(part)
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_content_is_on_the_disk_before_it_takes_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def synced(handle: int) -> None:
        assert os.fstat(handle).st_size == 4
        events.append("sync")
        fsync(handle)

    def moved(part: Path, target: Path) -> Path:
        events.append("move")
        return replace(part, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", moved)
    write_bytes(tmp_path / "file", b"four")
    assert events == ["sync", "move"]


def test_old_parts_of_the_same_file_are_swept_and_no_others(tmp_path: Path) -> None:
    days_ago = time.time() - 2 * 86400
    old = [".a.csv.abcd_123.part", ".a.csv.zzzzzzzz.part"]
    kept = [
        ".b.csv.abcd1234.part",
        ".a.csv.gz.abcd1234.part",
        ".a.csv.notours.part",
        "a.csv.part",
        ".a_csv.abcd1234.part",
    ]
    for name in old + kept:
        (tmp_path / name).write_text("half")
        os.utime(tmp_path / name, (days_ago, days_ago))
    young = ".a.csv.young123.part"
    (tmp_path / young).write_text("half")
    write_text(tmp_path / "a.csv", "whole")
    assert {path.name for path in tmp_path.iterdir()} == {*kept, young, "a.csv"}


def test_a_folder_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="folder is a folder, expected a file or a new path"):
        write_text(tmp_path / "folder", "")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize("name", ["loop", "x" * 300, "nul\0l"])
def test_a_path_that_cannot_be_is_refused_by_name(tmp_path: Path, name: str) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(InputError, match=r"cannot be written: (Too many levels|File name too long|embedded null)"):
        write_text(tmp_path / name, "")
    assert [path.name for path in tmp_path.iterdir()] == ["loop"]
    assert (tmp_path / "loop").is_symlink()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "x is not JSON: Expecting property name"),
        ("9" * 5000, "x is not JSON: Exceeds the limit"),
        ("[" * 100_000 + "]" * 100_000, "x is not JSON: maximum recursion depth exceeded"),
        ("[" * 101 + "]" * 101, "x is nested more than 100 levels deep"),
        ('{"a":' * 101 + "1" + "}" * 101, "x is nested more than 100 levels deep"),
        (b"\xff", "x is not JSON: 'utf-8' codec can't decode"),
    ],
)
def test_json_that_is_damaged_or_absurd_is_refused(text: str | bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_json(text, "x")


def test_json_comes_as_it_is() -> None:
    assert parse_json("[" * 100 + "]" * 100, "x") == json.loads("[" * 100 + "]" * 100)
    assert parse_json('{"a": [1, null, {"b": 2.5}]}', "x") == {"a": [1, None, {"b": 2.5}]}


def test_a_write_inside_of_a_write_is_told_by_the_outer_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, content: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", refuse)
    with pytest.raises(InputError) as caught, atomic_path(tmp_path / "file") as part:
        write_text(part, "whole")
    assert str(caught.value) == f"{tmp_path / 'file'} cannot be written: No space left on device"
    assert list(tmp_path.iterdir()) == []


def test_files_get_the_permissions_of_new_files(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    write_text(tmp_path / "atomic", "")
    assert (tmp_path / "atomic").stat().st_mode == (tmp_path / "plain").stat().st_mode
    code = "import os, sys; os.umask(0o027)\nfrom coset._files.atomic import write_text; write_text(sys.argv[1], '')"
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "strict")], check=True)
    assert (tmp_path / "strict").stat().st_mode & 0o777 == 0o640


def test_writing_leaves_the_umask_of_the_process_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "umask", lambda mask: pytest.fail("other threads make files meanwhile"))
    write_text(tmp_path / "file", "whole")
    assert (tmp_path / "file").read_text() == "whole"


def test_writers_of_one_file_do_not_disturb_each_other(tmp_path: Path) -> None:
    target, contents = tmp_path / "file", [bytes([number]) * 5000 for number in range(4)]

    def write(content: bytes) -> None:
        for _ in range(20):
            write_bytes(target, content)

    threads = [threading.Thread(target=write, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert target.read_bytes() in contents
    assert list(tmp_path.iterdir()) == [target]


def test_an_output_folder_is_there_when_the_work_begins(tmp_path: Path) -> None:
    with output_folder(tmp_path / "a" / "b") as folder:
        assert folder == tmp_path / "a" / "b"
        assert list(folder.iterdir()) == []
    assert folder.is_dir()


def test_failed_work_takes_its_empty_folders_along_and_no_others(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with pytest.raises(KeyboardInterrupt), output_folder(tmp_path / "mine" / "a" / "b"):
        raise KeyboardInterrupt
    assert list((tmp_path / "mine").iterdir()) == []

    def fail_after_writing(folder: Path) -> None:
        write_text(folder.parent / "kept", "")
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"), output_folder(tmp_path / "mine" / "a" / "b") as folder:
        fail_after_writing(folder)
    assert [path.name for path in (tmp_path / "mine" / "a").iterdir()] == ["kept"]


def test_an_output_folder_that_cannot_be_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InputError, match="out must be a folder, found the file"), output_folder(path):
            pytest.fail("work was begun")
    if Path("/proc").is_dir():
        with pytest.raises(InputError, match=r"out /proc/coset cannot be written to: "), output_folder("/proc/coset"):
            pytest.fail("work was begun")

    def refuse(**settings: object) -> None:
        raise PermissionError(13, "Permission denied")

    # As for a user who is not root; root may write everywhere.
    monkeypatch.setattr(files.tempfile, "TemporaryFile", refuse)
    with pytest.raises(InputError, match="cannot be written to: Permission denied"), output_folder(tmp_path / "new"):
        pytest.fail("work was begun")
    assert not (tmp_path / "new").exists()
