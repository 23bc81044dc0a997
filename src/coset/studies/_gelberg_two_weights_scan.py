"""Which noise, prior and start give the orderings of tables 2 and 3, after the paper's 10 epochs and at convergence."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from coset.studies._gelberg_two_weights import Moments, Variances, elbo, information, prediction_error
from coset.studies._gelberg_two_weights_grid import grid_posterior, sufficient_reach
from coset.studies._gelberg_two_weights_training import METHODS, Protocol, chance, converge, train
from coset.studies._study import Context

ALPHAS = (0.05, 0.1, 0.15, 0.2)
PUBLISHED_ERROR: Mapping[str, Sequence[float]] = {
    "MFVI": (0.11, 0.12, 0.13, 0.18),
    "SGM (K = 2)": (0.09, 0.09, 0.10, 0.12),
}
PUBLISHED_SPREAD: Mapping[str, Sequence[float]] = {
    "MFVI": (0.22, 0.16, 0.15, 0.19),
    "SGM (K = 2)": (0.19, 0.17, 0.15, 0.16),
}
PUBLISHED_PLAIN: Mapping[str, Sequence[float]] = {
    "MFVI": (-0.022, -0.025, -0.032, -0.042),
    "SGM (K = 2)": (-0.023, -0.029, -0.035, -0.043),
}
PUBLISHED_TOTAL: Mapping[str, Sequence[float]] = {
    "MFVI": (-0.009, -0.013, -0.021, -0.031),
    "SGM (K = 2)": (-0.004, -0.007, -0.012, -0.019),
}
"""Tables 2 and 3: test MSE, its deviation over seeds, L_VI and L^G, for each α of ``ALPHAS``."""

MARGIN = 1e-5
"""Two values are in order if they differ by more than this, in MSE or nats: optima are found to about this."""

GRID_SIZE = 201
_AT_ONCE = 4096


@dataclass(frozen=True)
class Axes:
    """What is scanned: variances of noise and prior, first deviation and spread of the first means."""

    noises: tuple[float, ...]
    priors: tuple[float, ...]
    stds: tuple[float, ...]
    means: tuple[float, ...]


@dataclass(frozen=True)
class Values:
    """Averages over seeds of test MSE, L_VI and L^G in nats, each (…, α, methods); log p(Y) as (…, α, 1)."""

    error: Tensor
    plain: Tensor
    total: Tensor
    log_evidence: Tensor


@dataclass(frozen=True)
class Orders:
    """Where SGM (K = 2) and MFVI are in the paper's order, each (…, α): MSE lower, L^G higher, L_VI lower."""

    error: Tensor
    total: Tensor
    plain: Tensor

    @property
    def all(self) -> Tensor:
        """All three at every α, (…)."""
        return (self.error & self.total & self.plain).all(-1)


def orders(values: Values) -> Orders:
    """The paper's three orderings, method by method; L_VI ≤ L^G is no question, for I ≥ 0."""
    mean_field, symmetrized = 0, 1

    def above(high: Tensor, low: Tensor) -> Tensor:
        return high - low > MARGIN

    return Orders(
        above(values.error[..., mean_field], values.error[..., symmetrized]),
        above(values.total[..., symmetrized], values.total[..., mean_field]),
        above(values.plain[..., mean_field], values.plain[..., symmetrized]),
    )


def distance_to_errors(values: Values) -> Tensor:
    """Root mean square of log(MSE / published), over α and the two methods of table 2, (…)."""
    published = torch.tensor(list(PUBLISHED_ERROR.values()), dtype=torch.float64).T
    return (values.error[..., :2] / published).log().square().mean((-1, -2)).sqrt()


def distance_to_bounds(values: Values, *, evidence: bool) -> tuple[Tensor, Tensor]:
    """How well c·L fits table 3 with the best c > 0, and 1/c: each (…).

    The distance is the root mean square of what is left in units of the deviation of the 16 published numbers: a
    constant has 1. With ``evidence`` L counts from log p(Y), which makes it −KL to the posterior.
    """
    tables = [torch.tensor(list(table.values()), dtype=torch.float64).T for table in (PUBLISHED_PLAIN, PUBLISHED_TOTAL)]
    published = torch.stack(tables).transpose(0, 1).flatten()
    bounds = torch.stack([values.plain[..., :2], values.total[..., :2]], -3).transpose(-3, -2)
    found = (bounds - (values.log_evidence[..., None] if evidence else 0)).flatten(-3)
    scale = (found * published).sum(-1) / found.square().sum(-1)
    rest = (scale[..., None] * found - published).square().mean(-1).sqrt()
    return rest / published.std(correction=0), 1 / scale


