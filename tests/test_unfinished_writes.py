"""Writes that a kill or a full disk ends: what stays is known, is swept, and one line names the file."""

import errno
import json
import multiprocessing
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import safetensors.torch
import torch

from coset._files import tensors as tensor_files
from coset._files.atomic import write_bytes, write_text
from coset._files.sealed import write_sealed
from coset.checkpoints import write_checkpoint
from coset.errors import InputError
from coset.store import Store
from coset.symmetry import Element

CONFIG = {"kind": "killed", "seed": 0}
LARGE = torch.zeros(5_000_000)
PART = re.compile(r"\.(.+)\.\w{8}\.part")


def checkpoint(folder: Path, tensor: torch.Tensor) -> Path:
    write_checkpoint(folder / "w.safetensors", {"w": tensor})
    return folder / "w.safetensors"


def sealed(folder: Path, tensor: torch.Tensor) -> Path:
    write_sealed(folder / "run.checkpoint", "coset.test", 1, {"w": tensor}, {})
    return folder / "run.checkpoint"


def entry(folder: Path, tensor: torch.Tensor) -> Path:
    return Store(folder).put(CONFIG, {"w": tensor}).path


WRITES: list[Callable[[Path, torch.Tensor], Path]] = [checkpoint, sealed, entry]


def kill_inside_a_write(write: Callable[[Path, torch.Tensor], Path], folder: Path) -> None:
    """Write again and again in another process, and kill it once safetensors is at its own temporary file."""

    def work() -> None:
        torch.set_num_threads(1)  # a forked process has no workers
        while True:
            write(folder, LARGE)

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    try:
        end = time.monotonic() + 20
        while not any(path.stat().st_size for path in folder.rglob(".tmp*") if path.exists()):
            assert time.monotonic() < end, "no write was seen"
    except FileNotFoundError:
        pass  # renamed between two looks: the kill comes right after it
    finally:
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()


def age(folder: Path, days: float) -> None:
    moment = time.time() - days * 86400
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_file() or path.suffix == ".part":
            os.utime(path, (moment, moment))


@pytest.mark.skipif(sys.platform != "linux", reason="needs fork and SIGKILL")
@pytest.mark.parametrize("write", WRITES)
def test_a_killed_write_leaves_only_what_is_known_and_swept(
    tmp_path: Path, write: Callable[[Path, torch.Tensor], Path]
) -> None:
    target = write(tmp_path, torch.zeros(1))
    for _ in range(20):
        kill_inside_a_write(write, tmp_path)
        left = [path for path in target.parent.iterdir() if path != target]
        if any(file.stat().st_size for path in left for file in path.iterdir()):
            break
    else:
        pytest.fail("no kill hit a write")
    for path in left:
        form = PART.fullmatch(path.name)
        assert form is not None, f"{path} is not known"
        assert form[1] == target.name
    write(tmp_path, torch.zeros(1))
    assert len(list(target.parent.iterdir())) == len(left) + 1  # another process may still be at work on them
    age(tmp_path, 2)
    write(tmp_path, torch.zeros(1))
    assert list(target.parent.iterdir()) == [target]


def test_prune_sees_and_counts_what_kills_left_in_the_store(tmp_path: Path) -> None:
    store = Store(tmp_path)
    path = store.put(CONFIG, {"w": torch.zeros(1)}).path
    part = path.with_name(f".{path.name}.abcd_123.part")
    part.mkdir()
    (part / path.name).touch()
    (part / ".tmpAbC123").write_bytes(b"x" * 1000)
    guest = path.with_name(f".{path.name}.guest123.part")
    guest.mkdir()
    (guest / "mine.txt").write_text("kept")
    old = path.with_name(".tmpZz9Zz9")  # as earlier versions left it
    old.write_bytes(path.read_bytes()[:-2])
    assert store.prune().leftovers == ()
    age(tmp_path, 0.1)
    pruned = store.prune(dry_run=True)
    assert set(pruned.leftovers) == {part, old}
    assert pruned.size == 1000 + old.stat().st_size
    store.prune()
    assert {file.name for file in path.parent.iterdir()} == {path.name, guest.name}
    assert (guest / "mine.txt").read_text() == "kept"


