"""The data a command computes on: a part of a known dataset or a NumPy file, in the shape and type the model takes."""

import math
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from coset.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import Tensor

    from coset.data import Dataset, Normalization

SUFFIXES = (".npy", ".npz")

LARGEST = 1 << 33
"""Bytes of an array in an .npz file, which may be small and yet fill the memory."""


@dataclass(frozen=True)
class Choice:
    """Which examples: a part of a dataset, at most ``limit`` of them, normalized by itself or by ``mean`` and ``std``.

    ``mean`` and ``std`` are numbers separated by commas, one per channel, for pixels in [0, 1].
    """

    name: str
    part: str = "train"
    limit: int | None = None
    mean: str | None = None
    std: str | None = None
    seed: int = 0

    @property
    def criterion(self) -> str:
        """What the outputs of a network cost on these data."""
        from coset.data.catalog import lookup

        return "mse" if lookup(self.name).task == "regression" else "cross-entropy"

    def __str__(self) -> str:
        amount = "all" if self.limit is None else f"at most {self.limit}, seed {self.seed}"
        scale = "normalized" if self.mean is None else f"mean {self.mean}, std {self.std}"
        return f"{self.name}, {self.part} part, {amount}, {scale}"


def choose(
    name: str | None, part: str, limit: int | None, mean: str | None, std: str | None, seed: int
) -> Choice | None:
    """``chosen``, or None without a name."""
    if name is not None:
        return chosen(name, part, limit, mean, std, seed)
    _check(part, seed)
    if part != "train" or limit is not None or mean is not None or std is not None:
        raise InputError("--split, --limit, --mean and --std say which data are used; they need --data")
    return None


def chosen(name: str, part: str, limit: int | None, mean: str | None, std: str | None, seed: int) -> Choice:
    """The choice of data, checked as far as it can be before anything is read."""
    _check(part, seed)
    choice = Choice(name, part, limit, mean, std, seed)
    _normalization(choice)
    return choice


def _check(part: str, seed: int) -> None:
    from coset.data.splitting import check_seed

    check_seed(seed)
    if part not in ("train", "test"):
        raise InputError(f"--split is '{part}', expected train or test")


def load_examples(choice: Choice, inputs: Sequence["Tensor"], dtype: "torch.dtype") -> tuple["Tensor", "Tensor"]:
    """Inputs and targets for a model that takes tensors like ``inputs``; images are flattened where it does."""
    from coset.data import load
    from coset.data.catalog import lookup

    if lookup(choice.name).text:
        return _load_windows(choice, inputs)
    shape = lookup(choice.name).shape
    if len(inputs) != 1 or not inputs[0].is_floating_point():
        raise InputError(f"--data {choice.name} gives one tensor of numbers as input; the model takes others")
    wanted = tuple(inputs[0].shape[1:])
    flatten = wanted == (math.prod(shape),)
    if wanted != shape and not flatten:
        raise InputError(f"--data {choice.name} has inputs of shape {shape}; the model takes {wanted}")
    given = _normalization(choice, shape[0])
    x, y = _part_of(load(choice.name, normalize=given is None, flatten=flatten, dtype=dtype), choice)
    return x if given is None else given.apply(x), y


def _load_windows(choice: Choice, inputs: Sequence["Tensor"]) -> tuple["Tensor", "Tensor"]:
    """Windows of a text as long as the model's inputs, and the characters that follow."""
    from coset.data import load

    if len(inputs) != 1 or inputs[0].is_floating_point() or inputs[0].ndim != 2:
        raise InputError(f"--data {choice.name} gives one tensor of tokens (N, T) as input; the model takes others")
    if choice.mean is not None:
        raise InputError(f"--data {choice.name} is a text, which is not normalized; leave --mean and --std out")
    return _part_of(load(choice.name, window=inputs[0].shape[1]), choice)


def _part_of(data: "Dataset", choice: Choice) -> tuple["Tensor", "Tensor"]:
    """The examples that are chosen of the part that is chosen."""
    split = data.train if choice.part == "train" else data.test
    if len(split) == 0:
        raise InputError(f"--split {choice.part}: {choice.name} has no examples there")
    drawn = _drawn(len(split), choice)
    return split.x[drawn], split.y[drawn]


