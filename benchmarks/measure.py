"""Time two ways of doing a thing side by side."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Ratio:
    """How much longer ``what`` takes than ``reference``; ``bound`` is the most that is wanted.

    ``spread`` holds the smallest and the largest of the ratios measured.
    """

    what: str
    reference: str
    milliseconds: float
    ratio: float
    spread: tuple[float, float]
    bound: float


def ratio(
    what: str,
    task: Callable[[], object],
    reference: str,
    base: Callable[[], object],
    *,
    bound: float,
    repeat: int,
    clock: Callable[[], float] = time.perf_counter,
) -> Ratio:
    """Run reference and task alternately, so that a busy machine slows both, and take the median of the ratios.

    ``clock``: ``time.process_time`` counts the time of the processor alone, where both run in one thread.
    """
    task(), base()
    pairs = [(_seconds(base, clock), _seconds(task, clock)) for _ in range(repeat)]
    ratios = [mine / theirs for theirs, mine in pairs]
    median = statistics.median(mine for _, mine in pairs)
    return Ratio(what, reference, 1e3 * median, statistics.median(ratios), (min(ratios), max(ratios)), bound)


def _seconds(task: Callable[[], object], clock: Callable[[], float]) -> float:
    start = clock()
    task()
    return clock() - start
