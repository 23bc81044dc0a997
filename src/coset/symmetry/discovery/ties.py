"""Parameters that share memory: one tensor under two names, a transposed view of another one, overlapping views."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor


@dataclass(frozen=True)
class Tie:
    """``two`` holds entries of ``one``; its dimension j is dimension order[j] of ``one``, or order is None."""

    one: str
    two: str
    order: tuple[int, ...] | None

    @property
    def same(self) -> bool:
        """Whether both are the same tensor, dimension by dimension."""
        return self.order is not None and self.order == tuple(range(len(self.order)))


def ties(tensors: Mapping[str, Tensor]) -> list[Tie]:
    """Pairs of names whose tensors have entries in common, by storage and range; each with the first name it meets."""
    homes: dict[int, list[str]] = {}
    for name, tensor in tensors.items():
        if tensor.numel() and tensor.layout == torch.strided:
            homes.setdefault(tensor.untyped_storage()._cdata, []).append(name)
    found = []
    for names in homes.values():
        known: set[str] = set()
        for one, two in combinations(names, 2):
            if two not in known and _meet(tensors[one], tensors[two]):
                tie = Tie(one, two, _order(tensors[one], tensors[two]))
                found.append(tie)
                if tie.order is not None:
                    known.add(two)
    return found


def _meet(one: Tensor, two: Tensor) -> bool:
    """Whether two views of one storage have bytes in common."""
    spans = []
    for tensor in (one, two):
        size = tensor.element_size()
        start = tensor.storage_offset() * size
        last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True)) * size
        spans.append((start, start + last + size))
    if max(span[0] for span in spans) >= min(span[1] for span in spans):
        return False
    # Views may interleave without an entry in common: columns of one matrix, say.
    return _order(one, two) is not None or bool(torch.isin(_bytes(one), _bytes(two)).any())


def _bytes(tensor: Tensor) -> Tensor:
    """The places in the storage at which entries begin, in bytes; for views of different types their first bytes."""
    places = torch.tensor(tensor.storage_offset())
    for n, step in zip(tensor.shape, tensor.stride(), strict=True):
        places = places[..., None] + torch.arange(n) * step
    return (places.reshape(-1)[:, None] * tensor.element_size() + torch.arange(tensor.element_size())).reshape(-1)


def _order(one: Tensor, two: Tensor) -> tuple[int, ...] | None:
    """The order of dimensions in which ``one`` is ``two``, if there is one; dimensions of size 1 stand anywhere."""
    if one.dtype != two.dtype or one.storage_offset() != two.storage_offset() or one.ndim != two.ndim:
        return None
    free = list(range(one.ndim))
    order = []
    for j in range(two.ndim):
        match = next((i for i in free if one.shape[i] == two.shape[j] and _step(one, i) == _step(two, j)), None)
        if match is None:
            return None
        free.remove(match)
        order.append(match)
    return tuple(order)


def _step(tensor: Tensor, dim: int) -> int:
    return tensor.stride(dim) if tensor.shape[dim] > 1 else 0
