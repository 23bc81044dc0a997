"""Scales that bring one network closest to another, its order being settled."""

from collections.abc import Mapping

import torch
from torch import Tensor

from coset.align.terms import matched_names
from coset.symmetry import Element, Symmetry
from coset.symmetry.action import Action
from coset.symmetry.axes import Charge
from coset.symmetry.structure import Stretch

SWEEPS = 20
TOLERANCE = 1e-9
_NEWTON = 30
_LARGEST_STEP = 1.0


def fit_scales(sym: Symmetry, reference: Mapping[str, Tensor], other: Mapping[str, Tensor], g: Element) -> Element:
    """min over d > 0 of ‖θ₀ − d·(g·θ₁)‖² over trained parameters; returns d·g.

    Family by family, until nothing changes: for a unit whose entries carry the powers k of its scale e^t,
    φ(t) = Σ_k (S_k e^{2kt} − 2 C_k e^{kt}) with S_k = Σ θ₁², C_k = Σ θ₀θ₁, by Newton steps kept short and downhill.
    """
    moved = sym.act(g, {name: other[name].detach().double() for name in sym.structures})
    names = matched_names(sym, {name: reference[name] for name in sym.structures}, buffers=False)
    left = {name: reference[name].detach().to(device="cpu", dtype=torch.float64) for name in names}
    logs = {
        key: torch.zeros(sym.shape(sym.families[key].owner), dtype=torch.float64).reshape(-1) for key in sym.scaling
    }
    current = {name: moved[name].cpu() for name in names}
    for _ in range(SWEEPS):
        largest = 0.0
        for key in sym.scaling:
            step = _newton(_moments(sym, key, left, current), len(logs[key]))
            if float(step.abs().max()) == 0.0:
                continue
            logs[key] += step
            largest = max(largest, float(step.abs().max()))
            shape = sym.shape(sym.families[key].owner)
            action = Action(sym, Element(scales={key: step.exp().reshape(shape)}), whole=False)
            current = action(current, partial=True)
        if largest < TOLERANCE:
            break
    shapes = {key: sym.shape(sym.families[key].owner) for key in sym.scaling}
    return sym.compose(sym.element(scales={key: logs[key].exp().reshape(shapes[key]) for key in sym.scaling}), g)


def _moments(
    sym: Symmetry, key: str, left: Mapping[str, Tensor], right: Mapping[str, Tensor]
) -> dict[int, tuple[Tensor, Tensor]]:
    """Power k of the scale → (S_k, C_k), each (N,), over the entries that carry it with that power."""
    owner, family = sym.families[key].owner, sym.families[key].name
    units = 1
    for size in sym.shape(owner):
        units *= size
    found: dict[int, tuple[Tensor, Tensor]] = {}
    for name in left:
        if name not in right:
            continue
        structure = sym.structures[name]
        for stretch in structure.stretches:
            for power, positions, unit in _carried(stretch, owner, family):
                rows = tuple(range(len(stretch.dims)))
                a, b = (
                    part[name].reshape(structure.sizes).movedim(stretch.dims, rows).reshape(stretch.size, -1)[positions]
                    for part in (left, right)
                )
                zero = torch.zeros(units, dtype=torch.float64)
                squares, products = found.get(power, (zero, zero))
                found[power] = (
                    squares.index_add(0, unit, (b * b).sum(1)),
                    products.index_add(0, unit, (a * b).sum(1)),
                )
    return found


def _carried(stretch: Stretch, owner: str, family: str) -> list[tuple[int, Tensor, Tensor]]:
    """(power, positions, their units) for every appearance of the family along a stretch."""

    def power(charges: tuple[Charge, ...]) -> int:
        return next((charge.scale for charge in charges if charge.family == family), 0)

    if stretch.plain is not None:
        every = torch.arange(stretch.size)
        mine = stretch.plain.name == owner and power(stretch.plain.charges)
        return [(power(stretch.plain.charges), every, every)] if mine else []
    found = []
    for member in stretch.members:
        if member.name == owner and power(member.charges):
            positions = torch.nonzero(member.unit >= 0).flatten()
            found.append((power(member.charges), positions, member.unit[positions]))
    return found


def _newton(moments: Mapping[int, tuple[Tensor, Tensor]], units: int) -> Tensor:
    """argmin_t Σ_k (S_k e^{2kt} − 2 C_k e^{kt}) near t = 0, for every unit at once; 0 for units that vanish."""
    t = torch.zeros(units, dtype=torch.float64)

    def phi(t: Tensor) -> Tensor:
        total = torch.zeros_like(t)
        for k, (squares, products) in moments.items():
            total = total + squares * torch.exp(2 * k * t) - 2 * products * torch.exp(k * t)
        return total

    alive = sum((squares for squares, _ in moments.values()), torch.zeros(units, dtype=torch.float64)) > 0
    for _ in range(_NEWTON):
        slope, bend = torch.zeros_like(t), torch.zeros_like(t)
        for k, (squares, products) in moments.items():
            slope += 2 * k * (squares * torch.exp(2 * k * t) - products * torch.exp(k * t))
            bend += 2 * k * k * (2 * squares * torch.exp(2 * k * t) - products * torch.exp(k * t))
        step = torch.where(bend > 0, -slope / bend.clamp(min=1e-300), -slope.sign())
        step = torch.where(alive, step.clamp(-_LARGEST_STEP, _LARGEST_STEP), torch.zeros_like(t))
        now, best = phi(t), t
        for _ in range(_NEWTON):
            trial = t + step
            lower = phi(trial) < now
            best = torch.where(lower, trial, best)
            if bool((lower | (step == 0)).all()):
                break
            step = torch.where(lower, step, step / 2)
        if float((best - t).abs().max()) < TOLERANCE:
            return best
        t = best
    return t
