"""Functions halfway between two posteriors of Snelson's curve, with and without alignment."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from coset import discover
from coset.data import Dataset
from coset.distribution import MeanField
from coset.distribution.divergences import wasserstein2_squared
from coset.landscape import Profiles, geodesic, naive_and_aligned, predictive_likelihood
from coset.posterior import FanIn, Fit, GaussianNoise, RealPredictive, predictive
from coset.study import Claim, Context, Estimate, Findings, Results, Scalar, Table, study
from coset.study.estimates import ERRORS, ratio
from coset.study.posteriors import inferred, network_of
from coset.symmetry import Symmetry
from coset_studies._shared.wave import wave
from coset_studies.rossi._claims import NEAR_ZERO, NO_NUMBERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLES = {"q0": "$q_0$", "q1": "$q_1$", "naive": "naive midpoint", "aligned": "aligned midpoint"}
PARTS = ("train", "held out")
REACH = 1.15
"""How far the functions are drawn, in half widths of the data."""
FUNCTIONS = 20
"""Sampled functions in each panel."""


@dataclass(frozen=True)
class Config:
    """A regression MLP with known noise, in units of the targets' deviation.

    ``gain``, ``bias_std``: of the prior N(0, gain²/fan-in). ``temperatures``: of the posteriors; the first is drawn.
    ``epochs``: full-batch steps of inference. ``held_out``: how many points are kept from it at random, where the data
    have no test part. ``restarts``: of the alignment. ``samples`` and ``points``: draws and τ of the barriers;
    ``draws``: those of the predictive mean and deviation.
    """

    data: str
    widths: tuple[int, ...]
    activation: str
    noise: float
    gain: float
    bias_std: float
    temperatures: tuple[float, ...]
    epochs: int
    held_out: int
    restarts: int
    draws: int
    samples: int = 32
    points: int = 25


@dataclass(frozen=True, eq=False)
class Way:
    """A geodesic between the two: W₂² of its ends, the ``middle``, and the profiles on both parts of the data."""

    length_squared: float
    middle: MeanField
    profiles: Profiles


@dataclass(frozen=True, eq=False)
class Pair:
    """Two posteriors at one temperature, and the ways between them, "naive" and "aligned"."""

    temperature: float
    fits: Sequence[Fit[MeanField]]
    ways: Mapping[str, Way]


TEXT = """
The two posteriors at T = {temperature:g} model the data alike: {q0_train:.2f} and {q1_train:.2f} nats per training
point. Halfway on the naive geodesic all of that is lost, as in the paper: {naive_train:.2f} nats is worse than a
Gaussian that does not look at x ({constant:.2f}). Halfway on the aligned one {aligned_train:.2f} are left, about what
the ends have, and the barrier of the whole path is {barrier_share_train:.1%} of the naive one. On {held_out} points
that inference has not seen it is the same: {barrier_naive_held_out:.2f} nats naive, {barrier_aligned_held_out:.3f}
aligned.

Alignment is over {group} of {weights:,} weights, and brings W₂ of the ends from {w2_naive:.1f} to {w2_aligned:.1f}. At
T = {other_temperature:g} the ends fit less well ({other_q0_train:.2f} and {other_q1_train:.2f}), and the barriers are
{other_barrier_naive_train:.2f} and {other_barrier_aligned_train:.3f} nats.

λ of definition 2 is about the same on both paths ({convexity_naive:.3f} and {convexity_aligned:.3f}): it is per squared
length, and the aligned path is short. What it bounds, −λW₂²/8, is {bound_naive:.2f} and {bound_aligned:.3f} nats.

