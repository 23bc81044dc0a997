"""The symmetrized posterior q^G(ω) = (1/|G|) Σ_g q(g⁻¹·ω) over the permutations of an architecture, exactly.

Gelberg et al. 2024, eq. 4: its density, draws from it, its entropy, and how much of g a draw ω tells.
"""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from coset._checks import check_count
from coset._show.progress import progress
from coset.distribution import Estimate, MeanField, Samples
from coset.distribution.draws import check_generator
from coset.errors import InputError
from coset.posterior.fit import device_stream
from coset.posterior.symmetrized.enumeration import enumerated
from coset.posterior.symmetrized.permanent import log_permanent
from coset.posterior.symmetrized.units import free_log_prob, pairs, permuting_class, unit_entries, unknowns
from coset.symmetry import Symmetry

Density = Callable[[Symmetry, MeanField, Mapping[str, Tensor]], tuple[Tensor, Tensor]]
"""(sym, q, ω (…)) → log q(ω) and log q^G(ω), each (…)."""

_ENTRIES = 2**22
"""So many drawn weights are held at once."""

_AT_ONCE = {"permanent": 64, "enumeration": 4096}
"""So many draws are scored at once: few enough to see advance, many where the whole group is gone through each time."""


def by_permanent(sym: Symmetry, q: MeanField, omega: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """log q(ω) and log q^G(ω) = log q(r) + log perm(exp A) − log n!, A of ``pair_matrix``, r the entries of no unit.

    Both from the same A: in their difference what is common to all permutations cancels.
    """
    over = unknowns(q)
    entries = unit_entries(sym, permuting_class(sym), q.mean, over.names)
    x = over.vector(omega)
    matrix, rest = pairs(entries, over, x), free_log_prob(entries, over, x)
    own = matrix.diagonal(dim1=-2, dim2=-1).sum(-1)
    return rest + own, rest + log_permanent(matrix) - math.lgamma(entries.units + 1)


METHODS: dict[str, Density] = {"permanent": by_permanent, "enumeration": enumerated}
"""One permuting class with entries of at most one unit each, 2ⁿ work; any structure, |G| work."""


def log_prob_symmetrized(
    sym: Symmetry, q: MeanField, omega: Mapping[str, Tensor], *, method: str = "permanent"
) -> Tensor:
    """log q^G(ω) = log (1/|G|) Σ_g q(g⁻¹·ω) over the permutations of ``sym``; ω (…) gives (…), in float64.

    Scales and signs of ``sym`` play no part, nor do points and buffers, as in ``MeanField.log_prob``; tied weights
    count once. Differentiable in ω, means and deviations. ``method``: a name in ``METHODS``.
    """
    return _density(method)(sym, q, omega)[1]


def mutual_information(
    sym: Symmetry,
    q: MeanField,
    samples: int = 1000,
    seed: int = 0,
    *,
    method: str = "permanent",
    show: bool | None = None,
) -> Estimate:
    """I(g; ω) = H(q^G) − H(q) = E_q[log q(ω) − log q^G(ω)] in nats, between 0 and log |G|, with its standard error.

    By ``samples`` draws of the difference itself, which does not carry the noise ½(‖ε‖² − D) of log q (Gelberg et al.
    2024, theorem 4.1).
    """
    density = _density(method)
    check_count("samples", samples)
    if samples < 2:
        raise InputError("samples is 1; expected two or more, for a standard error")
    check_count("seed", seed, 0)
    over = unknowns(q)
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
                own, whole = density(sym, q, part)
                values.append(own - whole)
                bar.advance(len(own))
    gains = torch.cat(values)
    return Estimate(float(gains.mean()), float(gains.std()) / math.sqrt(samples))


def entropy_symmetrized(
    sym: Symmetry,
    q: MeanField,
    samples: int = 1000,
    seed: int = 0,
    *,
    method: str = "permanent",
    show: bool | None = None,
) -> Estimate:
    """H(q^G) = H(q) + I(g; ω) in nats: the first in closed form, the second as in ``mutual_information``."""
    gain = mutual_information(sym, q, samples, seed, method=method, show=show)
    return Estimate(entropy_of(q) + gain.value, gain.error)


def sample_symmetrized(sym: Symmetry, q: MeanField, n: int, generator: torch.Generator) -> dict[str, Tensor]:
    """n draws of q^G on a leading axis of every tensor: ω ~ q, each moved by a uniform permutation of its own.

    Points move too: every draw computes the function it computed before (appendix C).
    """
    check_count("n", n)
    check_generator(generator)
    if not isinstance(q, MeanField):
        raise InputError(f"q is a {type(q).__name__}; expected a MeanField")
    finite = sym.restrict(scales=False, signs=False)
    draws = Samples({name: tensor[None] for name, tensor in q.sample(n, generator).items()})
    moved = [finite.act(finite.random(generator), draw) for draw in draws]
    return Samples.stack(moved).flat


def _density(method: str) -> Density:
    if method not in METHODS:
        raise InputError(f"method is {method!r}; expected one of {', '.join(METHODS)}")
    return METHODS[method]


def entropy_of(q: MeanField) -> float:
    """H(q) in nats, in float64."""
    std = unknowns(q).std
    return float(std.log().sum()) + 0.5 * len(std) * (1 + math.log(2 * math.pi))
