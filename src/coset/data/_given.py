"""Data in whatever form somebody has them: NumPy arrays, parts of datasets, files, functions that make them."""

import reprlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from coset._batches import is_pair, labelled_batches
from coset._callables import load_callable
from coset._files.tensors import read_pytorch
from coset.data._dataset import Split
from coset.data.numpy_files import read_npy, read_npz
from coset.errors import InputError

LARGEST = 1 << 33
"""Bytes of an array in an .npz file, which may be small and yet fill the memory."""

INPUTS = ("x", "inputs", "input", "input_ids", "pixel_values", "image", "img", "features")
TARGETS = ("y", "targets", "target", "label", "labels")
"""Names by which inputs and targets are known in files and tables, the likeliest first."""

FORMS = (
    "tensors or NumPy arrays (inputs, targets), a loader, a datasets.Dataset, a path of .npz or .pt, or "
    "'file.py:function'"
)


def given(data: Any, model: nn.Module | None = None, *, what: str = "data") -> Any:
    """``data`` as tensors where it holds arrays or names a file; loaders and tensors as they are.

    - NumPy arrays, alone or as a pair (inputs, targets), become tensors: real numbers of the type of ``model``'s
      weights (by default torch's), whole numbers int64, bytes of images (N, H, W, …) numbers from 0 to 1;
    - a ``Split``, or a table with columns such as a ``datasets.Dataset``, becomes the pair of its inputs and targets;
    - a path of .npz or .pt, or ``file.py:function`` or ``module:function``, is read, and what is there is given.
    """
    if isinstance(data, Split):
        return data.x, data.y
    if isinstance(data, str | Path):
        return given(_read(str(data), what), model, what=what)
    if isinstance(data, np.ndarray):
        return _tensor(data, model, what, targets=False)
    if isinstance(data, tuple | list) and len(data) == 2 and any(isinstance(part, np.ndarray) for part in data):
        return tuple(
            _tensor(part, model, what, targets=bool(number)) if isinstance(part, np.ndarray) else part
            for number, part in enumerate(data)
        )
    if hasattr(data, "column_names") and hasattr(data, "with_format"):
        columns = list(data.column_names)
        table = data.with_format("numpy")
        return _pair(columns, lambda name: table[name], model, what)
    if isinstance(data, Mapping):
        return _pair(list(data), lambda name: data[name], model, what)
    return data


def given_pair(data: Any, model: nn.Module | None = None, *, what: str = "data") -> tuple[Tensor, Tensor]:
    """``given`` as inputs and targets in two tensors; the batches of a loader are put together."""
    data = given(data, model, what=what)
    tensors = isinstance(data, list) and all(isinstance(part, Tensor) for part in data)
    if isinstance(data, Iterable) and not isinstance(data, tuple | Tensor) and not tensors:
        data = tuple(torch.cat(parts) for parts in zip(*labelled_batches(data), strict=True))
    if not is_pair(data):
        raise InputError(f"{what} is {_told(data)}; expected inputs and targets: {FORMS}")
    return data


def _told(data: Any) -> str:
    """What data are that are no pair of tensors."""
    if isinstance(data, Tensor):
        return f"a tensor of shape {tuple(data.shape)}"
    if isinstance(data, tuple):
        return f"a tuple of {', '.join(type(part).__name__ for part in data) or 'nothing'}"
    return f"a {type(data).__name__}"


def _pair(names: Sequence[str], column: Any, model: nn.Module | None, what: str) -> Any:
    """Inputs and targets of a table or mapping, by their names; inputs alone where there are no targets."""
    x = next((name for name in INPUTS if name in names), None)
    y = next((name for name in TARGETS if name in names), None)
    rest = [name for name in names if name != y]
    if x is None and len(rest) == 1:
        x = rest[0]
    if x is None:
        raise InputError(
            f"{what} has {reprlib.repr(list(names))}; expected inputs called one of {', '.join(INPUTS)}, and targets "
            f"called one of {', '.join(TARGETS)}"
        )
    parts = [column(name) for name in (x, y) if name is not None]
    made = [part if isinstance(part, Tensor) else np.asarray(part) for part in parts]
    return given(tuple(made) if len(made) == 2 else made[0], model, what=what)


def _tensor(array: NDArray[Any], model: nn.Module | None, what: str, *, targets: bool) -> Tensor:
    """An array as a tensor; real numbers of the type of the model's weights."""
    part = f"{'targets' if targets else 'inputs'} of {what}"
    if array.dtype.kind not in "fiub":
        raise InputError(f"{part} are of type {array.dtype} and shape {array.shape}; expected numbers")
    if array.dtype.kind == "f":
        return torch.from_numpy(np.array(array, dtype=np.float64)).to(_real(model))
    if array.dtype == np.uint8 and array.ndim > 2 and not targets:
        return torch.from_numpy(array.astype(np.float64) / 255).to(_real(model))
    return torch.from_numpy(array.astype(np.int64))


def _real(model: nn.Module | None) -> torch.dtype:
    """The type of a model's weights; torch's default without one."""
    like = next((p for p in model.parameters() if p.is_floating_point()), None) if model is not None else None
    return torch.get_default_dtype() if like is None else like.dtype


def _read(name: str, what: str) -> Any:
    """What a file holds, or what a function gives."""
    path, where = Path(name), f"{what} {name}"
    suffix = path.suffix.lower()
    if suffix in (".npz", ".npy", ".pt", ".pth"):
        if not path.is_file():
            raise InputError(f"{where} does not exist")
        try:
            content = path.read_bytes()
        except OSError as error:
            raise InputError(f"{where} cannot be read: {error.strerror or error}") from error
        if suffix == ".npy":
            return read_npy(content, where)
        if suffix == ".npz":
            return {
                name.removesuffix("_train"): array for name, array in read_npz(content, where, _wanted, LARGEST).items()
            }
        return _checked(read_pytorch(path), where)
    if ":" in name:
        made = load_callable(name, what, "a function without arguments that returns data")()
        if isinstance(made, str | Path):
            raise InputError(f"{where} gave {made!r}; expected data")
        return made
    raise InputError(f"{what} is {name!r}; expected {FORMS}")


def _wanted(present: Sequence[str]) -> list[str]:
    """Of the arrays in a file, inputs and targets: those of the training part if there are two parts."""
    plain = [name for name in (*INPUTS, *TARGETS) if name in present]
    train = [f"{name}_train" for name in (*INPUTS, *TARGETS) if f"{name}_train" in present]
    return plain or train or list(present)


def _checked(content: Any, where: str) -> Any:
    """A tensor, a pair or a mapping of tensors, as a .pt file may hold them."""
    parts: Iterable[Any] = content.values() if isinstance(content, Mapping) else content
    if isinstance(content, Tensor) or (
        isinstance(content, Mapping | tuple | list) and all(isinstance(part, Tensor) for part in parts)
    ):
        return tuple(content) if isinstance(content, list) and len(content) == 2 else content
    raise InputError(f"{where} holds a {type(content).__name__}; expected tensors: inputs, a pair, or named x and y")
