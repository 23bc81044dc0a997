"""Procrustes distances modulo a group that acts on the channels.

Each piece of the channels with a scale of its own is divided by its ℓ2 norm over examples and positions, all that has
none by its norm together (dead pieces stay 0; nothing is centred). With k pieces normalised,

    d = min_g ‖X̂ − gŶ‖/(2·√k) = sqrt((‖X̂‖² + ‖Ŷ‖² − 2·max_g ⟨X̂, gŶ⟩)/(4k)) ∈ [0, 1]

and the similarity is 1 − d. Modulo G_ReLU that is Godfrey et al. 2022, section 5, k the number of channels and the
maximum an assignment; modulo O(C) all features are one piece, the maximum is the nuclear norm of X̂ᵀŶ, and
d = ½·sqrt(2 − 2‖X̂ᵀŶ‖_*). Blocks that any invertible matrix may mix are first made white (``straightening``): the
nuclear norm is then the sum of their canonical correlations.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from coset.represent.channels import (
    check_pair,
    check_squares,
    largest_entries,
    ordinary_features,
    pieces_of,
    straightened,
    total,
    wide_chunks,
)
from coset.represent.similarity.unit_matching import best_match
from coset.represent.unit_groups import Group, UnitGroup, group_on


@dataclass(frozen=True, eq=False)
class Procrustes:
    """The distance of two features modulo a group, and the element that attains it.

    ``order`` (C,): the channel of y that belongs to each channel of x, −1 for none; ``signs`` (C,): ±1. Modulo
    O(C) or GL(C) these are None and ``rotation`` (C', C) is the map R for which X̂ is nearest to ŶR. Where only blocks
    are mixed, ``order`` says which block of y belongs to which of x, and ``rotation`` holds all.
    """

    distance: float
    group: UnitGroup
    order: Tensor | None
    signs: Tensor | None
    rotation: Tensor | None

    @property
    def similarity(self) -> float:
        """1 − distance, in [0, 1]."""
        return 1.0 - self.distance

    @property
    def matched(self) -> tuple[Tensor, Tensor]:
        """``order`` and ``signs``, which are 0 where nothing is matched; not for rotations."""
        assert self.order is not None
        assert self.signs is not None
        return self.order, torch.where(self.order >= 0, self.signs, 0.0)


@dataclass(frozen=True)
class CrossMoments:
    """Sums over examples and positions: ``cross`` (C, C') of x_i·y_j, ``squares_x`` (C,), ``squares_y`` (C',).

    ``largest_x`` (C,), ``largest_y`` (C',): of the absolute values.
    """

    cross: Tensor
    squares_x: Tensor
    squares_y: Tensor
    largest_x: Tensor
    largest_y: Tensor


def procrustes(x: Tensor, y: Tensor, *, group: Group = "permutation") -> Procrustes:
    """The Procrustes distance of features x (N, C, *positions) and y (N, C', *positions) of the same examples.

    ``group``: "permutation" (G_ReLU), "orthogonal", another of ``GROUPS``, or what ``layer_group`` found at the layer.
    If one has fewer channels, dead ones are added to it. Computed in float64, of features of any size.
    """
    x, y = check_pair(x, y, positions=True)
    acting = group_on_both(group, x.shape[1], y.shape[1])
    x, y = (ordinary_features(straightened(part, group, what), acting) for part, what in ((x, "x"), (y, "y")))
    moments = cross_moments([(x, y)])
    found = procrustes_of_moments(moments, group)
    over_x, over_y = (piece_factors(found.group, part) for part in (moments.squares_x, moments.squares_y))
    if found.rotation is not None:
        rest = _rest_of_rotation(x, y, over_x, over_y, found.rotation)
    else:
        order, signs = found.matched
        rest = _rest_of_order(x, y, over_x, over_y, order, signs)
        # What belongs to no channel of the other is a distance of its own.
        alone = torch.ones_like(over_y, dtype=torch.bool)
        alone[order[order >= 0]] = False
        rest += float((moments.squares_y * over_y.square())[alone].sum())
    return replace(found, distance=math.sqrt(rest / (4 * len(set(found.group.scaled)))))


def cross_moments(pairs: Iterable[tuple[Tensor, Tensor]]) -> CrossMoments:
    """The sums over features that come in batches (x (n, C, P), y (n, C', P)), in float64."""

    def sums(a: Tensor, b: Tensor) -> CrossMoments:
        rows_x, rows_y = (part.transpose(0, 1).flatten(1) for part in (a, b))
        own_x, own_y = (torch.linalg.vector_norm(rows, dim=1).square() for rows in (rows_x, rows_y))
        return CrossMoments(rows_x @ rows_y.mT, own_x, own_y, largest_entries(a), largest_entries(b))

    return total((sums(a, b) for pair in pairs for a, b in wide_chunks(*pair)), added)


def procrustes_of_moments(moments: CrossMoments, group: Group) -> Procrustes:
    """``procrustes`` from sums alone, for features that are not held; exact to about 1e-8, a root of rounding.

    What matrices mix is straightened already.
    """
    acting = group_on_both(group, len(moments.squares_x), len(moments.squares_y))
    check_squares(acting, moments.squares_x, moments.largest_x, "x")
    check_squares(acting, moments.squares_y, moments.largest_y, "y")
    over_x, over_y = (piece_factors(acting, part) for part in (moments.squares_x, moments.squares_y))
    scores = moments.cross * over_x[:, None] * over_y
    order, signs, rotation = None, None, None
    if acting.whole:
        u, values, vh = torch.linalg.svd(scores, full_matrices=False)
        best, rotation = float(values.sum()), vh.mT @ u.mT
    else:
        best, order, signs, rotation = _matched(acting, scores)
    squares = float((moments.squares_x * over_x.square()).sum() + (moments.squares_y * over_y.square()).sum())
    distance = math.sqrt(max(squares - 2 * best, 0.0) / (4 * len(set(acting.scaled))))
    return Procrustes(distance, acting, order, signs, rotation)


def group_on_both(group: Group, channels_x: int, channels_y: int) -> UnitGroup:
    """The group for the wider of two features; a group with a size of its own must fit both."""
    if isinstance(group, UnitGroup):
        group_on(group, channels_x, "x")
        return group_on(group, channels_y, "y")
    return group_on(group, max(channels_x, channels_y), "x and y")


def added(a: CrossMoments, b: CrossMoments) -> CrossMoments:
    """The sums over two sets of examples together."""
    return CrossMoments(
        a.cross + b.cross,
        a.squares_x + b.squares_x,
        a.squares_y + b.squares_y,
        torch.maximum(a.largest_x, b.largest_x),
        torch.maximum(a.largest_y, b.largest_y),
    )


def piece_factors(group: UnitGroup, squares: Tensor) -> Tensor:
    """One over the norm of the piece that each channel is normalised with, 0 for dead ones; both (…, C)."""
    labels = pieces_of(group, squares.movedim(-1, 0))
    sums = squares.new_zeros(*squares.shape[:-1], group.size).index_add_(-1, labels, squares)
    norms = sums.sqrt()[..., labels]
    return torch.where(norms > 0, 1 / torch.where(norms > 0, norms, 1.0), 0.0)


def _matched(group: UnitGroup, scores: Tensor) -> tuple[float, Tensor, Tensor, Tensor | None]:
    """The best sum of scores, for each channel of x its channel of y, −1 for none, the sign, and R where blocks mix."""
    places = torch.tensor(group.places, device=scores.device)
    # As the group counts channels, with dead ones added where there are too few.
    missing = (0, group.size - scores.shape[1], 0, group.size - scores.shape[0])
    match = best_match(group, torch.nn.functional.pad(scores, missing)[places][:, places])
    order, signs = (torch.from_numpy(part).to(scores.device) for part in (match.order, match.signs))
    by_channel, sign_by_channel = torch.empty_like(order), torch.empty_like(signs)
    by_channel[places], sign_by_channel[places] = places[order], signs
    by_channel = torch.where(by_channel < scores.shape[1], by_channel, -1)
    rotation = None
    if group.kinds:
        rotation = scores.new_zeros(group.size, group.size)
        rotation[places[:, None], places] = torch.from_numpy(match.matrix().T.copy()).to(scores)
    return match.value, by_channel[: len(scores)], sign_by_channel[: len(scores)], rotation


def _rest_of_order(x: Tensor, y: Tensor, over_x: Tensor, over_y: Tensor, order: Tensor, signs: Tensor) -> float:
    """‖X̂ − gŶ‖² over the channels of x, entry by entry: of equal features it is 0, not the rounding of a difference."""
    factor = signs * over_y[order]
    return sum(
        float((a * over_x[:, None] - b[:, order] * factor[:, None]).square().sum()) for a, b in wide_chunks(x, y)
    )


def _rest_of_rotation(x: Tensor, y: Tensor, over_x: Tensor, over_y: Tensor, rotation: Tensor) -> float:
    """‖X̂ − ŶR‖², or ‖Ŷ − X̂Rᵀ‖² if y is wider: the map must keep all of what it acts on."""
    rests = 0.0
    for a, b in wide_chunks(x, y):
        a, b = a * over_x[:, None], b * over_y[:, None]
        rest = a - rotation.mT @ b if b.shape[1] <= a.shape[1] else b - rotation @ a
        rests += float(rest.square().sum())
    return rests
