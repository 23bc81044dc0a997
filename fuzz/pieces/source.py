"""Source code of random networks: what kind of tensor is at hand, and lines of ``__init__`` and ``forward``."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

HEADER = """import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
"""

ACTIVATIONS = (
    "torch.relu({})", "torch.relu({})", "torch.relu({})", "F.gelu({})", "torch.tanh({})", "F.silu({})", "{}.abs()",
    "F.leaky_relu({}, 0.1)", "{}.square()", "torch.sigmoid({})", "F.softplus({})", "F.elu({})", "F.hardtanh({})",
    "torch.sin({})", "torch.exp(-{}.square())", "{}.clamp(min=0)", "F.hardswish({})", "F.relu6({})", "torch.sign({})",
    "F.threshold({}, 0.1, 0.0)", "F.selu({})", "{}.pow(3)", "torch.erf({})", "F.softsign({})", "F.logsigmoid({})",
)  # fmt: skip


class UnfitError(Exception):
    """A piece does not fit the tensor at hand."""


@dataclass(frozen=True)
class Kind:
    """What stands in ``x``: flat (batch, features), sequence (batch, time, features), image (batch, features, h, w),
    or ids (batch, time) of so many tokens.
    """

    name: str
    features: int
    size: tuple[int, ...] = ()

    def shape(self, batch: int) -> tuple[int, ...]:
        if self.name == "image":
            return (batch, self.features, *self.size)
        return (batch, *self.size) if self.name == "ids" else (batch, *self.size, self.features)

    @property
    def dim(self) -> int:
        """The dimension of features."""
        return 2 if self.name == "sequence" else 1

    @property
    def entries(self) -> int:
        return self.features * math.prod(self.size)

    def lift(self, vector: str) -> str:
        """A vector over features, so that it meets ``x``."""
        return f"{vector}[:, None, None]" if self.name == "image" else vector

    def wide(self, features: int) -> "Kind":
        return Kind(self.name, features, self.size)


@dataclass
class Source:
    """A network that is being written; ``rng`` decides, ``fixed`` says that sizes of the example are written down."""

    rng: random.Random
    made: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    fixed: bool = False
    count: int = 0
    widths: list[int] = field(default_factory=list)

    def name(self, letter: str = "a") -> str:
        self.count += 1
        return f"{letter}{self.count}"

    def module(self, text: str) -> str:
        name = f"self.{self.name('m')}"
        self.made.append(f"{name} = {text}")
        return name

    def parameter(self, *shape: int, dtype: str = "") -> str:
        name = f"self.{self.name('p')}"
        self.made.append(f"{name} = nn.Parameter(torch.ones({shape}{dtype}))")
        return name

    def buffer(self, text: str) -> str:
        name = self.name("b")
        self.made.append(f"self.register_buffer('{name}', {text})")
        return f"self.{name}"

    def random_tensor(self, call: str) -> str:
        """A tensor of random numbers that is always the same: ``call`` such as 'torch.rand(4'."""
        return f"{call}, generator=torch.Generator().manual_seed({self.rng.randrange(10**6)}))"

    def then(self, line: str) -> None:
        """A line of ``__init__`` that makes nothing new."""
        self.made.append(line)

    def do(self, line: str) -> None:
        self.done.append(line)

    def keep(self, expression: str) -> str:
        name = self.name()
        self.do(f"{name} = {expression}")
        return name

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def choice(self, options: Sequence[Any]) -> Any:
        return self.rng.choice(options)

    def width(self, options: Sequence[int] = (3, 4, 4, 4, 6, 6, 8)) -> int:
        """A number of units; sizes that coincide with others hide wrong unifications, so they are frequent."""
        known = [n for n in self.widths if n in options]
        width = self.choice(known) if known and self.chance(0.4) else self.choice(options)
        self.widths.append(width)
        return int(width)

    def affine(self, kind: Kind, out: int, x: str = "x", bias: bool | None = None) -> str:
        """An expression: a linear map of the features of ``x``."""
        bias = self.chance(0.7) if bias is None else bias
        if kind.name != "image":
            return f"{self.module(f'nn.Linear({kind.features}, {out}, bias={bias})')}({x})"
        if self.chance(0.5):
            return f"{self.module(f'nn.Conv2d({kind.features}, {out}, 1, bias={bias})')}({x})"
        return f"{self.module(f'nn.Conv2d({kind.features}, {out}, 3, padding=1, bias={bias})')}({x})"

    def activation(self, x: str) -> str:
        return str(self.choice(ACTIVATIONS)).format(x)

    def branch(self, kind: Kind, out: int | None = None, x: str = "x") -> str:
        """A variable: a linear map of ``x`` and mostly an activation."""
        result = self.keep(self.affine(kind, out or kind.features, x))
        return self.keep(self.activation(result)) if self.chance(0.8) else result

    def text(self) -> str:
        """The whole, as it can be run."""
        made = "".join(f"        {line}\n" for line in self.made)
        done = "".join(f"        {line}\n" for line in self.done)
        return (
            f"{HEADER}\n\nclass Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n{made}\n"
            f"    def forward(self, x):\n{done}"
        )


Piece = Callable[[Source, Kind], Kind]
PIECES: dict[str, tuple[tuple[str, ...], Piece]] = {}
WEIGHTS: dict[str, int] = {}
ANY = ("flat", "sequence", "image")


def piece(*kinds: str, weight: int = 1) -> Callable[[Piece], Piece]:
    """Enter a piece into the table, with the kinds of tensors that it takes and how often it is tried."""

    def enter(function: Piece) -> Piece:
        PIECES[function.__name__] = (kinds, function)
        WEIGHTS[function.__name__] = weight
        return function

    return enter


def fits(condition: bool) -> None:
    """Leave a piece that does not fit."""
    if not condition:
        raise UnfitError


def divisors(n: int) -> list[int]:
    """Divisors of n other than 1 and itself, or both of these where there are none."""
    return [d for d in range(2, n) if n % d == 0] or [1, n]
