"""Families of maps between the channels of two networks: what may stand between them when they are stitched.

One family, one function that makes it from its options; ``FAMILIES`` has them by name (Godfrey et al. 2022, D.2, D.6).
A map takes C channels to D: y = M x + bias at every example and position.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from coset._checks import check_choice, check_count, is_number
from coset.errors import InputError
from coset.represent.stitching.birkhoff import SWEEPS, nearest_permutation, to_birkhoff
from coset.represent.stitching.least_squares import (
    LEAST_SCALE,
    Products,
    full_map,
    low_rank_map,
    monomial_map,
    orthogonal_map,
    polar,
)
from coset.represent.stitching.own_group import OwnMaps
from coset.represent.unit_groups import UnitGroup

Weights = dict[str, Tensor]
"""What is trained of a map, by name; tensors that change in place."""


@dataclass(frozen=True)
class MapFamily:
    """A family of maps: how its members begin, what they are, and how training keeps them inside.

    ``random(D, C, generator)`` and ``fitted(products)``: weights in float64 to begin with, drawn, or the closed-form
    least squares (for "l1" without the penalty). ``matrix(weights)``: M (D, C) in training; ``settled(weights)``: M in
    evaluation, with permutations in place of their relaxations. ``project(weights)``: after each step, in place.
    ``penalty(weights)``: added to the loss. ``late``: weights that a head start of the others holds fixed. ``square``:
    whether C = D is needed.
    """

    name: str
    random: Callable[[int, int, torch.Generator], Weights]
    fitted: Callable[[Products], Weights]
    matrix: Callable[[Weights], Tensor]
    settled: Callable[[Weights], Tensor]
    project: Callable[[Weights], None]
    penalty: Callable[[Weights], Tensor | None]
    late: tuple[str, ...] = ()
    square: bool = False


def full(*, bias: bool = False) -> MapFamily:
    """Any matrix: a 1×1 convolution; the paper's has no bias."""

    def random(d: int, c: int, generator: torch.Generator) -> Weights:
        return {"matrix": _uniform((d, c), c, generator), **({"bias": _uniform((d,), c, generator)} if bias else {})}

    def fitted(known: Products) -> Weights:
        matrix = full_map(known.centred() if bias else known)
        return {"matrix": matrix, **({"bias": (known.y - matrix @ known.x) / known.count} if bias else {})}

    return MapFamily("full", random, fitted, _matrix, _matrix, _nothing, _nothing)


def low_rank(*, rank: int) -> MapFamily:
    """Two 1×1 convolutions with ``rank`` channels between: M = ``out`` (D, r) · ``in`` (r, C)."""
    check_count("rank", rank)

    def random(d: int, c: int, generator: torch.Generator) -> Weights:
        return {"in": _uniform((rank, c), c, generator), "out": _uniform((d, rank), rank, generator)}

    def fitted(known: Products) -> Weights:
        outer, inner = low_rank_map(known, rank)
        # Where there are fewer channels than ``rank``, the rest adds nothing, and stays so: its factors are both 0.
        room = rank - outer.shape[1]
        pad = torch.nn.functional.pad
        return {"in": pad(inner, (0, 0, 0, room)), "out": pad(outer, (0, room))}

    def matrix(weights: Weights) -> Tensor:
        return weights["out"] @ weights["in"]

    return MapFamily("rank", random, fitted, matrix, matrix, _nothing, _nothing)


def g_relu(*, alpha: float = 0.1, sweeps: int = SWEEPS, scales: bool = True) -> MapFamily:
    """The group of ReLU: M = P·D, a permutation and positive scales (D.2.1).

    In training P is doubly stochastic, brought back by ReLU and Sinkhorn ``sweeps`` after each step; −α‖P‖² drives it
    to the vertices, which are the permutations. D > 0 is projected, too. In evaluation P is the nearest permutation.
    Without ``scales`` D = 1, the group of GELU or sigmoid.
    """
    if not is_number(alpha):
        raise InputError(f"alpha is {alpha!r}; expected a finite number")

    def random(d: int, c: int, generator: torch.Generator) -> Weights:
        start = to_birkhoff(torch.rand(d, c, generator=generator, dtype=torch.float64), sweeps)
        return {"permutation": start, **({"scale": torch.ones(c, dtype=torch.float64)} if scales else {})}

    def fitted(known: Products) -> Weights:
        permutation, d = monomial_map(known, scales=scales)
        return {"permutation": permutation, **({"scale": d} if scales else {})}

    def matrix(weights: Weights) -> Tensor:
        return weights["permutation"] * weights["scale"] if scales else weights["permutation"]

    def settled(weights: Weights) -> Tensor:
        return matrix({**weights, "permutation": nearest_permutation(weights["permutation"])})

    def project(weights: Weights) -> None:
        weights["permutation"].copy_(to_birkhoff(weights["permutation"], sweeps))
        if scales:
            largest = weights["scale"].max()
            least = LEAST_SCALE * torch.where(largest > 0, largest, torch.ones_like(largest))
            weights["scale"].clamp_(min=least)

    def penalty(weights: Weights) -> Tensor:
        return -alpha * weights["permutation"].square().sum()

    return MapFamily("g-relu", random, fitted, matrix, settled, project, penalty, ("scale",) if scales else (), True)


