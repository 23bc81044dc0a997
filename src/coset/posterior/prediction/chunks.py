"""Outputs of many networks on many points, some points and some networks at a time."""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from coset._checks import check_count
from coset._show.progress import SILENT, Ticker
from coset._values import memory_of
from coset.errors import InputError
from coset.posterior.prediction.draws import Draws
from coset.running import (
    GROUP_SIZE,
    check_model,
    outputs_with,
    run_together,
    suited,
    under_owners,
    whole_weights,
    with_weights,
)
from coset.train.check import probe

OVERHEAD_WORK = 2**22
"""Parameters × points below which one forward pass is mostly overhead, so that networks are run together."""

GROUP_WORK = 2**25
"""Parameters × points of all networks run together, at most."""

Take = Callable[[int, slice, Tensor], None]
"""Given the number of the first draw, the rows of x, and the outputs (draws, rows, …) of some draws on these."""


@dataclass(frozen=True, eq=False)
class Runner:
    """A network in evaluation mode and the points it is asked about.

    ``sources``: name in the model → name in the draws; ``own``: what the draws leave to the model. ``batch_size``
    points and ``group`` draws are run at a time; ``outputs``: those of draw 0 for the first points, as an example.
    """

    model: nn.Module
    x: Tensor
    sources: Mapping[str, str]
    own: Mapping[str, Tensor]
    batch_size: int
    group: int
    outputs: Tensor

    def run(self, draws: Draws, first: int, count: int, take: Take, bar: Ticker = SILENT) -> None:
        """Hand the outputs of draws ``first``, …, ``first + count − 1`` to ``take``, chunk by chunk of the points."""
        for start in range(first, first + count, self.group):
            numbers = range(start, min(start + self.group, first + count))
            self._run_group(start, [self.weights(draws.draw(number)) for number in numbers], take)
            bar.advance(len(numbers))

    def _run_group(self, start: int, members: list[dict[str, Tensor]], take: Take) -> None:
        if len(members) > 1:
            self._each(_together(self.model, members), start, take)
        else:
            with_weights(self.model, members[0], lambda run: self._each(lambda x: run(x).unsqueeze(0), start, take))

    def weights(self, draw: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """All that the model holds, from one draw."""
        return {**self.own, **{name: draw[source] for name, source in self.sources.items()}}

    def _each(self, run: Callable[[Tensor], Tensor], number: int, take: Take) -> None:
        for first in range(0, len(self.x), self.batch_size):
            rows = slice(first, first + self.batch_size)
            take(number, rows, run(self.x[rows]))


def runner(model: nn.Module, draws: Draws, x: Tensor, batch_size: int) -> Runner:
    """Check that draws suit the model and the model the points; the model itself is left alone.

    Small networks are run in groups by ``vmap``, unless the model does not allow it; see ``OVERHEAD_WORK``.
    """
    check_model(model)
    check_count("batch_size", batch_size)
    if not isinstance(x, Tensor) or x.ndim == 0 or len(x) == 0:
        found = f"of shape {tuple(x.shape)}" if isinstance(x, Tensor) else f"a {type(x).__name__}"
        raise InputError(f"x is {found}; expected a tensor with at least one point along its first axis")
    # NaN is the least and the largest of what it is among; this is several times as fast as asking every number.
    ends = torch.stack(x.aminmax()) if x.is_floating_point() else x
    if not bool(ends.isfinite().all()):
        raise InputError("x has values that are not finite; expected numbers only")
    copied = copy.deepcopy(model).eval()
    first = draws.draw(0)
    weights = whole_weights(copied, first)
    sources = under_owners(copied, {name: name for name in first})
    own = {name: tensor for name, tensor in weights.items() if name not in sources}
    points = suited(x, weights)
    outputs = probe(lambda some: with_weights(copied, weights, lambda network: network(some)), points[:2], "x")
    size = sum(tensor.numel() for tensor in weights.values())
    group = _group(size, points, min(batch_size, len(points)), draws.count)
    alone = Runner(copied, points, sources, own, batch_size, 1, outputs)
    return replace(alone, group=group) if group > 1 and _vectorizes(alone, draws) else alone


def _group(size: int, x: Tensor, rows: int, count: int) -> int:
    """How many networks are run together: 1 where a forward pass is long enough to hide its overhead."""
    # An image is read at every pixel by the same parameters.
    work = size * rows * math.prod(x.shape[2:])
    if work > OVERHEAD_WORK:
        return 1
    return max(1, min(count, GROUP_WORK // max(1, work), GROUP_SIZE // max(1, size)))


def _together(model: nn.Module, members: list[dict[str, Tensor]]) -> Callable[[Tensor], Tensor]:
    """x ↦ outputs (networks, points, …) of several networks at once; what is the same tensor in all is not stacked."""
    stacked: dict[str, Tensor] = {}
    shared: dict[str, Tensor] = {}
    for name, tensor in members[0].items():
        if len({memory_of(member[name]) for member in members}) == 1:
            shared[name] = tensor
        else:
            stacked[name] = torch.stack([member[name] for member in members])

    if not stacked:
        return lambda x: torch.stack([outputs_with(model, shared, x)] * len(members))
    return run_together(model, stacked, shared)


def _vectorizes(alone: Runner, draws: Draws) -> bool:
    """Whether two networks on two points give together what each gives alone: not every operation knows ``vmap``."""
    x = alone.x[:2]
    members = [alone.weights(draws.draw(number)) for number in range(2)]
    apart = torch.stack([with_weights(alone.model, member, lambda network: network(x)) for member in members])
    try:
        together = _together(alone.model, members)(x)
    except (RuntimeError, ValueError):
        # Nothing is hidden: what is wrong with the model itself has shown one line above.
        return False
    return together.shape == apart.shape and torch.allclose(together, apart, rtol=1e-3, atol=1e-5, equal_nan=True)
