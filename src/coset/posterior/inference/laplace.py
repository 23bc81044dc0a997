"""Laplace: the Gaussian whose precision is the curvature at a maximum (MacKay 1992; Daxberger et al. 2021)."""

import copy
import importlib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import jvp
from torch.nn.utils import vector_to_parameters
from torch.utils.data import DataLoader, TensorDataset

from coset._checks import check_choice, check_count
from coset._show.progress import progress
from coset.distribution.contract import require
from coset.distribution.gaussian import Gaussian
from coset.distribution.mean_field import MeanField
from coset.distribution.samples import Samples
from coset.errors import InputError
from coset.posterior.fit import Callback, Control, Fit, Trace, device_stream
from coset.posterior.inference.chains import samples_of
from coset.posterior.inference.ggn import dense_ggn, diagonal_ggn
from coset.posterior.inference.point import fit_map
from coset.posterior.inference.starting import Start, initial_weights, points_of, weights_of
from coset.posterior.likelihoods import Bernoulli, Categorical, GaussianNoise, Likelihood
from coset.posterior.priors import GaussianPrior
from coset.posterior.problem import Data, PriorLike, Problem, pose
from coset.running import outputs_with, whole_weights

BATCH_SIZE = 256
"""Data points for which factors are computed at a time."""


DENSE_WEIGHTS = 10_000
"""A dense precision is made for so many weights or fewer: 0.8 GB in double precision."""


@dataclass(frozen=True)
class Curvature:
    """A problem at a maximum ``flat`` (D,), the prior's precisions (D,), and what is asked: draws, seed, a bar."""

    problem: Problem
    flat: Tensor
    precision: Tensor
    draws: int
    seed: int
    show: bool | None


Approximation = tuple[MeanField | Gaussian | Samples, float]
"""A posterior and log det of its precision at T = 1."""


def _diagonal(at: Curvature) -> Approximation:
    """N(θ*, T (diag GGN + P)⁻¹)."""
    layout = at.problem.layout
    with progress("curvature", at.problem.count, show=at.show) as bar:
        precision = diagonal_ggn(at.problem, at.flat, bar.advance) + at.precision
    std = (at.problem.temperature / precision).sqrt().to(at.flat.dtype)
    return MeanField(layout.whole(at.flat), layout.named(std)), float(precision.log().sum())


def _full(at: Curvature) -> Approximation:
    """N(θ*, T (GGN + P)⁻¹)."""
    layout, size = at.problem.layout, at.flat.numel()
    if size > DENSE_WEIGHTS:
        raise InputError(
            f"structure is 'full' and the model has {size:,} weights; expected at most {DENSE_WEIGHTS:,}, or structure "
            f"'diagonal' or 'kron'"
        )
    with progress("curvature", at.problem.count, show=at.show) as bar:
        precision = dense_ggn(at.problem, at.flat, bar.advance)
    precision.diagonal().add_(at.precision)
    triangle, failed = torch.linalg.cholesky_ex(precision)
    if int(failed):
        raise InputError(
            "the curvature and the prior's precision together are not positive definite up to rounding; expected a "
            "prior with a smaller deviation, or structure 'diagonal'"
        )
    covariance = at.problem.temperature * torch.cholesky_inverse(triangle)
    posterior = Gaussian(layout.whole(at.flat), 0.5 * (covariance + covariance.mT), tuple(layout.shapes))
    return posterior, 2 * float(triangle.diagonal().log().sum())


