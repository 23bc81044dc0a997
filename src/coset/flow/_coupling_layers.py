"""Affine coupling layers as pure functions: noise to weights and back, with the volume (Dinh et al. 2017)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from coset._checks import check_count, check_positive
from coset.errors import InputError
from coset.train.randomness import stream

HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


@dataclass(frozen=True)
class Couplings:
    """K coupling layers on vectors (…, D): one half of the numbers moves the other, then the other way round.

    The first two layers have halves of the order, the next two halves of these halves (first and third quarter against
    second and fourth), and so on: two numbers that stay in one half could be correlated by way of others only, which no
    gradient asks for at the identity. With K ≥ 2·log₂ D layers every two are in different halves in some layer.
    A conditioner is an MLP of widths ``hidden`` with silu between; it says a shift t and a log-scale
    ``bound``·tanh(·/``bound``) of every number of the other half.
    """

    size: int
    layers: int
    hidden: tuple[int, ...]
    bound: float

    def __post_init__(self) -> None:
        if not isinstance(self.hidden, tuple | list):
            raise InputError(f"hidden is {self.hidden!r}; expected a sequence of widths, such as (64,)")
        object.__setattr__(self, "hidden", tuple(self.hidden))
        check_count("layers", self.layers)
        for width in self.hidden:
            check_count("a width in hidden", width)
        check_positive("bound", self.bound)
        if self.size < 2:
            raise InputError(f"{self.size} number varies; expected two or more, for one half to move the other")

    @cached_property
    def masks(self) -> tuple[tuple[Tensor, Tensor, Tensor], ...]:
        """Of each layer, which numbers stay, which are moved, and where both together are put back."""
        places, depths, found = torch.arange(self.size, device="cpu"), (self.size - 1).bit_length(), []
        for layer in range(self.layers):
            digit = (places * 2 ** (1 + layer // 2 % depths) // self.size + layer) % 2
            fixed, moving = (digit == 0).nonzero()[:, 0], (digit == 1).nonzero()[:, 0]
            found.append((fixed, moving, torch.cat([fixed, moving]).argsort()))
        return tuple(found)

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Layer.depth.kind → the shape of that tensor of the conditioners."""
        found: dict[str, tuple[int, ...]] = {}
        for layer, (fixed, moving, _) in enumerate(self.masks):
            widths = (len(fixed), *self.hidden, 2 * len(moving))
            for depth, (before, after) in enumerate(pairwise(widths)):
                found |= {f"{layer}.{depth}.weight": (after, before), f"{layer}.{depth}.bias": (after,)}
        return found

    @property
    def depth(self) -> int:
        """How many linear maps a conditioner has."""
        return len(self.hidden) + 1

    def __call__(
        self, conditioners: Mapping[str, Tensor], u: Tensor, *, inverse: bool = False
    ) -> tuple[Tensor, Tensor]:
        """T(u) or T⁻¹(u), (…, D), and log|det| of the Jacobian of T there, (…): the sum of all log-scales.

        One layer is b ← b·exp(s(a)) + t(a), with a as it is; its Jacobian is triangular.
        """
        volume = u.new_zeros(u.shape[:-1])
        for layer in range(self.layers)[:: -1 if inverse else 1]:
            stays, moves, back = (index.to(u.device) for index in self.masks[layer])
            fixed, moving = u[..., stays], u[..., moves]
            raw, shift = self._conditioned(conditioners, layer, fixed).chunk(2, -1)
            log_scale = self.bound * torch.tanh(raw / self.bound)
            if inverse:
                moving = (moving - shift) * torch.exp(-log_scale)
            else:
                moving = moving * torch.exp(log_scale) + shift
            u = torch.cat([fixed, moving], -1)[..., back]
            volume = volume + log_scale.sum(-1)
        return u, volume

    def _conditioned(self, conditioners: Mapping[str, Tensor], layer: int, x: Tensor) -> Tensor:
        for depth in range(self.depth):
            x = F.linear(x, conditioners[f"{layer}.{depth}.weight"], conditioners[f"{layer}.{depth}.bias"])
            x = F.silu(x) if depth < self.depth - 1 else x
        return x

    def identity(self, seed: int, like: Tensor) -> dict[str, Tensor]:
        """Conditioners whose last map is zero, so that T(u) = u; the others are N(0, 1/fan-in), their biases zero."""
        generator, made = stream("conditioners", seed, 0), {}
        for name, shape in self.shapes.items():
            made[name] = torch.zeros(shape, dtype=like.dtype, device=like.device)
            if name.endswith("weight") and name.split(".")[1] != str(self.depth - 1):
                noise = torch.randn(shape, generator=generator, dtype=like.dtype, device="cpu")
                made[name] = (noise / math.sqrt(shape[1])).to(like.device)
        return made


