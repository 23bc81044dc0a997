"""Snelson's curve under mean-field VI and under Hamiltonian Monte Carlo, side by side."""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from coset.data import Dataset
from coset.posterior import FanIn, GaussianNoise, RealPredictive, predictive, score
from coset.study import Claim, Context, Estimate, Findings, Results, Table, study
from coset.study.posteriors import inferred, network_of
from coset_studies._shared.reading import share
from coset_studies._shared.wave import wave

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = {"mean-field": "mean-field VI", "hmc": "HMC"}
REACH = 1.8
"""How far beyond the data the predictions are drawn, in half widths of the data."""


@dataclass(frozen=True)
class Config:
    """One hidden layer of ``width`` tanh units; noise of a known deviation, in units of the targets' deviation.

    ``gain``, ``bias_std``: of the prior N(0, gain²/fan-in). The rest: how long each method runs.
    """

    data: str
    width: int
    noise: float
    gain: float
    bias_std: float
    epochs: int
    chains: int
    warmup: int
    draws: int
    leapfrog_steps: int
    samples: int


def _inside(results: Results, method: str) -> Estimate:
    value, points = results.numbers[f"{method}_inside"], results.numbers["points"]
    assert isinstance(value, float)
    assert isinstance(points, int)
    return share(value, points)


CLAIMS = [
    Claim(
        paper="The mean of the predictions ± 2σ covers the data.",
        source="Rossi et al. 2023, fig. 1 (left)",
        statistic=f"{title}: share of the training points within 2σ",
        direction="above",
        threshold=0.9,
        reason="Of normal errors 95 % lie within 2σ; with less than nine in ten the figure would not cover the data.",
        interval="The binomial error of as many points as there are (Wilson); of one run by each method.",
        possible=(0.0, 1.0),
        estimate=partial(_inside, method=method),
    )
    for method, title in (("mean_field", "mean-field VI"), ("hmc", "HMC"))
]
TEXT = """
Both methods follow the curve: on the {points} points the error of the predictive mean is {mean_field_rmse:.3f} by
mean-field VI and {hmc_rmse:.3f} by HMC, where the noise is {noise:.2f}.

They differ where there are no data. At the ends of the grid, beyond the data, the network's output has a standard
deviation of {mean_field_outer:.2f} under mean-field VI and of {hmc_outer:.2f} under HMC. Functions that agree on the
data go apart beyond them; independent weights cannot represent that, and mean-field VI is too sure of itself there.
"""
TABLES = {
    "methods": "On the training points, in units of the targets' deviation; at the ends of the grid, beyond the data."
}
CAPTION = """
Predictive mean (line), mean ± 2 standard deviations of the network's output (dark) and of a target (light), and the
training points.
"""


