"""A step on the manifold of weights, for many networks at once."""

from collections.abc import Mapping

import torch
from torch import Tensor

from benchmarks.measure import Ratio, ratio
from coset.geometry import Manifold, manifold
from coset.models import MLP
from coset.symmetry import discover

COPIES, READS, LOOP = 3.0, 3.0, 0.1
FLAT = 2.0
"""What the norms of v and a second coefficient may add to x + v, the same step without spheres."""


def run(small: bool) -> list[Ratio]:
    """exp of 1,000 networks 784-10-10 against copies, sums and x + v of the same tensors, and unit by unit."""
    count, repeat = (20, 3) if small else (1000, 15)
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

    return [
        ratio(label, lambda: space.exp(x, v), "clone", copied, bound=COPIES, repeat=repeat),
        ratio(label, lambda: space.exp(x, v), "sum of x and v", read_both, bound=READS, repeat=repeat),
        ratio(label, lambda: space.exp(x, v), "sum of x alone", read, bound=READS, repeat=repeat),
        ratio(f"{label}, the least", flat, "sum of x alone", read, bound=READS, repeat=repeat),
        ratio(label, lambda: space.exp(x, v), "x + v", flat, bound=FLAT, repeat=repeat),
        ratio(label, lambda: space.exp(x, v), "unit by unit", lambda: _plain(space, x, v), bound=LOOP, repeat=repeat),
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
