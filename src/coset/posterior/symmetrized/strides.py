"""Taking units' weights out of a vector and putting them back, in strides where they lie in strides."""

from typing import NamedTuple

import torch
from torch import Tensor

MOST_BLOCKS = 16
"""With more blocks than this one index for all takes less time."""

MOST_VIEWS = 8
"""So many pairs of tensors are remembered."""


class Block(NamedTuple):
    """Columns ``first`` to ``first + width`` of some places (n, k): those at start + row·i + column·j."""

    first: int
    width: int
    start: int
    row: int
    column: int


class Places:
    """Places ``owned`` (n, k) in vectors (D,), none of them twice, as blocks that can be copied as they lie."""

    def __init__(self, owned: Tensor, device: torch.device) -> None:
        self.shape = tuple(owned.shape)
        self._flat = owned.reshape(-1).to(device)
        blocks = blocks_of(owned)
        self._blocks = blocks if blocks is not None and len(blocks) <= MOST_BLOCKS else None
        self._views: dict[tuple[object, ...], list[tuple[Tensor, Tensor]]] = {}

    def take(self, source: Tensor, out: Tensor) -> None:
        """out (r, n, k) from vectors (r, D), the entries of each one after the other in memory."""
        if self._blocks is None:
            torch.index_select(source, 1, self._flat, out=out.view(len(source), -1))
            return
        for view, part in self._viewed(source, out, self._blocks):
            part.copy_(view)

    def put(self, values: Tensor, into: Tensor) -> None:
        """values (r, n, k) to their places in vectors (r, D), the entries of each one after the other in memory."""
        if self._blocks is None:
            into.index_copy_(1, self._flat, values.reshape(len(values), -1))
            return
        for view, part in self._viewed(into, values, self._blocks):
            view.copy_(part)

    def _viewed(self, vectors: Tensor, gathered: Tensor, blocks: list[Block]) -> list[tuple[Tensor, Tensor]]:
        """Each block in ``vectors`` and in ``gathered``: views, kept for the next call with the same memory.

        They hold that memory, so that no other tensor can come to lie there while they are kept.
        """
        key = tuple((t.data_ptr(), t.dtype, t.shape, t.stride()) for t in (vectors, gathered))
        if key not in self._views:
            if len(self._views) >= MOST_VIEWS:
                self._views.clear()
            self._views[key] = [
                (self._view(vectors, block), gathered[:, :, block.first : block.first + block.width])
                for block in blocks
            ]
        return self._views[key]

    def _view(self, vectors: Tensor, block: Block) -> Tensor:
        shape, stride = (len(vectors), self.shape[0], block.width), (vectors.stride(0), block.row, block.column)
        return vectors.as_strided(shape, stride, vectors.storage_offset() + block.start)


def blocks_of(owned: Tensor) -> list[Block] | None:
    """Consecutive columns that lie in strides ≥ 0, as no others can be viewed; None where a column itself does not."""
    rows = owned.diff(dim=0)
    if owned.shape[0] > 1 and not bool(((rows == rows[:1]) & (rows >= 0)).all()):
        return None
    steps = rows[0].tolist() if owned.shape[0] > 1 else [0] * owned.shape[1]
    places = owned[0].tolist()
    blocks: list[Block] = []
    for number, (place, row) in enumerate(zip(places, steps, strict=True)):
        last = blocks[-1] if blocks else None
        if last is not None and last.row == row:
            column = place - places[number - 1]
            if column == last.column or (last.width == 1 and column > 0):
                blocks[-1] = last._replace(width=last.width + 1, column=column)
                continue
        blocks.append(Block(number, 1, place, row, 1))
    return blocks
