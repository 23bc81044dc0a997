"""Honest scores of generated networks: good ones, new ones, unlike each other, of the right distribution.

Memorisation: Zeng et al., Generative modeling of weights: generalization or memorization?, CVPR 2026.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from coset._checks import check_count, is_number
from coset._show.progress import progress
from coset._show.tables import text_table
from coset._values import freeze
from coset.alignment.inputs import check_same_names
from coset.distribution import Estimate
from coset.errors import InputError
from coset.flow._evaluation import Data, Evaluation, evaluated, finite_networks, jensen_shannon, mean_of_pairs
from coset.flow._measured_zoo import MeasuredZoo, check_networks, functions, measure_zoo
from coset.flow._two_samples import TwoSamples, discrepancy_of_distances, distances_of_rows, energy_of_distances
from coset.symmetry import Symmetry
from coset.symmetry.stacks import Stack

PERMUTATIONS = 500
"""Divisions of all points by which levels of the comparisons of distributions are found."""

_NORMAL_95 = 1.959963984540054
"""Within so many deviations are 95 of 100 normal numbers."""

QUANTILES = (0.05, 0.5, 0.95)


@dataclass(frozen=True, eq=False)
class SampleScores:
    """What n samples are worth beside the training networks ``zoo``.

    ``evaluation``: of all samples, NaN of those that are not finite, which count as neither novel nor performant.
    ``nearest`` (n,): distances to the nearest training network modulo G. ``divergence``: the mean Jensen-Shannon
    divergence of predictions of two samples, None where nothing is classified; ``spread``: the mean distance of two
    samples modulo G. ``energy`` and ``discrepancy``: in "weights" and "functions", against the networks of reference.
    ``log_likelihood``: of held-out networks per weight, where the generator has a density.
    """

    zoo: MeasuredZoo
    bar: float
    evaluation: Evaluation
    nearest: Tensor
    divergence: float | None
    spread: float
    energy: Mapping[str, TwoSamples] = field(default_factory=dict)
    discrepancy: Mapping[str, TwoSamples] = field(default_factory=dict)
    log_likelihood: Estimate | None = None

    def __post_init__(self) -> None:
        freeze(self, "energy", "discrepancy")

    def __len__(self) -> int:
        return len(self.evaluation)

    @cached_property
    def usable(self) -> Tensor:
        """Which samples are finite, in weights and outputs, (n,)."""
        return self.evaluation.usable & self.nearest.isfinite()

    @cached_property
    def performant(self) -> Tensor:
        """Which samples reach the bar: an accuracy of at least, or an error of at most so much, (n,)."""
        return _reach(self.evaluation, self.bar)

    @cached_property
    def novel(self) -> Tensor:
        """Which are farther from every training network than these are from each other (median nearest), (n,)."""
        return self.nearest > self.zoo.novel_from

    @cached_property
    def memorised(self) -> Tensor:
        """Which are nearer to one than 99 % of the training networks are, (n,)."""
        return self.nearest < self.zoo.memorised_below

    @property
    def novel_and_performant(self) -> float:
        """The part of all samples that are both."""
        return share(self.novel & self.performant)

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's interval of ``novel_and_performant``, which holds the generator's own part in 95 of 100 cases."""
        n, p, z = len(self), self.novel_and_performant, _NORMAL_95
        centre, half = p + z**2 / (2 * n), z * math.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
        return max(0.0, (centre - half) / (1 + z**2 / n)), min(1.0, (centre + half) / (1 + z**2 / n))

    @property
    def distance_ratio(self) -> float:
        """The median of ``nearest`` over that of the zoo, NaN without a finite sample."""
        known = self.nearest[self.usable]
        return float(known.quantile(0.5)) / self.zoo.novel_from if len(known) else math.nan

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers by name, None for what is not known."""
        zoo = self.zoo
        found = {
            "samples": len(self),
            "finite": int(self.usable.sum()),
            "training networks": zoo.count,
            "compared with": zoo.compared,
            "held out": zoo.held_out,
            "distances": {"metric": zoo.between.metric, "exact": zoo.between.exact},
            "bar": self.bar,
            "performant": share(self.performant),
            "novel": share(self.novel),
            "novel and performant": self.novel_and_performant,
            "interval": list(self.interval),
            "memorised": share(self.memorised),
            "novel from": zoo.novel_from,
            "memorised below": zoo.memorised_below,
            "distance ratio": self.distance_ratio,
            "networks": summary(self.evaluation),
            "zoo": {**summary(zoo.evaluation), "performant": share(_reach(zoo.evaluation, self.bar))},
            "divergence": self.divergence,
            "zoo divergence": zoo.divergence,
            "spread": self.spread,
            "zoo spread": mean_of_pairs(zoo.between.values),
            "energy distance": {name: one.to_dict() for name, one in self.energy.items()},
            "mean discrepancy": {name: one.to_dict() for name, one in self.discrepancy.items()},
            "log-likelihood per weight": None if self.log_likelihood is None else self.log_likelihood._asdict(),
        }
        return {name: _plain(value) for name, value in found.items()}

    def __str__(self) -> str:
        lines = [*_networks(self), *_distances(self), *_distributions(self)]
        text = text_table(["score", "samples", "training networks"], lines, right=(1, 2))
        return "\n".join([text, *notes(self)])

    def __repr__(self) -> str:
        return f"SampleScores({len(self)} samples, {self.novel_and_performant:.1%} novel and performant)"


def score_samples(
    model: nn.Module,
    sym: Symmetry,
    samples: Stack,
    zoo: Stack,
    data: Data,
    *,
    bar: float,
    permutations: int = PERMUTATIONS,
    log_likelihood: Estimate | None = None,
    show: bool | None = None,
    **options: Any,
) -> SampleScores:
    """Score ``samples``, a stack of networks, beside the networks ``zoo`` that their generator was made from.

    ``data`` (x, y): where accuracies are measured. Other ``options``: those of ``measure_zoo``, which together with
    ``score_against`` does the same, and measures the zoo once for many sets of samples.
    """
    _check_bar(bar, str(options.get("loss", "cross-entropy")))
    check_networks(sym, samples, "samples", 1)
    measured = measure_zoo(model, sym, zoo, data, show=show, **options)
    return score_against(
        measured, samples, bar=bar, permutations=permutations, log_likelihood=log_likelihood, show=show
    )


def score_against(
    zoo: MeasuredZoo,
    samples: Stack,
    *,
    bar: float,
    permutations: int = PERMUTATIONS,
    log_likelihood: Estimate | None = None,
    show: bool | None = None,
) -> SampleScores:
    """Score ``samples`` beside a zoo that is measured.

    ``bar``: the accuracy, from 0 to 1, that a performant network has at least (of a loss without accuracies the root
    mean square error that it has at most). ``permutations``: random divisions for the levels of energy distance and
    mean discrepancy. ``log_likelihood``: see ``per_weight``.
    """
    _check_bar(bar, zoo.task.loss)
    quotient = zoo.quotient
    count = check_networks(quotient.sym, samples, "samples", 1)
    check_same_names(zoo.networks, samples, "the zoo", "samples")
    if log_likelihood is not None and not isinstance(log_likelihood, Estimate):
        raise InputError(f"log_likelihood is a {type(log_likelihood).__name__}; expected what per_weight gives")
    with progress("scoring", 3, show=show) as ticker:
        evaluation = evaluated(zoo.task, samples)
        ticker.advance()
        nearest = torch.full((count,), torch.nan, dtype=torch.float64)
        usable = evaluation.usable & finite_networks(samples)
        good = {name: tensor[usable.to(tensor.device)] for name, tensor in samples.items()}
        number = int(usable.sum())
        spread, divergence = math.nan, None
        if number:
            nearest[usable] = quotient.distances(good, zoo.networks, show=False).values.amin(1)
        ticker.advance()
        energy, discrepancy = {}, {}
        if number > 1:
            spread = mean_of_pairs(quotient.distances(good, show=False).values)
            predictions = evaluation.predictions[usable]
            divergence = mean_of_pairs(jensen_shannon(predictions)) if zoo.task.reading.classes else None
            views = {"weights": quotient.rows(good, zoo.reference), "functions": functions(predictions)}
            seed = quotient.seed
            for name, rows in views.items():
                other = zoo.views[name]
                apart = distances_of_rows(rows, rows), distances_of_rows(rows, other.rows), other.between
                energy[name] = energy_of_distances(*apart, permutations=permutations, seed=seed)
                discrepancy[name] = discrepancy_of_distances(
                    *apart, bandwidth=zoo.widths[name], permutations=permutations, seed=seed
                )
        ticker.advance()
    return SampleScores(zoo, float(bar), evaluation, nearest, divergence, spread, energy, discrepancy, log_likelihood)


def per_weight(log_probs: Tensor, weights: int) -> Estimate:
    """The mean of log p(θ)/``weights`` over held-out networks, (N,) with N ≥ 2, and its standard error; in nats."""
    check_count("weights", weights)
    if not isinstance(log_probs, Tensor) or log_probs.ndim != 1 or len(log_probs) < 2:
        found = tuple(log_probs.shape) if isinstance(log_probs, Tensor) else type(log_probs).__name__
        raise InputError(f"log_probs is {found}; expected a tensor (N,) of two or more networks")
    if not bool(log_probs.isfinite().all()):
        number = int((~log_probs.isfinite()).nonzero()[0])
        raise InputError(f"log_probs[{number}] is {float(log_probs[number])}; expected finite numbers")
    return Estimate.of(log_probs.double() / weights)


def _check_bar(bar: object, loss: str) -> None:
    classes = loss in ("cross-entropy", "binary-cross-entropy")
    if not is_number(bar) or bar < 0 or (classes and bar > 1):
        expected = "an accuracy from 0 to 1" if classes else "an error ≥ 0"
        raise InputError(f"bar is {bar!r}; expected {expected}")


def _reach(evaluation: Evaluation, bar: float) -> Tensor:
    """NaN reaches no bar."""
    return evaluation.measures >= bar if evaluation.measure == "accuracy" else evaluation.measures <= bar


def share(which: Tensor) -> float:
    """Of how many it holds, from 0 to 1."""
    return float(which.double().mean())


def _plain(value: Any) -> Any:
    """Not-a-number as None, which JSON knows."""
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def summary(evaluation: Evaluation) -> dict[str, Any]:
    """Means and quantiles over the networks that give finite numbers."""
    parts = {evaluation.measure: evaluation.measures, "loss": evaluation.losses}
    if evaluation.refitted is not None:
        parts["loss, factor refitted"] = evaluation.refitted
    found: dict[str, Any] = {}
    for name, values in parts.items():
        known = values[evaluation.usable]
        found[name] = {"mean": float(known.mean()) if len(known) else math.nan}
        found[name] |= {f"{q:.0%}": float(known.quantile(q)) if len(known) else math.nan for q in QUANTILES}
    return {**found, "averaged": [asdict(one) for one in evaluation.averages]}


def _networks(scores: SampleScores) -> list[list[str]]:
    own, zoo = scores.evaluation, scores.zoo.evaluation
    bad = len(scores) - int(scores.usable.sum())
    lines = [["networks", f"{len(scores)}", f"{scores.zoo.count}"], ["  not finite", f"{bad}", "0"]]
    here, there = summary(own), summary(zoo)
    for name in here:
        if name == "averaged":
            continue
        lines.append([f"{name}, mean", digits(here[name]["mean"]), digits(there[name]["mean"])])
        lines += [
            [f"  quantile {q:.0%}", digits(here[name][f"{q:.0%}"]), digits(there[name][f"{q:.0%}"])] for q in QUANTILES
        ]
    for number in range(max(len(own.averages), len(zoo.averages))):
        both = [part[number] if number < len(part) else None for part in (own.averages, zoo.averages)]
        known = next(one for one in both if one is not None)
        for what in ("measure", "loss"):
            cells = ["" if one is None else digits(getattr(one, what)) for one in both]
            title = f"averaged over {known.networks}: {own.measure}" if what == "measure" else "  loss"
            lines.append([title, *cells])
    sign = "≥" if own.measure == "accuracy" else "≤"
    lines.append(
        [
            f"{own.measure} {sign} {scores.bar:g}",
            digits(share(scores.performant)),
            digits(share(_reach(zoo, scores.bar))),
        ]
    )
    return lines


def _distances(scores: SampleScores) -> list[list[str]]:
    zoo = scores.zoo
    known = scores.nearest[scores.usable]
    return [
        ["nearest training network, median", digits(float(known.quantile(0.5)) if len(known) else None),
         digits(zoo.novel_from)],
        ["  ratio", digits(scores.distance_ratio), "1"],
        ["novel", digits(share(scores.novel)), digits(share(zoo.nearest > zoo.novel_from))],
        ["novel and performant", digits(scores.novel_and_performant), ""],
        ["  interval, 95 of 100", " to ".join(f"{end:.3f}" for end in scores.interval), ""],
        ["memorised", digits(share(scores.memorised)), digits(share(zoo.nearest < zoo.memorised_below))],
        ["distance of two networks, mean", digits(scores.spread), digits(mean_of_pairs(zoo.between.values))],
        ["divergence of two predictions, mean", digits(scores.divergence), digits(zoo.divergence)],
    ]  # fmt: skip


def _distributions(scores: SampleScores) -> list[list[str]]:
    parts = (("energy distance", scores.energy), ("mean discrepancy", scores.discrepancy))
    lines = [[f"{what}, {name}", with_level(one), ""] for what, found in parts for name, one in found.items()]
    if scores.log_likelihood is not None:
        value, error = scores.log_likelihood
        lines.append(["log-likelihood per weight", f"{value:.4f} ± {error:.4f}", ""])
    return lines


def notes(scores: SampleScores) -> list[str]:
    """What a table has to say of how it was made."""
    zoo = scores.zoo
    exact = "exact" if zoo.between.exact else "bounds from above, by alignment"
    some = "all" if zoo.compared == zoo.count else f"{zoo.compared} of the"
    divisions = max((one.permutations for one in scores.energy.values()), default=0)
    divided = f"; p among {divisions} random divisions" if divisions else ""
    other = f"{zoo.held_out} held-out networks" if zoo.held_out is not None else "the compared training networks"
    return [
        f"distances modulo the group: {zoo.between.metric}, {exact}, to {some} {zoo.count} training networks",
        f"distributions: against {other}{divided}",
    ]


def with_level(one: TwoSamples) -> str:
    """D², and its level."""
    return f"{one.value:.4g}" if one.p_value is None else f"{one.value:.4g} (p {one.p_value:.3g})"


def digits(value: float | None) -> str:
    """Four digits; nothing for what is not known."""
    return "" if value is None or not math.isfinite(value) else f"{value:.4g}"
