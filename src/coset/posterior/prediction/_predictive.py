"""What a posterior over weights predicts (Rossi et al. 2023, section 2): the average p(y | x) = E p(y | x, θ).

Memory: beside the inputs, sums (N, C), one chunk's activations, and one draw of the weights (or a group of small ones,
``predictive_chunks``); with targets (M, N) numbers log p(y_i | x_i, θ_j), for the Monte Carlo error. All draws' outputs
(M, N, C) are kept only if asked for, or for the mixtures of a regression, whose scores need them.
"""

import torch
from torch import Tensor, nn

from coset._checks import check_positive
from coset._show.progress import progress
from coset.errors import InputError
from coset.posterior.likelihoods import Likelihood, as_likelihood
from coset.posterior.prediction.chunks import Runner, runner
from coset.posterior.prediction.draws import Posterior, draws_of
from coset.posterior.prediction.results import Predictive, TargetLikelihood, target_likelihood
from coset.posterior.prediction.sums import sums_for

BATCH_SIZE = 1000
"""Points at a time: the activations of a layer then stay in the cache."""


@torch.no_grad()
def predictive(
    model: nn.Module,
    q: Posterior,
    x: Tensor,
    *,
    likelihood: Likelihood | str = "categorical",
    samples: int | None = None,
    seed: int | torch.Generator = 0,
    batch_size: int = BATCH_SIZE,
    y: Tensor | None = None,
    target_error: float | None = None,
    keep: bool | None = None,
    show: bool | None = None,
) -> Predictive:
    """p(y | x) = (1/M) Σ_j p(y | f(x; θ_j)), θ_j ~ q, at the points ``x`` (N, …): of labels or of real targets.

    ``samples``: M, 128 by default and all draws of ``Samples``. Draw j depends on ``seed`` and j alone, see
    ``draws_of``: not on x, the chunks or how many follow. With targets ``y`` the result has their log-likelihood and
    its Monte Carlo error, and ``target_error`` ends the drawing as soon as the error of the mean log-likelihood is
    no larger; it is looked at after 16 draws, and then each time there are a quarter more. ``keep``: also every
    network's prediction; by default for regression only. A model is run in evaluation mode, as a copy.
    """
    draws = draws_of(q, samples, seed)
    run = runner(model, draws, x, batch_size)
    chosen = as_likelihood(likelihood)
    targets = None if y is None else _fitted(chosen, run, y)
    if target_error is not None:
        check_positive("target_error", target_error)
        if targets is None:
            raise InputError("target_error is given and y is not; the error is that of the targets' log-likelihood")
    sums = sums_for(chosen, run.outputs, len(run.x), keep)
    logs = None if targets is None else _Likelihoods(targets)

    def take(number: int, rows: slice, outputs: Tensor) -> None:
        predicted = sums.add(number, rows, outputs.double())
        if logs is not None:
            logs.add(number, rows, sums.log_prob(predicted, logs.targets[rows]))

    used, found = 0, None
    with progress("predictive", draws.count, show=show) as bar:
        while used < draws.count:
            step = draws.count - used if target_error is None else min(_until_next_look(used), draws.count - used)
            if logs is not None:
                logs.extend(step)
            run.run(draws, used, step, take, bar)
            used += step
            found = None if logs is None else logs.summary(draws.exact)
            if found is not None and target_error is not None and found.mean_error <= target_error:
                break
    return sums.result(used, found)


@torch.no_grad()
def predictive_log_likelihood(
    model: nn.Module,
    q: Posterior,
    x: Tensor,
    y: Tensor,
    *,
    likelihood: Likelihood | str = "categorical",
    samples: int | None = None,
    seed: int | torch.Generator = 0,
    batch_size: int = BATCH_SIZE,
    show: bool | None = None,
) -> TargetLikelihood:
    """log (1/M) Σ_j p(y_i | x_i, θ_j) at every point, and its Monte Carlo error: ``predictive`` without the rest.

    With the same seed, distributions along a path are seen through the same random numbers: the curve of their
    log-likelihoods is as smooth as the path, and its ends are those of the ends' own predictives.
    """
    draws = draws_of(q, samples, seed)
    run = runner(model, draws, x, batch_size)
    chosen = as_likelihood(likelihood)
    logs = _Likelihoods(_fitted(chosen, run, y))
    logs.extend(draws.count)

    def take(number: int, rows: slice, outputs: Tensor) -> None:
        logs.add(number, rows, chosen.log_prob(outputs.double(), logs.targets[rows]))

    with progress("predictive", draws.count, show=show) as bar:
        run.run(draws, 0, draws.count, take, bar)
    return logs.summary(draws.exact)


class _Likelihoods:
    """log p(y_i | x_i, θ_j), (M, N)."""

    def __init__(self, targets: Tensor) -> None:
        self.targets = targets
        self.values = torch.empty(0, len(targets), dtype=torch.float64, device=targets.device)

    def extend(self, draws: int) -> None:
        """Make room for so many draws more."""
        self.values = torch.cat([self.values, self.values.new_empty(draws, len(self.targets))])

    def add(self, number: int, rows: slice, log_p: Tensor) -> None:
        """Those of the draws from ``number`` on, (draws, rows)."""
        self.values[number : number + len(log_p), rows] = log_p

    def summary(self, exact: bool) -> TargetLikelihood:
        return target_likelihood(self.targets, self.values, exact)


def _fitted(likelihood: Likelihood, run: Runner, y: Tensor) -> Tensor:
    """Targets as the likelihood takes them, one for each point."""
    if not isinstance(y, Tensor) or y.ndim == 0 or len(y) != len(run.x):
        found = f"of shape {tuple(y.shape)}" if isinstance(y, Tensor) else f"a {type(y).__name__}"
        raise InputError(f"y is {found}; expected a tensor with a target for each of the {len(run.x)} points")
    # Real targets take the type of the outputs, which are summed in double precision.
    return likelihood.fit_targets(y.to(run.outputs.device), run.outputs.double())


def _until_next_look(used: int) -> int:
    """Draws until the error is looked at again: each look costs as much as some draws of a small network."""
    return max(16 if used == 0 else 8, used // 4)