def softsort(*, temperature: float | None = None) -> MapFamily:
    """The group of ReLU by SoftSort: P = softmax(−|sort(s)1ᵀ − 1sᵀ|/τ) over rows, D = exp(λ) (D.2.2).

    ``sort`` is descending; τ = 1/C unless told. The supplement prints it without |·|. In evaluation P is the nearest
    permutation: the largest entries of rows, which the paper takes, stand in one column where keys are equal.
    """
    if temperature is not None and not (is_number(temperature) and temperature > 0):
        raise InputError(f"temperature is {temperature!r}; expected a number above 0, or None for 1/C")

    def random(d: int, c: int, generator: torch.Generator) -> Weights:
        keys = torch.randn(c, generator=generator, dtype=torch.float64)
        return {"keys": keys, "log_scale": torch.zeros_like(keys)}

    def fitted(known: Products) -> Weights:
        permutation, d = monomial_map(known)
        # Output i reads the i-th largest key; keys are spread as a normal sample would be, as they are when drawn.
        levels = (torch.arange(len(d), 0, -1, dtype=torch.float64, device=d.device) - 0.5) / len(d)
        keys = permutation.T @ (math.sqrt(2) * torch.erfinv(2 * levels - 1))
        return {"keys": keys, "log_scale": d.log()}

    def soft(keys: Tensor) -> Tensor:
        tau = 1 / len(keys) if temperature is None else temperature
        return torch.softmax(-(keys.sort(descending=True).values[:, None] - keys).abs() / tau, dim=1)

    def matrix(weights: Weights) -> Tensor:
        return soft(weights["keys"]) * weights["log_scale"].exp()

    def settled(weights: Weights) -> Tensor:
        return nearest_permutation(soft(weights["keys"])) * weights["log_scale"].exp()

    return MapFamily("softsort", random, fitted, matrix, settled, _nothing, _nothing, ("log_scale",), True)


def l1(*, penalty: float = 0.01) -> MapFamily:
    """Any matrix with the penalty λ Σ|M_ij| (D.6), λ = ``penalty``; ``sparsity`` tells how sparse it became."""
    if not (is_number(penalty) and penalty >= 0):
        raise InputError(f"penalty is {penalty!r}; expected a number ≥ 0")
    plain = full()

    def weigh(weights: Weights) -> Tensor:
        return penalty * weights["matrix"].abs().sum()

    return MapFamily("l1", plain.random, plain.fitted, _matrix, _matrix, _nothing, weigh)


def orthogonal() -> MapFamily:
    """Matrices with orthonormal rows (D ≤ C) or columns (D ≥ C), brought back by the polar factor after each step."""

    def random(d: int, c: int, generator: torch.Generator) -> Weights:
        return {"matrix": polar(torch.randn(d, c, generator=generator, dtype=torch.float64))}

    def fitted(known: Products) -> Weights:
        return {"matrix": orthogonal_map(known)}

    def project(weights: Weights) -> None:
        weights["matrix"].copy_(polar(weights["matrix"]))

    return MapFamily("orthogonal", random, fitted, _matrix, _matrix, project, _nothing)


def own(*, group: UnitGroup) -> MapFamily:
    """The layer's own group, as ``layer_group`` finds it: rotations where it turns, any matrix in each head.

    Closed form: exact. In training outputs read the blocks that they began with; rotations are brought back by polar
    factors, and scales stay above 0.
    """
    if not isinstance(group, UnitGroup):
        raise InputError(f"group is a {type(group).__name__}; expected a UnitGroup, as layer_group finds it")
    members = OwnMaps(group)

    def random(d: int, c: int, generator: torch.Generator) -> Weights:
        members.check(d, c)
        return {"matrix": members.random(generator)}

    def fitted(known: Products) -> Weights:
        members.check(*known.yx.shape)
        return {"matrix": members.fitted(known)}

    def project(weights: Weights) -> None:
        weights["matrix"].copy_(members.projected(weights["matrix"]))

    return MapFamily("own", random, fitted, _matrix, _matrix, project, _nothing, square=True)


FAMILIES: Mapping[str, Callable[..., MapFamily]] = {
    "full": full,
    "rank": low_rank,
    "g-relu": g_relu,
    "softsort": softsort,
    "l1": l1,
    "orthogonal": orthogonal,
    "own": own,
}
"""Families of stitching maps by name; each entry makes the family from its options."""


def make_family(name: str, **options: object) -> MapFamily:
    """The family of that name with its options, ``make_family("rank", rank=4)`` for instance."""
    check_choice("family", name, FAMILIES)
    takes = inspect.signature(FAMILIES[name]).parameters
    if unknown := sorted(options.keys() - takes.keys()):
        raise InputError(f"family '{name}' has no option {', '.join(unknown)}; expected {', '.join(takes) or 'none'}")
    if missing := [key for key, option in takes.items() if option.default is option.empty and key not in options]:
        raise InputError(f"family '{name}' needs the option {', '.join(missing)}")
    return FAMILIES[name](**options)


def sparsity(matrix: Tensor, threshold: float = 1e-3) -> float:
    """The share of entries with |M_ij| ≤ ``threshold`` (D.1 of the paper); 1 − 1/n for a member of G_ReLU."""
    return float((matrix.abs() <= threshold).double().mean())


def _uniform(shape: tuple[int, ...], fan_in: int, generator: torch.Generator) -> Tensor:
    """As torch's linear layers begin: uniform within ±1/√fan-in."""
    return (2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1) / math.sqrt(fan_in)


def _matrix(weights: Weights) -> Tensor:
    return weights["matrix"]


def _nothing(weights: Weights) -> None:
    return None
