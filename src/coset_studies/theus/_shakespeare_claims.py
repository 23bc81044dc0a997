"""What Theus et al. 2025 find between transformers on TinyShakespeare, as claims on the table of barriers."""

import math
from collections.abc import Callable, Sequence

from coset.study import Claim, Estimate, Results
from coset_studies.theus._pairs import LEARNED, NAIVE, PERMUTED, WEIGHTS

SOURCE = "the table of test-loss barriers, GPT-2 on TinyShakespeare"
LEFT = 0.65
"""The share of the naive barrier that the whole group may leave on weights."""
SMALL = 0.2
"""Nats that the whole group may leave when it is learned."""
NOTICEABLE = 0.45
"""Nats that permutations leave at least."""

_INTERVAL = "From the least to the greatest of the pairs of networks; the value is their mean."


def claims_on(setting: str) -> list[Claim]:
    """The claims on one architecture."""
    return [
        Claim(
            paper="Permutations do not connect transformers, whether matched on activations or learned.",
            source=SOURCE,
            statistic=f"{setting}: least barrier of all permutations, nats",
            direction="above",
            threshold=NOTICEABLE,
            reason="""
            The least that permutations alone leave in the table is 0.45 nats, learned and for images; on
            TinyShakespeare it is 0.63.
            """,
            published=0.63,
            interval=_INTERVAL,
            possible=(0.0, math.inf),
            estimate=lambda results: _over_pairs(results, setting, lambda barriers: min(barriers[m] for m in PERMUTED)),
        ),
        Claim(
            paper="Matching weights over permutations, rotations and maps of heads lowers the barrier by far.",
            source=SOURCE,
            statistic=f"{setting}: barrier of the whole group on weights as a share of the naive one",
            direction="below",
            threshold=LEFT,
            reason="""
            The paper's shares are 17 % (0.34 of 2.02 nats) for wider networks. A prototype at 64 units left 61 %; the
            threshold was set before the run.
            """,
            published=0.168,
            interval=_INTERVAL,
            possible=(0.0, math.inf),
            estimate=lambda results: _over_pairs(
                results, setting, lambda barriers: barriers[WEIGHTS] / barriers[NAIVE] if barriers[NAIVE] > 0 else None
            ),
        ),
        Claim(
            paper="Learned over the whole group, the barrier all but vanishes.",
            source=SOURCE,
            statistic=f"{setting}: barrier of the whole group, learned, nats",
            direction="below",
            threshold=SMALL,
            reason="""
            The paper has 0.02 nats for wider networks that were trained for longer; ten times that is little beside the
            naive barrier. The threshold was set before the run.
            """,
            published=0.02,
            interval=_INTERVAL,
            possible=(0.0, math.inf),
            estimate=lambda results: _over_pairs(results, setting, lambda barriers: barriers[LEARNED]),
        ),
        Claim(
            paper="The network halfway is one that works.",
            source=SOURCE,
            statistic=f"{setting}: loss halfway, learned over the whole group, less that of character pairs, nats",
            direction="below",
            threshold=0.0,
            reason="Who knows the last character alone predicts with the loss of character pairs.",
            interval=_INTERVAL,
            estimate=lambda results: _halfway(results, setting),
        ),
    ]


def _over_pairs(
    results: Results, setting: str, statistic: Callable[[dict[str, float]], float | None]
) -> Estimate | None:
    """The mean over the pairs of a statistic of the barriers by all methods, with its range."""
    table = results.tables["barriers"]
    at = {name: table.columns.index(name) for name in ("setting", "pair", "method", "barrier, nats")}
    found: dict[object, dict[str, float]] = {}
    for row in table.rows:
        barrier = row[at["barrier, nats"]]
        if row[at["setting"]] == setting and isinstance(barrier, float):
            found.setdefault(row[at["pair"]], {})[str(row[at["method"]])] = barrier
    return _spread([statistic(barriers) for barriers in found.values()])


def _halfway(results: Results, setting: str) -> Estimate | None:
    table, pairs = results.tables["barriers"], results.numbers.get("character_pairs")
    at = {name: table.columns.index(name) for name in ("setting", "method", "halfway, nats")}
    losses = [
        row[at["halfway, nats"]] for row in table.rows if (row[at["setting"]], row[at["method"]]) == (setting, LEARNED)
    ]
    if not isinstance(pairs, float):
        return None
    return _spread([loss - pairs if isinstance(loss, float) else None for loss in losses])


def _spread(values: Sequence[float | None]) -> Estimate | None:
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    return Estimate(min(max(sum(known) / len(known), min(known)), max(known)), min(known), max(known))
