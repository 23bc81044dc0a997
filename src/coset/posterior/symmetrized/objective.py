"""The symmetrized ELBO: that of a mean-field q, and what averaging it over the permutations adds."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from coset._checks import check_choice, check_count
from coset.distribution import Estimate, Normal
from coset.distribution.density import check_generator, pieces
from coset.distribution.ties import ties
from coset.errors import InputError
from coset.posterior.fit import Fit, device_stream
from coset.posterior.inference.negative_elbo import elbo
from coset.posterior.likelihoods import Likelihood
from coset.posterior.priors import Prior
from coset.posterior.problem import Data, PriorLike, Problem, pose
from coset.posterior.symmetrized.bounds import draws_in_parts
from coset.posterior.symmetrized.orbit import Drawn, orbit
from coset.posterior.symmetrized.proposals import proposal_named
from coset.posterior.symmetrized.units import Unknowns, unknowns
from coset.symmetry import Element, Symmetry

_RANDOM_ELEMENTS = 2
_DEVIATION = 0.5
_TOLERANCE = 1e-11


def check_invariant(sym: Symmetry, problem: Problem) -> None:
    """Refuse what the permutations of ``sym`` change: a prior (prop. 2.2), or tensors that are not inferred.

    The likelihood of permuted weights is the same only where buffers and frozen weights are permuted with them. If that
    changes them, the posterior given their values is another one. Every class that permutes is tried alone, so that the
    error can name it.
    """
    check_invariant_prior(sym, problem.prior, problem.layout.views(problem.start))
    _check_points(sym, problem.layout.fixed)


def check_invariant_prior(sym: Symmetry, prior: Prior, like: Mapping[str, Tensor]) -> None:
    """Refuse a prior whose log-density at random weights changes; ``like``: trained weights of one network."""
    generator = torch.Generator().manual_seed(0)
    start = {name: tensor.detach().double() for name, tensor in like.items()}
    weights = {
        name: tensor + _DEVIATION * torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor)
        for name, tensor in start.items()
    }
    value = float(prior.log_prob(weights))
    if not math.isfinite(value):
        # A prior need not allow all weights; it does allow those of the network.
        weights = start
        value = float(prior.log_prob(weights))
    for name, one, g in _elements(sym, generator):
        moved = float(prior.log_prob(one.act(g, weights, partial=True)))
        if not math.isclose(moved, value, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE):
            raise InputError(
                f"prior: its log-density changes from {value:.6g} by {moved - value:.3g} when units of the class "
                f"'{name}' change places; expected a prior that is invariant under the permutations of sym"
            )


def _check_points(sym: Symmetry, points: Mapping[str, Tensor]) -> None:
    for name, one, g in _elements(sym, torch.Generator().manual_seed(0)):
        moved = one.act(g, points, partial=True)
        changed = [key for key, tensor in points.items() if not torch.equal(moved[key], tensor)]
        if changed:
            raise InputError(
                f"sym permutes the class '{name}', and '{changed[0]}', which is not inferred, differs between its "
                f"units; expected the same for all of them, or sym.restrict to other classes"
            )


def _elements(sym: Symmetry, generator: torch.Generator) -> Iterator[tuple[str, Symmetry, Element]]:
    """The exchange of two units of a class and the shift of all by one, which make every permutation of a block.

    And some at random, for each class alone. For several blocks, the first two in all of them at once.
    """
    for name in sym.permuting:
        one = sym.restrict([name], scales=False, signs=False)
        shape = one.shape(name)
        units = torch.arange(shape[-1])
        if shape[-1] > 1:
            for order in (torch.cat([units[:2].flip(0), units[2:]]), units.roll(-1)):
                yield name, one, one.element({name: order.expand(shape).contiguous()})
        for _ in range(_RANDOM_ELEMENTS):
            yield name, one, one.random(generator)


GRADIENTS = ("bound", "path")
"""What gradients follow: the bound itself, or the sampled weights only."""


class SymmetrizedValue(NamedTuple):
    """Per data point, with standard errors: ``plain`` L of q, the ``gain`` H^K − H(q), and the ``total`` L^K of q^G."""

    plain: Estimate
    gain: Estimate
    total: Estimate


@dataclass(frozen=True, eq=False)
class SymmetrizedELBO:
    """L + H^K − H(q): the ELBO of q^G = (1/|G|) Σ_g q(g⁻¹·ω) by K permutations (Gelberg et al. 2024, theorem 4.3).

    To the ELBO of q each of ``samples`` weights ω adds −log[(1/K)(1 + Σ_{j<K} exp(log q(g_j⁻¹·ω) − log q(ω)))] with
    uniform g_j: at most log K, ≥ 0 in expectation and more the more permutations. It is the form whose noise does not
    carry that of −log q(ω), ½(‖ε‖² − D). G: the permutations of ``sym``; scales and signs play no part.

    ``proposal``: where the g_j come from, a name in ``PROPOSALS``. Other than for uniform ones terms are divided by |G|
    times their probabilities, the value may exceed log K (``bound`` says what it bounds), and gradients take g_j and
    their probabilities as given: they estimate the gradient of I(g; ω), and are not that of the value.

    ``gradient``: "bound" differentiates the value both along ω and in the densities, "path" along ω only. What "path"
    leaves out, ∂log q − ∂log q^G at given ω, is 0 in expectation: that of a score, for log q^G does not tell draws of
    q from draws of q^G. It is the path derivative of Roeder et al. 2017 for q^G; where modes overlap it has far less
    noise. With few permutations both are biased estimates of the gradient of I, in their own ways.
    """

    sym: Symmetry
    K: int = 20
    samples: int = 1
    proposal: str = "uniform"
    gradient: str = "bound"

    def __post_init__(self) -> None:
        if not isinstance(self.sym, Symmetry):
            raise InputError(f"sym is a {type(self.sym).__name__}; expected a Symmetry, as coset.discover finds")
        check_count("K", self.K)
        check_count("samples", self.samples)
        proposal_named(self.proposal)
        check_choice("gradient", self.gradient, GRADIENTS)

    @property
    def bound(self) -> str:
        """Which bound of the ELBO of q^G this is in expectation: "lower", "upper" or "exact"."""
        if self.proposal == "exact":
            return "exact"
        return "lower" if proposal_named(self.proposal).lower else "upper"

    def gain(self, q: Normal, omega: Mapping[str, Tensor], generator: torch.Generator) -> Tensor:
        """What each of some weights (…) adds to the ELBO, (…), in float64; with gradients in ω, means, deviations.

        With ``gradient`` "path" in ω alone.
        """
        check_generator(generator)
        over = unknowns(q)
        moved = orbit(self.sym, over.names, over.like)
        return self.added(Drawn(moved, over.vector(omega), over.mean, over.std), generator)

    def added(self, drawn: Drawn, generator: torch.Generator) -> Tensor:
        """``gain`` of weights beside their q, (…)."""
        if self.K == 1 and self.proposal == "uniform":
            return torch.zeros(drawn.lead, dtype=torch.float64, device=generator.device)
        chosen = proposal_named(self.proposal)
        if self.gradient == "path":
            drawn = drawn.with_densities_held()
        return chosen.side(drawn, self.K, generator)

    def __call__(
        self, q: Normal, log_joint: Callable[[dict[str, Tensor]], Tensor], generator: torch.Generator
    ) -> Tensor:
        """E_q[log p(Y, ω)] + H(q) + gain by ``samples`` reparametrised draws ω = m + s·ε, a scalar in float64.

        ``log_joint``: of the weights of one network, a scalar, invariant under the group. Differentiable in the means
        and deviations of q, for an optimizer of one's own; ``fit_symmetrized`` is faster.
        """
        check_generator(generator)
        over = unknowns(q)
        x = over.draw(self.samples, generator)
        values = [log_joint(self._network(q, over, row)) for row in x]
        gain = self.added(Drawn(orbit(self.sym, over.names, over.like), x, over.mean, over.std), generator)
        return torch.stack([value.double() for value in values]).mean() + over.entropy() + gain.mean()

    @staticmethod
    def _network(q: Normal, over: Unknowns, row: Tensor) -> dict[str, Tensor]:
        """All that the ``state_dict`` holds, at one draw; tied names share it."""
        drawn, first = pieces(row, over.names, over.like), ties(q.mean)
        return {name: drawn.get(first[name], tensor) for name, tensor in q.mean.items()}

    def evaluate(
        self,
        model: nn.Module,
        q: Normal | Fit[Normal],
        data: Data,
        *,
        likelihood: Likelihood | str = "categorical",
        prior: PriorLike = 1.0,
        temperature: float = 1.0,
        draws: int = 1000,
        batch_size: int = 1000,
        seed: int = 0,
    ) -> SymmetrizedValue:
        """L of q, the gain and their sum, per data point, each by ``draws`` weights; at T the gain counts T times."""
        q = q.posterior if isinstance(q, Fit) else q
        over = unknowns(q)
        check_count("draws", draws, 2)
        problem = pose(model, data, likelihood, prior, temperature, [q.mean])
        check_invariant(self.sym, problem)
        plain = elbo(
            model, q, data, likelihood=likelihood, prior=prior, temperature=temperature, samples=draws,
            batch_size=batch_size, seed=seed,
        )  # fmt: skip
        # Independent of the draws behind ``plain``, as the error of the total takes them to be.
        generator = device_stream("gain", seed, 0, over.mean)
        with torch.no_grad():
            drawn = draws_in_parts(self.sym, over, self.K, draws, generator)
            gains = torch.cat([self.added(part, generator) for part in drawn]) * temperature / problem.count
        gain = Estimate.of(gains)
        return SymmetrizedValue(plain, gain, Estimate(plain.value + gain.value, math.hypot(plain.error, gain.error)))
