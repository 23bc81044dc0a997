"""Scales that bring one network closest to another, its order being settled."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from scipy.optimize import OptimizeResult, minimize
from torch import Tensor

from coset._magnitudes import exponent, scaled
from coset.alignment._result import Params
from coset.alignment.matching.products import matched_names
from coset.symmetry import Element, Symmetry
from coset.symmetry.incidence import appearances, rows_along, spread
from coset.symmetry.structure import Stretch

LARGEST = 1e2
"""A unit that would be scaled by more than this, up or down, has no best scale: it comes closest by vanishing."""

_BOUND = math.log(LARGEST)
_ITERATIONS = 1000
_PATIENCE = 10
_IMPROVEMENT = 1e-7


def fit_scales(sym: Symmetry, reference: Params, other: Params, g: Element) -> Element:
    """min over d > 0 of ‖θ₀ − d·(g·θ₁)‖² over trained parameters; returns d·g, or ``g`` where no d comes closer.

    All scales together, by their logarithms (L-BFGS). Units that vanish, and units without a best scale, keep theirs.
    """
    trained = matched_names(sym, [reference, other], buffers=False)
    left = {name: reference[name].detach() for name in trained}
    right = {name: other[name].detach() for name in sym.structures}
    moved = sym.act(g, right)
    # Scales have no unit: both sides may be multiplied by what makes their squares numbers.
    by = exponent(*left.values(), *(right[name] for name in trained)) if trained else 0
    fit = _Fit.of(sym, *({name: scaled(part[name], by) for name in trained} for part in (left, moved)))
    free = torch.ones(fit.size, dtype=torch.bool)
    logs = fit.minimized(torch.zeros(fit.size, dtype=torch.float64), free)
    while bool((beyond := logs.abs() >= _BOUND).any()):
        free &= ~beyond
        logs = fit.minimized(torch.where(free, logs, 0), free)
    scales = {key: logs[part].exp().reshape(sym.shape(sym.families[key].owner)) for key, part in fit.parts.items()}
    fitted = sym.compose(sym.element(scales=scales), g)
    # A norm's gain makes up for a variance that is all but zero: then the whole action is not the fit's.
    return fitted if _distance(left, sym.act(fitted, right), by) <= _distance(left, moved, by) else g


def _distance(left: Params, right: Params, by: int) -> float:
    """‖θ₀ − θ₁‖² in units of 4ᵉ."""
    return sum(
        float(scaled(tensor.double() - right[name].to(tensor.device).double(), by).square().sum())
        for name, tensor in left.items()
    )


@dataclass(frozen=True)
class _ScaleAppearance:
    """A family along a stretch: ``positions`` (P,) carry the ``power`` of the scales numbered ``scales`` (P,)."""

    power: int
    positions: Tensor
    scales: Tensor


@dataclass(frozen=True, eq=False)
class _Fit:
    """Two networks, and where in them each scale stands; all scales are numbered, a family is one of the ``parts``."""

    sym: Symmetry
    left: Params
    right: Params
    parts: Mapping[str, slice]
    size: int
    places: Mapping[str, list[tuple[Stretch, list[_ScaleAppearance]]]]

    @classmethod
    def of(cls, sym: Symmetry, left: Params, right: Params) -> "_Fit":
        parts: dict[str, slice] = {}
        size = 0
        for key in sym.scaling:
            count = math.prod(sym.shape(sym.families[key].owner))
            parts[key] = slice(size, size + count)
            size += count
        return cls(sym, left, right, parts, size, {name: _scaled_along(sym, name, parts) for name in left})

    def minimized(self, start: Tensor, free: Tensor) -> Tensor:
        """The logarithms at the minimum next to ``start`` within the bounds, those that are not ``free`` held. (N,)."""
        whole = sum(float(tensor.double().square().sum()) for tensor in (*self.left.values(), *self.right.values()))
        if whole == 0.0 or not bool(free.any()):
            return start

        def evaluated(logs: Any) -> tuple[float, Any]:
            value, slope = self.distance(torch.from_numpy(logs))
            return value / whole, (slope / whole).numpy()

        course: list[float] = []

        def watched(intermediate_result: OptimizeResult) -> None:
            # Relative to what is left: a planted network is found exactly, one that stays far away soon enough.
            course.append(float(intermediate_result.fun))
            if len(course) > _PATIENCE and course[-1 - _PATIENCE] - course[-1] <= _IMPROVEMENT * course[-1]:
                raise StopIteration

        bounds = [(-_BOUND, _BOUND) if moves else (0.0, 0.0) for moves in free.tolist()]
        found = minimize(
            evaluated,
            start.numpy(),
            jac=True,
            method="L-BFGS-B",
            bounds=bounds,
            callback=watched,
            options={"maxiter": _ITERATIONS, "maxcor": 30, "ftol": 0.0, "gtol": 1e-15},
        )
        return torch.from_numpy(found.x)

    def distance(self, logs: Tensor) -> tuple[float, Tensor]:
        """‖θ₀ − d·θ₁‖² with d = exp(logs), and its derivative by the logarithms; one parameter at a time."""
        total, slope = 0.0, torch.zeros_like(logs)
        for name, carried in self.places.items():
            structure = self.sym.structures[name]
            left = self.left[name].to("cpu", torch.float64).reshape(structure.sizes)
            moved = self.right[name].to("cpu", torch.float64).reshape(structure.sizes)
            for stretch, scales in carried:
                exponent = torch.zeros(stretch.size, dtype=torch.float64)
                for at in scales:
                    exponent.index_add_(0, at.positions, at.power * logs[at.scales])
                moved = moved * spread(exponent.exp(), structure, stretch)
            off = moved - left
            total += float(off.square().sum())
            change = 2 * off * moved
            for stretch, scales in carried:
                along = rows_along(change, structure, stretch).sum(1)
                for at in scales:
                    slope.index_add_(0, at.scales, at.power * along[at.positions])
        return total, slope


def _scaled_along(
    sym: Symmetry, parameter: str, parts: Mapping[str, slice]
) -> list[tuple[Stretch, list[_ScaleAppearance]]]:
    """The stretches of a parameter, with every free scale along them."""
    found: dict[Stretch, list[_ScaleAppearance]] = {}
    for stretch, item in appearances(sym, parameter):
        positions = item.positions
        found.setdefault(stretch, []).extend(
            _ScaleAppearance(power, positions, parts[key].start + item.unit[positions])
            for key, power in item.scales.items()
            if key in parts
        )
    return list(found.items())
