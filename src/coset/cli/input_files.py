"""Inputs that a command computes on: of a known dataset, or from a NumPy file."""

import math
import reprlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from coset.cli.examples import Choice, load_examples, normalization
from coset.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import Tensor

SUFFIXES = (".npy", ".npz")

LARGEST = 1 << 33
"""Bytes of an array in an .npz file, which may be small and yet fill the memory."""


def load_inputs(choice: Choice, inputs: Sequence["Tensor"], dtype: "torch.dtype") -> "Tensor":
    """Inputs for a model that takes tensors like ``inputs``, of the dataset or file that ``choice`` names.

    A file holds inputs as the model takes them, or bytes, which become numbers from 0 to 1; then --mean and --std.
    """
    import torch

    if Path(choice.name).suffix not in SUFFIXES:
        return load_examples(choice, inputs, dtype)[0]
    if len(inputs) != 1:
        raise InputError(f"--data {choice.name} gives one tensor as input; the model takes {len(inputs)}")
    x = _typed(_array(Path(choice.name), choice.part), choice.name, inputs[0], dtype)
    wanted = tuple(inputs[0].shape[1:])
    if tuple(x.shape[1:]) != wanted and wanted != (math.prod(x.shape[1:]),):
        raise InputError(f"--data {choice.name} has shape {tuple(x.shape)}; the model takes inputs of shape {wanted}")
    given = normalization(choice)
    if given is not None:
        if len(given.mean) != x.shape[1]:
            raise InputError(f"--mean has {len(given.mean)} numbers; {choice.name} has {x.shape[1]} channels")
        x = given.apply(x)
    if choice.limit is not None and choice.limit < len(x):
        x = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(choice.seed))[: choice.limit]]
    return x.reshape(len(x), *wanted)


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
