"""Rotations by randomised Hadamard blocks, which spread outliers over all units, as quantisation by rotation uses.

Of H (n, n) with entries ±1/√n and random signs D, the matrix A = H·D turns a vector with one large entry into one with
n entries of the same size. H is the Sylvester matrix where n is a power of two. Any other n is n = 2^k·m, m odd, and
H ⊗ Q with a random rotation Q of m units; m is small beside n for the widths that are in use.
"""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from coset.errors import InputError
from coset.symmetry.element import Element
from coset.symmetry.mixing import random_rotation

if TYPE_CHECKING:
    from coset.symmetry.symmetry import Symmetry


def hadamard_matrix(n: int, generator: torch.Generator) -> Tensor:
    """P·(H ⊗ Q)·D (n, n) in float64: H of Sylvester, Q Haar on O(m), D signs, P a permutation; n = 2^k·m, m odd."""
    device = generator.device
    power = n & -n
    whole = torch.ones(1, 1, dtype=torch.float64, device=device)
    step = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64, device=device)
    for _ in range(power.bit_length() - 1):
        whole = torch.kron(whole, step)
    signs = 2.0 * torch.randint(2, (n,), generator=generator, device=device).double() - 1.0
    order = torch.randperm(n, generator=generator, device=device)
    return torch.kron(whole / math.sqrt(power), random_rotation(n // power, generator).contiguous())[order] * signs


def centred_hadamard_matrix(n: int, generator: torch.Generator) -> Tensor:
    """The same on the vectors that sum to 0, with 1 left where it is, (n, n).

    R = ``hadamard_matrix`` of n units takes 1 to v; the reflection S in the plane between v and 1 takes v back, and
    A = S·R leaves 1 where it is: S = 1 − 2uuᵀ with u = (v − 1)/‖v − 1‖. S changes R by rank one alone.
    """
    rotation = hadamard_matrix(n, generator)
    one = torch.full((n,), 1 / math.sqrt(n), dtype=torch.float64, device=generator.device)
    rest = rotation @ one - one
    square = rest @ rest
    if float(square) < 1e-20:
        return rotation
    return rotation - torch.outer(rest, rest @ rotation) * (2 / square)


_MATRICES = {"orthogonal": hadamard_matrix, "centred": centred_hadamard_matrix}


def hadamard(sym: "Symmetry", generator: torch.Generator) -> Element:
    """Randomised Hadamard rotations of all classes that norms see; everything else stays."""
    if not isinstance(generator, torch.Generator):
        raise InputError(f"hadamard needs a torch.Generator, found {type(generator).__name__}")
    turning = sorted(name for name, item in sym.continuous.items() if item.kind in _MATRICES)
    if not turning:
        kinds = ", ".join(f"'{name}' is {item.kind}" for name, item in sym.continuous.items()) or "none mixes"
        raise InputError(
            f"no class turns in this symmetry ({kinds}); expected a stream behind norms, as of a transformer"
        )
    matrices = {}
    for name in turning:
        *blocks, n = sym.shape(name)
        make = _MATRICES[sym.continuous[name].kind]
        drawn = [make(n, generator) for _ in range(math.prod(blocks))]
        matrices[name] = torch.stack(drawn).reshape(*blocks, n, n)
    return sym.element(matrices=matrices)
