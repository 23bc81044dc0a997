"""Generators beside each other: what a flow has to beat, in one table."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coset._show.tables import text_table
from coset._values import freeze
from coset.errors import InputError
from coset.flow._generators import GENERATORS
from coset.flow._measured_zoo import MeasuredZoo
from coset.flow._scores import PERMUTATIONS, SampleScores, digits, notes, score_against, share, summary, with_level
from coset.symmetry.stacks import Stack


@dataclass(frozen=True, eq=False)
class Comparison:
    """Scores of several generators beside the same training networks, by name; printed as one table."""

    scores: Mapping[str, SampleScores]

    def __post_init__(self) -> None:
        freeze(self, "scores")

    def not_beaten(self, name: str) -> tuple[str, ...]:
        """The other generators whose part of novel and performant samples is at least as large as that of ``name``."""
        if name not in self.scores:
            raise InputError(f"name is {name!r}; expected one of {', '.join(self.scores)}")
        own = self.scores[name].novel_and_performant
        others = ((other, one.novel_and_performant) for other, one in self.scores.items() if other != name)
        return tuple(other for other, value in others if value >= own)

    def to_dict(self) -> dict[str, Any]:
        """The scores of each, as plain numbers."""
        return {name: one.to_dict() for name, one in self.scores.items()}

    def __str__(self) -> str:
        first = next(iter(self.scores.values()))
        measure = first.evaluation.measure
        columns = [
            "generator", "samples", measure, "loss", "averaged", "novel", "novel, performant", "memorised", "distance",
            "divergence", "energy, weights", "energy, functions",
        ]  # fmt: skip
        likelihoods = any(one.log_likelihood is not None for one in self.scores.values())
        columns += ["log-likelihood"] * likelihoods
        zoo = first.zoo
        lines = [
            [
                "training networks",
                str(zoo.count),
                digits(float(zoo.evaluation.measures.mean())),
                digits(float(zoo.evaluation.losses.mean())),
                digits(zoo.evaluation.averages[-1].measure),
                *["", "", "", "1"],
                digits(zoo.divergence),
                *[""] * (2 + likelihoods),
            ],
            *(_line(name, one, likelihoods) for name, one in self.scores.items()),
        ]
        verdicts = [self._verdict(name) for name in self.scores if name not in GENERATORS]
        return "\n".join([text_table(columns, lines, right=range(1, len(columns))), *verdicts, *notes(first)])

    def _verdict(self, name: str) -> str:
        """Whether a generator is worth its price."""
        low, high = self.scores[name].interval
        others = self.not_beaten(name)
        found = f"does not beat {', '.join(others)}" if others else "is above all others"
        value = self.scores[name].novel_and_performant
        return f"{name} {found}: novel and performant {value:.3f} ({low:.3f} to {high:.3f})"

    def __repr__(self) -> str:
        return f"Comparison({', '.join(self.scores)})"


def compare_generators(
    zoo: MeasuredZoo, samples: Mapping[str, Stack], *, bar: float, permutations: int = PERMUTATIONS,
    show: bool | None = None,
) -> Comparison:  # fmt: skip
    """Score the samples of several generators, by name, as {"flow": …, **cheap_samples(networks, n)}."""
    if not samples:
        raise InputError("samples is empty; expected stacks of networks by the name of their generator")
    return Comparison(
        {
            name: score_against(zoo, stack, bar=bar, permutations=permutations, show=show)
            for name, stack in samples.items()
        }
    )


def _line(name: str, one: SampleScores, likelihoods: bool) -> list[str]:
    found = one.log_likelihood
    last = "" if found is None else f"{found.value:.4f} ± {found.error:.4f}"
    known = summary(one.evaluation)
    return [
        name,
        f"{len(one)}",
        digits(known[one.evaluation.measure]["mean"]),
        digits(known["loss"]["mean"]),
        digits(one.evaluation.averages[-1].measure if one.evaluation.averages else None),
        digits(share(one.novel)),
        digits(one.novel_and_performant),
        digits(share(one.memorised)),
        digits(one.distance_ratio),
        digits(one.divergence),
        *(with_level(one.energy[part]) if part in one.energy else "" for part in ("weights", "functions")),
        *[last] * likelihoods,
    ]