The figure is drawn at T = 0.1, where the posterior is narrow enough that single functions follow the data; the table
has both temperatures. Hidden layers
have 100 units (in the preset paper 512), and inference takes 3,000 steps.
"""
ERROR = """
Two Monte Carlo standard errors of the draws to both sides, of one pair of posteriors; they say nothing of other seeds.
"""


def _barrier(results: Results, prefix: str, path: str) -> Estimate | None:
    """On the training points, ± its error; None where that temperature was not measured."""
    value, error = (results.numbers.get(f"{prefix}{name}_{path}_train") for name in ("barrier", "barrier_error"))
    if value is None or error is None:
        return None
    half = ERRORS * float(error)
    return Estimate(float(value), max(0.0, float(value) - half), float(value) + half)


def _halfway(results: Results) -> Estimate:
    value, constant, error = (
        float(str(results.numbers[name])) for name in ("naive_train", "constant", "barrier_error_naive_train")
    )
    return Estimate(value - constant, value - constant - ERRORS * error, value - constant + ERRORS * error)


def _left(prefix: str, temperature: str) -> Claim:
    return Claim(
        paper="Once permutations are accounted for, the functions halfway fit the data as those of the ends do.",
        source="fig. 1",
        statistic=f"{temperature} temperature: aligned barrier as a share of the naive one, training points",
        direction="below",
        threshold=NEAR_ZERO,
        reason=f"Where a tenth is left the functions would visibly fit less well. {NO_NUMBERS}",
        interval=ERROR,
        possible=(0.0, math.inf),
        estimate=lambda results: ratio(_barrier(results, prefix, "aligned"), _barrier(results, prefix, "naive")),
    )


CLAIMS = [
    Claim(
        paper="Halfway between them, on the Wasserstein geodesic, all capability to model the data is lost.",
        source="fig. 1",
        statistic="log-likelihood halfway on the naive path less that of a Gaussian that does not look at x, nats",
        direction="below",
        threshold=0.0,
        reason="What does not model the data at all has the constant's log-likelihood.",
        interval=ERROR,
        estimate=_halfway,
    ),
    _left("", "lower"),
    _left("other_", "higher"),
]


@study(
    name="rossi-functions",
    title="Functions halfway between two posteriors of Snelson's curve",
    reference="Rossi et al. 2023, fig. 1 and definitions 2 and 3; data of Snelson and Ghahramani 2005",
    paper="""
    Two variational posteriors of a network of three layers, from two seeds, model the data alike. Halfway between them,
    on the Wasserstein geodesic, all capability to model the data is lost. Once permutations are accounted for, the
    functions halfway fit the data as those of the ends do.
    """,
    presets={
        "quick": Config(
            data="wave", widths=(20, 20), activation="tanh", noise=0.4, gain=3.0, bias_std=1.0, temperatures=(0.1,),
            epochs=200, held_out=0, restarts=2, draws=32, samples=8, points=5,
        ),
        "small": Config(
            data="snelson", widths=(100, 100), activation="tanh", noise=0.35, gain=4.0, bias_std=2.0,
            temperatures=(0.1, 1.0), epochs=3000, held_out=40, restarts=20, draws=256,
        ),
        "paper": Config(
            data="snelson", widths=(512, 512), activation="tanh", noise=0.35, gain=4.0, bias_std=2.0,
            temperatures=(0.1, 1.0), epochs=30000, held_out=40, restarts=20, draws=1000, samples=128,
        ),
    },
    claims=CLAIMS,
    text={"small": TEXT},
    tables={
        "paths": """
        Predictive log-likelihood in nats per point (q1 and its aligned copy predict the same: they differ by their
        random draws); ± is the Monte Carlo standard error of the barrier; W₂ of the ends, and λ of definition 2 on the
        training points. The log-likelihoods along the paths are in results.json.
        """
    },
)  # fmt: skip
def run(config: Config, context: Context) -> Findings:
    """Fit two posteriors, follow the geodesic with and without alignment, and draw functions at ends and middles."""
    dataset = wave() if config.data == "wave" else held_out(context.data(config.data), config.held_out, context)
    model = network_of("mlp", _options(config), seed=0).to(context.device)
    # W₂ is invariant under permutations and signs, not under scales; signs are there where the activation is odd.
    sym = discover(model, dataset.train.x[:2].to(context.device)).restrict(scales=False)
    pairs = [_pair(config, context, dataset, model, sym, temperature) for temperature in config.temperatures]
    first = pairs[0]
    grid = _grid(dataset).to(context.device)
    shown = {"q0": first.fits[0].posterior, "q1": first.fits[1].posterior}
    shown |= {name: way.middle for name, way in first.ways.items()}
    curves = {name: _curve(config, model, q, grid) for name, q in shown.items()}
    numbers = _numbers(config, dataset, model, pairs)
    numbers["group"] = "permutations and signs" if sym.flipping else "permutations"
    return Findings(
        numbers,
        {"paths": _table(pairs), "profiles": _profile_table(pairs)},
        figure=lambda: _figure(dataset, grid.cpu(), curves),
        caption=(
            f"{FUNCTIONS} functions drawn from each posterior at T = {first.temperature:g} (thin), one of them with "
            f"the same random numbers in all panels (black), the predictive mean (thick) ± 2 standard deviations of a "
            f"target (band), and the training points."
        ),
    )


def held_out(dataset: Dataset, count: int, context: Context) -> Dataset:
    """The same data with ``count`` of the training points, chosen at random, as test part."""
    order = torch.randperm(len(dataset.train), generator=context.generator("held-out points"))
    test, train = (dataset.train.take(part.sort().values) for part in (order[:count], order[count:]))
    fingerprint = f"{dataset.fingerprint} without {count} points, seed {context.seed}"
    return replace(dataset, train=train, test=test, fingerprint=fingerprint)


def _options(config: Config) -> dict[str, Any]:
    return {"in_features": 1, "widths": list(config.widths), "out_features": 1, "activation": config.activation}


def _pair(
    config: Config, context: Context, dataset: Dataset, model: nn.Module, sym: Symmetry, temperature: float
) -> Pair:
    seeds = (context.seed, context.seed + 1)
    fits = [_fit(config, context, dataset, temperature, seed) for seed in seeds]
    q0, q1 = (fit.posterior for fit in fits)
    functionals = {
        name: predictive_likelihood(
            model, part, likelihood=GaussianNoise(config.noise), samples=config.samples, seed=context.seed, name=name
        )
        for name, part in zip(PARTS, (dataset.train, dataset.test), strict=True)
    }
    options = {"restarts": config.restarts, "seed": context.seed, "show": context.show}
    found = naive_and_aligned(sym, q0, q1, functionals, options=options, points=config.points, show=context.show)
    ways = {
        name: Way(float(wasserstein2_squared(*ends)), geodesic(*ends)(0.5), found.profiles[name])
        for name, ends in found.ends.items()
    }
    return Pair(temperature, fits, ways)


def _fit(config: Config, context: Context, dataset: Dataset, temperature: float, seed: int) -> Fit[MeanField]:
    settings = {
        "likelihood": GaussianNoise(config.noise),
        "prior": FanIn(config.gain, config.bias_std),
        "temperature": temperature,
        "epochs": config.epochs,
        "batch_size": len(dataset.train),
        "learning_rate": 1e-2,
        "schedule": "cosine",
        "samples": 4,
        "std": 0.01,
    }
    return inferred(
        context, method="mean-field", model="mlp", data=dataset, seed=seed, settings=settings, options=_options(config)
    )


def _grid(dataset: Dataset) -> Tensor:
    low, high = float(dataset.train.x.min()), float(dataset.train.x.max())
    middle, half = (low + high) / 2, REACH * (high - low) / 2
    return torch.linspace(middle - half, middle + half, 301)[:, None]


def _curve(config: Config, model: nn.Module, q: MeanField, grid: Tensor) -> RealPredictive:
    likelihood = GaussianNoise(config.noise)
    found = predictive(model, q, grid, likelihood=likelihood, samples=config.draws, keep=True, show=False)
    assert isinstance(found, RealPredictive)
    return found


def _numbers(config: Config, dataset: Dataset, model: nn.Module, pairs: Sequence[Pair]) -> dict[str, Any]:
    numbers: dict[str, Any] = {
        "points": config.points,
        "held_out": len(dataset.test),
        "weights": sum(parameter.numel() for parameter in model.parameters()),
        # Of the Gaussian with the mean and deviation of the targets.
        "constant": -0.5 * math.log(2 * math.pi * math.e * float(dataset.train.y.var(correction=0))),
    }
    for pair, prefix in zip(pairs, ("", "other_"), strict=False):
        numbers |= {f"{prefix}{name}": value for name, value in _numbers_of_pair(pair).items()}
    return numbers


def _numbers_of_pair(pair: Pair) -> dict[str, Any]:
    numbers: dict[str, Any] = {"temperature": pair.temperature}
    for part in PARTS:
        word = part.replace(" ", "_")
        ends = pair.ways["naive"].profiles[part]
        numbers |= {f"q0_{word}": ends.values[0], f"q1_{word}": ends.values[-1]}
        for name, way in pair.ways.items():
            profile = way.profiles[part]
            numbers[f"{name}_{word}"] = profile.midpoint.value
            numbers[f"barrier_{name}_{word}"] = profile.barrier
            numbers[f"barrier_error_{name}_{word}"] = profile.barrier_error
        naive, aligned = (numbers[f"barrier_{name}_{word}"] for name in ("naive", "aligned"))
        numbers[f"barrier_share_{word}"] = aligned / naive if naive > 0 else None
    for name, way in pair.ways.items():
        numbers[f"w2_{name}"] = math.sqrt(way.length_squared)
        numbers[f"convexity_{name}"] = way.profiles["train"].convexity(way.length_squared)
        numbers[f"bound_{name}"] = -numbers[f"convexity_{name}"] * way.length_squared / 8
    return numbers


def _table(pairs: Sequence[Pair]) -> Table:
    rows: list[list[Scalar]] = []
    for pair in pairs:
        for name, way in pair.ways.items():
            row: list[Scalar] = [pair.temperature, name]
            for part in PARTS:
                profile = way.profiles[part]
                row += [profile.values[0], profile.midpoint.value, profile.values[-1]]
                row += [profile.barrier, profile.barrier_error]
            convexity = way.profiles["train"].convexity(way.length_squared)
            rows.append([*row, math.sqrt(way.length_squared), convexity])
    measured = [f"{part}, {what}" for part in PARTS for what in ("q0", "halfway", "q1", "barrier", "±")]
    return Table(("T", "path", *measured, "W₂", "λ"), rows)


def _profile_table(pairs: Sequence[Pair]) -> Table:
    profiles = {
        f"T = {pair.temperature:g}, {name}, {part}": way.profiles[part]
        for pair in pairs
        for part in PARTS
        for name, way in pair.ways.items()
    }
    taus = next(iter(profiles.values())).taus
    rows = list(zip(taus, *(profile.values for profile in profiles.values()), strict=True))
    return Table(("τ", *profiles), rows, "Predictive log-likelihood along the paths, nats per point.")


def _figure(dataset: Dataset, grid: Tensor, curves: Mapping[str, RealPredictive]) -> "Figure":
    from coset.figures import BLUE, GREEN, ORANGE, VERMILION, label_panel, new_figure

    figure = new_figure(9.6, 2.8)
    panels = figure.subplots(1, len(curves), sharex=True, sharey=True)
    colours = (BLUE, ORANGE, VERMILION, GREEN)
    for axes, letter, (name, curve), colour in zip(panels, "abcd", curves.items(), colours, strict=True):
        _draw(axes, grid[:, 0], curve, colour)
        axes.plot(dataset.train.x[:, 0].cpu(), dataset.train.y[:, 0].cpu(), ".", color="black", markersize=2.0)
        axes.set_xlabel("x")
        label_panel(axes, letter, TITLES[name])
    y = dataset.train.y
    span = float(y.max() - y.min())
    panels[0].set_ylim(float(y.min()) - 0.35 * span, float(y.max()) + 0.35 * span)
    panels[0].set_xlim(float(grid[0]), float(grid[-1]))
    panels[0].set_ylabel("y")
    return figure


def _draw(axes: "Axes", x: Tensor, curve: RealPredictive, colour: str) -> None:
    mean, width = curve.mean[:, 0].cpu(), 2 * curve.std[:, 0].cpu()
    axes.fill_between(x, mean - width, mean + width, color=colour, alpha=0.2, linewidth=0)
    assert curve.member_means is not None
    functions = curve.member_means[:FUNCTIONS, :, 0].cpu()
    for function in functions[1:]:
        axes.plot(x, function, color=colour, linewidth=0.5, alpha=0.6)
    axes.plot(x, mean, color=colour, linewidth=2.0)
    axes.plot(x, functions[0], color="black", linewidth=0.9)
