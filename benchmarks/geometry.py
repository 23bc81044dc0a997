"""A step on the manifold of weights, for many networks at once."""

import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from benchmarks.measure import Ratio, ratio
from coset.geometry import Manifold, manifold
from coset.models import MLP
from coset.symmetry import discover

COPIES, READS, LOOP = 3.0, 3.0, 0.1
FLAT = 2.0
"""A step takes six tensors through memory (v twice, x, the result written, read and written), x + v three."""


def run(small: bool) -> list[Ratio]:
    """exp of 1,000 networks 784-10-10 against copies, sums and x + v of the same tensors, and unit by unit."""
    count, repeat = (20, 3) if small else (1000, 25)
    model = MLP(784, [10], 10)
    space = manifold(discover(model, torch.zeros(1, 784), verify=False))
    generator = torch.Generator().manual_seed(0)
    x = space.uniform(generator, count, dict(model.state_dict()))
    other = space.uniform(generator, count, dict(model.state_dict()))
    v = space.tangent(x, {name: 0.01 * tensor for name, tensor in other.items()})
    label = f"geometry, exp of {count} networks 784-10-10"

    def copied() -> object:
        return {name: tensor.clone() for name, tensor in x.items()}

    def read() -> object:
        return [tensor.sum() for tensor in x.values()]

    def read_both() -> object:
        return [tensor.sum() for tensor in (*x.values(), *v.values())]

    def flat() -> object:
        return {name: tensor + v[name] for name, tensor in x.items()}

    def step() -> object:
        return space.exp(x, v)

    def one_by_one() -> object:
        return _plain(space, x, v)

    def against(reference: str, base: Callable[[], object], bound: float, task: Callable[[], object] = step) -> Ratio:
        what = label if task is step else f"{label}: x + v alone"
        return ratio(what, task, reference, base, bound=bound, repeat=repeat, clock=time.process_time)

    return [
        against("clone", copied, COPIES),
        against("sums of x and v", read_both, READS),
        against("sum of x", read, READS),
        against("sum of x", read, READS, flat),
        against("x + v", flat, FLAT),
        against("unit by unit", one_by_one, LOOP),
    ]


def _plain(space: Manifold, x: Mapping[str, Tensor], v: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The formula as it is written, for one network and one unit after the other."""
    (name,) = space.spheres[0].names
    result = {key: x[key] + v[key] for key in x}
    for one, point, step in zip(result[name], x[name], v[name], strict=True):
        for row, at, along in zip(one, point, step, strict=True):
            size = along.norm()
            row.copy_(size.cos() * at + size.sin() * along / size)
    return result
