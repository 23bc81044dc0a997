"""A file may be compressed: all who look for it find the same one."""

import gzip
from pathlib import Path

import pytest
from small_datasets import ONE, TWO, listing

from coset.data import available, check, fetch, load
from coset.data._idx import read_mnist
from coset.data._plain import find_file, require_file
from coset.data._tables import read_snelson, read_uci
from coset.data.catalog import CATALOG
from coset.data.cifar import read_cifar10, read_cifar100, write_slice
from coset.errors import InputError


def compress(folder: Path) -> None:
    for path in [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".gz"]:
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()


def write_tables(folder: Path) -> None:
    texts = {"data": "1 2\n3 4\n", "index_features": "0", "index_target": "1"}
    texts |= {"index_train_0": "0", "index_test_0": "1"}
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text)


def write_curve(folder: Path) -> None:
    for name in ("train_inputs", "train_outputs", "test_inputs"):
        (folder / f"{name}.dat").write_text("1\n2\n")


def write_cifar10(folder: Path) -> None:
    for name in (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"):
        (folder / f"{name}.bin").write_bytes(bytes(3073))


def write_cifar100(folder: Path) -> None:
    for name in ("train", "test"):
        (folder / f"{name}.bin").write_bytes(bytes(3074))


READERS = {
    "uci": (write_tables, lambda folder: read_uci(folder, 0)),
    "snelson": (write_curve, read_snelson),
    "cifar10": (write_cifar10, lambda folder: read_cifar10(folder, 1)),
    "cifar100": (write_cifar100, lambda folder: read_cifar100(folder, 1, 1)),
}


@pytest.mark.parametrize("name", READERS)
def test_every_reader_takes_compressed_files(tmp_path, name):
    write, read = READERS[name]
    write(tmp_path)
    plain = read(tmp_path)
    compress(tmp_path)
    packed = read(tmp_path)
    assert all(path.suffix == ".gz" for path in tmp_path.iterdir())
    assert packed.x_train.tolist() == plain.x_train.tolist()
    assert packed.y_test.tolist() == plain.y_test.tolist()


def test_mnist_and_the_slice_too(mnist_files, small_cifar10, tmp_path):
    plain = read_mnist(mnist_files, 7, 3)
    compress(mnist_files)
    assert read_mnist(mnist_files, 7, 3).x_train.tolist() == plain.x_train.tolist()
    write_slice(small_cifar10, tmp_path / "cut" / "cifar10-slice.npz")
    compress(tmp_path / "cut")
    assert len(load("cifar10-slice", root=tmp_path / "cut").train) == 2000


@pytest.mark.parametrize("name", ["snelson", "uci/yacht"])
def test_found_means_that_it_loads(data_folder, tmp_path, name):
    for part in CATALOG[name].parts:
        for file in part.files:
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / file).write_bytes(require_file(data_folder, file).read_bytes())
    sound = load(name, root=tmp_path)
    compress(tmp_path)
    assert {row.name: row.found for row in available(tmp_path)}[name] == str(tmp_path)
    assert check(name, tmp_path).ok
    assert load(name, root=tmp_path).fingerprint == sound.fingerprint


def test_the_plain_name_comes_first(tmp_path):
    (tmp_path / "one.gz").write_bytes(b"junk")
    assert find_file(tmp_path, "one") == tmp_path / "one.gz"
    (tmp_path / "one").write_bytes(ONE)
    assert find_file(tmp_path, "one") == tmp_path / "one"
    (tmp_path / "one").unlink()
    (tmp_path / "one").mkdir()
    assert find_file(tmp_path, "one") == tmp_path / "one.gz"
    with pytest.raises(InputError, match=r"two: no such file, compressed \(.gz\) or not"):
        require_file(tmp_path, "two")


def test_what_is_fetched_has_one_name(tiny, tmp_path):
    """The wrong file is the plain one, which comes first; what is downloaded is compressed."""
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "one").write_bytes(b"damaged")
    (tmp_path / "tiny" / "two.gz").write_bytes(b"junk that nobody reads")
    (tmp_path / "tiny" / "two").write_bytes(TWO)
    paths = fetch("tiny", root=tmp_path, source=tiny.address)
    assert paths == (tmp_path / "tiny" / "one.gz", tmp_path / "tiny" / "two")
    assert tiny.asked == [("/one.gz", None)]
    assert listing(tmp_path) == ["tiny/one.gz", "tiny/two", "tiny/two.gz"]
