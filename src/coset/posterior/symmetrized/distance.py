"""The proposal f(g) ∝ exp(−‖gμ − μ‖) of Gelberg et al. 2024 (section 6, future work), normalised and drawn exactly.

exp(−√y) is the mean of exp(−t·y) over t = 1/(2Z²), Z standard normal. With y = ‖gμ − μ‖² = Σ_i ‖μ_{p[i]} − μ_i‖² each
of these is a product over units, whose sum over all permutations is a permanent: f is a mixture over t of distributions
that can be normalised, and drawn from. A trapezoidal rule in s, Z = log(1 + e^s), leaves 30 values of t: it has log Z
for small y, where t spans many orders, and Z for large y, where e^{−y/2Z² − Z²/2} is about ½ wide at any y. Up to
√y = 60 it is right to 0.001; the weights are those of this mixture, so that not even this enters them.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from coset.errors import InputError
from coset.posterior.symmetrized.drawn import Drawn
from coset.posterior.symmetrized.permanent import LARGEST, log_permanent, sample_permutations
from coset.posterior.symmetrized.weights import LogWeights

_STEP, _FROM, _TO = 0.7, -11.0, 9.0


def mixture() -> tuple[Tensor, Tensor]:
    """Values of t (M,) and the logarithms of their weights (M,): exp(−√y) ≈ Σ_m w_m exp(−t_m·y)."""
    s = torch.arange(_FROM, _TO + _STEP / 2, _STEP, dtype=torch.float64)
    z = softplus(s)
    density = math.log(2 / math.sqrt(2 * math.pi)) - 0.5 * z.square()
    return 0.5 / z.square(), density + logsigmoid(s) + math.log(_STEP)


def distance_weights(drawn: Drawn, K: int, generator: torch.Generator) -> LogWeights:
    """Draws of f with their weights e^Δ/(|G| f(g)): an upper bound; f knows where q is, and so which g moved ω.

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
