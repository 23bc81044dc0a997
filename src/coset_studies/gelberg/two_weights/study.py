"""A network of two weights whose posterior is known: mean-field VI, and VI averaged over the two permutations."""

from dataclasses import dataclass

import torch
from torch import Tensor

from coset.study import Context, Findings, Scalar, study
from coset_studies.gelberg.two_weights._claims import CLAIMS
from coset_studies.gelberg.two_weights._figure import CAPTION, draw
from coset_studies.gelberg.two_weights._fits import Start, Task, fitted, measured, pose, posterior_on_grid, sampled
from coset_studies.gelberg.two_weights._network import Moments
from coset_studies.gelberg.two_weights._page import TABLES, TEXT
from coset_studies.gelberg.two_weights._report import Outcomes, numbers
from coset_studies.gelberg.two_weights._scan import ALPHAS, Axes, optimum, scan, scan_converged
from coset_studies.gelberg.two_weights._tables import tables
from coset_studies.gelberg.two_weights._training import METHODS, Protocol

REACH = 10.0
"""Inputs are uniform on [−10, 10]."""

WIDE = Axes(
    noises=(1.0, 3.0, 10.0, 20.0, 30.0, 100.0, 300.0),
    priors=(0.01, 0.03, 0.1, 1.0),
    stds=(0.02, 0.04, 0.07, 0.1, 0.2),
    means=(0.01, 0.1, 0.2, 0.25, 0.3),
)


@dataclass(frozen=True)
class Config:
    """``seeds`` runs of ``epochs`` at every α; the paper leaves variances of noise and prior and the start open.

    ``start_std``: all first deviations; ``start_mean``: the deviation of the first means about 0. ``points``: to train
    on, and as many to test. ``draws``: networks whose outputs are averaged, and weights of the sampled ELBO with
    ``permutations`` (the paper's K). ``grid``: points a side, 4k + 1. ``scan``: what is scanned, with ``scan_seeds``
    each; ``steps``: to an optimum.
    """

    seeds: int
    scan: Axes
    scan_seeds: int
    steps: int
    noise: float = 20.0
    prior: float = 0.03
    start_std: float = 0.07
    start_mean: float = 0.3
    epochs: int = 10
    batch_size: int = 10
    learning_rate: float = 5e-3
    points: int = 100
    draws: int = 1000
    permutations: int = 500
    grid: int = 641
    drawn: float = 0.2


@study(
    name="gelberg-two-weights",
    title="A network of two weights: its posterior, mean-field VI, and VI averaged over permutations",
    reference="Gelberg et al. 2024, Variational inference failures under model symmetries, section 5, fig. 4, tables 2 "
    "and 3",
    paper="""
    The network ReLU(w₁x) + ReLU(w₂x) learns α|x| from 100 points without noise. Its posterior has two modes, (α,
    −α) and (−α, α), that the exchange of the two hidden units carries into each other. After 10 epochs a mean-field
    Gaussian (MFVI) lies between the modes; one that is trained by the ELBO of its average over both permutations
    (SGM, K = 2) fits the posterior better once averaged. The test MSE of SGM is lower at every α (0.09, 0.09, 0.10,
    0.12 against 0.11, 0.12, 0.13, 0.18 at α = 0.05, 0.1, 0.15, 0.2, with deviations of 0.15 to 0.22 over 10 seeds),
    its symmetrized ELBO L^G higher, and its plain ELBO L_VI marginally lower. Variances of noise and prior, the
    start, and how the ELBOs are "normalized" are not said.
    """,
    presets={
        "quick": Config(
            seeds=2, scan=Axes((3.0, 20.0), (0.01, 0.03), (0.07,), (0.3,)), scan_seeds=4, steps=60, epochs=1, draws=40,
            permutations=20, grid=201,
        ),
        "small": Config(seeds=10, scan=WIDE, scan_seeds=60, steps=600),
        "paper": Config(seeds=10, scan=WIDE, scan_seeds=400, steps=3000, grid=1281),
    },
    claims=CLAIMS,
    text={"small": TEXT},
    tables=TABLES,
    figure=draw,
    caption=CAPTION,
)  # fmt: skip
def run(config: Config, context: Context) -> Findings:
    """Run the paper's protocol at one setting and measure it on the grid; then scan the settings it does not say."""
    task = pose(_inputs(config, context, "train"), _inputs(config, context, "test"), config.noise, config.prior)
    protocol = Protocol(config.epochs, config.batch_size, config.learning_rate)
    start = Start(config.start_std, config.start_mean)
    optima = _optima(task, config.steps)
    fits, draws = {}, {}
    with context.progress("runs", len(optima)) as bar:
        for method, alpha in optima:
            fit = fitted(context, method, alpha, task, protocol, start, config.seeds)
            fits[method, alpha] = fit
            draws[method, alpha] = sampled(alpha, task, *fit, config.draws, config.permutations, context.seed)
            bar.advance()
    found = Outcomes(
        task,
        draws,
        {key: measured(key[1], task, *fit, config.grid) for key, fit in fits.items()},
        {key: measured(key[1], task, *fit, config.grid) for key, fit in optima.items()},
        config.scan,
        scan(context, task.train, task.test, config.scan, protocol, config.scan_seeds),
        scan_converged(context, task.train, task.test, config.scan, config.steps),
        {alpha: posterior_on_grid(alpha, task, config.grid, *optima["MFVI", alpha]) for alpha in ALPHAS},
    )
    values = _settings(config) | numbers(found, config.drawn)
    return Findings(values, tables(found))


def _inputs(config: Config, context: Context, part: str) -> Tensor:
    """x (N,), uniform on [−10, 10]; the same for every run and every α."""
    uniform = torch.rand(config.points, generator=context.generator(f"{part} inputs"), dtype=torch.float64)
    return (2 * uniform - 1) * REACH


def _optima(task: Task, steps: int) -> dict[tuple[str, float], tuple[Tensor, Tensor]]:
    """Mean and deviations (1, 2) of the optimum of each method's objective, by method and α."""
    keys = [(method, alpha) for method in METHODS for alpha in ALPHAS]
    alphas = torch.tensor([alpha for _, alpha in keys], dtype=torch.float64)
    shares = torch.tensor([METHODS[method] for method, _ in keys], dtype=torch.float64)
    mean, std = optimum(alphas, shares, Moments.of(task.train), task.variances, steps)
    return {key: (mean[index, None], std[index, None]) for index, key in enumerate(keys)}


def _settings(config: Config) -> dict[str, Scalar]:
    """What the text says of the configuration."""
    travel = config.epochs * (config.points // config.batch_size) * config.learning_rate
    names = ("seeds", "scan_seeds", "steps", "noise", "prior", "start_std", "start_mean", "epochs", "points")
    return {name: getattr(config, name) for name in names} | {"travel": travel}
