"""The symmetrized posterior q^G(ω) = (1/|G|) Σ_g q(g⁻¹·ω) over the permutations of an architecture, exactly.

Gelberg et al. 2024, eq. 4: its density, draws from it, its entropy, and how much of g a draw ω tells.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from coset._checks import check_choice, check_count
from coset._show.progress import progress
from coset.distribution import Distribution, Estimate, Normal, Samples
from coset.distribution.contract import require
from coset.distribution.density import check_generator, vector
from coset.distribution.mixture import check_samples
from coset.errors import InputError
from coset.posterior.fit import device_stream
from coset.posterior.symmetrized.gaussians import (
    Known,
    free_log_density,
    known,
    log_density,
    sign_flips,
    unit_matrix,
    unit_signs,
)
from coset.posterior.symmetrized.orbit import numbered
from coset.posterior.symmetrized.permanent import log_permanent
from coset.posterior.symmetrized.units import Unknowns, exchange, normal_log_prob, permuting_class, unit_entries
from coset.symmetry import Element, Symmetry
from coset.symmetry.action import check_names

LARGEST_ORDER = 100_000
"""The largest group that is enumerated."""

_ENTRIES = 2**22
"""So many drawn or moved weights are held at once."""


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

    def moved(name: str, i: int, k: int) -> Tensor:
        g = exchange(finite, name, (i, k))
        return vector(finite.act(g, places, partial=True), names, like).round().long()

    factors = []
    for name in finite.permuting:
        *around, size = finite.shape(name)
        for first in range(0, math.prod(around) * size, size):
            for k in range(first + 1, first + size):
                factors.append(torch.stack([moved(name, i, k) for i in (k, *range(first, k))]))
    return factors


def products(table: Tensor, factors: Sequence[Tensor], entries: int) -> Iterator[Tensor]:
    """All products of the rows of ``table`` (C, D) with one choice from each factor, in pieces of some ``entries``."""
    if not factors:
        yield table
        return
    for part in torch.split(table, max(1, entries // factors[0].numel())):
        yield from products(part[:, factors[0]].flatten(0, 1), factors[1:], entries)


def enumerated(sym: Symmetry, q: Normal, omega: Mapping[str, Tensor], signs: bool = False) -> tuple[Tensor, Tensor]:
    """log q(ω) and log q^G(ω), each (…), in float64, by log (1/|G|) Σ_g q(g⁻¹·ω) over all g."""
    over = known(q)
    flips = sign_flips(sym, over.names, over.like) if signs else []
    _check_order(sym, len(flips))
    check_names(sym, {name: over.like[name] for name in over.names}, partial=True)
    x = over.vector(omega)
    factors = exchanges(sym, over.names, over.like)
    total = x.new_full(x.shape[:-1], -math.inf)
    # Every g is one permutation after one choice of signs.
    for chosen in itertools.product((False, True), repeat=len(flips)):
        turned = x
        for flip in itertools.compress(flips, chosen):
            turned = turned * flip.to(x)
        total = torch.logaddexp(total, _log_sum(factors, turned, over))
    return log_density(over, x), total - math.log(permutation_count(sym)) - len(flips) * math.log(2)


def _log_sum(factors: Sequence[Tensor], x: Tensor, over: Known) -> Tensor:
    """log Σ_g q(g⁻¹·ω) over permutations, for q of any kind."""
    if isinstance(over, Unknowns):
        return log_sum_over_group(factors, x, over.mean, over.std)
    entries = max(1, _ENTRIES * x.shape[-1] // max(1, x.numel()))
    total = x.new_full(x.shape[:-1], -math.inf)
    for table in products(torch.arange(x.shape[-1])[None], factors, entries):
        total = torch.logaddexp(total, torch.logsumexp(log_density(over, x[..., table.to(x.device)]), -1))
    return total


def log_sum_over_group(factors: Sequence[Tensor], x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """log Σ_g q(g⁻¹·ω) (…) for x (…, D) and q = N(mean, diag std²), g over all products of the ``factors``."""
    entries = max(1, _ENTRIES * x.shape[-1] // max(1, x.numel()))
    total = x.new_full(x.shape[:-1], -math.inf)
    # With g also g⁻¹ is gone through.
    for table in products(torch.arange(x.shape[-1])[None], factors, entries):
        logs = normal_log_prob(x[..., table.to(x.device)], mean, std)
        total = torch.logaddexp(total, torch.logsumexp(logs, -1))
    return total


def _check_order(sym: Symmetry, signs: int = 0) -> None:
    # By logarithms: the number itself may have thousands of digits.
    size = sym.log_permutations + signs * math.log(2)
    if size > math.log(LARGEST_ORDER) + 1e-9:
        what = "permutations with signs" if signs else "permutations"
        raise InputError(
            f"sym has 10^{size / math.log(10):.2f} {what}; expected {LARGEST_ORDER:,} or fewer to go through them all"
        )


Density = Callable[[Symmetry, Normal, Mapping[str, Tensor], bool], tuple[Tensor, Tensor]]
"""(sym, q, ω (…), signs) → log q(ω) and log q^G(ω), each (…)."""

_AT_ONCE = {"permanent": 64, "enumeration": 4096}
"""So many draws are scored at once: few enough to see advance, many where the whole group is gone through each time."""


def by_permanent(sym: Symmetry, q: Normal, omega: Mapping[str, Tensor], signs: bool = False) -> tuple[Tensor, Tensor]:
    """log q(ω) and log q^G(ω) = log q(r) + log perm(exp A) − log n!, A of ``pair_matrix``, r the entries of no unit.

    Both from the same A: in their difference what is common to all permutations cancels. With ``signs`` A_ij is
    log (N(ν_i; μ_j, S_jj) + N(sν_i; μ_j, S_jj)), over 2ⁿn!.
    """
    over = known(q)
    entries = unit_entries(sym, permuting_class(sym), q.mean, over.names)
    x = over.vector(omega)
    matrix, rest = unit_matrix(over, entries, x), free_log_density(over, entries, x)
    own = matrix.diagonal(dim1=-2, dim2=-1).sum(-1)
    order = math.lgamma(entries.units + 1)
    if signs:
        flip = torch.ones_like(over.mean)
        flip[entries.owned.to(x.device)] = unit_signs(sym, over, entries).to(x)
        matrix = torch.logaddexp(matrix, unit_matrix(over, entries, x * flip))
        order += entries.units * math.log(2)
    return rest + own, rest + log_permanent(matrix) - order


METHODS: dict[str, Density] = {"permanent": by_permanent, "enumeration": enumerated}
"""One permuting class with entries of at most one unit each, 2ⁿ work; any structure, |G| work."""


def log_prob_symmetrized(
    sym: Symmetry, q: Normal, omega: Mapping[str, Tensor], *, method: str = "permanent", signs: bool = False
) -> Tensor:
    """log q^G(ω) = log (1/|G|) Σ_g q(g⁻¹·ω) over the permutations of ``sym``; ω (…) gives (…), in float64.

    q: a mean field or a Gaussian; the permanent expects its units to be independent of each other. ``signs``: G has the
    free signs of ``sym``, too. Scales play no part, nor do points and buffers, as in ``MeanField.log_prob``; tied
    weights count once. Differentiable in ω, means and deviations. ``method``: a name in ``METHODS``.
    """
    return _density(method)(sym, q, omega, signs)[1]


def mutual_information(
    sym: Symmetry,
    q: Normal,
    samples: int = 1000,
    seed: int = 0,
    *,
    method: str = "permanent",
    signs: bool = False,
    show: bool | None = None,
) -> Estimate:
    """I(g; ω) = H(q^G) − H(q) = E_q[log q(ω) − log q^G(ω)] in nats, between 0 and log |G|, with its standard error.

    By ``samples`` draws of the difference itself, which does not carry the noise ½(‖ε‖² − D) of log q (Gelberg et al.
    2024, theorem 4.1).
    """
    density = _density(method)
    check_samples(samples)
    check_count("seed", seed, 0)
    over = known(q)
    # A stream of its own: the plain one of a seed may be what the network began with.
    generator = device_stream("mutual information", seed, 0, over.mean)
    most = max(1, min(max(_AT_ONCE.values()), _ENTRIES // len(over.mean)))
    values = []
    with torch.no_grad(), progress("mutual information", samples, show=show) as bar:
        for start in range(0, samples, most):
            count = min(most, samples - start)
            draws = q.sample(count, generator)
            for first in range(0, count, _AT_ONCE[method]):
                part = {name: draws[name][first : first + _AT_ONCE[method]] for name in over.names}
                own, whole = density(sym, q, part, signs)
                values.append(own - whole)
                bar.advance(len(own))
    return Estimate.of(torch.cat(values))


def entropy_symmetrized(
    sym: Symmetry,
    q: Normal,
    samples: int = 1000,
    seed: int = 0,
    *,
    method: str = "permanent",
    signs: bool = False,
    show: bool | None = None,
) -> Estimate:
    """H(q^G) = H(q) + I(g; ω) in nats: the first in closed form, the second as in ``mutual_information``."""
    gain = mutual_information(sym, q, samples, seed, method=method, signs=signs, show=show)
    return Estimate(float(known(q).entropy()) + gain.value, gain.error)


def information_by_draws(
    sym: Symmetry, q: Normal, K: int = 100, samples: int = 1000, seed: int = 0, *, signs: bool = False
) -> Estimate:
    """H^K − H(q) = E[−log (1/K)(1 + Σ_{j<K} exp(log q(g_j⁻¹ω) − log q(ω)))] ≤ I(g; ω), g_j uniform, in nats.

    Eq. 4 of Gelberg et al. 2024 for any Gaussian, correlated ones included: a lower bound of at most log K.
    ``information_bounds`` has better ones for mean fields.
    """
    check_count("K", K)
    check_samples(samples)
    check_count("seed", seed, 0)
    over = known(q)
    finite = sym.restrict(scales=False, signs=signs, continuous=False)
    generator = device_stream("information by draws", seed, 0, over.mean)
    places = numbered(over.names, over.like)
    draws = over.vector(q.sample(samples, generator))
    ones = {name: torch.ones_like(part) for name, part in places.items()}
    own = log_density(over, draws)
    logs = [torch.zeros_like(own)]
    for _ in range(K - 1):
        g = finite.random(generator)
        still = replace(g, signs={key: torch.ones_like(part) for key, part in g.signs.items()})
        index = vector(finite.act(still, places, partial=True), over.names, over.like).round().long()
        sign = vector(finite.act(g, ones, partial=True), over.names, over.like)
        # With g also g⁻¹ is uniform. One permutation serves all draws: each value stays unbiased for its own.
        logs.append(log_density(over, draws[..., index.to(draws.device)] * sign.to(draws)) - own)
    return Estimate.of(math.log(K) - torch.stack(logs).logsumexp(0))


def sample_symmetrized(sym: Symmetry, q: Distribution, n: int, generator: torch.Generator) -> dict[str, Tensor]:
    """n draws of q^G on a leading axis of every tensor: ω ~ q, each moved by a uniform permutation of its own.

    Points move too: every draw computes the function it computed before (appendix C).
    """
    check_count("n", n)
    check_generator(generator)
    require(q, Distribution, "q", "a distribution over weights")
    finite = sym.restrict(scales=False, signs=False)
    draws = Samples({name: tensor[None] for name, tensor in q.sample(n, generator).items()})
    moved = [finite.act(finite.random(generator), draw) for draw in draws]
    return Samples.stack(moved).flat


def _density(method: str) -> Density:
    return METHODS[check_choice("method", method, METHODS)]
