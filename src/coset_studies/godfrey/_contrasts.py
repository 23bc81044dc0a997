"""Sums and differences of stitching penalties over layers and families, with their intervals, and how they are told."""

from collections.abc import Mapping, Sequence

import torch

from coset.represent import Interval
from coset.study import Scalar
from coset_studies.godfrey._similarity import percentiles
from coset_studies.godfrey._stitching import Penalties

Weighted = Mapping[tuple[str, str], float]
"""Weights of the penalties by layer and family."""
_ROUNDING = 1e-12


def average(layers: Sequence[str], family: str) -> dict[tuple[str, str], float]:
    """The mean penalty of a family over layers."""
    return {(layer, family): 1 / len(layers) for layer in layers}


def minus(one: Weighted, other: Weighted) -> dict[tuple[str, str], float]:
    """The difference of two sums."""
    return {key: one.get(key, 0.0) - other.get(key, 0.0) for key in {**one, **other}}


def contrast(found: Penalties, weights: Weighted) -> Interval:
    """The weighted sum of penalties, with its interval over pairs and images: one resample for all that is summed."""
    table = torch.zeros(len(found.layers), len(found.families), dtype=torch.float64)
    for (layer, family), weight in weights.items():
        table[found.layers.index(layer), found.families.index(family)] += weight
    value = float((table * found.lost.mean((-2, -1))).sum())
    return percentiles(value, torch.einsum("lf,lfb->b", table, found.draws))


def sign(interval: Interval) -> int:
    """1 if the whole interval is above 0, −1 if it is below, else 0: not told apart."""
    return (interval.low > _ROUNDING) - (interval.high < -_ROUNDING)


def points(name: str, interval: Interval) -> dict[str, Scalar]:
    """The interval in percentage points under ``name``, ``name_low`` and ``name_high``."""
    parts = {"": interval.value, "_low": interval.low, "_high": interval.high}
    return {f"{name}{part}": 100 * value for part, value in parts.items()}


def told(name: str) -> str:
    """The template that tells what ``points`` wrote under ``name``."""
    return f"{{{name}:.1f}} [{{{name}_low:.1f}}, {{{name}_high:.1f}}]"


def key_of(family: str) -> str:
    """A family's name as part of the name of a number."""
    return "".join(letter if letter.isalnum() else "_" for letter in family).lower()


def listed(names: Sequence[str]) -> str:
    """Names as in a sentence."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
