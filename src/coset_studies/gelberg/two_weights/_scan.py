"""Which noise, prior and start give the orderings of tables 2 and 3, after the paper's 10 epochs and at convergence."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import torch
from torch import Tensor

from coset.study import Context
from coset_studies.gelberg.two_weights._grid import grid_posterior, sufficient_reach
from coset_studies.gelberg.two_weights._network import Moments, Variances, elbo, information, prediction_error
from coset_studies.gelberg.two_weights._training import METHODS, Protocol, chance, converge, train

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
    """Averages over seeds of test MSE, L_VI and L^G in nats, each (…, α, methods); log p(Y) as (…, α, 1).

    ``clear``: where there are seeds, whether the orderings of ``Orders`` are beyond chance, see ``_clear``.
    """

    error: Tensor
    plain: Tensor
    total: Tensor
    log_evidence: Tensor
    clear: Tensor | None = None


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
    data = Moments.of(x)

    def at(noise: float) -> dict[str, Tensor]:
        each = _mesh(x, [noise], axes.priors, axes.stds, axes.means, ALPHAS, tuple(METHODS.values()))
        noises, priors, stds, means, alphas, shares = (values.unsqueeze(-1) for values in each)
        variances = Variances(noises, priors)
        begin = means[..., None] * run.start
        mean, std = train(
            begin, stds[..., None].expand_as(begin), shares, alphas, variances, len(x), run, protocol.learning_rate
        )
        found = _values(mean, std, alphas, data, Moments.of(test), variances)
        return {name: value.mean(-1) for name, value in found.items()} | {"clear": _clear(found)}

    config = {
        "seeds": seeds,
        "seed": context.seed,
        "protocol": asdict(protocol),
        "lines": [axes.priors, axes.stds, axes.means],
    }
    parts = _each_noise(context, "scan", config, x, test, axes, at)
    return Values(**parts, log_evidence=log_evidences(data, axes)[:, :, None, None, :, None])


def scan_converged(context: Context, x: Tensor, test: Tensor, axes: Axes, steps: int) -> Values:
    """The optima at every setting, from just beside the mid-point between the modes: (noises, priors, α, methods)."""
    data = Moments.of(x)

    def at(noise: float) -> dict[str, Tensor]:
        noises, priors, alphas, shares = _mesh(x, [noise], axes.priors, ALPHAS, tuple(METHODS.values()))
        variances = Variances(noises, priors)
        mean, std = optimum(alphas, shares, data, variances, steps)
        return _values(mean, std, alphas, data, Moments.of(test), variances)

    parts = _each_noise(context, "optima", {"steps": steps, "priors": axes.priors}, x, test, axes, at)
    return Values(**parts, log_evidence=log_evidences(data, axes)[..., None])


def _mesh(like: Tensor, *lines: Sequence[float]) -> tuple[Tensor, ...]:
    return torch.meshgrid(*(torch.tensor(line, dtype=like.dtype) for line in lines), indexing="ij")


def _values(
    mean: Tensor, std: Tensor, alphas: Tensor, data: Moments, test: Moments, variances: Variances
) -> dict[str, Tensor]:
    """Test MSE, L_VI and L^G of every Gaussian, (…), by their names in ``Values``."""
    plain = elbo(mean, std, alphas, data, variances)
    error = prediction_error(mean, std, alphas, test)
    return {"error": error, "plain": plain, "total": plain + _information(mean, std)}


def _clear(found: Mapping[str, Tensor]) -> Tensor:
    """Whether each ordering holds by more than two standard errors: (…, α, 3) of 0 and 1.

    Of values (…, α, methods, seeds); the differences are between runs of one seed, which begin and draw alike.
    """
    signs = {"error": 1, "total": -1, "plain": 1}
    gaps = torch.stack([sign * (found[name][..., 0, :] - found[name][..., 1, :]) for name, sign in signs.items()], -2)
    return (gaps.mean(-1) > 2 * gaps.std(-1) / math.sqrt(gaps.shape[-1])).to(gaps)


def _each_noise(
    context: Context,
    what: str,
    config: Mapping[str, object],
    x: Tensor,
    test: Tensor,
    axes: Axes,
    at: Callable[[float], dict[str, Tensor]],
) -> dict[str, Tensor]:
    """What ``at`` finds for each noise, (1, …), one below the other; from the store where that has it."""
    inputs = {"train": x.tolist(), "test": test.tolist()}
    parts = []
    with context.progress(what, len(axes.noises)) as bar:
        for noise in axes.noises:
            place = {"kind": f"two-weight {what}", "schema": 1, "noise": noise, **inputs, **config}
            parts.append(context.store.get_or_make(place, partial(at, noise)).params)
            bar.advance()
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


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
