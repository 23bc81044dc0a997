"""The processor time behind what a store has given, whether it was made now or long ago."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from coset.store._entry import Entry


class Work:
    """Adds up what entries cost to make, in seconds of all cores together, in this process without those it starts.

    One block at a time: threads that use one store at once count each other's work.
    """

    def __init__(self) -> None:
        self._told = 0.0
        """Processor time of this process that blocks which have ended account for."""
        self._open: list[dict[str, float | None]] = []
        """For every block that is measured now, from the outermost: the cost of the entries asked for in it."""

    def used(self, entry: Entry) -> None:
        """Note that ``entry`` was asked for."""
        if self._open:
            self._open[-1][entry.key] = entry.cost

    @contextmanager
    def measured(self) -> Iterator[Callable[[], float | None]]:
        """Measure a block; after it, the function that it gives tells the cost.

        That is the processor time of the block without what its entries took now, and the cost of each entry that it
        asked for itself, found or made, once. Where two of these were made of a third one, this is in the cost of both:
        then it is an upper bound. None where one of them has no known cost.
        """
        entries: dict[str, float | None] = {}
        start, told, own = time.process_time(), self._told, 0.0
        self._open.append(entries)
        try:
            yield lambda: _sum([own, *entries.values()])
        finally:
            self._open.pop()
            own = time.process_time() - start - (self._told - told)
            self._told += own


def _sum(costs: list[float | None]) -> float | None:
    known = [cost for cost in costs if cost is not None]
    return sum(known) if len(known) == len(costs) else None