def couplings_of(conditioners: Mapping[str, Tensor], size: int, bound: float) -> Couplings:
    """What layers the tensors of conditioners belong to; raises unless they are those of couplings of D = ``size``."""
    layers = 1 + max((int(name.split(".")[0]) for name in conditioners if name.split(".")[0].isdigit()), default=-1)
    depths = sum(1 for name in conditioners if name.startswith("0.") and name.endswith(".weight"))
    widths = [conditioners.get(f"0.{depth}.bias") for depth in range(depths - 1)]
    hidden = tuple(len(width) for width in widths if width is not None and width.ndim == 1)
    couplings = Couplings(size, layers, hidden, bound)
    found = {name: tuple(tensor.shape) for name, tensor in conditioners.items()}
    for name in (*couplings.shapes, *found):
        mine, expected = found.get(name), couplings.shapes.get(name)
        if mine != expected:
            raise InputError(
                f"conditioners['{name}'] has shape {mine}; expected {expected} of {layers} layers of widths {hidden} "
                f"on {size} numbers"
            )
    return couplings


class Parts(NamedTuple):
    """The numbers of a flow θ = m + s·T(ε)[order]: m, s and order (D,), and the conditioners of T."""

    location: Tensor
    scale: Tensor
    order: Tensor
    conditioners: Mapping[str, Tensor]


def push(couplings: Couplings, parts: Parts, noise: Tensor) -> tuple[Tensor, Tensor]:
    """ε (…, D) → θ = m + s·T(ε)[order] (…, D), and log|det ∂θ/∂ε| (…)."""
    u, volume = couplings(parts.conditioners, noise)
    return parts.location + parts.scale * u[..., parts.order], volume + parts.scale.abs().log().sum()


def pull(couplings: Couplings, parts: Parts, away: Tensor) -> tuple[Tensor, Tensor]:
    """θ − m (…, D) → ε (…, D), and log|det ∂θ/∂ε| (…)."""
    u = (away / parts.scale)[..., parts.order.argsort()]
    noise, volume = couplings(parts.conditioners, u, inverse=True)
    return noise, volume + parts.scale.abs().log().sum()


def log_normal(noise: Tensor) -> Tensor:
    """log N(ε; 0, I), (…, D) → (…)."""
    return -0.5 * noise.square().sum(-1) - HALF_LOG_2PI * noise.shape[-1]


@dataclass(frozen=True)
class Packed:
    """A flow's trained numbers as one vector (P,): m, log s, then the conditioners."""

    couplings: Couplings
    order: Tensor

    @property
    def sizes(self) -> list[int]:
        """How many numbers each part has."""
        size = self.couplings.size
        return [size, size, *(math.prod(shape) for shape in self.couplings.shapes.values())]

    def initial(self, location: Tensor, log_scale: Tensor, seed: int) -> Tensor:
        """m and log s as given, T the identity."""
        conditioners = self.couplings.identity(seed, location)
        return torch.cat([location, log_scale, *(tensor.reshape(-1) for tensor in conditioners.values())])

    def parts(self, values: Tensor) -> Parts:
        """The parts, as views but for s; differentiable."""
        location, log_scale, *rest = torch.split_with_sizes(values, self.sizes)
        named = zip(self.couplings.shapes.items(), rest, strict=True)
        conditioners = {name: part.view(shape) for (name, shape), part in named}
        return Parts(location, log_scale.exp(), self.order, conditioners)


def random_order(size: int, seed: int, device: torch.device) -> Tensor:
    """Which number of T's output each weight takes: who is in which half is a matter of the seed."""
    return torch.randperm(size, generator=stream("halves", seed, 0), device="cpu").to(device)
