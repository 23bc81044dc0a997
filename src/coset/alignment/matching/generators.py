"""Matrices of classes that mix, learned by their generators: steps A ← A·exp(S) in the group itself."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from coset.symmetry import Symmetry
from coset.symmetry.mixing import centred_basis


@dataclass(frozen=True)
class Generators:
    """``reached``: class → A (blocks…, n, n) in float64; ``leaves``: class → K, which is 0 between steps.

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
    if kind == "orthogonal":
        return skew
    basis = centred_basis(leaf.shape[-1] + 1).to(leaf)
    return basis @ skew @ basis.T


def generators_of(sym: Symmetry, like: Tensor) -> Generators:
    """Generators of all classes that mix, at the identity."""
    kinds = {name: mixing.kind for name, mixing in sym.continuous.items()}
    reached, leaves = {}, {}
    for name, kind in kinds.items():
        *outer, n = sym.shape(name)
        m = n - 1 if kind == "centred" else n
        reached[name] = torch.eye(n, dtype=torch.float64, device=like.device).repeat(*outer, 1, 1)
        leaves[name] = torch.zeros(*outer, m, m, dtype=like.dtype, device=like.device, requires_grad=True)
    return Generators(kinds, reached, leaves)
