"""Variational inference with the symmetrized ELBO."""

import math
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from coset.distribution import MeanField
from coset.errors import InputError
from coset.posterior.fit import Callback, Control, Fit, device_stream
from coset.posterior.inference.flat_optimizer import optimization
from coset.posterior.inference.mean_field import Descent, KLWeight, descend
from coset.posterior.inference.starting import Start, points_of
from coset.posterior.likelihoods import Likelihood
from coset.posterior.problem import Data, PriorLike, Problem, pose
from coset.posterior.symmetrized.noise import NoiseComparison
from coset.posterior.symmetrized.objective import SymmetrizedELBO, check_invariant
from coset.posterior.symmetrized.orbit import Drawn, orbit
from coset.posterior.symmetrized.proposals import proposal_named
from coset.symmetry import Symmetry, discover

METHOD = "symmetrized VI"


class Gain:
    """H^K − H(q) of sampled weights with its reparametrised gradient, as a term beside H(q).

    Where every weight that moves is moved by one class alone, all goes through the matrices A of these classes: for
    draws with weights w_j of permutations P_j, ∂(−log Σ w)/∂A = Σ_j r_j (I − P_j) with the shares r_j = w_j/Σ w.
    """

    def __init__(self, objective: SymmetrizedELBO, problem: Problem) -> None:
        views = problem.layout.views(problem.start)
        self._objective = objective
        self._orbit = orbit(objective.sym, tuple(views), views)
        self._like = problem.start
        self._values: list[Tensor] = []
        self._generator = torch.Generator(problem.start.device)
        # A sum over one class given others, or over all of several, asks for the weights themselves.
        several = proposal_named(objective.proposal).sums and len(self._orbit.classes) > 1
        alone = {} if len(self._orbit.shared) or several else self._orbit.alone
        self._compared = {name: NoiseComparison(owned, problem.start) for name, owned in alone.items()}
        self._gradient = torch.zeros_like(problem.start).repeat(2, 1)
        self._none = problem.start.new_zeros(0)

    def begin(self, seed: int, epoch: int) -> None:
        """Permutations have a stream of their own: the noise of the weights is that of plain inference."""
        self._generator = device_stream("permutations", seed, epoch, self._like)
        self._values = []
        for part in self._compared.values():
            part.begin()

    def gradient(self, values: Tensor, noise: Tensor, sign: int) -> Tensor | None:
        """With respect to (μ, ρ), (2, D), along ω = μ ± e^ρ·ε and, for the gradient of the bound, in q itself.

        None where no permutation but the identity weighs anything: the term is a constant there. What it returns is
        good until the next call.
        """
        by = self._by_matrices if self._compared else self._by_graph
        value, gradient = by(values, noise, sign)
        self._values.append(value)
        return gradient

    def mean(self) -> float:
        """Of the epoch's values."""
        return float(torch.stack(self._values).mean())

    def _by_graph(self, values: Tensor, noise: Tensor, sign: int) -> tuple[Tensor, Tensor]:
        leaves = values.detach().requires_grad_()
        with torch.enable_grad():
            mean, std = leaves[0].double(), leaves[1].double().exp()
            drawn = Drawn(self._orbit, mean + std * noise.double() * sign, mean, std)
            value = self._objective.added(drawn, self._generator)
            (gradient,) = torch.autograd.grad(value, leaves)
        return value.detach(), gradient

    @torch.no_grad()
    def _by_matrices(self, values: Tensor, noise: Tensor, sign: int) -> tuple[Tensor, Tensor | None]:
        matrices = {name: part.matrix(values, noise, sign) for name, part in self._compared.items()}
        value, along = self._along(values[0], matrices)
        if not any(bool(part.any()) for part in along.values()):
            return value, None
        # Each class always writes to the same places: what is 0 elsewhere stays so.
        for name, part in along.items():
            self._compared[name].pull_back(part, self._gradient, in_densities=self._objective.gradient == "bound")
        return value, self._gradient

    def _along(self, mean: Tensor, matrices: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """The value and its gradient with respect to each A."""
        chosen, K = proposal_named(self._objective.proposal), self._objective.K
        # Nothing but the means is asked for beside the matrices.
        drawn = Drawn(self._orbit, self._none, mean, self._none, matrices)
        if chosen.sums:
            with torch.enable_grad():
                leaves = [part.requires_grad_() for part in matrices.values()]
                value = chosen.side(drawn, K, self._generator)
                return value.detach(), dict(zip(matrices, torch.autograd.grad(value, leaves), strict=True))
        weights = chosen.weights(drawn, K, self._generator)
        logs, moves = weights.draws, weights.moves or {}
        if chosen.lower:
            logs = torch.cat([weights.identity[None], logs[:-1]])
            moves = {name: order[:-1] for name, order in moves.items()}
        log_shares = torch.log_softmax(logs, 0)
        # log Σ w, from any one weight and its share.
        value = math.log(len(logs)) - (logs[0] - log_shares[0])
        shares = log_shares[1 if chosen.lower else 0 :].exp()
        return value, {name: _identity_less(shares, moves[name].to(shares.device)) for name in matrices}


def _identity_less(shares: Tensor, order: Tensor) -> Tensor:
    """Σ_j r_j (I − P_j), (n, n), P_j with its ones at (i, p_j[i]), for shares (K,) of permutations (K, n).

    What stays in place does not enter: rounding leaves nothing where no unit moves.
    """
    n = order.shape[-1]
    total = shares.new_zeros(n, n).scatter_add_(1, order.mT, shares.expand(n, -1)).fill_diagonal_(0)
    moved = total.sum(1)
    total.neg_().diagonal().copy_(moved)
    return total


def fit_symmetrized(
    model: nn.Module,
    data: Data,
    *,
    sym: Symmetry | None = None,
    K: int = 20,
    proposal: str = "uniform",
    gradient: str = "bound",
    epochs: int,
    batch_size: int,
    learning_rate: float,
    likelihood: Likelihood | str = "categorical",
    prior: PriorLike = 1.0,
    temperature: float = 1.0,
    optimizer: str = "adam",
    momentum: float = 0.0,
    schedule: str = "constant",
    warmup_epochs: int = 0,
    samples: int = 1,
    antithetic: bool = True,
    std: float = 0.01,
    kl: str | None = None,
    kl_weight: KLWeight | None = None,
    start: Start | None = None,
    seed: int = 0,
    checkpoint: Path | str | None = None,
    checkpoint_seconds: float = 5.0,
    callback: Callback | None = None,
    show: bool | None = None,
) -> Fit[MeanField]:
    """Maximise the ELBO of q^G, q = N(m, diag(s²)) averaged over the permutations of the model (Gelberg et al. 2024).

    The q that is found predicts as its q^G does. ``sym``: the symmetry, by default what ``coset.discover`` finds; ``K``
    permutations from ``proposal`` for every sampled weight and the ``gradient`` taken, see ``SymmetrizedELBO``; all
    else as in ``fit_mean_field``, which K = 1 is to the bit. Permutations must change neither the prior nor what is not
    inferred (buffers, frozen weights); where they do, ``sym.restrict`` leaves classes out. The trace also has, per data
    point, the gain H^K − H(q) as the epoch saw it and symmetrized_elbo, the elbo with it (times T if tempered). With a
    proposal that gives no lower bound ("distance", "transpositions") both are upper bounds in expectation, as a note
    says.
    """
    problem = pose(model, data, likelihood, prior, temperature, points_of(start))
    found = discover(problem.model, problem.x[:2]) if sym is None else sym
    objective = SymmetrizedELBO(found, K, samples, proposal, gradient)
    if K == 1 and proposal == "sequential":
        raise InputError("K is 1 and proposal 'sequential': no permutation is drawn; expected K ≥ 2, or 'uniform'")
    check_invariant(found, problem)
    recipe = optimization(epochs, batch_size, learning_rate, optimizer, momentum, schedule, warmup_epochs)
    descent = Descent(recipe, samples, antithetic, std, kl, kl_weight)
    control = Control(seed, checkpoint, checkpoint_seconds, callback, show)
    plain = K == 1 and proposal == "uniform"
    settings = {"symmetry": found.fingerprint, "K": K, "proposal": proposal, "gradient": gradient}
    term = None if plain else Gain(objective, problem)
    fit = descend(problem, descent, start, control, method=METHOD, term=term, settings=settings)
    note = f"with proposal {proposal!r} the gain is an upper bound in expectation, and so is symmetrized_elbo"
    return replace(fit, notes=(*fit.notes, note)) if objective.bound == "upper" else fit