def test_what_earlier_versions_left_beside_outputs_is_swept_and_nothing_else(tmp_path: Path) -> None:
    def header(metadata: dict[str, str] | None, end: bytes = b"\0" * 50) -> bytes:
        text = json.dumps({**({"__metadata__": metadata} if metadata is not None else {}), "w": {}}).encode()
        return len(text).to_bytes(8, "little") + text + end

    swept = {".tmpAAAAA1": header({"coset.train": "{}"}), ".tmpBBBBB2": header({"coset.version": "1"}, b"")}
    kept = {
        ".tmpCCCCC3": header({"format": "pt"}),  # of another program, perhaps
        ".tmpDDDDD4": header(None),
        ".tmpEEEEE5": b"my notes",
        ".tmpFFFFF6": b"",
        ".tmpGGGGG7": b"\xff" * 8 + b"{",
        ".tmpHHHHH": header({"coset.train": "{}"}),
        ".tmpIIIIII9": header({"coset.train": "{}"}),
        "tmpJJJJJJ": header({"coset.train": "{}"}),
        "other.safetensors": header({"coset.train": "{}"}),
    }
    for name, content in {**swept, **kept}.items():
        (tmp_path / name).write_bytes(content)
    age(tmp_path, 2)
    young = tmp_path / ".tmpKKKKK0"
    young.write_bytes(header({"coset.train": "{}"}))
    write_text(tmp_path / "a.json", "{}")
    assert {path.name for path in tmp_path.iterdir()} == {*kept, young.name, "a.json"}


@contextmanager
def at_most(size: int) -> Iterator[None]:
    """Files of this process cannot grow beyond ``size`` bytes: the system refuses to write, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(
    "write",
    [
        *WRITES,
        lambda folder, tensor: write_bytes(folder / "b", tensor.numpy().tobytes()),
        lambda folder, tensor: Element(scales={"f": tensor.exp()}).save(folder / "g.safetensors"),
    ],
)
def test_a_write_that_the_system_refuses_is_one_line_and_leaves_nothing(
    tmp_path: Path, write: Callable[[Path, torch.Tensor], object]
) -> None:
    write(tmp_path, torch.zeros(2))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    (target,) = before
    with at_most(20_000), pytest.raises(InputError) as caught:
        write(tmp_path, torch.zeros(10_000))
    assert str(caught.value) == f"{target} cannot be written: {os.strerror(errno.EFBIG)}"
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_what_safetensors_says_of_the_system_is_said_as_the_system_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*arguments: object) -> None:
        raise safetensors.SafetensorError(f"I/O error: {os.strerror(number)} (os error {number})")

    monkeypatch.setattr(tensor_files, "save_file", refuse)
    with pytest.raises(InputError) as caught:
        write_checkpoint(tmp_path / "w", {"w": torch.ones(1)})
    assert str(caught.value) == f"{tmp_path / 'w'} cannot be written: {os.strerror(number)}"
    assert list(tmp_path.iterdir()) == []


_FULL = """
import sys, torch
from pathlib import Path
from coset.checkpoints import write_checkpoint
from coset.errors import InputError
from coset._files.atomic import write_text
from coset.store import Store
from coset.train import Recipe, fit
folder = Path(sys.argv[1])
wide = torch.nn.Sequential(torch.nn.Linear(8, 40_000), torch.nn.Linear(40_000, 2))
x, y = torch.zeros(4, 8), torch.zeros(4, dtype=torch.long)
recipe = Recipe(epochs=1, batch_size=4, learning_rate=0.1)
tasks = [
    lambda: fit(wide, x, y, recipe, seed=0, checkpoint=folder / "run", show=False),
    lambda: write_checkpoint(folder / "w.safetensors", wide.state_dict()),
    lambda: Store(folder).put({"kind": "wide"}, wide.state_dict()),
    lambda: write_text(folder / "sym.json", "x" * 3_000_000),
]
for task in tasks:
    try:
        task()
        print("written")
    except InputError as error:
        print(error)
print(sorted(path.name for path in folder.rglob("*") if path.is_file()))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="mounts a small disk in a namespace of its own")
def test_a_full_disk_is_said_in_one_line_that_names_the_file(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = 'mount -t tmpfs -o size=1m none "$1" && exec "$2" -c "$3" "$1"'
    able = subprocess.run(
        ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=1m none "$1"', "sh", str(disk)],
        capture_output=True,
        check=False,
    )
    if able.returncode:
        pytest.skip("no file systems can be mounted here")
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", mount, "sh", str(disk), sys.executable, _FULL],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stderr, done.returncode) == ("", 0)
    *messages, left = done.stdout.splitlines()
    names = [r"disk/run", r"disk/w\.safetensors", r"disk/\w\w/\w{64}\.safetensors", r"disk/sym\.json"]
    for name, message in zip(names, messages, strict=True):
        assert re.fullmatch(rf"\S*{name} cannot be written: No space left on device", message)
    assert left == "[]"
