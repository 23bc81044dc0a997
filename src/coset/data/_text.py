"""Texts as characters: each is an example, and the one behind it is its label."""

import string
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coset.data._plain import Raw, Read, read_plain
from coset.errors import InputError

TRAIN_FRACTION = 0.9
"""The first part of a text, the rest being the test part."""

SHAKESPEARE = tuple("\n !$&',-.3:;?" + string.ascii_uppercase + string.ascii_lowercase)
"""The characters of TinyShakespeare in their own order."""

DRAWN = (" ", ".", "o", "#", "\n")
"""What images are drawn with: from white to black, and the end of a row."""


def read_text(path: Path, characters: tuple[str, ...], *, read: Read = read_plain) -> Raw:
    """The characters of a file by their numbers: the first nine tenths to train, the last tenth to test."""
    try:
        text = read(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start} is not text, expected UTF-8") from error
    ids = encode(text, characters, str(path))
    cut = int(TRAIN_FRACTION * len(ids))
    return successive(ids[:cut], ids[cut:])


def encode(text: str, characters: tuple[str, ...], what: str) -> NDArray[np.uint8]:
    """The number of every character of ``text``, (N,); one that is not known is refused by its place."""
    numbers = {character: number for number, character in enumerate(characters)}
    try:
        return np.fromiter((numbers[character] for character in text), np.uint8, len(text))
    except KeyError as error:
        place = text.index(error.args[0])
        raise InputError(
            f"{what}: character {error.args[0]!r} at position {place}, expected one of {''.join(characters)!r}"
        ) from error


def successive(train: NDArray[np.uint8], test: NDArray[np.uint8]) -> Raw:
    """Every character with the next one as its label; the last ones of both parts have none."""
    for name, ids in (("train", train), ("test", test)):
        if len(ids) < 2:
            raise InputError(f"the {name} part of the text has {len(ids)} characters, expected at least 2")
    return Raw(train[:-1], train[1:], test[:-1], test[1:])


def draw(images: NDArray[Any], scale: float) -> NDArray[np.uint8]:
    """Images (N, H, W) of values from 0 to ``scale`` as the numbers of characters: rows, and an empty one behind each.

    (N · (H · (W + 1) + 1),): four shades of equal width.
    """
    shades = len(DRAWN) - 1
    levels = np.minimum(images.astype(np.float64) / scale * shades, shades - 1).astype(np.uint8)
    rows = np.pad(levels, ((0, 0), (0, 0), (0, 1)), constant_values=shades).reshape(len(images), -1)
    return np.pad(rows, ((0, 0), (0, 1)), constant_values=shades).reshape(-1)


def windows(ids: NDArray[Any], length: int, what: str) -> NDArray[np.int64]:
    """(N,) to (N // length, length), one window behind the other; what is left at the end is left out."""
    count = len(ids) // length
    if count == 0:
        raise InputError(f"window is {length}, and {what} has {len(ids)} characters; expected a window that fits")
    return ids[: count * length].reshape(count, length).astype(np.int64)
