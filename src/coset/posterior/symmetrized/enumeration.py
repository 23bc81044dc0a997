"""Every permutation of a small group, one after the other: the definition of q^G, for symmetries of any structure."""

import itertools
import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from coset.distribution.density import vector
from coset.distribution.mean_field import MeanField
from coset.errors import InputError
from coset.posterior.symmetrized.pairs import normal_log_prob
from coset.posterior.symmetrized.units import Unknowns, unknowns
from coset.symmetry import Element, Symmetry

LARGEST_ORDER = 100_000
"""The largest group that is enumerated: about ten seconds for a small network."""

_ENTRIES = 2**22
"""So many moved weights are held at once."""


def permutation_count(sym: Symmetry) -> int:
    """The number of permutations in the group: Π size!, to the power of the number of blocks."""
    shapes = [sym.shape(name) for name in sym.permuting]
    return math.prod(math.factorial(shape[-1]) ** math.prod(shape[:-1]) for shape in shapes)


def all_permutations(sym: Symmetry) -> Iterator[Element]:
    """Every element of the group's permutation part once, the identity first; scales and signs are left out."""
    count = permutation_count(sym)
    if count > LARGEST_ORDER:
        raise InputError(
            f"sym has {count:.3g} permutations; expected {LARGEST_ORDER:,} or fewer to go through them all"
        )
    shapes = {name: sym.shape(name) for name in sym.permuting}
    orders = {shape[-1]: list(itertools.permutations(range(shape[-1]))) for shape in shapes.values()}
    blocks = [orders[shape[-1]] for shape in shapes.values() for _ in range(math.prod(shape[:-1]))]
    for chosen in itertools.product(*blocks):
        rows, permutations = iter(chosen), {}
        for name, shape in shapes.items():
            inner = [next(rows) for _ in range(math.prod(shape[:-1]))]
            permutations[name] = torch.tensor(inner, dtype=torch.long).reshape(shape)
        yield Element(permutations)


def sources(sym: Symmetry, over: Unknowns) -> Iterator[Tensor]:
    """For every permutation g the index (D,) with (g·x)_i = x[index_i], on the weights q is over."""
    finite = sym.restrict(scales=False, signs=False)
    for name in over.names:
        if name not in sym.parameters:
            raise InputError(f"q has '{name}', which is not a parameter of this symmetry")
    sizes = [over.like[name].numel() for name in over.names]
    numbers = torch.arange(sum(sizes), dtype=torch.float64).split_with_sizes(sizes)
    # Floating point, because shifted parameters are; whole numbers to 2⁵³ are exact.
    numbered = {name: part.reshape(over.like[name].shape) for name, part in zip(over.names, numbers, strict=True)}
    for g in all_permutations(finite):
        yield vector(finite.act(g, numbered, partial=True), over.names, over.like).round().long()


def enumerated(sym: Symmetry, q: MeanField, omega: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """log q(ω) and log q^G(ω), each (…), in float64, by log (1/|G|) Σ_g q(g⁻¹·ω) over all permutations g."""
    over = unknowns(q)
    x = over.vector(omega)
    own = normal_log_prob(x, over.mean, over.std)
    # With g also g⁻¹ is gone through.
    at_once = max(1, _ENTRIES // max(1, x.numel()))
    found = []
    indices = sources(sym, over)
    while chunk := list(itertools.islice(indices, at_once)):
        moved = x[..., torch.stack(chunk).to(x.device)]
        found.append(normal_log_prob(moved, over.mean, over.std))
    logs = torch.cat(found, -1)
    return own, torch.logsumexp(logs, -1) - math.log(logs.shape[-1])