def log_evidences(data: Moments, axes: Axes) -> Tensor:
    """log p(Y) on grids, (noises, priors, α)."""
    settings = itertools.product(axes.noises, axes.priors, ALPHAS)
    values = [
        grid_posterior(a, data, n, p, GRID_SIZE, sufficient_reach(a, data, n, p)).log_evidence for n, p, a in settings
    ]
    return torch.tensor(values, dtype=torch.float64).reshape(len(axes.noises), len(axes.priors), len(ALPHAS))


def scan(context: Context, x: Tensor, test: Tensor, axes: Axes, protocol: Protocol, seeds: int) -> Values:
    """The paper's protocol at every setting: values of (noises, priors, stds, means, α, methods)."""
    run = chance(x, seeds, protocol, context.generator("scan"))
    data, parts = Moments.of(x), []
    with context.progress("scan", len(axes.noises)) as bar:
        for noise in axes.noises:
            lines = [[noise], axes.priors, axes.stds, axes.means, ALPHAS, METHODS.values()]
            each = torch.meshgrid(*(torch.tensor(list(line), dtype=x.dtype) for line in lines), indexing="ij")
            noises, priors, stds, means, alphas, shares = (values.unsqueeze(-1) for values in each)
            variances = Variances(noises, priors)
            begin = means[..., None] * run.start
            mean, std = train(
                begin, stds[..., None].expand_as(begin), shares, alphas, variances, len(x), run, protocol.learning_rate
            )
            plain = elbo(mean, std, alphas, data, variances)
            error = prediction_error(mean, std, alphas, Moments.of(test))
            parts.append([value.mean(-1) for value in (error, plain, plain + _information(mean, std))])
            bar.advance()
    error, plain, total = (torch.cat(part) for part in zip(*parts, strict=True))
    return Values(error, plain, total, log_evidences(data, axes)[:, :, None, None, :, None])


def scan_converged(context: Context, x: Tensor, test: Tensor, axes: Axes, steps: int) -> Values:
    """The optima at every setting, from just beside the mid-point between the modes: (noises, priors, α, methods)."""
    data, parts = Moments.of(x), []
    with context.progress("optima", len(axes.noises)) as bar:
        for noise in axes.noises:
            lines = [[noise], axes.priors, ALPHAS, METHODS.values()]
            each = torch.meshgrid(*(torch.tensor(list(line), dtype=x.dtype) for line in lines), indexing="ij")
            variances, alphas, shares = Variances(each[0], each[1]), each[2], each[3]
            mean, std = optimum(alphas, shares, data, variances, steps)
            plain = elbo(mean, std, alphas, data, variances)
            error = prediction_error(mean, std, alphas, Moments.of(test))
            parts.append([error, plain, plain + _information(mean, std)])
            bar.advance()
    error, plain, total = (torch.cat(part) for part in zip(*parts, strict=True))
    return Values(error, plain, total, log_evidences(data, axes)[..., None])


def optimum(alphas: Tensor, shares: Tensor, data: Moments, variances: Variances, steps: int) -> tuple[Tensor, Tensor]:
    """Means and deviations (…, 2) of the optimum of L_VI + share·I that is reached from beside the mid-point."""
    likelihood = variances.noise * (2 / (data.positive + data.negative))
    width = (1 / (1 / likelihood + 1 / variances.prior)).sqrt().expand_as(alphas)[..., None]
    beside = width * torch.tensor([0.2, -0.1], dtype=width.dtype, device=width.device)
    return converge(beside, width.expand_as(beside), shares, alphas, data, variances, steps=steps)


def _information(mean: Tensor, std: Tensor) -> Tensor:
    parts = zip(*(torch.split(part.flatten(0, -2), _AT_ONCE) for part in (mean, std)), strict=True)
    return torch.cat([information(*part, step=0.3, reach=5.4) for part in parts]).reshape(mean.shape[:-1])


def largest_printed_gain() -> float:
    """The largest L^G − L_VI of table 3."""
    pairs = ((PUBLISHED_PLAIN[method], PUBLISHED_TOTAL[method]) for method in PUBLISHED_PLAIN)
    return max(high - low for plain, total in pairs for low, high in zip(plain, total, strict=True))


def largest_divisor() -> float:
    """What nats can at most be divided by in table 3: I ≤ log |G| = log 2; each printed number is rounded to 0.001."""
    return math.log(2) / (largest_printed_gain() - 0.001)
