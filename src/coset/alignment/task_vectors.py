"""Averages of what networks learned beyond a common one: task vectors τᵢ = θᵢ − θ₀, summed, trimmed or thinned.

Ilharco et al. 2023 (task arithmetic), Yadav et al. 2023 (TIES), Yu et al. 2024 (DARE).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from coset._checks import check_choice, check_seed, is_number
from coset.errors import InputError
from coset.train.randomness import stream

Params = Mapping[str, Tensor]


@dataclass(frozen=True)
class TaskVectors:
    """How task vectors are put together: θ₀ + ``scale``·τ.

    ``density``: the part of the entries of each τᵢ that stays, of every tensor ("ties": the largest; "dare": drawn by
    the ``seed``, and divided by the density, so that their expectation stays).
    """

    density: float = 1.0
    scale: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("density", "scale"):
            if not is_number(getattr(self, name)):
                raise InputError(f"{name} is {getattr(self, name)!r}; expected a number")
        if not 0 < self.density <= 1:
            raise InputError(f"density is {self.density}; expected more than 0 and at most 1")
        check_seed(self.seed)


def combine(
    kind: str, base: Params, networks: Sequence[Params], shares: Sequence[float], how: TaskVectors
) -> dict[str, Tensor]:
    """θ₀ + scale·τ for tensors of equal names and shapes, in their types; sums are taken in float64.

    τ by ``kind``: "task-arithmetic" Σ wᵢτᵢ; "ties" trims each τᵢ to its largest entries, elects for every entry the
    sign of Σ wᵢτᵢ, and takes the mean Σ wᵢτᵢ/Σ wᵢ over those that have it; "dare" thins each τᵢ and sums them;
    "dare-ties" thins and elects.
    """
    check_choice("average", kind, KINDS)
    thin, join = KINDS[kind]
    result = {}
    for number, (name, start) in enumerate(base.items()):
        wide = start.detach().double()
        taus = torch.stack([network[name].detach().to(wide) - wide for network in networks])
        kept = torch.stack([thin(tau, how, (number, row)) for row, tau in enumerate(taus)])
        weights = torch.tensor(shares, dtype=torch.float64, device=wide.device).reshape(-1, *[1] * start.ndim)
        result[name] = (wide + how.scale * join(kept, weights)).to(start.dtype)
    return result


Place = tuple[int, int]
"""The number of a tensor and of a network, by which what is drawn differs."""


def _whole(tau: Tensor, how: TaskVectors, place: Place) -> Tensor:
    return tau


def _largest(tau: Tensor, how: TaskVectors, place: Place) -> Tensor:
    """The ⌈density·n⌉ entries of largest magnitude, the others 0; of equal ones the first."""
    flat = tau.flatten()
    # Not ⌈0.1·30⌉ = 4 for a product that rounding puts above 3.
    count = -int(-(how.density * flat.numel() - 1e-9) // 1)
    order = flat.abs().argsort(descending=True, stable=True)[:count]
    return torch.zeros_like(flat).index_copy(0, order, flat[order]).reshape(tau.shape)


def _drawn(tau: Tensor, how: TaskVectors, place: Place) -> Tensor:
    """Each entry with probability density, divided by it."""
    number, network = place
    generator = stream(f"dare {network}", how.seed, number)
    keep = torch.rand(tau.shape, generator=generator, dtype=torch.float64).to(tau.device) < how.density
    return tau * keep / how.density


def _sum(taus: Tensor, weights: Tensor) -> Tensor:
    return (weights * taus).sum(0)


def _elected(taus: Tensor, weights: Tensor) -> Tensor:
    """The weighted mean over the networks whose entry has the elected sign; 0 where none has."""
    agree = (taus.sign() == (weights * taus).sum(0).sign()) & (taus != 0)
    total = (weights * agree).sum(0)
    return torch.where(total > 0, (weights * taus * agree).sum(0) / total.clamp(min=1e-300), 0.0)


Thin = Callable[[Tensor, TaskVectors, Place], Tensor]
Join = Callable[[Tensor, Tensor], Tensor]

KINDS: dict[str, tuple[Thin, Join]] = {
    "task-arithmetic": (_whole, _sum),
    "ties": (_largest, _elected),
    "dare": (_drawn, _sum),
    "dare-ties": (_drawn, _elected),
}
"""Name → how each task vector is thinned and how all are put together."""
