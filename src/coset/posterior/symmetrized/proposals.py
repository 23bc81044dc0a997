"""Where permutations are drawn from to estimate I(g; ω): for each proposal, which sides of it they bound.

With z(ω) = q^G(ω)/q(ω) = (1/|G|) Σ_g e^{Δ_g}, Δ_g = log q(g⁻¹·ω) − log q(ω), the information is I(g; ω) = E_q[−log z].
Of draws g_j from a proposal r the weights w_j = e^{Δ_g}/(|G| r(g)) have the mean z, so that E[−log mean w] ≥ −log z: an
upper bound. If r does not know which g moved ω (it may depend on ω, but only so that r(hg | hω) = r(g | ω)), then the
identity is as good as any draw from the posterior of g given ω, and with its weight among them E[−log mean w] ≤ I: a
lower bound. For uniform r this is InfoNCE (Gelberg et al. 2024, theorem 4.3); K = 1 is the bound of Barber & Agakov
(2003). Gradients take the draws and r as given: those of the sum Σ_g e^{Δ_g}, by importance sampling.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from coset._checks import check_choice
from coset.errors import InputError
from coset.posterior.symmetrized.exact import LARGEST_ORDER, exchanges, log_sum_over_group
from coset.posterior.symmetrized.guided import class_order, draw_chain, log_prob_of_identity, permanent_ratio
from coset.posterior.symmetrized.orbit import Drawn, Moves, Orbit
from coset.posterior.symmetrized.permanent import LARGEST, log_permanent, sample_permutations
from coset.posterior.symmetrized.units import normal_log_prob


@dataclass(frozen=True, eq=False)
class LogWeights:
    """log w of ``draws`` (…, K) of permutations and of the ``identity`` (…).

    ``moves``: the permutations, where each weight is e^Δ of one of them times a constant.
    """

    draws: Tensor
    identity: Tensor
    moves: Moves | None = None

    def lower(self) -> Tensor:
        """−log of the mean of the identity's weight and those of all draws but the last, (…)."""
        together = torch.cat([self.identity[..., None], self.draws[..., :-1]], -1)
        return _minus_log_mean(together)

    def upper(self) -> Tensor:
        """−log of the mean weight of the draws, (…)."""
        return _minus_log_mean(self.draws)


def _minus_log_mean(logs: Tensor) -> Tensor:
    return math.log(logs.shape[-1]) - torch.logsumexp(logs, -1)


_STEP, _FROM, _TO = 0.7, -11.0, 9.0


def mixture() -> tuple[Tensor, Tensor]:
    """Values of t (M,) and the logarithms of their weights (M,): exp(−√y) ≈ Σ_m w_m exp(−t_m·y).

    exp(−√y) is the mean of exp(−t·y) over t = 1/(2Z²), Z standard normal. A trapezoidal rule in s, Z = log(1 + e^s),
    leaves 30 values of t: it has log Z for small y, where t spans many orders, and Z for large y, where
    e^{−y/2Z² − Z²/2} is about ½ wide at any y. Up to √y = 60 it is right to 0.001; permutations are weighed by this
    mixture, so that not even this enters.
    """
    s = torch.arange(_FROM, _TO + _STEP / 2, _STEP, dtype=torch.float64)
    z = softplus(s)
    density = math.log(2 / math.sqrt(2 * math.pi)) - 0.5 * z.square()
    return 0.5 / z.square(), density + logsigmoid(s) + math.log(_STEP)


def distance_weights(drawn: Drawn, K: int, generator: torch.Generator) -> LogWeights:
    """Draws of f(g) ∝ exp(−‖gμ − μ‖) (Gelberg et al. 2024, section 6, future work) with their weights e^Δ/(|G| f(g)).

    An upper bound; f knows where q is, and so which g moved ω. With y = ‖gμ − μ‖² = Σ_i ‖μ_{p[i]} − μ_i‖² each part of
    the ``mixture`` is a product over units, whose sum over all permutations is a permanent: f can be normalised, and
    drawn from.
    For one simple class of at most 24 units. f depends on the means alone: its permanents are made once for all x.
    """
    orbit = drawn.orbit
    if len(orbit.classes) != 1 or len(orbit.simple) != 1:
        found = ", ".join(orbit.classes) or "none"
        raise InputError(
            f"proposal 'distance': the permuting classes are {found}; expected one, whose weights belong to one unit "
            f"each"
        )
    ((name, units),) = orbit.simple.items()
    if units.units > LARGEST:
        raise InputError(f"proposal 'distance': '{name}' has {units.units} units; expected {LARGEST} or fewer")
    with torch.no_grad():
        apart = squared_distances(drawn.mean[units.owned.to(drawn.mean.device)].double())
        order, log_f = draw_near(apart, math.prod(drawn.lead) * K, generator)
        order, log_f = order.reshape(*drawn.lead, K, -1), log_f.reshape(*drawn.lead, K)
    weights = drawn.log_ratios({name: order}) - orbit.log_order - log_f
    # Only for its shape: a bound from below has no use for it.
    return LogWeights(weights, weights.new_zeros(drawn.lead), {name: order})


