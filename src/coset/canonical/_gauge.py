"""The continuous part of a canonical form: scales, GL(n) by the balanced gauge, gains folded, half-turns."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from coset.alignment.matching import rotations
from coset.alignment.matching.rotations import NoGauge
from coset.canonical._stacked import wide
from coset.geometry.scales import Ranks, counted, incoming_norms, removed_norms, with_norms
from coset.symmetry import Element, Symmetry
from coset.symmetry.mixing import units_of_parameter

_TURNS, _SETTLED = 2000, 1e-12
"""Classes that meet are balanced in so many turns at most, until matrices are rotations up to this."""

_PATIENCE, _NEAR = 10, 1e-6
"""Where weights are far from the same size, rounding leaves more: then until so many turns have brought no progress,
and matrices are rotations up to this.
"""

_EQUAL = 1e-9
"""Singular values whose difference is such a part of the largest are equal."""


def unit_scales(sym: Symmetry, stack: dict[str, Tensor], bias: str) -> dict[str, Tensor]:
    """The scales 1/‖incoming weights‖ of all families, (N, *shape); ``stack`` (float64) is scaled along.

    Family by family from the input on, as ``normalize_scales`` has it; families without such weights stay.
    """
    families, without = with_norms(sym)
    count = len(next(iter(stack.values())))
    norms = removed_norms(sym, [(key, counted(sym, ranks, bias)) for key, ranks in families], stack)
    ones = {key: torch.ones(count, *sym.shape(sym.families[key].owner), dtype=torch.float64) for key in without}
    return ones | {key: 1 / norm for key, norm in norms.items()}


def mixing_gauge(sym: Symmetry, params: Mapping[str, Tensor], bias: str) -> Element:
    """The element that folds gains, removes scales and balances what GL(n) mixes; of a single network, in float64.

    Gains of classes that mix become ones, families of other classes get incoming weights of unit norm, from the input
    on. What they read of a class under GL(n) is measured with its writers made orthonormal, W·L with P = L·Lᵀ the Gram
    matrix of the writers: the norm of the product, which no matrix changes. At the end every class under GL(n) is
    balanced, singular values in descending order, and every rotary pair. A network without such a gauge is a
    ``NoGauge``.
    """
    folds = rotations.folded(sym, params)
    g = sym.element(**folds)
    current = sym.act(g, params)
    white: set[str] = set()
    for key, ranks in with_norms(sym)[0]:
        owner = sym.families[key].owner
        kind = sym.continuous[owner].kind if owner in sym.continuous else ""
        if key in folds["scales"] or kind == "rotary" or (kind == "general" and owner in white):
            continue
        if kind == "general":
            white.add(owner)
            step = sym.element(matrices={owner: _whitened(sym, owner, ranks, current)})
        else:
            norms = incoming_norms(sym, key, counted(sym, ranks, bias), wide(current))
            step = sym.element(scales={key: 1 / norms})
        g, current = sym.compose(step, g), sym.act(step, current)
    return sym.compose(_balanced_jointly(sym, current), g)


def _balanced_jointly(sym: Symmetry, params: Mapping[str, Tensor]) -> Element:
    """Balanced, also where classes under GL(n) meet on a parameter: in turns, each of which lowers ‖θ‖².

    Over GL(n) the norm is convex along geodesics, so that its minimum is one orbit of rotations (Kempf and Ness).
    """
    met = _meeting(sym)
    g = rotations.balanced_gauge(sym, params)
    least, since = math.inf, 0
    for _ in range(_TURNS if met else 0):
        change = 0.0
        for name in met:
            matrix = rotations.balanced(sym, name, sym.act(g, params))
            change = max(change, float((matrix @ matrix.mT - torch.eye(matrix.shape[-1])).abs().max()))
            g = sym.compose(sym.element(matrices={name: matrix}), g)
        least, since = (change, 0) if change < least else (least, since + 1)
        if change <= _SETTLED or (since >= _PATIENCE and least <= _NEAR):
            # Rotations leave what is balanced: now every class is ordered by its singular values.
            return sym.compose(rotations.balanced_gauge(sym, sym.act(g, params)), g)
    if met:
        raise NoGauge(f"what GL(n) mixes in {', '.join(met)} is not balanced after {_TURNS} turns")
    return g


def _meeting(sym: Symmetry) -> list[str]:
    """The classes under GL(n) of which matrices act on the same entries; on other parts of a fused weight none do."""
    entries: dict[str, dict[str, Tensor]] = {}
    for name, mixing in sym.continuous.items():
        if mixing.kind == "general":
            for parameter in mixing.places:
                shape = sym.parameters[parameter].shape
                numbers = torch.arange(math.prod(shape)).reshape(shape)
                units = [rows.flatten() for _, rows in units_of_parameter(sym, name, parameter, numbers)]
                entries.setdefault(parameter, {})[name] = torch.cat(units)
    found = {
        name
        for own in entries.values()
        for name, here in own.items()
        for other, there in own.items()
        if name != other and bool(torch.isin(here, there).any())
    }
    return [name for name in sym.continuous if name in found]


def half_read(sym: Symmetry, params: Mapping[str, Tensor]) -> list[str]:
    """What is left open of classes that mix, in words: rotations of streams; of GL(n) directions that are written and
    not read, or read and not written, in which no singular value tells how to turn them, and equal singular values.
    """
    found = []
    for name, mixing in sym.continuous.items():
        n = sym.shape(name)[-1]
        whole = f"{mixing.named(n)} of {name}"
        if mixing.kind != "general":
            found.append(whole)
            continue
        grams = rotations.grams(sym, name, params)
        if any(int(torch.linalg.matrix_rank(gram, hermitian=True, rtol=1e-12).min()) < n for gram in grams):
            found.append(whole)
        elif n > 1:
            values = grams[0].diagonal(dim1=-2, dim2=-1)
            if bool(((values[..., :-1] - values[..., 1:]).abs() <= _EQUAL * values[..., :1].abs()).any()):
                found.append(f"rotations of equal singular values of {name}")
    return found


def _whitened(sym: Symmetry, name: str, ranks: Ranks, params: Mapping[str, Tensor]) -> Tensor:
    """L⁻¹ of what the given parameters write to a class, P = L·Lᵀ, in every block."""
    *outer, n = sym.shape(name)
    counted = {parameter for rank in ranks for parameter in rank}
    gram, _ = rotations.grams(sym, name, params, counted)
    if int(torch.linalg.matrix_rank(gram, hermitian=True, rtol=1e-12).min()) < n:
        raise NoGauge(f"what is written to '{name}' has not the rank {n}")
    white: Tensor = torch.linalg.inv(torch.linalg.cholesky(gram))
    return white.reshape(*outer, n, n)
