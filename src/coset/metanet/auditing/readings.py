"""What a reader says of networks: called, checked and compared each time, as rows of numbers."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coset._checks import check_choice
from coset._show.progress import SILENT, Ticker
from coset.errors import InputError, one_line
from coset.metanet.auditing.networks import Stack, flat

OUTPUTS = ("numbers", "labels", "parameters")

AT_ONCE = 2**24
"""Numbers of networks that a reader of stacks is given at once."""

EXPECTED = "expected a number, a vector, a label or a dict of parameters"


class Readings:
    """A reader that is asked about stacks of networks; every answer is (N, d), float64, or int64 for labels.

    The reader is given copies, which it may not change. What it says must be finite and always of one type and shape.
    ``output``: one of ``OUTPUTS``, found by the first answer unless it is given. ``count``: networks that were read.
    """

    def __init__(self, reader: Callable[[Any], Any], *, batch: bool, output: str | None) -> None:
        if not callable(reader):
            raise InputError(f"reader is a {type(reader).__name__}; expected a function of parameters")
        if output is not None:
            check_choice("kind_of_output", output, OUTPUTS)
        self.output = output
        self.bar: Ticker = SILENT
        self.count = 0
        self._reader, self._batch = reader, batch
        self._form: tuple[object, ...] | None = None
        self._labels: dict[object, int] = {}

    def __call__(self, stack: Stack) -> Tensor:
        """What the reader says of every network of a stack, (N, d)."""
        step = max(1, AT_ONCE // max(1, stack.size)) if self._batch else 1
        parts = []
        for start in range(0, len(stack), step):
            piece = stack.rows(range(start, min(start + step, len(stack))))
            parts.append(self._read(piece))
            self.count += len(piece)
            self.bar.advance(len(piece))
        return torch.cat(parts)

    def _read(self, stack: Stack) -> Tensor:
        where = stack.names[0] if len(stack) == 1 else f"{stack.names[0]} and {len(stack) - 1} more"
        tensors = stack.tensors if self._batch else {name: tensor[0] for name, tensor in stack.tensors.items()}
        copies: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            first = stack.first[name]
            one = first in copies and stack.tensors[first] is stack.tensors[name]
            copies[name] = copies[first] if one else tensor.clone()
        given = dict(copies)
        try:
            answer = self._reader(given)
        except InputError:
            raise
        except Exception as error:  # a stranger's function may raise anything
            raise InputError(f"the reader failed on {where}: {type(error).__name__}: {one_line(error, 300)}") from error
        found = self._numbers(answer, len(stack), where, tensors)
        if given.keys() != tensors.keys() or any(given[name] is not copies[name] for name in copies):
            raise InputError("the reader changes the dict that it is given; expected one that leaves it as it is")
        for name, tensor in tensors.items():
            if not torch.equal(copies[name], tensor):
                raise InputError(
                    f"the reader changes '{name}' of the network that it is given; expected one that leaves it as it is"
                )
        if not bool(torch.isfinite(found).all()):
            number = int((~torch.isfinite(found)).any(1).nonzero()[0])
            value = found[number][~torch.isfinite(found[number])][0]
            raise InputError(f"the reader gives {float(value)} for {stack.names[number]}; expected finite numbers")
        return found

    def _numbers(self, answer: Any, count: int, where: str, tensors: Mapping[str, Tensor]) -> Tensor:
        """An answer as rows (N, d), refused unless it is like the one before."""
        value = _plain(answer)
        if isinstance(value, Mapping):
            rows, form, natural = self._parameters(value, where, tensors), ("parameters", *sorted(value)), OUTPUTS[2]
        elif isinstance(value, Tensor):
            rows, form, natural = self._tensor(value, count, where)
        else:
            rows, form, natural = self._listed(value, count, where)
        form = (type(answer).__name__, *form)
        if self._form is None:
            self._form = form
            self.output = self.output or natural
            if self.output != natural and (self.output, natural) != ("numbers", "labels"):
                raise InputError(f"kind_of_output is '{self.output}', and the reader gives {natural} for {where}")
        if form != self._form:
            one, two = (", ".join(map(str, item)) for item in (self._form, form))
            raise InputError(f"the reader gives ({one}) at first and ({two}) for {where}; expected one type and shape")
        return rows if self.output == "labels" else rows.double()

    def _tensor(self, value: Tensor, count: int, where: str) -> tuple[Tensor, tuple[object, ...], str]:
        if value.is_complex():
            raise InputError(f"the reader gives complex numbers for {where}; {EXPECTED}")
        shape = tuple(value.shape)
        if self._batch and (not shape or shape[0] != count):
            raise InputError(
                f"the reader gives a tensor of shape {shape} for a stack of {count} networks ({where}); expected "
                f"({count},) or ({count}, d)"
            )
        own = shape[1:] if self._batch else shape
        if len(own) > 1 or 0 in own:
            raise InputError(f"the reader gives a tensor of shape {own} for each network ({where}); {EXPECTED}")
        rows = value.detach().to("cpu", copy=True).reshape(count, -1)
        if rows.is_floating_point():
            return rows, (value.dtype, own), "numbers"
        return rows.to(torch.int64), (value.dtype, own), "labels"

    def _listed(self, value: Any, count: int, where: str) -> tuple[Tensor, tuple[object, ...], str]:
        """Plain numbers and labels: one, or of a stack a list of as many."""
        values = value if self._batch and isinstance(value, list | tuple) else [value]
        if len(values) != count:
            raise InputError(f"the reader gives {len(values)} answers for {count} networks ({where}); expected as many")
        kinds = {type(one) for one in values}
        kind = next(iter(kinds)) if len(kinds) == 1 else None
        if kind is float:
            return torch.tensor(values, dtype=torch.float64)[:, None], ("float",), "numbers"
        if kind in (int, bool, str):
            if self.output == "numbers" and kind is not str:
                return torch.tensor(values, dtype=torch.float64)[:, None], (kind.__name__,), "labels"
            codes = [self._labels.setdefault(one, len(self._labels)) for one in values]
            natural = "texts" if self.output == "numbers" else "labels"
            return torch.tensor(codes)[:, None], (kind.__name__,), natural
        found = " and ".join(sorted(one.__name__ for one in kinds))
        raise InputError(f"the reader gives {found} for {where}; {EXPECTED}{', one for each' if self._batch else ''}")

    def _parameters(self, value: Mapping[Any, Any], where: str, tensors: Mapping[str, Tensor]) -> Tensor:
        """A dict like the parameters, laid out one after the other as ``layout`` says; what is left out is 0."""
        for name, part in value.items():
            like = tensors.get(name)
            if like is None or not like.is_floating_point():
                raise InputError(f"the reader gives {name!r} for {where}, which is no parameter of floating point")
            if not isinstance(part, Tensor) or not part.is_floating_point() or part.shape != like.shape:
                found = tuple(part.shape) if isinstance(part, Tensor) else type(part).__name__
                raise InputError(f"the reader gives {name!r} of {found} for {where}; expected {tuple(like.shape)}")
        rows = [
            value.get(name, torch.zeros_like(tensors[name])).detach().to("cpu", torch.float64, copy=True)
            for name in layout(tensors)
        ]
        return torch.cat([flat(row) if self._batch else row.reshape(1, -1) for row in rows], 1)


def layout(tensors: Mapping[str, Tensor]) -> list[str]:
    """The parameters of a reading, in order."""
    return [name for name, tensor in tensors.items() if tensor.is_floating_point()]


def _plain(answer: Any) -> Any:
    """NumPy's numbers and arrays as torch's or Python's own; a list of numbers as a vector."""
    if isinstance(answer, np.generic):
        return answer.item() if answer.dtype.kind in "fiubU" else answer
    if isinstance(answer, np.ndarray):
        return torch.as_tensor(answer) if answer.dtype.kind in "fiub" else answer.tolist()
    if isinstance(answer, list | tuple) and answer and all(type(one) is float for one in answer):
        return torch.tensor(answer, dtype=torch.float64)
    return answer


def distances(one: Tensor, two: Tensor) -> Tensor:
    """How far rows (N, d) are apart, (N,): Euclidean for numbers; for labels 1 where they differ, else 0."""
    if not one.is_floating_point():
        return (one != two).any(-1).double()
    apart: Tensor = torch.linalg.vector_norm(one - two, dim=-1)
    return apart
