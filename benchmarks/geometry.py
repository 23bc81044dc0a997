"""Steps on the manifold of weights, for many networks at once, against what their memory alone takes."""

import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from benchmarks.measure import Ratio, ratio
from coset.geometry import Manifold, manifold
from coset.models import MLP
from coset.symmetry import discover

Point = Mapping[str, Tensor]
Task = Callable[[], object]

READS, BATCHED, LOOP = 3.0, 1.0, 0.1
"""Reads of the weights, or of all that a step is given; its formula for all networks at once, and unit by unit."""


def run(small: bool) -> list[Ratio]:
    """1,000 networks 784-10-10: exp against one read of the weights, every step against its memory and formula."""
    count, repeat = (20, 3) if small else (1000, 25)
    model = MLP(784, [10], 10)
    space = manifold(discover(model, torch.zeros(1, 784), verify=False))
    generator = torch.Generator().manual_seed(0)
    x = space.uniform(generator, count, dict(model.state_dict()))
    other = space.uniform(generator, count, dict(model.state_dict()))
    v = space.tangent(x, {name: 0.01 * tensor for name, tensor in other.items()})
    y, out = space.exp(x, v), {name: torch.empty_like(tensor) for name, tensor in x.items()}
    steady = {name: tensor.clone() for name, tensor in x.items()}
    (name,) = space.spheres[0].names

    def into(operation: Callable[..., object], *points: Point) -> Task:
        """One operation on all entries, into memory that is there."""
        return lambda: [operation(*(point[key] for point in points), out=out[key]) for key in x]

    def sums(*points: Point) -> Task:
        return lambda: [tensor.sum() for point in points for tensor in point.values()]

    def by_formula(formula: Callable[..., Tensor], *points: Point) -> Task:
        """The formula written down for all networks at once, on the weights that are on spheres alone."""
        return lambda: formula(*(point[name] for point in points))

    def measured(what: str, task: Task, reference: str, base: Task, bound: float) -> Ratio:
        label = f"geometry, {what}, {count} networks 784-10-10"
        return ratio(label, task, reference, base, bound=bound, repeat=repeat, clock=time.process_time)

    def against_memory(what: str, task: Task, reference: str, floor: Task, formula: Task) -> list[Ratio]:
        return [measured(what, task, reference, floor, READS), measured(what, task, "its formula", formula, BATCHED)]

    def step() -> object:
        return space.exp(x, v, out=out)

    def in_place() -> object:
        return space.exp(steady, v, out=steady)

    x_plus_v = into(torch.add, x, v)
    read = [
        measured("clone", lambda: {key: t.clone() for key, t in x.items()}, "sum of x", sums(x), READS),
        measured("x + v into memory", x_plus_v, "sum of x", sums(x), READS),
        measured("exp into memory", step, "sum of x", sums(x), READS),
        measured("exp in place", in_place, "sum of x", sums(x), READS),
        measured("exp into memory", step, "sums of x and v", sums(x, v), READS),
        measured("exp into memory", step, "copy of x into memory", into(_copy, x), READS),
    ]
    return [
        *read,
        *against_memory("exp into memory", step, "x + v into memory", x_plus_v, by_formula(_exp, x, v)),
        *against_memory("exp", lambda: space.exp(x, v), "x + v", lambda: {key: t + v[key] for key, t in x.items()},
                        by_formula(_exp, x, v)),
        *against_memory("log", lambda: space.log(x, y), "y − x into memory", into(torch.sub, y, x),
                        by_formula(_log, x, y)),
        *against_memory("transport", lambda: space.transport(x, y, v), "x·y + v into memory",
                        into(lambda a, b, c, out: torch.addcmul(c, a, b, out=out), x, y, v),
                        by_formula(_transport, x, y, v)),
        *against_memory("tangent", lambda: space.tangent(x, v), "x + v into memory", x_plus_v,
                        by_formula(_tangent, x, v)),
        *against_memory("project", lambda: space.project(x), "copy into memory", into(_copy, x),
                        by_formula(lambda a: a / a.norm(dim=-1, keepdim=True), x)),
        *against_memory("distance", lambda: space.distance(x, y), "sums of x and y", sums(x, y),
                        by_formula(_distance, x, y)),
        measured("exp", lambda: space.exp(x, v), "unit by unit", lambda: _unit_by_unit(space, x, v), LOOP),
    ]  # fmt: skip


def _copy(tensor: Tensor, out: Tensor) -> Tensor:
    return out.copy_(tensor)


def _exp(x: Tensor, v: Tensor) -> Tensor:
    size = v.norm(dim=-1, keepdim=True)
    return size.cos() * x + size.sin() / size * v


def _log(x: Tensor, y: Tensor) -> Tensor:
    along = y - (x * y).sum(-1, keepdim=True) * x
    return _angle(x, y) / along.norm(dim=-1, keepdim=True) * along


def _angle(x: Tensor, y: Tensor) -> Tensor:
    return 2 * torch.atan2((x - y).norm(dim=-1, keepdim=True), (x + y).norm(dim=-1, keepdim=True))


def _transport(x: Tensor, y: Tensor, v: Tensor) -> Tensor:
    return v - (y * v).sum(-1, keepdim=True) / (1 + (x * y).sum(-1, keepdim=True)) * (x + y)


def _tangent(x: Tensor, v: Tensor) -> Tensor:
    return v - (x * v).sum(-1, keepdim=True) * x


def _distance(x: Tensor, y: Tensor) -> Tensor:
    return _angle(x, y).square().sum((-1, -2)).sqrt()


def _unit_by_unit(space: Manifold, x: Point, v: Point) -> dict[str, Tensor]:
    """The formula as it is written, for one network and one unit after the other."""
    (name,) = space.spheres[0].names
    result = {key: x[key] + v[key] for key in x}
    for one, point, step in zip(result[name], x[name], v[name], strict=True):
        for row, at, along in zip(one, point, step, strict=True):
            size = along.norm()
            row.copy_(size.cos() * at + size.sin() * along / size)
    return result
