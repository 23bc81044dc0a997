"""The methods of the study ``uci``: one split of one data set in, scores of every posterior on its test part out."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from coset.data import Dataset, Normalization, Split
from coset.distribution import Delta, Gaussian, Samples
from coset.posterior import FITS, FanIn, Fit, Named, fit_laplace, linearized, predictive, score
from coset.posterior.prediction.results import RealPredictive
from coset.study.posteriors import Weights, inferred, network_of

if TYPE_CHECKING:
    from coset.study import Context

LIKELIHOOD = "learned-noise"
MODEL = "mlp"
GENERATED = "generated"
"""The data set that is made here, for machines without the others."""


@dataclass(frozen=True)
class Settings:
    """A network with ``width`` hidden ReLU units, its prior, and how long each method runs; the same everywhere.

    Prior: N(0, ``gain``²/fan-in) for weights, N(0, 1) for biases, N(−2, 1) for the logarithm of the noise, which begins
    at ``noise``. Descents take ``steps`` (ensemble) and ``vi_steps`` (mean field) of Adam, batches of ``batch_size``
    and a rate that falls from ``learning_rate`` along a cosine. SGHMC: ``sghmc_draws`` a chain, every ``sghmc_thin``
    steps after ``sghmc_burn_in``. HMC: ``hmc_draws`` a chain after ``hmc_warmup`` trajectories of about
    ``leapfrog_steps``. ``samples``: of a Gaussian posterior, for its predictions.
    """

    width: int = 50
    gain: float = 2.0
    noise: float = 0.3
    batch_size: int = 100
    learning_rate: float = 0.01
    members: int = 5
    steps: int = 800
    vi_steps: int = 1500
    vi_std: float = 0.01
    sghmc_step: float = 3e-6
    sghmc_burn_in: int = 400
    sghmc_draws: int = 20
    sghmc_thin: int = 30
    leapfrog_steps: int = 80
    hmc_warmup: int = 12
    hmc_draws: int = 13
    samples: int = 128

    @property
    def prior(self) -> Named:
        """The prior over weights, biases and the logarithm of the noise."""
        return Named({"log_noise": (-2.0, 1.0)}, FanIn(self.gain))


@dataclass(frozen=True)
class Outcome:
    """What one method came to on one split.

    ``rmse`` and ``log_likelihood`` are of the test part in the target's own units. ``passes``: gradients of the whole
    train part for one network, the search for starting points included. Of samplers: ``rhat``, the median over the test
    points of R̂ of the predicted value; of HMC the mean ``acceptance``; of mean fields the ``elbo`` per data point.
    """

    rmse: float
    log_likelihood: float
    passes: float
    rhat: float | None = None
    acceptance: float | None = None
    elbo: float | None = None


@dataclass(frozen=True)
class Case:
    """One split of a data set, and a way to run a method of inference on it."""

    dataset: Dataset
    settings: Settings
    infer: Callable[[str, Mapping[str, Any]], Fit[Any]]
    model: nn.Module
    device: torch.device

    def epochs(self, steps: int) -> int:
        """Passes over the train part that take about as many steps."""
        return max(1, round(steps / math.ceil(len(self.dataset.train) / self.settings.batch_size)))

    def descent(self, steps: int) -> dict[str, Any]:
        """Adam with a rate that falls along a cosine."""
        return {
            "epochs": self.epochs(steps),
            "batch_size": self.settings.batch_size,
            "learning_rate": self.settings.learning_rate,
            "schedule": "cosine",
        }

    def outcome(self, q: Any, passes: float, model: nn.Module | None = None, **more: float) -> Outcome:
        """The scores of a posterior on the test part."""
        normalization = self.dataset.y_normalization
        assert normalization is not None
        test = self.dataset.test
        found = predictive(
            self.model if model is None else model,
            q,
            test.x.to(self.device),
            likelihood=LIKELIHOOD,
            samples=None if isinstance(q, Samples) else self.settings.samples,
            y=test.y.to(self.device),
            keep=False,
            show=False,
        )
        assert isinstance(found, RealPredictive)
        scores = score(found, scale=normalization.std[0], show=False)
        return Outcome(scores["rmse"], -scores["nll"], passes, **more)


def case(context: "Context", name: str, number: int, settings: Settings) -> Case:
    """Split ``number`` of the data set ``name``."""
    dataset = generated(number) if name == GENERATED else context.data(name, split=number)
    options = {"in_features": dataset.shape[0], "widths": [settings.width], "out_features": 1}
    seed = context.seed + number

    def infer(method: str, how: Mapping[str, Any]) -> Fit[Any]:
        believed = {"likelihood": LIKELIHOOD, "prior": settings.prior, **how}
        if name == GENERATED:
            # It has no address in the store, and takes no time.
            network = network_of(MODEL, options, seed=seed, noise=settings.noise).to(context.device)
            return FITS[method](network, dataset.train, **believed, seed=seed, show=False)
        return inferred(
            context,
            method=method,
            model=MODEL,
            data=name,
            seed=seed,
            settings=believed,
            options=options,
            data_options={"split": number},
            noise=settings.noise,
        )

    model = network_of(MODEL, options, seed=seed, noise=settings.noise).eval().to(context.device)
    return Case(dataset, settings, infer, model, context.device)


def generated(number: int, count: int = 150, held_out: int = 50) -> Dataset:
    """y = sin 2x₁ + x₂x₃ + ε of noise 0.2, x ~ N(0, I₃); split ``number`` has points of its own. Normalised."""
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(count + held_out, 3, generator=generator)
    noise = torch.randn(count + held_out, generator=generator)
    y = (torch.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.2 * noise).unsqueeze(1)
    of_x, of_y = Normalization.fit(x[:count]), Normalization.fit(y[:count])
    train, test = (Split(of_x.apply(x[rows]), of_y.apply(y[rows])) for rows in (slice(count), slice(count, None)))
    return Dataset(GENERATED, "regression", train, test, (), of_x, of_y, f"{GENERATED} {number}")


def run_methods(at: Case) -> dict[str, Outcome]:
    """Every method on one split: the ensemble first, at whose members the others begin."""
    settings = at.settings
    ensemble = at.infer("ensemble", {"members": settings.members, **at.descent(settings.steps)}).posterior
    members = Weights({name: tensor[:, 0] for name, tensor in ensemble.params.items()})
    first = Weights({name: tensor[0] for name, tensor in members.items()})
    epochs = at.epochs(settings.steps)
    laplace = _laplace(at, first)
    return {
        "one network": at.outcome(Delta(first), epochs),
        "ensemble": at.outcome(ensemble, settings.members * epochs),
        "Laplace, linearised": at.outcome(laplace, epochs, linearized(at.model, first)),
        "Laplace, sampled": at.outcome(laplace, epochs),
        "MFVI": _mean_field(at, settings.vi_steps, first),
        "MFVI, from scratch": _mean_field(at, settings.steps + settings.vi_steps),
        "SGHMC": _sghmc(at, members),
        "HMC": _hmc(at, members),
    }


def _laplace(at: Case, first: Weights) -> Gaussian:
    """With the dense matrix; a few hundredths of a second, so it is not stored."""
    found = fit_laplace(
        at.model,
        at.dataset.train,
        structure="full",
        start=first,
        likelihood=LIKELIHOOD,
        prior=at.settings.prior,
        show=False,
    ).posterior
    assert isinstance(found, Gaussian)
    return found


def _mean_field(at: Case, steps: int, first: Weights | None = None) -> Outcome:
    """From the trained network ``first``, or from the initial weights."""
    start = {} if first is None else {"start": first}
    fit = at.infer("mean-field", {**start, "std": at.settings.vi_std, **at.descent(steps)})
    passes = at.epochs(steps) + (0 if first is None else at.epochs(at.settings.steps))
    return at.outcome(fit.posterior, passes, elbo=fit.trace[-1]["elbo"])


def _sghmc(at: Case, members: Weights) -> Outcome:
    settings = at.settings
    count = len(at.dataset.train)
    batch = min(settings.batch_size, count)
    fit = at.infer(
        "sgmcmc",
        {
            "method": "sghmc",
            "chains": settings.members,
            "start": members,
            "step_size": settings.sghmc_step,
            "preconditioner": "rms",
            "burn_in": settings.sghmc_burn_in,
            "draws": settings.sghmc_draws,
            "thin": settings.sghmc_thin,
            "batch_size": batch,
        },
    )
    steps = settings.sghmc_burn_in + settings.sghmc_draws * settings.sghmc_thin
    passes = settings.members * (at.epochs(settings.steps) + steps * batch / count)
    return at.outcome(fit.posterior, passes, rhat=_rhat(at, fit.posterior))


def _hmc(at: Case, members: Weights) -> Outcome:
    settings = at.settings
    fit = at.infer(
        "hmc",
        {
            "chains": settings.members,
            "start": members,
            "leapfrog_steps": settings.leapfrog_steps,
            "warmup": settings.hmc_warmup,
            "draws": settings.hmc_draws,
        },
    )
    trajectories = settings.hmc_warmup + settings.hmc_draws
    passes = settings.members * (at.epochs(settings.steps) + trajectories * settings.leapfrog_steps)
    sampling = [record["accept"] for record in fit.trace if not record["burn_in"]]
    acceptance = math.fsum(sampling) / len(sampling)
    return at.outcome(fit.posterior, passes, rhat=_rhat(at, fit.posterior), acceptance=acceptance)


@torch.no_grad()
def _rhat(at: Case, samples: Samples) -> float:
    """``median_rhat`` of the values predicted at the test points."""
    x = at.dataset.test.x.to(at.device)
    draws = {name: tensor.to(at.device) for name, tensor in samples.params.items()}

    def predicted(params: dict[str, Tensor]) -> Tensor:
        outputs: Tensor = torch.func.functional_call(at.model, params, (x,))
        return outputs[:, 0]

    values: Tensor = torch.func.vmap(torch.func.vmap(predicted))(draws)
    return median_rhat(values)


def median_rhat(values: Tensor) -> float:
    """The median over K scalars (chains, draws, K) of R̂ = √((n − 1)/n + B/W), of chains cut in halves of n draws.

    B is the variance of the halves' means, W the mean of their variances (Gelman and Rubin 1992).
    """
    half = values.shape[1] // 2
    halves = torch.cat([values[:, :half], values[:, half : 2 * half]]).double()
    ratios = halves.mean(1).var(0) / halves.var(1).mean(0)
    return float(((half - 1) / half + ratios).sqrt().median())
