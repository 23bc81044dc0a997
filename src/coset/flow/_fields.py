"""Fields: networks that give a velocity at every time and place."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from coset._checks import check_choice, check_count
from coset.errors import InputError
from coset.flow._baseline import Baseline
from coset.flow._space import Space
from coset.flow._unit_baseline import UnitBaseline
from coset.flow._unit_field import UnitTransformer
from coset.metanet import PNA, Reader, RelationalTransformer
from coset.symmetry import Symmetry

FREQUENCIES = 8
"""Of so many sines and cosines of the time networks know."""


class Clock(nn.Module):
    """What networks know beside the place: t, sin and cos of 2πkt, and a condition, (N, width).

    ``labels``: of so many classes; ``numbers``: so many numbers, centred and scaled as ``learn`` has seen them; or of
    nothing. What is not told is a vector of its own, and in training a part of the conditions is left out so
    that it is learned.
    """

    middle: Tensor
    spread: Tensor

    def __init__(self, width: int, labels: int = 0, numbers: int = 0) -> None:
        super().__init__()
        self.width, self.labels, self.numbers = width, labels, numbers
        self.register_buffer("waves", 2 * math.pi * torch.arange(1, FREQUENCIES + 1).float())
        self.time = nn.Sequential(nn.Linear(2 * FREQUENCIES + 1, width), nn.SiLU(), nn.Linear(width, width))
        self.register_buffer("middle", torch.zeros(numbers))
        self.register_buffer("spread", torch.ones(numbers))
        self.untold = nn.Parameter(torch.zeros(width)) if labels or numbers else None
        self.known: nn.Module | None = None
        if labels:
            self.known = nn.Embedding(labels, width)
        elif numbers:
            self.known = nn.Sequential(nn.Linear(numbers, width), nn.SiLU(), nn.Linear(width, width))

    def learn(self, conditions: Tensor) -> None:
        """Take middle and spread of numbers (N, C)."""
        if not self.labels:
            self.middle.copy_(conditions.mean(0))
            self.spread.copy_(torch.where((spread := conditions.std(0)) > 0, spread, torch.ones_like(spread)))

    def forward(self, t: Tensor, condition: Tensor | None, told: Tensor | None) -> Tensor:
        """``condition``: labels (N,) or numbers (N, C); ``told`` (N,): of which networks; None: of all."""
        angles = t[:, None] * self.get_buffer("waves").to(t)
        found: Tensor = self.time(torch.cat([t[:, None], angles.sin(), angles.cos()], -1))
        if self.known is None or self.untold is None:
            if condition is not None:
                raise InputError("a condition is given to a flow that was trained without")
            return found
        if condition is None:
            return found + self.untold
        own = self.known(condition if self.labels else (condition - self.middle) / self.spread)
        return found + (own if told is None else torch.where(told[:, None], own, self.untold))


class FlowMLP(nn.Module):
    """A residual perceptron on rows (N, k), with a scale and a shift by time and condition in every layer.

    What it says lies in ``hidden`` directions; with ``gates`` every number is also multiplied by a factor of its own,
    which depends on time and condition, so that a narrow perceptron can change the deviation of each.
    """

    def __init__(self, size: int, *, hidden: int = 256, layers: int = 3, gates: bool = False, conditions: int) -> None:
        super().__init__()
        if not isinstance(gates, bool):
            raise InputError(f"gates is {gates!r}; expected True or False")
        for name, value in (("hidden", hidden), ("layers", layers)):
            check_count(name, value)
        self.first = nn.Linear(size, hidden)
        self.blocks = nn.ModuleList(_Block(hidden, conditions) for _ in range(layers))
        self.last = nn.Sequential(nn.LayerNorm(hidden), nn.Linear(hidden, size))
        nn.init.zeros_(self.last[1].weight)  # type: ignore[arg-type]
        nn.init.zeros_(self.last[1].bias)  # type: ignore[arg-type]
        self.gates = nn.Linear(conditions, size) if gates else None
        if self.gates is not None:
            nn.init.zeros_(self.gates.weight)
            nn.init.zeros_(self.gates.bias)

    def forward(self, rows: Tensor, conditions: Tensor) -> Tensor:
        x = self.first(rows)
        for block in self.blocks:
            x = block(x, conditions)
        result: Tensor = self.last(x)
        return result if self.gates is None else result + self.gates(nn.functional.silu(conditions)) * rows


class _Block(nn.Module):
    def __init__(self, hidden: int, conditions: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.change = nn.Linear(conditions, 2 * hidden)
        self.inner = nn.Sequential(nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, hidden))

    def forward(self, x: Tensor, conditions: Tensor) -> Tensor:
        scale, shift = self.change(nn.functional.silu(conditions)).chunk(2, -1)
        result: Tensor = x + self.inner(self.norm(x) * (1 + scale) + shift)
        return result


class FlowReader(nn.Module):
    """A reader of networks with an equivariant head on rows (N, D), which moves with the permutations of the units."""

    def __init__(self, space: Space, reader: Reader) -> None:
        super().__init__()
        self.space, self.reader = space, reader
        self.gate = nn.Parameter(torch.zeros(()))

    def forward(self, rows: Tensor, conditions: Tensor) -> Tensor:
        own = self.space.coordinates(rows)
        whole = {name: tensor.expand((len(rows), *tensor.shape)) for name, tensor in self.space.like.items()}
        said: Mapping[str, Tensor] = self.reader(self.space.manifold.complete(own, whole), conditions=conditions)
        return self.gate * torch.cat([said[name].reshape(len(rows), -1) for name in self.space.names], -1).to(rows)


class FlowField(nn.Module):
    """A velocity field (t (N,), x (N, D)) → (N, D): a ``baseline`` between Gaussians, and what a ``network`` adds.

    It is called with what the baseline gives to read (N, k) and what the ``clock`` says of t and of conditions. What it
    adds may be multiplied by a ``contrast``.
    """

    def __init__(self, network: nn.Module, baseline: Baseline, clock: Clock) -> None:
        super().__init__()
        self.network, self.baseline, self.clock = network, baseline, clock

    def forward(
        self,
        t: Tensor,
        x: Tensor,
        condition: Tensor | None = None,
        told: Tensor | None = None,
        contrast: float = 1.0,
    ) -> Tensor:
        read, z, rest = self.baseline.reads(x, t)
        said: Tensor = self.network(read, self.clock(t, condition, told))
        if not isinstance(said, Tensor) or said.shape != read.shape:
            found = tuple(said.shape) if isinstance(said, Tensor) else type(said).__name__
            raise InputError(
                f"the field gives {found} for numbers of shape {tuple(read.shape)}; expected the same shape"
            )
        return self.baseline.velocity(said if contrast == 1 else contrast * said, z, rest, t)


_READERS: Mapping[str, Callable[..., Reader]] = {"relational": RelationalTransformer, "pna": PNA}

UNITS = "units"

FIELDS = ("mlp", UNITS, *_READERS)
"""A perceptron on all numbers; a transformer whose tokens are units, the relational transformer and PNA, which move
with the permutations of units.
"""


@dataclass(frozen=True)
class FieldSpec:
    """What the network of a field is: a name in ``FIELDS`` or "own", its ``options``, of how many ``labels`` or by how
    many ``numbers`` it is conditioned, and the ``width`` of what the clock says.
    """

    name: str
    options: Mapping[str, Any]
    labels: int = 0
    numbers: int = 0
    width: int = 64


def make_field(
    spec: FieldSpec, space: Space, sym: Symmetry | None, baseline: Baseline, seed: int, own: nn.Module | None = None
) -> FlowField:
    """The field of a specification, with fresh weights; ``own``: the user's network where the name is "own"."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        clock = Clock(spec.width, spec.labels, spec.numbers)
        if own is not None:
            return FlowField(own, baseline, clock)
        check_choice("field", spec.name, FIELDS, otherwise=", or a torch.nn.Module")
        try:
            if spec.name == "mlp":
                return FlowField(FlowMLP(baseline.width, conditions=spec.width, **spec.options), baseline, clock)
            if sym is None:
                raise InputError(
                    f"field is {spec.name!r}, which reads networks, and there is no symmetry; expected 'mlp'"
                )
            if isinstance(baseline, UnitBaseline):
                return FlowField(UnitTransformer(baseline, conditions=spec.width, **spec.options), baseline, clock)
            if baseline.basis.shape[1]:
                raise InputError(f"field is {spec.name!r}, which reads all weights; expected projection 'none'")
            fixed = {"head": "equivariant", "gauge": "none", "conditions": spec.width, "seed": seed}
            reader = _READERS[spec.name](sym, **fixed, **spec.options)
        except TypeError as error:
            raise InputError(f"field_options do not fit the field {spec.name!r}: {error}") from error
    return FlowField(FlowReader(space, reader), baseline, clock)
