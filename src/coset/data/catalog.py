"""The datasets that coset knows, one entry each."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from coset._checks import check_choice
from coset.data import _sources as sources
from coset.data._content import Part
from coset.data._dataset import Task
from coset.data._idx import read_mnist
from coset.data._plain import Raw, Read, require_file
from coset.data._sources import Source
from coset.data._tables import SPLITS, read_snelson, read_uci
from coset.data._text import DRAWN, SHAKESPEARE, draw, read_text, successive
from coset.data.cifar import read_cifar10, read_cifar100, read_slice
from coset.data.splitting import partition

TEST_FRACTION = 0.2

# Names of the classes, in the order of the labels.
DIGITS = tuple("0123456789")

TUMOURS = ("malignant", "benign")

FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

_CIFAR100 = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle
bowl boy bridge bus butterfly camel can castle caterpillar cattle
chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur
dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard
lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain
mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree
plain plate poppy porcupine possum rabbit raccoon ray road rocket
rose sea seal shark shrew skunk skyscraper snail snake spider
squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor
train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""
CIFAR100 = tuple(_CIFAR100.split())


def read_digits(seed: int) -> Raw:
    """1,797 images of handwritten digits, 8×8 with 17 grey values."""
    return _cut(*_digits(), seed, scale=16.0)


def read_drawn_digits(seed: int) -> Raw:
    """The images of ``digits`` drawn with characters, one below the other, as two texts."""
    digits = read_digits(seed)
    return successive(draw(digits.x_train[:, 0], digits.scale), draw(digits.x_test[:, 0], digits.scale))


def read_breast_cancer(seed: int) -> Raw:
    """569 tumours with 30 features each."""
    return _cut(*_breast_cancer(), seed, scale=1.0)


# Tables of text, read once in a process: parsing them costs more than all that small studies do with them.
@cache
def _digits() -> tuple[NDArray[Any], NDArray[np.int64]]:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return bunch.images.astype(np.uint8)[:, None], bunch.target


@cache
def _breast_cancer() -> tuple[NDArray[Any], NDArray[np.int64]]:
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    return bunch.data, bunch.target


def _cut(x: NDArray[Any], y: NDArray[np.int64], seed: int, scale: float) -> Raw:
    kept, held_out = partition(torch.from_numpy(y), round(TEST_FRACTION * len(y)), seed=seed)
    train, test = kept.numpy(), held_out.numpy()
    return Raw(x[train], y[train], x[test], y[test], scale=scale)


Reader = Callable[[Path, int, Read], Raw]
"""From the root folder, the number of the split (or the seed of the cut) and a way to read files to the arrays."""


@dataclass(frozen=True)
class Entry:
    """What is known about a dataset before it is loaded.

    ``train`` and ``test`` count examples, ``shape`` is that of one input, ``classes`` is empty for regression.
    ``splits`` is the number of canonical train/test splits; 0 means that the test part is cut with a seed. A dataset
    without ``parts`` lives inside scikit-learn; one with ``made_from`` is cut from that dataset instead of downloaded.
    A ``text`` has a character as an example and the next one as its label; ``load`` cuts it into windows.
    """

    name: str
    summary: str
    train: int
    test: int
    shape: tuple[int, ...]
    read: Reader
    classes: tuple[str, ...] = ()
    splits: int = 1
    parts: tuple[Part, ...] = ()
    source: Source | None = None
    made_from: str | None = None
    text: bool = False

    @property
    def task(self) -> Task:
        """Regression is what has no classes."""
        return "classification" if self.classes else "regression"


def lookup(name: str) -> Entry:
    """The entry called ``name``."""
    return CATALOG[check_choice("dataset", name, CATALOG)]


def _mnist(name: str, summary: str, classes: tuple[str, ...], address: str) -> Entry:
    return Entry(
        name=name,
        summary=summary,
        train=60_000,
        test=10_000,
        shape=(1, 28, 28),
        read=lambda root, _, read: read_mnist(root / name, read=read),
        classes=classes,
        parts=sources.parts(tuple(f"{name}/{file}" for file in sources.IDX_FILES)),
        source=sources.file_source(address, {f"{file}.gz": f"{name}/{file}.gz" for file in sources.IDX_FILES}),
    )


def _cifar(
    name: str, summary: str, classes: tuple[str, ...], read: Reader, files: tuple[str, ...], archive: str
) -> Entry:
    return Entry(
        name=name,
        summary=summary,
        train=50_000,
        test=10_000,
        shape=(3, 32, 32),
        read=read,
        classes=classes,
        parts=sources.parts(files),
        source=sources.archive_source(sources.TORONTO, archive, {file: file for file in files}),
    )


def _uci(name: str, summary: str, train: int, test: int, features: int) -> Entry:
    return Entry(
        name=f"uci/{name}",
        summary=summary,
        train=train,
        test=test,
        shape=(features,),
        read=lambda root, split, read: read_uci(root / "uci" / name, split, read=read),
        splits=SPLITS,
        parts=sources.uci_parts(name),
        source=sources.file_source(
            sources.UCI, {f"{name}/data/{file}": f"uci/{name}/{file}" for file in ("data.txt", *sources.UCI_INDICES)}
        ),
    )


_ENTRIES = (
    Entry(
        name="digits",
        summary="handwritten digits, inside scikit-learn",
        train=1438,
        test=359,
        shape=(1, 8, 8),
        read=lambda _, seed, __: read_digits(seed),
        classes=DIGITS,
        splits=0,
    ),
    Entry(
        name="breast-cancer",
        summary="tumours, malignant or benign, inside scikit-learn",
        train=455,
        test=114,
        shape=(30,),
        read=lambda _, seed, __: read_breast_cancer(seed),
        classes=TUMOURS,
        splits=0,
    ),
    _mnist("mnist", "handwritten digits", DIGITS, sources.MNIST),
    _mnist("fashion-mnist", "articles of clothing", FASHION, sources.FASHION),
    _cifar(
        "cifar10",
        "photographs of animals and vehicles",
        CIFAR10,
        lambda root, _, read: read_cifar10(root / "cifar-10-batches-bin", read=read),
        sources.CIFAR10_FILES,
        "cifar-10-binary.tar.gz",
    ),
    Entry(
        name="cifar10-slice",
        summary="the first images of cifar10",
        train=2000,
        test=1000,
        shape=(3, 32, 32),
        read=lambda root, _, read: read_slice(require_file(root, "cifar10-slice.npz"), read=read),
        classes=CIFAR10,
        parts=sources.parts(("cifar10-slice.npz",), "arrays"),
        made_from="cifar10",
    ),
    _cifar(
        "cifar100",
        "photographs of a hundred kinds of things",
        CIFAR100,
        lambda root, _, read: read_cifar100(root / "cifar-100-binary", read=read),
        sources.CIFAR100_FILES,
        "cifar-100-binary.tar.gz",
    ),
    Entry(
        name="snelson",
        summary="a curve, with 301 more inputs that have no targets",
        train=200,
        test=0,
        shape=(1,),
        read=lambda root, _, read: read_snelson(root / "snelson", read=read),
        parts=sources.parts(tuple(f"snelson/{file}.dat" for file in sources.SNELSON_FILES), "numbers"),
        source=sources.archive_source(
            sources.GATSBY,
            "SPGP_dist.zip",
            {f"SPGP_dist/{file}": f"snelson/{file}.dat" for file in sources.SNELSON_FILES},
        ),
    ),
    Entry(
        name="tinyshakespeare",
        summary="plays of Shakespeare as characters, the next one to be told",
        train=1_003_853,
        test=111_539,
        shape=(),
        read=lambda root, _, read: read_text(require_file(root, sources.TINYSHAKESPEARE), SHAKESPEARE, read=read),
        classes=SHAKESPEARE,
        parts=sources.parts((sources.TINYSHAKESPEARE,)),
        source=sources.file_source(sources.CHAR_RNN, {sources.TINYSHAKESPEARE: sources.TINYSHAKESPEARE}),
        text=True,
    ),
    Entry(
        name="digits-text",
        summary="digits drawn with characters, the next one to be told",
        train=104_973,
        test=26_206,
        shape=(),
        read=lambda _, seed, __: read_drawn_digits(seed),
        classes=DRAWN,
        splits=0,
        text=True,
    ),
    _uci("bostonHousing", "prices of houses in suburbs of Boston", 455, 51, 13),
    _uci("concrete", "compressive strength of concrete", 927, 103, 8),
    _uci("energy", "heating load of buildings", 691, 77, 8),
    _uci("yacht", "resistance of sailing yachts", 277, 31, 6),
)

CATALOG: dict[str, Entry] = {entry.name: entry for entry in _ENTRIES}
