"""What a descent over a symmetry group moves: free matrices, logarithms of scales, generators of matrices."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from coset.alignment._result import Params
from coset.alignment.matching.sinkhorn_operator import permutation_of
from coset.alignment.matching.soft_action import soft_act
from coset.symmetry import Element, Symmetry
from coset.symmetry.mixing import centred_basis, matrices_shape, mix

Relaxation = Callable[[Tensor], Tensor]
"""From a free matrix (…, n, n) to the matrix that stands in for a permutation, differentiable."""


@dataclass(frozen=True)
class Generators:
    """``reached``: class → A (blocks…, n, n) in float64, of rotary pairs (…, n, 2, 2); ``leaves``: class → K, 0
    between steps.

    The tangent S of K is K − Kᵀ for rotations, H(K − Kᵀ)Hᵀ for those that leave 1 where it is, with a basis H of what
    sums to 0, and K itself on GL(n). Steps are taken in the frame that A has reached, in which the moments of an
    optimiser keep their meaning and the derivative of the exponential is that at 0: the identity.
    """

    kinds: Mapping[str, str]
    reached: dict[str, Tensor]
    leaves: Mapping[str, Tensor]

    def matrices(self) -> dict[str, Tensor]:
        """A·(1 + S): its value and its derivative are those of A·exp(S) at K = 0."""
        found = {}
        for name, leaf in self.leaves.items():
            here = self.reached[name].to(leaf.dtype)
            found[name] = here + here @ tangent(leaf, self.kinds[name])
        return found

    @torch.no_grad()
    def take(self) -> None:
        """A ← A·exp(S), K ← 0: after a step of an optimiser on the leaves."""
        for name, leaf in self.leaves.items():
            step = torch.linalg.matrix_exp(tangent(leaf.double(), self.kinds[name]))
            self.reached[name] = self.reached[name] @ step
            leaf.zero_()


def tangent(leaf: Tensor, kind: str) -> Tensor:
    """S of a generator K of a kind: (…, m, m) → (…, n, n)."""
    if kind == "general":
        return leaf
    skew = leaf - leaf.mT
    if kind != "centred":
        return skew
    basis = centred_basis(leaf.shape[-1] + 1).to(leaf)
    return basis @ skew @ basis.T


def generators_of(sym: Symmetry, like: Tensor) -> Generators:
    """Generators of all classes that mix, at the identity."""
    kinds = {name: mixing.kind for name, mixing in sym.continuous.items()}
    reached, leaves = {}, {}
    for name, kind in kinds.items():
        *outer, n, _ = matrices_shape(sym, name)
        m = n - 1 if kind == "centred" else n
        reached[name] = torch.eye(n, dtype=torch.float64, device=like.device).repeat(*outer, 1, 1)
        leaves[name] = torch.zeros(*outer, m, m, dtype=like.dtype, device=like.device, requires_grad=True)
    return Generators(kinds, reached, leaves)


@dataclass(frozen=True)
class Free:
    """``matrices``, class → (sizes around it; n, n), whose nearest permutations count; ``logs`` of scales, family → its
    shape; ``generators`` of classes that mix. An element acts by its matrices first, then by scales, then permutations:
    so frames of gains do not depend on what is learned.
    """

    sym: Symmetry
    matrices: Mapping[str, Tensor]
    logs: Mapping[str, Tensor]
    generators: Generators

    def leaves(self, rates: "Rates") -> list[tuple[Tensor, float]]:
        """What an optimiser moves, each with its learning rate."""
        return [
            *((leaf, rates.matrices) for leaf in self.matrices.values()),
            *((leaf, rates.logs) for leaf in self.logs.values()),
            *((leaf, rates.generators) for leaf in self.generators.leaves.values()),
        ]

    def element(self) -> Element:
        """The nearest element of the group: the best assignment of every matrix, the rest as it is."""
        permutations = {name: permutation_of(matrix).cpu() for name, matrix in self.matrices.items()}
        scales = {key: log.detach().double().exp().cpu() for key, log in self.logs.items()}
        last = self.sym.element(permutations, scales)
        if not self.generators.leaves:
            return last
        turned = {name: matrix.cpu() for name, matrix in self.generators.reached.items()}
        return self.sym.compose(last, self.sym.element(matrices=turned))

    def act(self, params: Params, relaxation: Relaxation) -> Params:
        """The relaxed element on parameters, differentiable in all that is free."""
        if self.generators.leaves:
            params = dict(params)
            mix(self.sym, self.generators.matrices(), params)
        if self.logs:
            scales = {key: log.exp() for key, log in self.logs.items()}
            params = self.sym.act(self.sym.element(scales=scales), params)
        return soft_act(self.sym, {name: relaxation(matrix) for name, matrix in self.matrices.items()}, params)

    def settle(self, largest: float | None, balanced: bool) -> None:
        """After a step of the optimiser: scales into their bounds, matrices along their generators."""
        limit = math.inf if largest is None else math.log(largest)
        for log in self.logs.values():
            log.data.copy_(allowed(log.detach(), limit, balanced))
        self.generators.take()


@dataclass(frozen=True)
class Rates:
    """Learning rates of what is free."""

    matrices: float
    logs: float
    generators: float


def free_parts(sym: Symmetry, params: Params, *, scales: bool, continuous: bool, permutations: bool = True) -> Free:
    """All that is free, at the identity, of the type of the parameters but at least float32.

    ``continuous``: classes that mix are mixed and not permuted, nor scaled where matrices scale.
    """
    like = next((tensor for tensor in params.values() if tensor.is_floating_point()), torch.zeros(()))
    like = torch.zeros((), dtype=torch.promote_types(like.dtype, torch.float32), device=like.device)
    mixing = sym.continuous if continuous else {}

    def eye(shape: tuple[int, ...]) -> Tensor:
        return torch.eye(shape[-1], dtype=like.dtype, device=like.device).repeat(*shape[:-1], 1, 1).requires_grad_()

    def zeros(key: str) -> Tensor:
        return torch.zeros(sym.shape(sym.families[key].owner), dtype=like.dtype, device=like.device, requires_grad=True)

    general = {name for name, item in mixing.items() if item.kind == "general"}
    learned = [key for key in sym.scaling if scales and sym.families[key].owner not in general]
    permuting = [name for name in sym.permuting if permutations and name not in mixing]
    return Free(
        sym,
        {name: eye(sym.shape(name)) for name in permuting},
        {key: zeros(key) for key in learned},
        generators_of(sym, like) if mixing else Generators({}, {}, {}),
    )


def allowed(log: Tensor, limit: float, balanced: bool) -> Tensor:
    """The nearest logarithms of scales within the bound and, if balanced, of mean 0: clamp(z − μ), μ by bisection."""
    if not balanced:
        return log.clamp(-limit, limit)
    low, high = float(log.min()), float(log.max())
    for _ in range(60):
        shift = (low + high) / 2
        mean = float((log - shift).clamp(-limit, limit).mean())
        low, high = (shift, high) if mean > 0 else (low, shift)
    return (log - high).clamp(-limit, limit)
