"""Thresholds that a given share of values exceeds, from a stream, in memory that does not grow with it."""

import torch
from torch import Tensor

from coset._checks import check_count
from coset.errors import InputError

KEPT = 8192
"""So many values of a row are held unless told; exact for streams of up to ``KEPT``/share values a row."""


class TailThreshold:
    """For each of several rows of numbers, the threshold that a ``share`` of them exceeds, from parts of the rows.

    Of n = ``total`` values in a row, r = ⌊share·n⌋ are to exceed the threshold T, which is therefore the (r + 1)-th
    largest. If r < ``kept``, the largest r + 1 are held, and T is exact. Else one value in w = ⌈(r + 1)/kept⌉ is held
    for all: the stream is cut into runs, a run is sorted, and its every w-th value is kept. In a run the number of
    values above any T is then known to w/2, so that the rank of T is off by at most ``error``·n, where
    ``error`` = (runs + 1)·⌈w/2⌉/n, which is told when the stream has ended. What lies below all that T can still become
    is dropped before runs are made, so that they are few: a run has ``kept`` values that might matter (or w of them, if
    that is more).

    Memory for each row: at most ``kept`` + max(``kept``, w) values, and the part that is being added.
    """

    def __init__(self, share: float, total: int, *, kept: int = KEPT) -> None:
        if not isinstance(share, float) or not 0 < share < 1:
            raise InputError(f"share is {share!r}; expected a number between 0 and 1")
        for name, value in (("total", total), ("kept", kept)):
            check_count(name, value)
        self.share, self.total, self.kept = share, total, kept
        self.above = int(share * total)
        self.weight = -(-(self.above + 1) // kept)
        # Of each w values the middle one is kept, and stands for w: this is the place of T among those kept.
        self._middle = (self.weight - 1) // 2
        self._place = max(0, round((self.above - self._middle) / self.weight))
        self._largest: Tensor | None = None
        self._waiting: list[Tensor] = []
        self._count = 0
        self._runs = 0

    def add(self, values: Tensor) -> None:
        """Take in the next values of every row, (rows, n)."""
        if not isinstance(values, Tensor) or values.ndim != 2 or not values.is_floating_point():
            found = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise InputError(f"values is {found}; expected a tensor (rows, n) in floating point")
        if self._count + values.shape[1] > self.total:
            raise InputError(f"more than the {self.total} values of a row that were announced as total were added")
        self._count += values.shape[1]
        matter = self._that_matter(values)
        if matter.shape[1]:
            self._waiting.append(matter)
        if sum(part.shape[1] for part in self._waiting) >= max(self.kept, self.weight):
            self._close_run()

    def threshold(self) -> Tensor:
        """T of each row, (rows,), when all ``total`` values have been added."""
        if self._count != self.total:
            raise InputError(f"{self._count} values of a row were added; total announced {self.total}")
        self._close_run()
        assert self._largest is not None
        return self._largest[:, -1].clone()

    @property
    def error(self) -> float:
        """By how much the share of values above T may differ from ⌊share·n⌋/n; 0 where T is exact."""
        if self.weight == 1:
            return 0.0
        return (self._runs + bool(self._waiting) + 1) * -(-self.weight // 2) / self.total

    def _that_matter(self, values: Tensor) -> Tensor:
        """The values that exceed the lowest that T can still become; of rows with fewer of these, some others too."""
        if self._largest is None or self._largest.shape[1] <= self._place:
            return values
        floor = self._largest[:, -1:]
        count = int((values > floor).sum(1).max())
        return values.topk(count, dim=1, sorted=False).values

    def _close_run(self) -> None:
        """Merge every w-th of the values that wait into the largest, of which no more are held than T needs."""
        if not self._waiting:
            return
        run = torch.cat(self._waiting, 1)
        self._waiting.clear()
        self._runs += 1
        if self.weight > 1:
            run = run.sort(dim=1, descending=True).values[:, self._middle :: self.weight]
        held = run if self._largest is None else torch.cat([self._largest, run], 1)
        # Sorted, so that the last one is the lowest that T can still become.
        self._largest = held.topk(min(self._place + 1, held.shape[1]), dim=1).values
