"""The nearest equivalent mode: how far the closest other weights of the same function are (Gelberg et al. 2024, §3)."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from coset._checks import check_count, check_positive
from coset._magnitudes import exponent, scaled, unscaled
from coset.distribution import Distribution
from coset.distribution.density import vector
from coset.distribution.ties import once, ties
from coset.errors import InputError
from coset.posterior.symmetrized.units import exchange, is_separable, unit_entries
from coset.symmetry import Element, Symmetry


@dataclass(frozen=True, eq=False)
class NearestMode:
    """g·ω nearest to ω, g ``element`` the exchange of two ``units`` of a class, numbered over all its blocks.

    ``distance`` ‖g·ω − ω‖. ``exact``: it is the minimum over all permutations but the identity, as where one class
    permutes and an entry is of at most one unit; otherwise an upper bound. ``norm`` ‖ω‖ and ``dimension`` D of the
    trained weights, tied ones once.
    """

    element: Element
    class_name: str
    units: tuple[int, int]
    distance: float
    exact: bool
    norm: float
    dimension: int


@torch.no_grad()
def nearest_mode(sym: Symmetry, weights: Distribution | Mapping[str, Tensor]) -> NearestMode:
    """The nearest equivalent of ω, or of the mean of a posterior, by exchanging two units.

    ‖g·ω − ω‖² = Σ_i ‖ν_{p[i]} − ν_i‖²: a permutation moves at least two units, each by at least the smallest distance
    between two, so the minimum is √2·min_{i<j} ‖ν_i − ν_j‖, at an exchange. With more classes it bounds the minimum
    from above; where an entry belongs to two units all exchanges are tried, n²/2 actions. The norm is over all
    floating-point parameters that are not buffers; of a posterior, over those that vary.
    """
    params, names = _trained(sym, weights)
    by = exponent(*(params[name] for name in names)) if names else 0
    params = {name: scaled(tensor, by) for name, tensor in params.items()}
    finite = sym.restrict(scales=False, signs=False)
    classes = [name for name in finite.permuting if finite.classes[name].size > 1]
    if not classes:
        raise InputError("sym permutes no class of two or more units; expected one: no other mode is equivalent")
    found = []
    for name in classes:
        separable = is_separable(finite, name, names)
        find = _by_distances if separable else _by_action
        found.append((*find(finite, name, params, names), name, separable))
    square, units, name, separable = min(found, key=lambda item: item[0])
    x = vector(params, names, params).double()
    return NearestMode(
        element=exchange(finite, name, units),
        class_name=name,
        units=units,
        distance=unscaled(math.sqrt(square), by),
        exact=separable and len(classes) == 1,
        norm=unscaled(float(x.norm()), by),
        dimension=len(x),
    )


def _by_distances(
    sym: Symmetry, name: str, params: Mapping[str, Tensor], names: Sequence[str]
) -> tuple[float, tuple[int, int]]:
    """2·min ‖ν_i − ν_j‖² and the two units, where each entry is of one unit."""
    x = vector(params, names, params).double()
    rows = x[unit_entries(sym, name, params, names).owned.to(x.device)]
    # Written out: where two units nearly agree, a difference of squares would lose their distance.
    squares = torch.stack([(rows - row).square().sum(-1) for row in rows])
    squares.fill_diagonal_(math.inf)
    place = int(squares.argmin())
    return 2 * float(squares.flatten()[place]), (place // len(rows), place % len(rows))


def _by_action(
    sym: Symmetry, name: str, params: Mapping[str, Tensor], names: Sequence[str]
) -> tuple[float, tuple[int, int]]:
    """The least ‖g·ω − ω‖² of all exchanges of two units in a block, one after the other, and the two units."""
    size, count = sym.classes[name].size, math.prod(sym.shape(name))
    picked = {key: params[key].double() for key in names}
    x = vector(picked, names, params)
    best = (math.inf, (0, 0))
    for start in range(0, count, size):
        for units in itertools.combinations(range(start, start + size), 2):
            moved = vector(sym.act(exchange(sym, name, units), picked, partial=True), names, params)
            best = min(best, (float((moved - x).square().sum()), units))
    return best


def volume_bound(norm: float, dimension: int, log_order: float) -> float:
    """2R = 2‖ω‖·D/log|G|: some g ≠ e has ‖g·ω − ω‖ ≤ 2R (Gelberg et al. 2024, theorem 3.1 and appendix B).

    Balls of radius R around |G| points of one sphere do not all fit side by side. It says something only where
    D < log|G|: the distance is always ≤ 2‖ω‖. For d_i-n-d_o it is at most 2(d_i + d_o + 1 + d_o/n)‖ω‖/(log n − 1);
    (11) of the paper loses a factor of 2 and prints 1/n for d_o/n.
    """
    check_positive("norm", norm, zero=True)
    check_positive("dimension", dimension)
    check_positive("log_order", log_order)
    return 2 * norm * dimension / log_order


def pair_bound(norm: float, units: int) -> float:
    """2‖ω‖/√(n − 1) ≥ the distance to the nearest mode, for one class of n units, whatever D.

    The mean of ‖ν_i − ν_j‖² over pairs is at most 2‖ω‖²/(n − 1), so the least is: sharper than theorem 3.1, in which
    the sizes of input and output appear.
    """
    check_positive("norm", norm, zero=True)
    check_count("units", units, 2)
    return 2 * norm / math.sqrt(units - 1)


def _trained(sym: Symmetry, weights: Distribution | Mapping[str, Tensor]) -> tuple[Mapping[str, Tensor], Sequence[str]]:
    if isinstance(weights, Distribution) and weights.centred:
        params, names = weights.mean, weights.random_names
    elif isinstance(weights, Mapping):
        params = weights
        buffers = {key for key, parameter in sym.parameters.items() if parameter.buffer}
        inferred = [key for key in params if params[key].is_floating_point() and key not in buffers]
        names = once(inferred, ties(params))
    else:
        raise InputError(f"weights is a {type(weights).__name__}; expected a MeanField or a dict of parameters")
    if not names:
        raise InputError("weights has no trained floating-point parameters; expected some")
    return params, names