@study(
    name="snelson-posteriors",
    title="Snelson's curve: mean-field VI and HMC side by side",
    reference="Rossi et al. 2023, fig. 1 (left) and appendix C; data of Snelson and Ghahramani 2005",
    paper="""
    A Bayesian network fitted by variational inference follows the curve; its mean ± 2σ covers the data. Two runs look
    alike there; here there is one run of each method.
    """,
    presets={
        "quick": Config(
            data="wave", width=10, noise=0.3, gain=4.0, bias_std=2.0, epochs=300, chains=2, warmup=30, draws=20,
            leapfrog_steps=10, samples=32,
        ),
        "small": Config(
            data="snelson", width=50, noise=0.35, gain=6.0, bias_std=3.0, epochs=6000, chains=4, warmup=200, draws=200,
            leapfrog_steps=80, samples=256,
        ),
        "paper": Config(
            data="snelson", width=50, noise=0.35, gain=6.0, bias_std=3.0, epochs=30000, chains=8, warmup=1000,
            draws=1000, leapfrog_steps=200, samples=1000,
        ),
    },
    claims=CLAIMS,
    text={"small": TEXT},
    tables=TABLES,
    caption=CAPTION,
)  # fmt: skip
def run(config: Config, context: Context) -> Findings:
    """Fit both and predict on a grid that reaches beyond the data."""
    dataset = wave() if config.data == "wave" else context.data(config.data)
    fits = {method: _fit(config, context, dataset, method) for method in METHODS}
    model = network_of("mlp", _options(config), seed=0).to(context.device)
    likelihood = GaussianNoise(config.noise)
    low, high = float(dataset.train.x.min()), float(dataset.train.x.max())
    middle, half = (low + high) / 2, REACH * (high - low) / 2
    grid = torch.linspace(middle - half, middle + half, 301, device=context.device)[:, None]
    samples = {"mean-field": config.samples, "hmc": None}
    curves, rows = {}, []
    numbers: dict[str, Any] = {"noise": config.noise, "points": len(dataset.train)}
    for method, fit in fits.items():
        count = samples[method]
        curve = predictive(model, fit, grid, likelihood=likelihood, samples=count, keep=False)
        seen = predictive(
            model, fit, dataset.train.x, y=dataset.train.y, likelihood=likelihood, samples=count, keep=True
        )
        assert isinstance(curve, RealPredictive)
        assert isinstance(seen, RealPredictive)
        curves[method] = curve
        scores = score(seen)
        inside = (seen.mean.cpu() - dataset.train.y.cpu()).abs() <= 2 * seen.std.cpu()
        outer = curve.model_std[[0, -1]].mean()
        row = (METHODS[method], scores["rmse"], scores["nll"], float(inside.double().mean()), float(outer))
        rows.append(row)
        names = ("rmse", "nll", "inside", "outer")
        word = method.replace("-", "_")
        numbers |= {f"{word}_{name}": value for name, value in zip(names, row[1:], strict=True)}
    numbers["elbo"] = fits["mean-field"].trace["elbo"][-1]
    numbers["accept"] = fits["hmc"].trace["accept"][-1]
    columns = ("method", "RMSE", "NLL per point", "within 2σ", "σ of f at the ends")
    return Findings(
        numbers=numbers,
        tables={"methods": Table(columns, rows)},
        figure=lambda: _figure(dataset, grid.cpu(), curves),
    )


def _options(config: Config) -> dict[str, Any]:
    return {"in_features": 1, "widths": [config.width], "out_features": 1, "activation": "tanh"}


def _fit(config: Config, context: Context, dataset: Dataset, method: str) -> Any:
    likelihood, prior = GaussianNoise(config.noise), FanIn(config.gain, config.bias_std)
    settings: dict[str, Any] = {"likelihood": likelihood, "prior": prior}
    if method == "mean-field":
        settings |= {"epochs": config.epochs, "batch_size": len(dataset.train), "learning_rate": 1e-2}
        settings |= {"schedule": "cosine", "samples": 4, "std": 0.01}
    else:
        settings |= {"chains": config.chains, "warmup": config.warmup, "draws": config.draws, "mass": "diagonal"}
        settings |= {"leapfrog_steps": config.leapfrog_steps}
    return inferred(
        context,
        method=method,
        model="mlp",
        data=dataset,
        seed=context.seed,
        settings=settings,
        options=_options(config),
    )


def _figure(dataset: Dataset, grid: Tensor, curves: dict[str, RealPredictive]) -> "Figure":
    from coset.figures import BLUE, ORANGE, label_panel, new_figure

    figure = new_figure(9.0, 3.4)
    panels = figure.subplots(1, len(curves), sharey=True)
    x, y = dataset.train.x[:, 0].cpu(), dataset.train.y[:, 0].cpu()
    for axes, letter, (method, curve), colour in zip(panels, "ab", curves.items(), (BLUE, ORANGE), strict=True):
        mean = curve.mean[:, 0].cpu()
        for deviations, opacity in ((curve.std, 0.2), (curve.model_std, 0.35)):
            width = 2 * deviations[:, 0].cpu()
            axes.fill_between(grid[:, 0], mean - width, mean + width, color=colour, alpha=opacity, linewidth=0)
        axes.plot(grid[:, 0], mean, color=colour)
        axes.plot(x, y, ".", color="black", markersize=3)
        axes.set_xlabel("x")
        label_panel(axes, letter, METHODS[method])
    span = float(y.max() - y.min())
    panels[0].set_ylim(float(y.min()) - 0.6 * span, float(y.max()) + 0.6 * span)
    panels[0].set_ylabel("y")
    return figure
