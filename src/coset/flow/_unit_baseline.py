"""The flow between Gaussians for networks as sets of units: the units of a class are exchangeable."""

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from coset.distribution.density import standard_normal
from coset.errors import InputError
from coset.flow._baseline import FLOOR, Baseline, slope_of, variance_at
from coset.flow._sources import Source
from coset.flow._space import Space
from coset.flow._units import Key, Units, joined, split


class UnitBaseline(Baseline):
    """The velocity of the straight flow to networks whose units are independent draws of one Gaussian for each class.

    As in ``Baseline``, in y = (x − m₀)/s₀; means are those of all units of a class, feature by feature. What a unit
    carries alone is turned to its principal components over all units and networks, V (F, k) with variances λ (k), λ₀
    in all other directions: so what comes into a unit goes with what goes out of it. Pairs of units, and what no unit
    carries, have variances feature by feature. Along the same directions the source has variances 1 where its
    coordinates are independent, and ``matched``²·λ where it is a ``UnitSource``.

    With a metric on weights in, components are principal in yL, where L is a root of it: V = L·U with U orthonormal,
    and y is z·W and a rest, W = UᵀL⁻¹ (k, F), WV = 1. Then the rest has all of its covariance, of which a matched
    source takes care: S (F, F), SᵀS the covariance of units.
    """

    def __init__(
        self, units: Units, m0: Tensor, s0: Tensor, mu: Tensor, parts: Mapping[str, Tensor], matched: float = 0.0
    ) -> None:
        nn.Module.__init__(self)
        self.units, self.matched = units, matched
        for name, tensor in {"m0": m0, "s0": s0, "mu": mu, **parts}.items():
            self.register_buffer(name, tensor.detach().clone())
        self.turned = tuple(key for key in units.places if len(key) == 1)
        self.reading = {
            key: (*shape[:-1], self.of("basis", key).shape[1]) if key in self.turned else shape
            for key, shape in units.sizes.items()
        }

    def of(self, what: str, key: Key) -> Tensor:
        """A buffer of a part: its "basis", its "variances", the variance of the "rest"."""
        return self.get_buffer(part_name(what, key))

    def along(self, key: Key, part: Tensor) -> Tensor:
        """The components z (…, k) of what units carry, y (…, F)."""
        return part @ self.of("basis", key)

    def back(self, key: Key, z: Tensor) -> Tensor:
        """What units carry of components (…, k), (…, F)."""
        return z @ (self.of("dual", key) if self.measured(key) else self.of("basis", key).T)

    def measured(self, key: Key) -> bool:
        """Whether components are principal by a metric."""
        return part_name("dual", key) in self._buffers

    def _begin(self, variances: Tensor) -> Tensor | float:
        return self.matched**2 * variances if self.matched else 1.0

    @property
    def width(self) -> int:
        """The numbers that a network reads and gives."""
        return sum(torch.Size(shape).numel() for shape in self.reading.values())

    def reads(self, x: Tensor, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What a network reads, z/√a, and what ``velocity`` needs: z, and what lies in no component, (N, D)."""
        y = self.units.split((x - self.m0) / self.s0 - t[:, None] * self.mu)
        z, left = {}, {}
        for key, part in y.items():
            z[key] = self.along(key, part) if key in self.turned else part
            left[key] = part - self.back(key, z[key]) if self.rests(key) else torch.zeros_like(part)
        read = []
        for key, part in z.items():
            variances = self.of("variances", key)
            read.append(part / variance_at(_times(t, part), variances, self._begin(variances)).sqrt())
        return joined(read), joined(list(z.values())), joined(list(left.values()))

    def velocity(self, said: Tensor, z: Tensor, rest: Tensor, t: Tensor) -> Tensor:
        """The velocity (N, D), given what the network said of it."""
        spoken, places, left = (
            split(said, self.reading), split(z, self.reading), split(rest, self.units.sizes),
        )  # fmt: skip
        found = {}
        for key, part in places.items():
            times, variances = _times(t, part), self.of("variances", key)
            begin = self._begin(variances)
            a = variance_at(times, variances, begin)
            found[key] = slope_of(times, variances, a, begin) * part + (variances * begin / a).sqrt() * spoken[key]
            if key in self.turned:
                found[key] = self.back(key, found[key])
            if self.rests(key):
                others = self.of("rest", key)
                begin = self._begin(others)
                slope = slope_of(times, others, variance_at(times, others, begin), begin)
                found[key] = found[key] + slope * left[key]
        return self.s0 * (self.mu + self.units.join(found))

    def balanced(self, rows: Tensor, power: float) -> Tensor:
        """As in ``Baseline``; with a metric components alone, in units of y, by which rows are fewer."""
        if any(self.measured(key) for key in self.turned):
            parts = self.units.split(rows / self.s0)
            seen = {key: self.along(key, part) if key in self.turned else part for key, part in parts.items()}
            return joined([part * self.of("variances", key).pow(-power / 2) for key, part in seen.items()])
        if not power:
            return rows
        found = {}
        for key, part in self.units.split(rows / self.s0).items():
            share = self.of("variances", key).pow(-power / 2)
            along = part @ self.of("basis", key) if key in self.turned else part
            found[key] = (along * share) @ self.of("basis", key).T if key in self.turned else along * share
            if self.rests(key):
                others = part - along @ self.of("basis", key).T
                found[key] = found[key] + others * self.of("rest", key).pow(-power / 2)
        return self.s0 * self.units.join(found)

    def rests(self, key: Key) -> bool:
        return key in self.turned and self.reading[key][-1] < self.units.sizes[key][-1]

    def widened(self, units: Units) -> "UnitBaseline":
        """The same for networks with other numbers of units."""
        m0, s0, mu = (self.units.carried(getattr(self, name), units) for name in ("m0", "s0", "mu"))
        parts = {name: tensor for name, tensor in self.named_buffers() if name not in ("m0", "s0", "mu")}
        return UnitBaseline(units, m0, s0, mu, parts, self.matched)

    def extra_repr(self) -> str:
        return ", ".join(f"{'×'.join(key) or 'still'}: {tuple(shape)}" for key, shape in self.reading.items())


def part_name(what: str, key: Key) -> str:
    """The name of a buffer: names of classes may hold dots, which buffers must not."""
    return f"{what} {'×'.join(key)}".replace(".", "·")


def make_unit_baseline(
    units: Units,
    rows: Tensor,
    m0: Tensor,
    s0: Tensor,
    *,
    projection: str,
    components: int | None,
    matched: float = 0.0,
    metric: Mapping[Key, tuple[Tensor, Tensor]] | None = None,
) -> UnitBaseline:
    """The baseline of data rows (N, D); ``projection`` "pca": networks read so many principal components of units, of
    classes whose units carry fewer numbers all of these. ``metric``: as ``units_metric`` gives it.
    """
    if projection not in ("none", "pca"):
        raise InputError(f"projection is {projection!r}, and the field is 'units'; expected 'none' or 'pca'")
    if components is not None and projection == "none":
        raise InputError(f"components is {components}, and projection is 'none', which takes all; expected None")
    most = max((shape[-1] for key, shape in units.sizes.items() if len(key) == 1), default=1)
    if components is not None and not 1 <= components <= most:
        raise InputError(
            f"components is {components}; expected 1 to {most}, the numbers that a unit carries at the most"
        )
    y = (rows.double() - m0.double()) / s0.double()
    mu = units.shared(y.mean(0))
    parts: dict[str, Any] = {}
    for key, part in units.split(y - mu).items():
        if len(key) != 1:
            parts[part_name("variances", key)] = part.flatten(0, -2).square().mean(0).clamp_min(FLOOR)
            continue
        flat = part.flatten(0, 1)
        if metric is not None and key in metric:
            parts |= _measured(key, flat, metric[key], s0.double()[units.places[key][0]], components)
            continue
        values, vectors = torch.linalg.eigh(flat.T @ flat / len(flat))
        k = len(values) if components is None else min(components, len(values))
        parts[part_name("basis", key)] = vectors.flip(1)[:, :k].contiguous()
        parts[part_name("variances", key)] = values.flip(0)[:k].clamp_min(FLOOR)
        left = values[: len(values) - k]
        parts[part_name("rest", key)] = (left.mean() if len(left) else torch.ones(()).to(left)).clamp_min(FLOOR)
    if matched:
        m0, mu = m0 + s0 * mu.to(rows), torch.zeros_like(mu)
    return UnitBaseline(units, m0, s0, mu.to(rows), {name: tensor.to(rows) for name, tensor in parts.items()}, matched)


_LEAST = 1e-6
"""Eigenvalues of a metric are at least so large, in units of the largest: directions that no input has."""


def _measured(
    key: Key, flat: Tensor, metric: tuple[Tensor, Tensor], s0: Tensor, components: int | None
) -> dict[str, Tensor]:
    """The parts of a class by a metric: y (units, F), the numbers of the features it is of, (n,), itself, (n, n).

    Weights in count by their metric, all of them as much as all else that a unit carries.
    """
    own, moments = metric
    values, vectors = torch.linalg.eigh(moments.to(flat) * s0[own, None] * s0[own])
    values = values.clamp_min(_LEAST * values[-1])
    root, inverse = vectors * values.sqrt(), (vectors / values.sqrt()).T
    spread = (flat[:, own] @ root).square().mean(0).sum()
    total = flat.square().mean(0).sum() - flat[:, own].square().mean(0).sum()
    size = (total / spread).sqrt() if total > 0 else spread.rsqrt()
    forth, back = (torch.eye(flat.shape[1]).to(flat) for _ in range(2))
    forth[own[:, None], own], back[own[:, None], own] = root * size, inverse / size
    turned = flat @ forth
    variances, basis = (part.flip(-1) for part in torch.linalg.eigh(turned.T @ turned / len(turned)))
    # Directions that no input has are small by the metric alone.
    variances = variances.clamp_min(_LEAST * FLOOR * variances[0])
    k = len(variances) if components is None else min(components, len(variances))
    dual = basis.T @ back
    found = {
        "basis": (forth @ basis[:, :k]).contiguous(),
        "dual": dual[:k].contiguous(),
        "variances": variances[:k].contiguous(),
        "rest": variances[k:].mean() if k < len(variances) else torch.ones(()).to(flat),
        "spread": variances.sqrt()[:, None] * dual,
    }
    return {part_name(name, key): tensor for name, tensor in found.items()}


@dataclass(frozen=True, eq=False)
class UnitSource(Source):
    """Networks whose units are independent draws of one Gaussian for each class: the data end of a ``UnitBaseline``.

    Deviations are ``scale`` times those of the data.
    """

    baseline: UnitBaseline
    scale: float

    def tensors(self) -> tuple[Tensor, ...]:
        return self.mean, self.std, *self.baseline.buffers(), torch.tensor(self.scale, dtype=torch.float64)

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        own = self.baseline
        normal = standard_normal((count, len(self.mean)), self.mean, generator)
        found = {}
        for key, part in own.units.split(normal).items():
            if own.measured(key):
                found[key] = part @ own.of("spread", key)
                continue
            along = part @ own.of("basis", key) if key in own.turned else part
            drawn = along * own.of("variances", key).sqrt()
            found[key] = drawn @ own.of("basis", key).T if key in own.turned else drawn
            if own.rests(key):
                found[key] = found[key] + (part - along @ own.of("basis", key).T) * own.of("rest", key).sqrt()
        return self.mean + self.scale * own.s0 * own.units.join(found)

    def log_density(self, rows: Tensor) -> Tensor:
        own, total = self.baseline, torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
        y = (rows.double() - self.mean.double()) / (self.scale * own.s0.double())
        for key, part in own.units.split(y).items():
            if own.measured(key):
                root = own.of("spread", key).double()
                normal = torch.linalg.solve(root, part, left=False)
                total = total + _normal(normal, torch.ones(()).to(normal)).flatten(1).sum(1)
                total = total - part.shape[1] * torch.linalg.slogdet(root)[1]
                continue
            basis = own.of("basis", key).double() if key in own.turned else None
            along = part if basis is None else part @ basis
            total = total + _normal(along, own.of("variances", key)).flatten(1).sum(1)
            if basis is not None and own.rests(key):
                others, (size, k) = part - along @ basis.T, basis.shape
                rest, count = own.of("rest", key).double(), part.shape[1] * (size - k)
                total = total - others.square().flatten(1).sum(1) / (2 * rest) - count / 2 * (2 * math.pi * rest).log()
        return total - (self.scale * own.s0.double()).log().sum()

    def to(self, like: Tensor) -> "UnitSource":
        moments = (self.mean.to(like), self.std.to(like))
        return UnitSource(self.space, *moments, copy.deepcopy(self.baseline).to(like), self.scale)


def _normal(x: Tensor, variances: Tensor) -> Tensor:
    wide = variances.double()
    return -x.square() / (2 * wide) - (2 * math.pi * wide).log() / 2


def unit_source(space: Space, baseline: UnitBaseline) -> UnitSource:
    """The source that a matched baseline begins with."""
    scale = baseline.matched
    spread = {}
    for key, part in baseline.units.split(torch.ones_like(baseline.m0)[None]).items():
        variances = baseline.of("variances", key)
        if baseline.measured(key):
            variances = baseline.of("spread", key).square().sum(0)
        elif key in baseline.turned:
            squares = baseline.of("basis", key).square()
            variances = squares @ variances + (1 - squares.sum(1)) * baseline.of("rest", key)
        spread[key] = variances.sqrt().expand_as(part)
    mean = baseline.m0 + baseline.s0 * baseline.mu
    return UnitSource(space, mean, scale * baseline.s0 * baseline.units.join(spread)[0], baseline, scale)


def _times(t: Tensor, part: Tensor) -> Tensor:
    return t.reshape(-1, *[1] * (part.ndim - 1))
