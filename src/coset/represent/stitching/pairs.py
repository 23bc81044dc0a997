"""Stitching beyond one pair and one setting: pairs resampled from many models, options chosen by cross-validation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from coset._checks import check_choice, check_count, is_number
from coset._show.progress import progress
from coset.errors import InputError
from coset.represent.similarity.resampling import Interval
from coset.represent.stitching._stitch import Stitching, StitchTraining, check_labelled, stitch
from coset.represent.stitching.maps import FAMILIES
from coset.represent.stitching.penalties import DRAWS, Penalty, bootstrap_mean, correct, stitching_penalty

ALPHAS = (1e-3, 1e-2, 1e-1, 1.0, 10.0)
"""The multipliers of −‖P‖² among which D.5 of the paper chooses."""

CROSS_VALIDATION = StitchTraining(epochs=5, head_start=0)
"""Its training: five epochs, and no head start of the permutations."""


def sample_pairs(models: int, pairs: int, *, seed: int = 0) -> list[tuple[int, int]]:
    """``pairs`` ordered pairs of different models out of ``models``, uniform and with replacement (D.1)."""
    for name, value, least in (("models", models, 2), ("pairs", pairs, 1)):
        check_count(name, value, least)
    generator = torch.Generator().manual_seed(seed)
    first = torch.randint(models, (pairs,), generator=generator)
    # One of the others: so many places further, around the circle.
    second = (first + torch.randint(1, models, (pairs,), generator=generator)) % models
    return list(zip(first.tolist(), second.tolist(), strict=True))


@dataclass(frozen=True)
class PairPenalties:
    """The penalty of each pair (below, above), by their numbers, and their mean with a bootstrap interval over pairs.

    Pairs that share a model are not independent, so that with few models the interval is too narrow.
    """

    pairs: tuple[tuple[int, int], ...]
    penalties: tuple[Penalty, ...]
    interval: Interval


def stitch_pairs(
    models: Sequence[nn.Module],
    layer: str,
    data: tuple[Tensor, Tensor],
    held_out: tuple[Tensor, Tensor],
    *,
    pairs: int = 16,
    level: float = 0.95,
    draws: int = DRAWS,
    seed: int = 0,
    show: bool | None = None,
    **settings: Any,
) -> PairPenalties:
    """Stitching penalties at ``layer`` of pairs of ``models``, drawn with replacement; a pair drawn twice is made once.

    ``settings`` are those of ``stitch``: the family with its options, the training, the start.
    """
    drawn = sample_pairs(len(models), pairs, seed=seed)
    known: dict[tuple[int, int], Penalty] = {}
    with progress(f"pairs at {layer}", len(set(drawn)), show=show) as bar:
        for below, above in drawn:
            if (below, above) in known:
                continue
            stitched = stitch(models[below], models[above], layer, data, seed=seed, show=False, **settings)
            found = stitching_penalty(stitched, held_out, level=level, draws=draws, seed=seed)
            known[below, above] = found
            bar.advance(note=f"penalty {found.value:.3f}")
    penalties = tuple(known[pair] for pair in drawn)
    values = [penalty.value for penalty in penalties]
    return PairPenalties(tuple(drawn), penalties, bootstrap_mean(values, level=level, draws=draws, seed=seed))


@dataclass(frozen=True)
class Choice:
    """The value with the best accuracy on the examples left out, the accuracies of all, and the map made with it."""

    value: float
    accuracies: Mapping[float, float]
    stitching: Stitching


def cross_validate(
    below: nn.Module,
    above: nn.Module,
    layer: str,
    data: tuple[Tensor, Tensor],
    *,
    family: str = "g-relu",
    option: str = "alpha",
    values: Sequence[float] = ALPHAS,
    share: float = 0.8,
    training: StitchTraining | None = None,
    seed: int = 0,
    show: bool | None = None,
    **settings: Any,
) -> Choice:
    """Choose an option of a family by its accuracy on a part of ``data`` left out: α of G_ReLU as in D.5.

    The examples are split at random, ``share`` of them for training; unless told training is that of D.5. Of equal
    accuracies the first value wins. The map is the one trained on the share, as in the paper.
    """
    check_choice("family", family, FAMILIES)
    if not isinstance(values, Sequence) or not all(is_number(value) for value in values):
        raise InputError(f"values is {values!r}; expected a list of finite numbers")
    if not values:
        raise InputError("values is empty; expected one at least")
    x, y = check_labelled(data, "data")
    if not is_number(share):
        raise InputError(f"share is {share!r}; expected a number between 0 and 1")
    kept = round(share * len(x))
    if not 2 <= kept < len(x):
        raise InputError(f"share is {share!r} of {len(x)} examples; expected two at least, and some that are left out")
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    chosen, others = order[:kept], order[kept:]
    found: dict[float, tuple[float, Stitching]] = {}
    with progress(f"{option} at {layer}", len(values), show=show) as bar:
        for value in values:
            stitching = stitch(
                below,
                above,
                layer,
                (x[chosen], y[chosen]),
                family=family,
                training=CROSS_VALIDATION if training is None else training,
                seed=seed,
                show=False,
                **{**settings, option: value},
            )
            found[value] = float(correct(stitching, (x[others], y[others])).mean()), stitching
            bar.advance(note=f"{option} {value:g}: {found[value][0]:.3f}")
    best = max(found, key=lambda value: found[value][0])
    return Choice(best, {value: accuracy for value, (accuracy, _) in found.items()}, found[best][1])