def squared_distances(rows: Tensor) -> Tensor:
    """‖row_i − row_j‖², (n, n), from the differences themselves: zero on the diagonal."""
    return (rows[:, None, :] - rows).square().sum(-1)


def draw_near(apart: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """``count`` permutations (count, n) of f, and log f of each; ``apart`` (n, n) squared distances of the units."""
    times, log_weights = (part.to(apart) for part in mixture())
    parts = log_weights + log_permanent(-times[:, None, None] * apart)
    total = torch.logsumexp(parts, 0)
    shares = (parts - total).exp().to(generator.device)
    chosen = torch.multinomial(shares, count, replacement=True, generator=generator)
    orders = torch.zeros(count, len(apart), dtype=torch.long, device=apart.device)
    for part in sorted(set(chosen.tolist())):
        where = (chosen == part).nonzero().reshape(-1).to(apart.device)
        orders[where] = sample_permutations(-times[part] * apart, len(where), generator).to(apart.device)
    return orders, log_density(apart, orders) - total


def log_density(apart: Tensor, orders: Tensor) -> Tensor:
    """log Σ_m w_m exp(−t_m·y) ≈ −√y for permutations (…, n), not normalised."""
    times, log_weights = (part.to(apart) for part in mixture())
    n = len(apart)
    y = apart[torch.arange(n, device=apart.device), orders].sum(-1)
    return torch.logsumexp(log_weights - times * y[..., None], -1)


LARGEST_SUMMED = 20
"""Units of a class that is summed over by a permanent for each draw."""

_ENTRIES = 2**22
"""So many moved weights are held at once."""

Sampler = Callable[[Drawn, int, torch.Generator], LogWeights]
"""(weights beside their q, K, generator) → the weights of K permutations."""


@dataclass(frozen=True)
class Proposal:
    """Weights of permutations, and whether the identity's among them makes a ``lower`` bound.

    ``sums``: weights are sums over several permutations, not e^Δ of one each times a constant.
    """

    weights: Sampler
    lower: bool
    sums: bool = False

    def side(self, drawn: Drawn, K: int, generator: torch.Generator) -> Tensor:
        """What stands for −log z(ω) (…) in an objective: the lower bound where there is one."""
        weights = self.weights(drawn, K, generator)
        return weights.lower() if self.lower else weights.upper()


def uniform(drawn: Drawn, K: int, generator: torch.Generator) -> LogWeights:
    """g uniform over G: the weights are e^Δ, the identity's is 1 (Gelberg et al. 2024, theorem 4.3)."""
    moves = drawn.orbit.uniform((*drawn.lead, K), generator)
    weights = drawn.log_ratios(moves)
    return LogWeights(weights, weights.new_zeros(drawn.lead), moves)


def guided(drawn: Drawn, K: int, generator: torch.Generator) -> LogWeights:
    """Class by class, rows taking columns in proportion to a Sinkhorn-scaled e^A, given the classes before.

    A compares the units of ω with those of q by the weights that only this class and those before it move, so that r
    does not know which g moved ω. Classes that are not simple are drawn uniformly.
    """
    orbit = drawn.orbit
    chain = class_order(orbit, tuple(orbit.simple))
    moves, log_r = draw_chain(drawn, chain, K, generator)
    size = sum(orbit.log_size(name) for name in chain)
    return LogWeights(drawn.log_ratios(moves) - size - log_r, -size - log_prob_of_identity(drawn, chain), moves)


def marginal(drawn: Drawn, K: int, generator: torch.Generator) -> LogWeights:
    """The sum over one class by a permanent, the others drawn as in ``guided``: Rao-Blackwellisation.

    Of the simple classes of at most 20 units the one that ``guided`` would draw last is summed over, so that the others
    are drawn as there. With no other class this is exact.
    """
    orbit = drawn.orbit
    name = _summed(orbit)
    if len(orbit.classes) == 1:
        return _exactly(permanent_ratio(drawn, name, {})[..., 0], K)
    chain = class_order(orbit, tuple(other for other in orbit.simple if other != name))
    moves, log_r = draw_chain(drawn, chain, K, generator, without=name)
    size = sum(orbit.log_size(other) for other in chain)
    still = {other: order[None] for other, order in orbit.identity().items() if other != name}
    own = permanent_ratio(drawn, name, still)[..., 0] - size - log_prob_of_identity(drawn, chain)
    return LogWeights(permanent_ratio(drawn, name, moves) - size - log_r, own)


def transpositions(drawn: Drawn, K: int, generator: torch.Generator) -> LogWeights:
    """Uniform, with the sum over the identity and all transpositions known: they are the control variate.

    ẑ = (1/|G|) Σ_{near} e^Δ + (1/K) Σ_j e^{Δ_j} [g_j not near], each weight w_j = the first sum + its own term.
    """
    orbit = drawn.orbit
    parts = [torch.logsumexp(drawn.log_ratios(near), -1) for near in _near(orbit, math.prod(drawn.lead))]
    known = torch.logsumexp(torch.stack(parts, -1), -1, keepdim=True) - orbit.log_order
    moves = orbit.uniform((*drawn.lead, K), generator)
    logs = drawn.log_ratios(moves)
    weights = torch.logaddexp(known, logs.masked_fill(_is_near(orbit, moves).to(logs.device), -math.inf))
    return LogWeights(weights, known[..., 0])


def whole_sum(drawn: Drawn, K: int, generator: torch.Generator) -> LogWeights:
    """The sum over all of G: by the permanent where one simple class permutes, else by enumeration."""
    orbit = drawn.orbit
    if _is_one_permanent(orbit):
        return marginal(drawn, K, generator)
    if orbit.log_order > math.log(LARGEST_ORDER) + 1e-9:
        raise InputError(
            f"proposal 'exact': sym has 10^{orbit.log_order / math.log(10):.2f} permutations of the classes "
            f"{', '.join(orbit.classes)}; expected one class of at most {LARGEST} units whose weights belong to one "
            f"unit each, or {LARGEST_ORDER:,} permutations"
        )
    total = log_sum_over_group(exchanges(orbit.sym, orbit.names, orbit.like), drawn.x, drawn.mean, drawn.std)
    own = normal_log_prob(drawn.x, drawn.mean, drawn.std)
    return _exactly(total - own - orbit.log_order, K)


PROPOSALS: dict[str, Proposal] = {
    "uniform": Proposal(uniform, lower=True),
    "sequential": Proposal(guided, lower=True),
    "permanent": Proposal(marginal, lower=True, sums=True),
    "distance": Proposal(distance_weights, lower=False),
    "transpositions": Proposal(transpositions, lower=False, sums=True),
    "exact": Proposal(whole_sum, lower=True, sums=True),
}
"""Uniform; Sinkhorn-guided; one class by its permanent; the paper's f(g) ∝ e^{−‖gμ−μ‖}; a control variate; all of G."""


def proposal_named(name: object) -> Proposal:
    """The proposal of that name."""
    return PROPOSALS[check_choice("proposal", name, PROPOSALS)]


def _exactly(log_z: Tensor, K: int) -> LogWeights:
    """z itself as the weight of all."""
    return LogWeights(log_z[..., None].expand(*log_z.shape, K), log_z)


def _is_one_permanent(orbit: Orbit) -> bool:
    return len(orbit.classes) == 1 and len(orbit.simple) == 1 and next(iter(orbit.simple.values())).units <= LARGEST


def _summed(orbit: Orbit) -> str:
    """The class that ``marginal`` sums over."""
    largest = LARGEST if _is_one_permanent(orbit) else LARGEST_SUMMED
    small = [name for name in class_order(orbit, tuple(orbit.simple)) if orbit.simple[name].units <= largest]
    if not small:
        found = ", ".join(f"'{name}' {shape}" for name, shape in orbit.classes.items()) or "none"
        raise InputError(
            f"proposal 'permanent': the permuting classes are {found}; expected one of at most {LARGEST_SUMMED} units "
            f"whose weights belong to one unit each"
        )
    return small[-1]


def _near(orbit: Orbit, networks: int) -> Iterator[dict[str, Tensor]]:
    """The identity and all transpositions of simple classes, (T, *shape), in pieces that so many networks can hold."""
    pairs = [(name, i, j) for name, part in orbit.simple.items() for j in range(part.units) for i in range(j)]
    units = sum(shape[-1] for shape in orbit.classes.values())
    size = max(1, _ENTRIES // max(1, networks * (units + len(orbit.shared))))
    identity = orbit.identity()
    yield {name: order[None] for name, order in identity.items()}
    for start in range(0, len(pairs), size):
        some = pairs[start : start + size]
        moves = {name: order.expand(len(some), *order.shape).clone() for name, order in identity.items()}
        for number, (name, i, j) in enumerate(some):
            moves[name][number, i], moves[name][number, j] = j, i
        yield moves


def _is_near(orbit: Orbit, moves: Moves) -> Tensor:
    """Which elements are the identity or exchange two units of a simple class, (…)."""
    counts = []
    for name, shape in orbit.classes.items():
        moved = (moves[name] != torch.arange(shape[-1], device=moves[name].device)).flatten(-len(shape)).sum(-1)
        # Anything in a class that is not simple is far.
        counts.append(moved if name in orbit.simple else 3 * moved)
    total: Tensor = torch.stack(counts).sum(0) <= 2
    return total
