"""From the files of a dataset, each read once and compared with what was published, to arrays and tensors."""

import functools
import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coset._checks import is_count
from coset.data._checking import fetch_command, locate
from coset.data._content import checksum
from coset.data._content import verify as verify_part
from coset.data._dataset import Dataset, Split
from coset.data._plain import Raw, read_plain
from coset.data._text import windows
from coset.data.catalog import Entry, lookup
from coset.data.normalization import Normalization, apply_in_place, fit_array, identity
from coset.data.splitting import check_seed
from coset.errors import InputError

WINDOW = 128
"""Characters in a window of a text, unless told otherwise."""


def load(
    name: str,
    *,
    split: int = 0,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    normalize: bool = True,
    flatten: bool = False,
    window: int | None = None,
    verify: bool = True,
    root: str | os.PathLike[str] | None = None,
) -> Dataset:
    """A dataset as tensors in memory: images (N, C, H, W) or features (N, D); labels (N,) int64 or targets (N, 1).

    A text has windows (N, T) of characters, int64, by their numbers in ``classes``, and as labels (N, T) the next ones.

    - ``split``: which of the 20 canonical splits, for the UCI sets.
    - ``seed``: of the stratified cut that holds out a fifth, for ``digits``, ``digits-text`` and ``breast-cancer``.
    - ``normalize``: give each channel, feature and target mean 0 and standard deviation 1 over the whole train part,
      validation examples that ``split`` cuts out of it later included. To keep those out, load with
      ``normalize=False``, cut, and apply ``Normalization.fit(train.x)`` to each part. Without it images are in [0, 1],
      features and targets as published.
    - ``flatten``: inputs as (N, C·H·W).
    - ``window``: the T of a text, 128 by default; windows do not overlap.
    - ``verify``: refuse files whose content is not the published one, by SHA-256.
    - ``root``: look there, instead of in ``COSET_DATA`` and the cache.

    The arithmetic is done on the CPU, in float64 for tables and at least in float32 for images, so that the tensors do
    not depend on the device.
    """
    entry = lookup(name)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise InputError(f"dtype is {dtype!r}, expected a floating point type")
    variant = _variant(entry, split, seed)
    place = _device(device)
    _check_window(entry, window)
    if entry.parts:
        raw, content = read_published(entry, locate(entry, root), variant, compare=verify)
    else:
        raw, content = _read_embedded(entry, variant)
    if entry.text:
        return _text(entry, raw, f"{name} {variant}", content, WINDOW if window is None else window, place)
    options = f"{name} {variant} {dtype} normalize={normalize} flatten={flatten}"
    regression = entry.task == "regression"
    x_normalization = fit_array(raw.x_train, raw.scale) if normalize else identity(raw.x_train.shape[1])
    y_normalization = None
    if regression:
        y_normalization = fit_array(raw.y_train) if normalize else identity(raw.y_train.shape[1])

    def inputs(array: NDArray[Any]) -> Tensor:
        x = _tensor(array, raw.scale, x_normalization, dtype)
        return (x.flatten(1) if flatten else x).to(place)

    def targets(array: NDArray[Any]) -> Tensor:
        if y_normalization is None:
            return torch.from_numpy(array.astype(np.int64)).to(place)
        return _tensor(array, 1.0, y_normalization, dtype).to(place)

    return Dataset(
        name=name,
        task=entry.task,
        train=Split(inputs(raw.x_train), targets(raw.y_train)),
        test=Split(inputs(raw.x_test), targets(raw.y_test)),
        classes=entry.classes,
        x_normalization=x_normalization,
        y_normalization=y_normalization,
        fingerprint=_fingerprint(options, content),
        unlabelled=None if raw.unlabelled is None else inputs(raw.unlabelled),
    )


def _text(entry: Entry, raw: Raw, options: str, content: str, window: int, place: torch.device) -> Dataset:
    """A text in windows; characters are counted and not measured, so that nothing is normalized."""

    def cut(ids: NDArray[Any], part: str) -> Tensor:
        return torch.from_numpy(windows(ids, window, f"the {part} part of {entry.name}")).to(place)

    return Dataset(
        name=entry.name,
        task=entry.task,
        train=Split(cut(raw.x_train, "train"), cut(raw.y_train, "train")),
        test=Split(cut(raw.x_test, "test"), cut(raw.y_test, "test")),
        classes=entry.classes,
        x_normalization=identity(1),
        y_normalization=None,
        fingerprint=_fingerprint(f"{options} window={window}", content),
    )


def _fingerprint(options: str, content: str) -> str:
    return hashlib.sha256(f"{options}\n{content}".encode()).hexdigest()


def read_published(entry: Entry, folder: Path, variant: int, *, compare: bool = True) -> tuple[Raw, str]:
    """The arrays of a dataset with files in ``folder``, and the checksums of its parts in one string.

    Content other than published is an error that says which command replaces it; without ``compare`` it is read.
    """
    # Checksums and values come from the same bytes, which are decompressed once.
    read = functools.cache(read_plain)
    if compare:
        try:
            sums = [verify_part(part, folder, read) for part in entry.parts]
        except InputError as error:
            raise InputError(f"{error}; run: {fetch_command(entry, folder)}") from error
    else:
        sums = [checksum(part, folder, read) for part in entry.parts]
    return entry.read(folder, variant, read), " ".join(sums)


def _read_embedded(entry: Entry, variant: int) -> tuple[Raw, str]:
    """The arrays of a dataset inside scikit-learn, and their checksum."""
    raw = entry.read(Path(), variant, read_plain)
    digest = hashlib.sha256()
    for array in (raw.x_train, raw.y_train, raw.x_test, raw.y_test):
        # Little-endian bytes, so that the machine does not matter.
        portable = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        digest.update(f"{portable.dtype.str} {portable.shape}\n".encode())
        digest.update(portable.data)
    return raw, digest.hexdigest()


def _variant(entry: Entry, split: int, seed: int) -> int:
    """The number that the reader wants; a choice that the dataset does not offer is refused, not ignored."""
    if entry.splits == 0:
        if split != 0:
            raise InputError(f"split is {split}, but {entry.name} has no canonical splits: choose a seed instead")
        return check_seed(seed)
    if seed != 0:
        raise InputError(f"seed is {seed}, but the test part of {entry.name} is fixed: leave seed at 0")
    if type(split) is not int or not 0 <= split < entry.splits:
        raise InputError(f"split is {split!r}, expected 0 to {entry.splits - 1} for {entry.name}")
    return split


def _check_window(entry: Entry, window: int | None) -> None:
    if window is None:
        return
    if not entry.text:
        raise InputError(f"window is {window!r}, but {entry.name} is no text: leave window out")
    if not is_count(window):
        raise InputError(f"window is {window!r}, expected a whole number of at least 1")


def _device(device: str | torch.device) -> torch.device:
    try:
        return torch.empty(0, device=device).device
    # Where torch was built without the device it says so with an assertion.
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"device is {str(device)!r}, expected one that torch can use here: {reason}") from error


def _tensor(array: NDArray[Any], scale: float, normalization: Normalization, dtype: torch.dtype) -> Tensor:
    """``array / scale``, normalized; in place, because images fill much of the memory."""
    exact = torch.float64 if array.dtype == np.float64 or dtype == torch.float64 else torch.float32
    x = torch.from_numpy(np.require(array, requirements=["C", "W"])).to(exact, copy=True)
    return apply_in_place(normalization, x.div_(scale)).to(dtype)
