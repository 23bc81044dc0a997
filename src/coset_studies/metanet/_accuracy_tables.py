"""The tables of the study of accuracies."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from coset.metanet import rank_correlation
from coset.represent import Interval
from coset.represent.similarity.resampling import percentile_interval
from coset.study import Context, Scalar, Table, prose
from coset_studies.metanet._methods import (
    CANONICAL_STATISTICS,
    FLAT,
    ON_FEWER,
    PROBED,
    PROBED_STATISTICS,
    READERS,
    STATISTICS,
)
from coset_studies.metanet._tests import FOLDED, MEAN, SAME
from coset_studies.metanet._zoos import Networks

PAIRS = (
    *((method, other) for method in READERS for other in (STATISTICS, CANONICAL_STATISTICS)),
    *((PROBED, other) for other in (STATISTICS, PROBED_STATISTICS)),
)
"""What is compared, network by network."""


@dataclass(frozen=True)
class Read:
    """What methods predict of the networks of a test set, (seeds, N): as they are, and behind random group elements."""

    truth: Tensor
    plain: Mapping[str, Tensor]
    behind: Mapping[str, Tensor]


def correlations(results: Mapping[str, Mapping[str, Read]], draws: int) -> Table:
    """τ of every method on every test set, before and behind group elements."""
    rows: list[list[Scalar]] = []
    for data, sets in results.items():
        for name, own in sets.items():
            for method, plain in own.plain.items():
                behind = own.behind[method]
                before, after = (rank_correlation(p, own.truth, draws=draws) for p in (plain, behind))
                singles = zip(plain, behind, strict=True)
                taus = [[rank_correlation(p, own.truth, draws=1).value for p in pair] for pair in singles]
                change = max(abs(one - other) for one, other in taus)
                row: list[Scalar] = [data, name, method, len(own.truth), before.value, before.low, before.high]
                rows.append([*row, after.value, after.low, after.high, change])
    columns = ("data", "networks tested", "method", "number", "τ", "low", "high", "τ moved", "low moved", "high moved")
    caption = """
        Kendall's τ between predicted and measured test accuracy, mean of the seeds, with 95 % bootstrap intervals over
        networks and seeds; moved: every network behind a random element of its group; the largest change of one seed's
        τ by that.
    """
    return Table((*columns, "largest change"), rows, prose(caption))


def differences(results: Mapping[str, Mapping[str, Read]], draws: int) -> Table:
    """τ of the readers minus that of statistics, network by network; and what group elements take from the others."""
    rows: list[list[Scalar]] = []

    def row(data: str, name: str, what: str, interval: Interval) -> None:
        rows.append([data, name, what, interval.value, interval.low, interval.high])

    for method, other in PAIRS:
        over: dict[str, list[Interval]] = {}
        for data, sets in results.items():
            for name, own in sets.items():
                apart = rank_correlation(own.plain[method], own.truth, against=own.plain[other], draws=draws)
                row(data, name, f"{method} − {other}", apart)
                over.setdefault(name, []).append(apart)
            own = sets[SAME]
            apart = rank_correlation(own.behind[method], own.truth, against=own.behind[other], draws=draws)
            row(data, SAME, f"{method} − {other}, both moved", apart)
        for name, intervals in over.items():
            row(MEAN, name, f"{method} − {other}", mean_of(intervals))
    for method in (STATISTICS, FLAT):
        lost = []
        for data, sets in results.items():
            own = sets[SAME]
            apart = rank_correlation(own.plain[method], own.truth, against=own.behind[method], draws=draws)
            row(data, SAME, f"{method} − the same, moved", apart)
            lost.append(apart)
        row(MEAN, SAME, f"{method} − the same, moved", mean_of(lost))
    caption = "Differences of τ on the same networks, with 95 % bootstrap intervals over networks and seeds, paired."
    return Table(("data", "networks tested", "difference", "Δτ", "low", "high"), rows, caption)


def curve_of(results: Mapping[str, Mapping[int, Read]], draws: int) -> Table:
    """τ by the number of networks that methods were trained on, and what lies between it and that of statistics."""
    rows: list[list[Scalar]] = []
    for data, by_count in results.items():
        for count, own in by_count.items():
            for method in ON_FEWER:
                plain = own.plain[method]
                found = rank_correlation(plain, own.truth, draws=draws)
                apart = rank_correlation(plain, own.truth, against=own.plain[STATISTICS], draws=draws)
                row: list[Scalar] = [data, method, count, found.value, found.low, found.high]
                rows.append([*row, apart.value, apart.low, apart.high])
    columns = ("data", "method", "trained on", "τ", "low", "high", "above statistics", "low above", "high above")
    caption = """
        Kendall's τ on networks of the same architecture by the number of networks trained on, a tenth of them for
        validation included; and the difference to τ of statistics trained on as many, paired.
    """
    return Table(columns, rows, prose(caption))


def mean_of(intervals: list[Interval]) -> Interval:
    """The mean over data sets, whose networks are drawn again independently."""
    value = sum(one.value for one in intervals) / len(intervals)
    draws = torch.stack([one.draws for one in intervals]).mean(0)
    return percentile_interval(value, draws, intervals[0].level)


def networks_tested(context: Context, tests: Mapping[str, Mapping[str, Networks]]) -> Table:
    """The networks that are tested on, and how well two measurements of their accuracies agree."""
    rows: list[list[Scalar]] = []
    shares = torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64)
    for data, sets in tests.items():
        for name, networks in sets.items():
            if name == FOLDED:
                continue
            truth, count = networks.accuracy, float(networks.examples)
            generator = context.generator(f"second measurement of {name}, {data}")
            again = torch.binomial(torch.full_like(truth, count), truth, generator=generator)
            ceiling = rank_correlation(again, truth, draws=1).value
            rows.append([data, name, len(truth), *torch.quantile(truth, shares).tolist(), networks.examples, ceiling])
    columns = (
        "data",
        "networks tested",
        "number",
        "accuracy, 5 %",
        "median",
        "95 %",
        "test images",
        "τ of a second test",
    )
    caption = (
        "Test accuracies, and τ between them and those on as many other test images, which are drawn from binomials."
    )
    return Table(columns, rows, caption)
