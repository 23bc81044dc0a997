"""What is wrong is said with the command that cures it: typed as printed, it does."""

import dataclasses
import shlex
from pathlib import Path

import pytest
from small_datasets import listing

from coset.cli import main
from coset.data import available, check, fetch, load
from coset.data._checking import fetch_command
from coset.data._content import Part, checksum
from coset.data._sources import Download, Source
from coset.data.catalog import CATALOG
from coset.data.cifar import read_cifar10
from coset.errors import InputError

NAMES = ("train_inputs", "train_outputs", "test_inputs")


@pytest.fixture
def curve(server, monkeypatch, tmp_path) -> dict[str, bytes]:
    """The curve of Snelson with other numbers, on the server and nowhere else; its files."""
    files = {
        f"snelson/{name}.dat": "".join(f"{number / 7 + shift:.7e}\n" for number in range(200)).encode()
        for shift, name in enumerate(NAMES)
    }
    put(files, tmp_path / "original")
    entry = CATALOG["snelson"]
    parts = tuple(dataclasses.replace(part, sha256=checksum(part, tmp_path / "original")) for part in entry.parts)
    source = Source("http://127.0.0.1:1/", tuple(Download(name, ((name, name),)) for name in files))
    monkeypatch.setitem(CATALOG, "snelson", dataclasses.replace(entry, parts=parts, source=source))
    monkeypatch.setenv("COSET_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("COSET_DATA", raising=False)
    server.files.update(files)
    return files


def put(files: dict[str, bytes], folder: Path) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def run(message: str, address: str) -> None:
    """Type the command at the end of ``message``, with this server in place of the official one."""
    program, *words = shlex.split(message.partition("; run: ")[2])
    assert program == "coset"
    with pytest.raises(SystemExit) as stop:
        main([*words, "--from", address])
    assert stop.value.code == 0


def refusal(**options: object) -> str:
    with pytest.raises(InputError, match="; run: coset data fetch snelson") as error:
        load("snelson", **options)
    return str(error.value)


def truncated(content: bytes) -> bytes:
    return content[:1000] + b"1.0 2.0\n"


def changed(content: bytes) -> bytes:
    """Other numbers that parse as well."""
    return content.replace(b"1.1428571e+00", b"1.1428572e+00")


DAMAGES = [truncated, changed, lambda _: b""]


@pytest.mark.parametrize("root", ["mine", "my own files"])
def test_missing_from_a_root(curve, server, tmp_path, root):
    folder = tmp_path / root
    message = refusal(root=folder)
    assert message.endswith(f"; run: {shlex.join(['coset', 'data', 'fetch', 'snelson', '--root', str(folder)])}")
    assert str(check("snelson", folder).problem).endswith(message.partition("; ")[2])
    assert {row.name: row.command for row in available(folder)}["snelson"] == message.partition("run: ")[2]
    run(message, server.address)
    assert len(load("snelson", root=folder).train) == 200
    assert check("snelson", folder).ok


def test_missing_everywhere(curve, server, tmp_path, monkeypatch):
    monkeypatch.setenv("COSET_DATA", str(tmp_path / "mine"))
    (tmp_path / "mine" / "snelson").mkdir(parents=True)
    (tmp_path / "mine" / "snelson" / "train_inputs.dat").write_bytes(curve["snelson/train_inputs.dat"])
    message = refusal()
    assert message.endswith("; run: coset data fetch snelson")
    assert check("snelson").problem == "incomplete; run: coset data fetch snelson"
    run(message, server.address)
    assert len(load("snelson").train) == 200
    assert check("snelson").ok


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("in_cache", [False, True])
def test_damaged(curve, server, tmp_path, monkeypatch, damage, in_cache):
    """A sound copy in the cache would not help: the damaged one is in front of it."""
    mine, cache = tmp_path / "mine", tmp_path / "cache" / "data"
    put(curve, cache)
    if not in_cache:
        monkeypatch.setenv("COSET_DATA", str(mine))
        put(curve, mine)
    folder = cache if in_cache else mine
    path = folder / "snelson" / "train_outputs.dat"
    path.write_bytes(damage(curve["snelson/train_outputs.dat"]))
    message = refusal()
    assert str(path) in message
    assert message.endswith("fetch snelson" if in_cache else f"fetch snelson --root {mine}")
    problem = str(check("snelson").problem)
    assert problem.partition("; run: ")[2] == message.partition("; run: ")[2]
    run(problem, server.address)
    assert [path for path, _ in server.asked] == ["/snelson/train_outputs.dat"]
    assert len(load("snelson").train) == 200
    assert check("snelson").ok


def test_the_command_is_quoted_as_the_platform_does(monkeypatch):
    monkeypatch.setattr("sys.platform", "win32")
    assert fetch_command(CATALOG["mnist"], "C:/my data") == 'coset data fetch mnist --root "C:/my data"'


def test_changed_numbers_may_be_loaded_on_purpose(curve, tmp_path):
    put(curve, tmp_path / "mine")
    sound = load("snelson", root=tmp_path / "mine")
    path = tmp_path / "mine" / "snelson" / "test_inputs.dat"
    path.write_bytes(path.read_bytes().replace(b"2.1428571e+00", b"2.1428572e+00"))
    assert f"{path}: SHA-256 of the content is " in refusal(root=tmp_path / "mine")
    other = load("snelson", root=tmp_path / "mine", verify=False)
    assert other.fingerprint != sound.fingerprint
    assert load("snelson", root=tmp_path / "mine", verify=False).fingerprint == other.fingerprint
    assert other.name == sound.name


def test_each_file_is_read_once(curve, tmp_path, monkeypatch):
    put(curve, tmp_path / "mine")
    read, seen = Path.read_bytes, []
    monkeypatch.setattr(Path, "read_bytes", lambda path: seen.append(path.name) or read(path))
    load("snelson", root=tmp_path / "mine")
    assert sorted(seen) == sorted(f"{name}.dat" for name in NAMES)


@pytest.mark.parametrize("place", [0, 5000])
def test_a_label_or_a_pixel_of_cifar10(tmp_path, monkeypatch, place):
    """Records have no redundancy: only the checksum knows."""
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    record = bytes([3]) + bytes(range(256)) * 12
    files = [f"cifar-10-batches-bin/{name}.bin" for name in (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch")]
    for name in files:
        (tmp_path / name).write_bytes(record * 2)
    known = checksum(Part((files[0],), "bytes", ""), tmp_path)
    parts = tuple(Part((name,), "bytes", known) for name in files)
    entry = dataclasses.replace(
        CATALOG["cifar10"], parts=parts, read=lambda root, _, read: read_cifar10(root / folder.name, 2, read=read)
    )
    monkeypatch.setitem(CATALOG, "cifar10", entry)
    assert load("cifar10", root=tmp_path).train.y.unique().tolist() == [3]
    damaged = bytearray(record * 2)
    damaged[place] = (damaged[place] + 1) % 10
    (tmp_path / files[2]).write_bytes(damaged)
    command = f"coset data fetch cifar10 --root {tmp_path}"
    with pytest.raises(InputError, match=f"data_batch_3.bin: SHA-256 .*; run: {command}$"):
        load("cifar10", root=tmp_path)


def test_a_slice_is_not_cut_from_damaged_images(small_cifar10, tmp_path):
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "whole.bin").write_bytes(b"whale")
    with pytest.raises(InputError, match=r"whole.bin: SHA-256 .*; run: coset data fetch cifar10 --root .*root$"):
        fetch("cifar10-slice", root=tmp_path / "root")
    assert listing(tmp_path / "root") == ["whole.bin"]
