"""Every permutation of a small group, one after the other: the definition of q^G, for symmetries of any structure."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from coset.distribution.density import vector
from coset.distribution.mean_field import MeanField
from coset.errors import InputError
from coset.posterior.symmetrized.orbit import numbered
from coset.posterior.symmetrized.units import normal_log_prob, unknowns
from coset.symmetry import Element, Symmetry
from coset.symmetry.action import check_names

LARGEST_ORDER = 100_000
"""The largest group that is enumerated."""

_ENTRIES = 2**22
"""So many moved weights are held at once."""


def permutation_count(sym: Symmetry) -> int:
    """The number of permutations in the group: Π size!, to the power of the number of blocks."""
    shapes = [sym.shape(name) for name in sym.permuting]
    return math.prod(math.factorial(shape[-1]) ** math.prod(shape[:-1]) for shape in shapes)


def all_permutations(sym: Symmetry) -> Iterator[Element]:
    """Every element of the group's permutation part once, the identity first; scales and signs are left out."""
    _check_order(sym)
    shapes = {name: sym.shape(name) for name in sym.permuting}
    orders = {shape[-1]: list(itertools.permutations(range(shape[-1]))) for shape in shapes.values()}
    blocks = [orders[shape[-1]] for shape in shapes.values() for _ in range(math.prod(shape[:-1]))]

    def element(chosen: Sequence[tuple[int, ...]]) -> Element:
        rows, permutations = iter(chosen), {}
        for name, shape in shapes.items():
            inner = [next(rows) for _ in range(math.prod(shape[:-1]))]
            permutations[name] = torch.tensor(inner, dtype=torch.long).reshape(shape)
        return Element(permutations)

    return map(element, itertools.product(*blocks))


def exchanges(sym: Symmetry, names: Sequence[str], like: Mapping[str, Tensor]) -> list[Tensor]:
    """Factors of the group, each (k, D): every permutation is a product of one choice from each, in just one way.

    A block of n units has n−1 factors: for k = 1…n−1 nothing, or the exchange of unit k with an earlier one. Blocks
    move independently, and a class around others is a complement to what happens inside, so that the factors of all
    blocks and classes make the whole group. A choice is the index by which it moves the weights, (g·x)_i = x[index_i].
    """
    finite = sym.restrict(scales=False, signs=False)
    places = numbered(names, like)

    def moved(name: str, block: int, i: int, k: int) -> Tensor:
        shape = finite.shape(name)
        order = torch.arange(shape[-1]).repeat(math.prod(shape[:-1]), 1)
        order[block, i], order[block, k] = k, i
        g = finite.element({name: order.reshape(shape)})
        return vector(finite.act(g, places, partial=True), names, like).round().long()

    factors = []
    for name in finite.permuting:
        *around, size = finite.shape(name)
        for block in range(math.prod(around)):
            factors += [torch.stack([moved(name, block, i, k) for i in (k, *range(k))]) for k in range(1, size)]
    return factors


def products(table: Tensor, factors: Sequence[Tensor], entries: int) -> Iterator[Tensor]:
    """All products of the rows of ``table`` (C, D) with one choice from each factor, in pieces of some ``entries``."""
    if not factors:
        yield table
        return
    for part in torch.split(table, max(1, entries // factors[0].numel())):
        yield from products(part[:, factors[0]].flatten(0, 1), factors[1:], entries)


def enumerated(sym: Symmetry, q: MeanField, omega: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """log q(ω) and log q^G(ω), each (…), in float64, by log (1/|G|) Σ_g q(g⁻¹·ω) over all permutations g."""
    _check_order(sym)
    over = unknowns(q)
    check_names(sym, {name: over.like[name] for name in over.names}, partial=True)
    x = over.vector(omega)
    total = log_sum_over_group(exchanges(sym, over.names, over.like), x, over.mean, over.std)
    return normal_log_prob(x, over.mean, over.std), total - math.log(permutation_count(sym))


def log_sum_over_group(factors: Sequence[Tensor], x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """log Σ_g q(g⁻¹·ω) (…) for x (…, D) and q = N(mean, diag std²), g over all products of the ``factors``."""
    entries = max(1, _ENTRIES * x.shape[-1] // max(1, x.numel()))
    total = x.new_full(x.shape[:-1], -math.inf)
    # With g also g⁻¹ is gone through.
    for table in products(torch.arange(x.shape[-1])[None], factors, entries):
        logs = normal_log_prob(x[..., table.to(x.device)], mean, std)
        total = torch.logaddexp(total, torch.logsumexp(logs, -1))
    return total


def _check_order(sym: Symmetry) -> None:
    # By logarithms: the number itself may have thousands of digits.
    if sym.log_permutations > math.log(LARGEST_ORDER) + 1e-9:
        raise InputError(
            f"sym has 10^{sym.log_permutations / math.log(10):.2f} permutations; expected {LARGEST_ORDER:,} or fewer "
            f"to go through them all"
        )