def _kron(at: Curvature) -> Approximation:
    """θ* + √T·(draws of N(0, (KFAC + P)⁻¹)) as one chain, by the package laplace-torch (Ritter et al. 2018).

    The covariance is a pair of factors for each layer in the eigenbasis of both: a distribution nothing else here can
    hold for large networks, so it is returned as draws. The prior must be Gaussian with one deviation for each tensor.
    """
    package, problem, flat = _package(), at.problem, at.flat
    model = copy.deepcopy(problem.model)
    vector_to_parameters(flat, [parameter for parameter in model.parameters() if parameter.requires_grad])
    settings: dict[str, float] = {}
    if isinstance(problem.likelihood, GaussianNoise):
        settings = {"sigma_noise": problem.likelihood.std}
    elif isinstance(problem.likelihood, Bernoulli):
        model = _TwoClasses(model)
    elif not isinstance(problem.likelihood, Categorical):
        raise InputError(
            f"structure is 'kron' and the likelihood a {type(problem.likelihood).__name__}; laplace-torch expects "
            f"Categorical, Bernoulli or GaussianNoise"
        )
    prior = require(problem.prior, GaussianPrior, "prior", "a Gaussian prior")
    deviations = [prior.moments(name, shape)[1] for name, shape in problem.layout.shapes.items()]
    approximation = package.Laplace(
        model,
        "regression" if settings else "classification",
        subset_of_weights="all",
        hessian_structure="kron",
        prior_precision=flat.new_tensor([std**-2 for std in deviations]),
        **settings,
    )
    loader = DataLoader(TensorDataset(problem.x, problem.y), batch_size=BATCH_SIZE)
    with progress("curvature", 1, show=at.show) as bar:
        try:
            approximation.fit(loader)
            bar.advance()
        except (RuntimeError, ValueError, NotImplementedError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise InputError(f"laplace-torch finds no Kronecker factors for this model: {reason}") from error
    drawn = approximation.sample(at.draws, generator=device_stream("draws", at.seed, 0, flat)).detach()
    spread = flat + math.sqrt(problem.temperature) * (drawn - flat)
    return samples_of(problem, spread.unsqueeze(0)), float(approximation.log_det_posterior_precision)


class _TwoClasses(nn.Module):
    """Logits (0, f) of a network with one output f: its sigmoid as a softmax."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        logit = self.network(x)
        return torch.cat([torch.zeros_like(logit), logit], -1)


def _package() -> Any:
    try:
        return importlib.import_module("laplace")
    except ImportError as error:
        raise InputError(
            f"structure is 'kron', for which the package laplace-torch is needed and cannot be imported ({error}); "
            f"expected: pip install coset[laplace], or structure 'diagonal' or 'full'"
        ) from error


STRUCTURES: dict[str, Callable[[Curvature], Approximation]] = {"diagonal": _diagonal, "full": _full, "kron": _kron}
"""The shape of the precision by name."""


def fit_laplace(
    model: nn.Module,
    data: Data,
    *,
    structure: str = "diagonal",
    start: Start | None = None,
    likelihood: Likelihood | str = "categorical",
    prior: PriorLike = 1.0,
    temperature: float = 1.0,
    draws: int = 100,
    epochs: int | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    optimizer: str | None = None,
    momentum: float | None = None,
    schedule: str | None = None,
    warmup_epochs: int | None = None,
    seed: int = 0,
    checkpoint: Path | str | None = None,
    checkpoint_seconds: float = 5.0,
    callback: Callback | None = None,
    show: bool | None = None,
) -> Fit[MeanField | Gaussian | Samples]:
    """N(θ*, T (GGN + P)⁻¹) around a maximum θ* of the posterior; P the precision of the Gaussian prior.

    GGN = Σ JᵀΛJ over the data, J the Jacobian of the outputs and Λ their Fisher information. θ* is ``start``: weights,
    a distribution (its mean) or a ``Fit``. Without it ``fit_map`` is run first: the settings from ``epochs`` to
    ``warmup_epochs``, ``checkpoint`` and ``callback`` are that run's. ``structure``: "diagonal" gives a ``MeanField``,
    "full" a ``Gaussian``, "kron" (with the extra ``coset[laplace]``) ``Samples``, one chain of so many ``draws``.

    The last record of the trace has, per data point, the log_joint at θ* and the log_marginal_likelihood
    log p(Y) ≈ log p(Y, θ*) + (D/2) log 2π − ½ log det(GGN + P), at T = 1 whatever the temperature.
    """
    check_choice("structure", structure, STRUCTURES)
    check_count("draws", draws)
    Control(seed)
    problem = pose(model, data, likelihood, prior, temperature, points_of(start))
    moments = problem.prior_moments()
    if moments is None:
        raise InputError(
            f"prior is a {type(problem.prior).__name__}; Laplace expects a Gaussian one: a standard deviation, "
            f"Isotropic, FanIn or Named"
        )
    search = {
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "optimizer": optimizer,
        "momentum": momentum,
        "schedule": schedule,
        "warmup_epochs": warmup_epochs,
        "checkpoint": checkpoint,
        "callback": callback,
    }
    belief = {"likelihood": likelihood, "prior": prior, "temperature": temperature}
    watch = {"seed": seed, "checkpoint_seconds": checkpoint_seconds, "show": show}
    earlier = _maximum(model, data, search, belief | watch) if start is None else _given(start, search)
    begun = time.perf_counter()
    flat = initial_weights(problem, earlier.posterior)
    precision = moments[1].double().square().reciprocal()
    posterior, log_det = STRUCTURES[structure](Curvature(problem, flat, precision, draws, seed, show))
    joint = whole_log_joint(problem, flat)
    evidence = joint + 0.5 * flat.numel() * math.log(2 * math.pi) - 0.5 * log_det
    seconds = time.perf_counter() - begun
    last = {"log_joint": joint / problem.count, "log_marginal_likelihood": evidence / problem.count, "seconds": seconds}
    return Fit(posterior, Trace([*earlier.trace, last]), f"Laplace ({structure})", earlier.seconds + seconds)


@torch.no_grad()
def whole_log_joint(problem: Problem, flat: Tensor, batch_size: int = 1024) -> float:
    """log p(Y|θ) + log p(θ) over all data, in batches that bound memory, summed in float64."""
    parts = zip(torch.split(problem.x, batch_size), torch.split(problem.y, batch_size), strict=True)
    likelihoods = [float(problem.log_likelihood(flat, x, y)) for x, y in parts]
    return math.fsum(likelihoods) + float(problem.log_prior(flat))


def _maximum(model: nn.Module, data: Data, search: Mapping[str, Any], rest: Mapping[str, Any]) -> Fit[Any]:
    for name in ("epochs", "batch_size", "learning_rate"):
        if search[name] is None:
            raise InputError(f"{name} is None and start is not given; expected start, or {name} to find a maximum with")
    return fit_map(model, data, **{name: value for name, value in search.items() if value is not None}, **rest)


def _given(start: Start, search: Mapping[str, Any]) -> Fit[Any]:
    """A maximum that is there already, as a fit without a course."""
    for name, value in search.items():
        if value is not None:
            raise InputError(
                f"{name} is {value!r} and start is given; it is for finding a maximum: expected one of both"
            )
    return Fit(start.posterior if isinstance(start, Fit) else start, Trace([]), "given", 0.0)


class Linearized(nn.Module):
    """x ↦ f(x; θ*) + J(x)(θ − θ*), J the Jacobian of f at ``center`` θ*; θ are the parameters, named as those of f.

    It stands wherever the network stands, at about twice its cost. Buffers are the center's.
    """

    def __init__(self, network: nn.Module, center: Mapping[str, Tensor]) -> None:
        super().__init__()
        own = copy.deepcopy(network).eval()
        weights = whole_weights(own, center)
        with torch.no_grad():
            for name, tensor in (*own.named_parameters(), *own.named_buffers()):
                tensor.copy_(weights[name])
        # Outside what modules know of each other: f stays at θ* while other weights are put in the place of θ.
        self.__dict__["_at_center"] = copy.deepcopy(own)
        self._parameters, self._buffers, self._modules = own._parameters, own._buffers, own._modules
        self._non_persistent_buffers_set = own._non_persistent_buffers_set
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        network: nn.Module = self.__dict__["_at_center"]
        given = dict(self.named_parameters(remove_duplicate=False))
        center = {name: parameter.detach() for name, parameter in network.named_parameters()}
        away = {name: (given[name] - tensor).to(tensor) for name, tensor in center.items()}
        both = jvp(lambda params: outputs_with(network, params, x), (center,), (away,))
        outputs: Tensor = both[0]
        change: Tensor = both[1]
        return outputs + change


def linearized(model: nn.Module, at: Start) -> Linearized:
    """``model`` linearised ``at`` weights, at a distribution's mean or at the posterior of a ``Fit``.

    Laplace's Gaussian is the posterior of this model, not of the network itself (Immer et al. 2021): predict with
    ``predictive(linearized(model, fit), fit, x)``.
    """
    return Linearized(model, weights_of(at, "at"))
