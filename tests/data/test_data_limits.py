"""Files that claim, or unpack to, far more than they hold: refused before anything of that size is allocated."""

import gzip
import io
import struct
import tracemalloc
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from coset.data import _plain as plain
from coset.data._idx import read_idx
from coset.data._plain import read_plain
from coset.data.numpy_files import read_npy, read_npz
from coset.errors import InputError


@contextmanager
def refused(message: str) -> Iterator[None]:
    """An InputError with this message, for which little memory was used."""
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=message):
            yield
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


def npy(array: np.ndarray, allow_pickle: bool = False) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=allow_pickle)
    return stream.getvalue()


def claiming(shape: str, descr: str = "'<f8'") -> bytes:
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + b"\0" * 64


def test_a_gzip_bomb_inside_an_idx_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "LARGEST", 1 << 20)
    path = tmp_path / "images.gz"
    header = struct.pack(">HBBII", 0, 8, 2, 20_000, 1000)
    path.write_bytes(gzip.compress(header + bytes(20_000_000)))
    assert path.stat().st_size < 30_000
    with refused(r"images\.gz: holds more than 1048576 bytes, expected a file of a dataset"):
        read_idx(path)
    path.write_bytes(gzip.compress(header) + gzip.compress(bytes(20_000_000)))  # in a second member
    with refused("holds more than 1048576 bytes"):
        read_idx(path)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "data.txt"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with refused(rf"data\.txt: holds more than {1 << 28} bytes"):
        read_plain(path)


def test_idx_dimensions(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(struct.pack(">HBB", 0, 8, 200) + struct.pack(">I", 1) * 200 + b"\0")
    with pytest.raises(InputError, match="x: has 200 dimensions, expected at most 32"):
        read_idx(path)


@pytest.mark.parametrize(
    "shape", ["(1000000000000, 2)", "(2000000000,)", "(0, -1)", "(9,)", "(7,)", "(" + "10," * 60 + ")"]
)
def test_an_npy_header_is_compared_with_the_bytes_behind_it(shape: str) -> None:
    with refused(r"^x\.npy: (holds 64 bytes of values, expected \d+|not a sound)"):
        read_npy(claiming(shape), "x.npy")
    assert read_npy(claiming("(8,)"), "x.npy").tolist() == [0.0] * 8
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("x.npy", claiming(shape))
    with refused(r"^x\.npz: (holds 64 bytes of values, expected \d+|not a sound)"):
        read_npz(stream.getvalue(), "x.npz", list, 1 << 20)


def test_a_zip_bomb_inside_an_npz_file() -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", npy(np.zeros(2_000_000)))
    with refused(r"x\.npz: x has 16000128 bytes, expected at most 1048576"):
        read_npz(stream.getvalue(), "x.npz", list, 1 << 20)


@pytest.mark.parametrize("descr", ["'|O'", "[('a', '|O')]", "'nonsense'", "__import__('os')", "'<f8", "1e"])
def test_types_that_are_no_plain_numbers(descr: str) -> None:
    with pytest.raises(InputError) as caught:
        read_npy(claiming("(8,)", descr), "x.npy")
    assert str(caught.value).startswith("x.npy: ")
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    "array",
    [np.arange(6.0).reshape(2, 3), np.asfortranarray(np.arange(6).reshape(2, 3)), np.zeros((0, 4)), np.array(3),
     np.array([True, False]), np.arange(4, dtype=">i2")],
)  # fmt: skip
def test_arrays_come_back_as_numpy_reads_them(array: np.ndarray) -> None:
    content = npy(array)
    mine, theirs = read_npy(content, "x"), np.load(io.BytesIO(content))
    assert mine.dtype == theirs.dtype
    assert mine.shape == theirs.shape
    assert np.array_equal(mine, theirs)
    stream = io.BytesIO()
    np.savez_compressed(stream, a=array, b=array)
    found = read_npz(stream.getvalue(), "x", lambda names: [name for name in names if name == "b"], 1 << 20)
    assert list(found) == ["b"]
    assert np.array_equal(found["b"], theirs)
