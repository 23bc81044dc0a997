"""Data in the forms people have it, as batches: tensors in memory, or any loader."""

from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass
from itertools import chain
from typing import Any, Generic, TypeGuard, TypeVar

from torch import Tensor

from coset._checks import check_count
from coset.errors import InputError

BATCH_SIZE = 500

Inputs = Tensor | Iterable[Any]
"""Inputs of a model: one tensor, a pair of tensors (inputs, targets) of which the first is taken, or an iterable of
batches, each a tensor or a sequence that begins with one."""

Labelled = tuple[Tensor, Tensor] | Iterable[Any]
"""Inputs with targets: a pair of tensors, or an iterable of batches (inputs, targets, …)."""


T = TypeVar("T")


@dataclass(frozen=True)
class Repeated(Generic[T]):
    """What a function without arguments gives, each time anew."""

    make: Callable[[], Iterator[T]]

    def __iter__(self) -> Iterator[T]:
        return self.make()


def input_batches(data: Inputs, batch_size: int = BATCH_SIZE) -> Iterator[Tensor]:
    """The inputs of a model, batch by batch; a tensor is cut into batches of ``batch_size``.

    Of a loader's batches that are sequences (inputs, targets, …) the first part is taken. No data is an error.
    """
    check_count("batch_size", batch_size)
    if is_pair(data):
        data = data[0]
    if isinstance(data, Tensor):
        if data.ndim == 0 or len(data) == 0:
            raise InputError(f"data is a tensor of shape {tuple(data.shape)}; expected at least one input")
        yield from _cut(data, batch_size)
        return
    for number, batch in enumerate(_some(data)):
        inputs = batch[0] if isinstance(batch, tuple | list) and len(batch) > 0 else batch
        if not isinstance(inputs, Tensor):
            raise InputError(f"batch {number} of data is a {type(batch).__name__}; expected a tensor of inputs first")
        yield inputs


def labelled_batches(data: Labelled, batch_size: int = BATCH_SIZE) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs with their targets, batch by batch; a pair of tensors is cut into batches of ``batch_size``."""
    check_count("batch_size", batch_size)
    if is_pair(data):
        x, y = data
        if x.ndim == 0 or y.ndim == 0 or len(x) != len(y) or len(x) == 0:
            raise InputError(
                f"data holds inputs of shape {tuple(x.shape)} and targets of shape {tuple(y.shape)}; expected as many "
                f"of each, and at least one"
            )
        yield from zip(_cut(x, batch_size), _cut(y, batch_size), strict=True)
        return
    for number, batch in enumerate(_some(data)):
        if not (isinstance(batch, tuple | list) and len(batch) > 1 and all(isinstance(p, Tensor) for p in batch[:2])):
            raise InputError(f"batch {number} of data is a {type(batch).__name__}; expected tensors (inputs, targets)")
        yield batch[0], batch[1]


def count_batches(data: Inputs, batch_size: int = BATCH_SIZE) -> int | None:
    """How many batches ``input_batches`` or ``labelled_batches`` gives; None for a loader that does not say."""
    check_count("batch_size", batch_size)
    if is_pair(data):
        data = data[0]
    if isinstance(data, Tensor):
        return 0 if data.ndim == 0 else -(-len(data) // batch_size)
    try:
        return len(data) if isinstance(data, Sized) else None
    except TypeError:
        # A DataLoader over an IterableDataset has a length only where its dataset has one.
        return None


def check_repeatable(data: object, what: str) -> None:
    """Raise if ``data`` is an iterator, which ends, where it is read again and again."""
    if isinstance(data, Iterator):
        raise InputError(
            f"{what} is a {type(data).__name__}, which can be read only once; expected tensors, a list of batches or a "
            f"loader"
        )


def is_pair(data: Any) -> TypeGuard[tuple[Tensor, Tensor]]:
    """A tuple of two tensors is inputs and targets; a list of tensors is batches."""
    return isinstance(data, tuple) and len(data) == 2 and all(isinstance(part, Tensor) for part in data)


def _cut(tensor: Tensor, batch_size: int) -> Iterator[Tensor]:
    return (tensor[start : start + batch_size] for start in range(0, len(tensor), batch_size))


def _some(data: Any) -> Iterable[Any]:
    """The batches of a loader, of which there must be one."""
    if not isinstance(data, Iterable):
        raise InputError(f"data is a {type(data).__name__}; expected tensors or an iterable of batches")
    batches = iter(data)
    for first in batches:
        return chain([first], batches)
    raise InputError("data holds no batches; expected at least one")