def load_inputs(choice: Choice, inputs: Sequence["Tensor"], dtype: "torch.dtype") -> "Tensor":
    """Inputs for a model that takes tensors like ``inputs``, of the dataset or file that ``choice`` names.

    A file holds inputs as the model takes them, or bytes, which become numbers from 0 to 1; then --mean and --std.
    """
    if Path(choice.name).suffix not in SUFFIXES:
        return load_examples(choice, inputs, dtype)[0]
    if len(inputs) != 1:
        raise InputError(f"--data {choice.name} gives one tensor as input; the model takes {len(inputs)}")
    x = _typed(_array(Path(choice.name), choice.part), choice.name, inputs[0], dtype)
    wanted = tuple(inputs[0].shape[1:])
    if tuple(x.shape[1:]) != wanted and wanted != (math.prod(x.shape[1:]),):
        raise InputError(f"--data {choice.name} has shape {tuple(x.shape)}; the model takes inputs of shape {wanted}")
    given = _normalization(choice, x.shape[1])
    x = (x if given is None else given.apply(x))[_drawn(len(x), choice)]
    return x.reshape(len(x), *wanted)


def _drawn(count: int, choice: Choice) -> "Tensor | slice":
    """Which of ``count`` examples: all of them, or the ``limit`` that the seed draws."""
    import torch

    if choice.limit is None or choice.limit >= count:
        return slice(None)
    return torch.randperm(count, generator=torch.Generator().manual_seed(choice.seed))[: choice.limit]


def _normalization(choice: Choice, channels: int | None = None) -> "Normalization | None":
    """What ``mean`` and ``std`` say, for data of so many channels if that is known; None where they say nothing."""
    from coset.data import Normalization

    if choice.mean is None and choice.std is None:
        return None
    if choice.mean is None or choice.std is None:
        raise InputError("--mean and --std belong together; one of them is missing")
    mean, std = numbers("--mean", choice.mean), numbers("--std", choice.std)
    if len(mean) != len(std) or min(std) <= 0:
        raise InputError(f"--mean is {choice.mean} and --std {choice.std}; expected as many of each, --std above 0")
    if channels is not None and len(mean) != channels:
        raise InputError(f"--mean has {len(mean)} numbers; {choice.name} has {channels} channels")
    return Normalization(mean, std)


def numbers(option: str, text: str) -> tuple[float, ...]:
    """Finite numbers separated by commas."""
    try:
        values = tuple(float(word) for word in text.split(","))
    except ValueError as error:
        raise InputError(f"{option} takes numbers separated by commas, found '{text}'") from error
    if not all(map(math.isfinite, values)):
        raise InputError(f"{option} takes finite numbers, found '{text}'")
    return values


def _typed(array: "NDArray[np.generic]", name: str, like: "Tensor", dtype: "torch.dtype") -> "Tensor":
    """The array as a tensor of the type that the model takes; raises unless it holds examples of finite numbers."""
    import numpy as np
    import torch

    real = like.is_floating_point()
    known = np.issubdtype(array.dtype, np.floating) or array.dtype == np.uint8 if real else array.dtype.kind in "iu"
    if not known:
        expected = "numbers in floating point, or bytes" if real else "whole numbers"
        raise InputError(f"--data {name} holds {array.dtype}; the model takes {expected}")
    if array.ndim < 2 or array.size == 0:
        raise InputError(f"--data {name} has shape {array.shape}; expected examples on axis 0 and an input behind it")
    if not real:
        return torch.from_numpy(array.astype(np.int64))
    x = torch.from_numpy(array.astype(np.float64)).to(dtype)
    if not bool(torch.isfinite(x).all()):
        raise InputError(f"--data {name} holds NaN or infinite values; expected finite numbers")
    return x / 255 if array.dtype == np.uint8 else x


def _array(path: Path, part: str) -> "NDArray[np.generic]":
    """The array of a .npy file; of several in an .npz file, that called x_train or x_test as ``part`` says, or x."""
    from coset.data.numpy_files import MAGIC, read_npy, read_npz

    if not path.is_file():
        raise InputError(f"--data {path} does not exist; expected a NumPy file, or a name from `coset data list`")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"--data {path} cannot be read: {error.strerror or error}") from error
    if content.startswith(MAGIC) or (path.suffix == ".npy" and not content.startswith(b"PK")):
        return read_npy(content, f"--data {path}")

    def choose(present: Sequence[str]) -> list[str]:
        names = [name for name in (f"x_{part}", "x") if name in present][:1] or list(present)
        if len(names) != 1:
            raise InputError(f"--data {path} holds {reprlib.repr(names)}; expected an array called x_{part} or x")
        return names

    (found,) = read_npz(content, f"--data {path}", choose, LARGEST).values()
    return found
