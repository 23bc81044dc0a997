"""The paper's runs of the two-weight network by the library's own inference, and what is measured of them."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from coset import discover
from coset.distribution import MeanField
from coset.posterior import Fit, GaussianNoise, Isotropic, fit_mean_field
from coset.posterior.symmetrized import SymmetrizedELBO, fit_symmetrized
from coset.study import Context
from coset.symmetry import Symmetry
from coset_studies.gelberg.two_weights._grid import (
    Grid,
    grid_posterior,
    log_normal,
    log_symmetrized,
    sufficient_reach,
)
from coset_studies.gelberg.two_weights._network import (
    Moments,
    TwoWeights,
    Variances,
    constant,
    elbo,
    information,
    prediction_error,
)
from coset_studies.gelberg.two_weights._training import Protocol

FITS: dict[str, Callable[..., Fit[MeanField]]] = {
    "MFVI": lambda *data, sym, **settings: fit_mean_field(*data, **settings),
    "SGM (K = 2)": lambda *data, **settings: fit_symmetrized(*data, K=2, **settings),
    "SGM (exact)": lambda *data, **settings: fit_symmetrized(*data, proposal="exact", **settings),
}
"""The methods by their names in ``_gelberg_two_weights_training.METHODS``."""


@dataclass(frozen=True)
class Start:
    """Means begin at N(0, mean²), one draw a run, and all deviations at ``std``."""

    std: float
    mean: float


@dataclass(frozen=True)
class Task:
    """The network with its symmetry, inputs (N,) to train and to test on, and the two variances of the model."""

    model: TwoWeights
    sym: Symmetry
    train: Tensor
    test: Tensor
    noise: float
    prior: float

    @property
    def variances(self) -> Variances:
        """As tensors of no axes."""
        return Variances(*(torch.tensor(value, dtype=torch.float64) for value in (self.noise, self.prior)))

    def pair(self, alpha: float) -> tuple[Tensor, Tensor]:
        """Inputs and targets α|x|, each (N, 1)."""
        return self.train[:, None], alpha * self.train.abs()[:, None]

    @property
    def model_settings(self) -> dict[str, Any]:
        """Likelihood and prior, as inference takes them."""
        return {"likelihood": GaussianNoise(math.sqrt(self.noise)), "prior": Isotropic(math.sqrt(self.prior))}


def pose(train: Tensor, test: Tensor, noise: float, prior: float) -> Task:
    """The task for inputs (N,) in float64; ``discover`` finds two units that change places."""
    model = TwoWeights().double().eval()
    return Task(model, discover(model, train[:2, None]), train, test, noise, prior)


def fitted(
    context: Context, method: str, alpha: float, task: Task, protocol: Protocol, start: Start, seeds: int
) -> tuple[Tensor, Tensor]:
    """Means and deviations (seeds, 2) of ``seeds`` runs of a method, from the store if it has them."""
    config = {
        "kind": "two-weight posteriors", "schema": 1, "method": method, "alpha": alpha, "seeds": seeds,
        "seed": context.seed, "noise": task.noise, "prior": task.prior, "inputs": task.train.tolist(),
        "epochs": protocol.epochs, "batch size": protocol.batch_size, "rate": protocol.learning_rate,
        "start": [start.std, start.mean],
    }  # fmt: skip

    def make() -> Mapping[str, Tensor]:
        found = [_run(context, method, alpha, task, protocol, start, seed) for seed in range(seeds)]
        mean = torch.stack([q.mean["hidden.weight"][:, 0] for q in found])
        return {"mean": mean, "std": torch.stack([q.std["hidden.weight"][:, 0] for q in found])}

    params = context.store.get_or_make(config, make).params
    return params["mean"], params["std"]


def _run(
    context: Context,
    method: str,
    alpha: float,
    task: Task,
    protocol: Protocol,
    start: Start,
    seed: int,
) -> MeanField:
    """One run; the start depends on the seed only, so that all methods begin at the same place."""
    first = start.mean * torch.randn(2, generator=context.generator(f"start {seed}"), dtype=torch.float64)
    weights = {**task.model.state_dict(), "hidden.weight": first[:, None]}
    return FITS[method](
        task.model,
        task.pair(alpha),
        sym=task.sym,
        epochs=protocol.epochs,
        batch_size=protocol.batch_size,
        learning_rate=protocol.learning_rate,
        **task.model_settings,
        std=start.std,
        start=weights,
        seed=context.seed + seed,
        show=False,
    ).posterior


@dataclass(frozen=True)
class Measured:
    """Of each Gaussian, (seeds,): test MSE, ELBOs in nats, and KL to the posterior on the grid.

    ``error``: of the average of all networks of q; ``plain``, ``total``: L_VI and L^G. ``gap``: the largest of
    |L − (log p(Y) − KL)| for q and q^G: all three come from different integrals.
    """

    error: Tensor
    plain: Tensor
    total: Tensor
    divergence: Tensor
    symmetrized_divergence: Tensor
    gap: float


@dataclass(frozen=True)
class Sampled:
    """The same as the paper measures it, (seeds,): by networks drawn, and L^K instead of L^G."""

    error: Tensor
    plain: Tensor
    total: Tensor


def posterior_on_grid(alpha: float, task: Task, size: int, mean: Tensor, std: Tensor) -> Grid:
    """The posterior on a grid that also holds all of the given Gaussians, (…, 2)."""
    data = Moments.of(task.train)
    reach = max(sufficient_reach(alpha, data, task.noise, task.prior), float((mean.abs() + 8 * std).max()))
    return grid_posterior(alpha, data, task.noise, task.prior, size, reach)


def measured(alpha: float, task: Task, mean: Tensor, std: Tensor, size: int) -> Measured:
    """Of Gaussians (seeds, 2), with a grid of ``size`` points a side."""
    data, target = Moments.of(task.train), torch.tensor(alpha, dtype=torch.float64)
    plain = elbo(mean, std, target, data, task.variances)
    total = plain + information(mean, std)
    grid = posterior_on_grid(alpha, task, size, mean, std)
    points = grid.points
    divergence, symmetrized = (
        torch.tensor([grid.divergence(log_q(points, *q)) for q in zip(mean, std, strict=True)], dtype=torch.float64)
        for log_q in (log_normal, log_symmetrized)
    )
    gaps = torch.stack([plain + divergence, total + symmetrized]) - grid.log_evidence
    error = prediction_error(mean, std, target, Moments.of(task.test))
    return Measured(error, plain, total, divergence, symmetrized, float(gaps.abs().max()))


def sampled(alpha: float, task: Task, mean: Tensor, std: Tensor, draws: int, permutations: int, seed: int) -> Sampled:
    """Of Gaussians (seeds, 2): test MSE of the average output of ``draws`` networks, L_VI and L^K in nats."""
    model, objective = task.model, SymmetrizedELBO(task.sym, K=permutations)
    x = task.test[:, None]
    offset = float(constant(Moments.of(task.train), task.variances))
    rows = []
    for centre, spread in zip(mean, std, strict=True):
        q = MeanField({**model.state_dict(), "hidden.weight": centre[:, None]}, {"hidden.weight": spread[:, None]})
        weights = q.sample(draws, torch.Generator().manual_seed(seed))
        outputs = vmap(lambda one: functional_call(model, one, (x,)))(weights).mean(0)
        value = objective.evaluate(model, q, task.pair(alpha), **task.model_settings, draws=draws, seed=seed)
        bounds = [len(task.train) * part.value - offset for part in (value.plain, value.total)]
        rows.append([float((outputs - alpha * x.abs()).square().mean()), *bounds])
    return Sampled(*torch.tensor(rows, dtype=torch.float64).T)
