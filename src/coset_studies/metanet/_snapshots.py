"""Where training takes networks: pairs of snapshots, what predicts the second from the first, and how well."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from coset.data import Split
from coset.metanet import Reader
from coset.models import build
from coset.study import Context
from coset.study.zoos import trained_zoo
from coset.symmetry import Symmetry
from coset.zoo import DataSpec, ZooSpec

Stack = dict[str, Tensor]


@dataclass(frozen=True)
class Snapshots:
    """Networks that differ in their seed, with snapshots after some ``epochs``, each predicted from the one before.

    ``train`` networks are there to learn from, ``test`` others to be predicted.
    """

    data: str
    options: Mapping[str, Any]
    recipe: Mapping[str, Any]
    epochs: tuple[int, ...]
    train: int
    test: int

    def built(self) -> nn.Module:
        """One network."""
        return build("mlp", seed=0, **self.options)


@dataclass(frozen=True)
class Pairs:
    """Networks at a snapshot, at the next, and before training; ``step``: which snapshot; ``owner``: which network."""

    before: Stack
    after: Stack
    start: Stack
    step: Tensor
    owner: Tensor

    def __len__(self) -> int:
        return len(self.step)

    @property
    def moves(self) -> Stack:
        """after − before."""
        return {name: self.after[name] - self.before[name] for name in self.before}


def trained_pairs(context: Context, zoo: Snapshots) -> tuple[Pairs, Pairs]:
    """Pairs of the networks to learn from, and of the others."""
    first = context.seed * 100_000
    seeds = tuple(range(first, first + zoo.train + zoo.test))
    data = (DataSpec(zoo.data, flatten=True),)
    spec = ZooSpec("mlp", zoo.recipe, data, seeds, zoo.options, snapshots=(0, *zoo.epochs[:-1]))
    trained = trained_zoo(context, spec)
    start, *middle = trained.snapshots.values()
    course = [*middle, trained.last]
    train = torch.arange(len(next(iter(trained.last.values())))) < zoo.train
    return _pairs(course, start, train.nonzero()[:, 0]), _pairs(course, start, (~train).nonzero()[:, 0])


def _pairs(course: list[Mapping[str, Tensor]], start: Mapping[str, Tensor], rows: Tensor) -> Pairs:
    def stacked(parts: list[Mapping[str, Tensor]]) -> Stack:
        return {name: torch.cat([part[name][rows] for part in parts]) for name in start}

    steps = len(course) - 1
    return Pairs(
        stacked(course[:-1]),
        stacked(course[1:]),
        stacked([start] * steps),
        torch.arange(steps).repeat_interleave(len(rows)),
        torch.arange(len(rows)).repeat(steps),
    )


Direction = Callable[[Pairs], Stack]
"""What a baseline goes along, parameter by parameter."""


def shrinking(pairs: Pairs) -> Stack:
    """θ: each layer by a factor."""
    return pairs.before


def extrapolating(pairs: Pairs) -> Stack:
    """θ − θ₀: each layer further on the way that it has come."""
    return {name: pairs.before[name] - pairs.start[name] for name in pairs.before}


def descending(model: nn.Module, part: Split) -> Direction:
    """The gradient of the loss on the training data, which no reader of weights is shown."""

    def loss(params: Stack) -> Tensor:
        return nn.functional.cross_entropy(functional_call(model, params, (part.x,)), part.y)

    return lambda pairs: vmap(grad(loss), chunk_size=50)(pairs.before)


def by_layer(direction: Direction, train: Pairs, test: Pairs) -> tuple[Stack, Stack]:
    """Moves aₗₜ·d(θ) of both, with the least squares factor of each parameter and snapshot on the first of them."""
    given, asked, moves = direction(train), direction(test), train.moves
    found: tuple[Stack, Stack] = ({}, {})
    for name, move in moves.items():
        rows = given[name].flatten(1)
        factors = []
        for step in range(int(train.step.max()) + 1):
            here = train.step == step
            square = rows[here].square().sum()
            product = (rows[here] * move.flatten(1)[here]).sum()
            factors.append(product / square if square > 0 else square)
        for part, pairs, whole in zip(found, (train, test), (given, asked), strict=True):
            factor = torch.stack(factors)[pairs.step]
            part[name] = factor.reshape(-1, *[1] * (move.ndim - 1)) * whole[name]
    return found


def flat(stack: Mapping[str, Tensor]) -> Tensor:
    """All parameters as one row for each network, (N, P)."""
    return torch.cat([tensor.flatten(1) for tensor in stack.values()], 1)


def unflat(rows: Tensor, like: Mapping[str, Tensor]) -> Stack:
    """Rows (N, P) as parameters again."""
    parts = torch.split(rows, [tensor[0].numel() for tensor in like.values()], 1)
    return {name: part.reshape(-1, *like[name].shape[1:]) for part, name in zip(parts, like, strict=True)}


def left_over(pairs: Pairs, predicted: Mapping[str, Tensor]) -> Tensor:
    """‖θ̂ − θ′‖²/‖θ − θ′‖² of every pair (N,): 1 for no change at all, 0 for the next snapshot itself."""
    moves = flat(pairs.moves)
    return (flat(predicted) - moves).square().sum(1) / moves.square().sum(1)


class Edits(nn.Module):
    """The values that an equivariant head gives to all parameters, in one row for each network, (N, P)."""

    def __init__(self, reader: Reader) -> None:
        super().__init__()
        self.reader = reader

    def calibrate(self, stack: Mapping[str, Tensor], *, sym: Symmetry) -> None:
        """Take the typical sizes of weights from networks."""
        self.reader.calibrate(self.reader.read(stack, sym=sym))

    def read(self, stack: Mapping[str, Tensor], *, sym: Symmetry) -> Any:
        """Networks as the reader reads them."""
        return self.reader.read(stack, sym=sym)

    def forward(self, networks: Any, *, sym: Symmetry) -> Tensor:
        """(N, P)."""
        values = self.reader(networks, sym=sym)
        return flat({name: values[name] for name in sym.parameters})
