"""Functions halfway between two posteriors of Snelson's curve, with and without alignment."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from coset import align, discover
from coset.data import Dataset
from coset.distribution import MeanField
from coset.distribution.divergences import wasserstein2_squared
from coset.landscape import Profiles, barrier, geodesic, predictive_likelihood
from coset.posterior import FanIn, Fit, GaussianNoise, RealPredictive, predictive
from coset.study import Context, Findings, Scalar, Table, study
from coset.study.posteriors import inferred, network_of
from coset.symmetry import Symmetry
from coset_studies._shared.wave import wave

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLES = {"q0": "$q_0$", "q1": "$q_1$", "naive": "naive midpoint", "aligned": "aligned midpoint"}
PARTS = ("train", "held out")
REACH = 1.15
"""How far the functions are drawn, in half widths of the data."""
FUNCTIONS = 20
"""Sampled functions in each panel."""
KEPT = 0.1
"""An aligned path keeps the fit if its barrier is at most this share of the naive one."""


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
        numbers=numbers,
        tables={"paths": _table(pairs), "profiles": _profile_table(pairs)},
        outcome=OUTCOME + (OTHER if len(pairs) > 1 else "") + verdict(numbers),
        figure=lambda: _figure(dataset, grid.cpu(), curves),
        caption=(
            f"{FUNCTIONS} functions drawn from each posterior at T = {first.temperature:g} (thin), one of them with "
            f"the same random numbers in all panels (black), the predictive mean (thick) ± 2 standard deviations of a "
            f"target (band), and the training points."
        ),
    )


OUTCOME = """
Two mean-field posteriors of {weights} weights at T = {temperature:g}, from two seeds, have a predictive log-likelihood
of {q0_train:.3f} and {q1_train:.3f} nats per training point, and of {q0_held_out:.3f} and {q1_held_out:.3f} on
{held_out} points that inference has not seen; a Gaussian that does not look at x has {constant:.3f} on the training
points. Halfway on the naive geodesic it is {naive_train:.3f} (held out: {naive_held_out:.3f}), on the aligned one
{aligned_train:.3f} ({aligned_held_out:.3f}). The barrier over {points} τ is {barrier_naive_train:.3f} nats naive and
{barrier_aligned_train:.3f} aligned; held out, {barrier_naive_held_out:.3f} and {barrier_aligned_held_out:.3f}.

Alignment is over {group}: W₂ between the ends is {w2_naive:.2f} without and {w2_aligned:.2f} with it. Definition 2
holds at these τ, on the training points, with λ = {convexity_naive:.4f} along the naive geodesic and
λ = {convexity_aligned:.4f} along the aligned one (ℓ = −L in nats, per unit of W₂²); only λ > 0 would be convexity. It
is per squared length and says little of heights: −λW₂²/8, which bounds the barrier, is {bound_naive:.3f} and
{bound_aligned:.3f}.
"""
OTHER = """

At T = {other_temperature:g} the ends have {other_q0_train:.3f} and {other_q1_train:.3f} on the training points, and the
barrier there is {other_barrier_naive_train:.3f} naive and {other_barrier_aligned_train:.3f} aligned.
"""


def verdict(numbers: Mapping[str, Any]) -> str:
    """The sentence on agreement that the numbers allow."""
    naive, aligned = numbers["barrier_naive_train"], numbers["barrier_aligned_train"]
    if naive <= 0:
        return "\n\nThis does not agree with the paper: there is no barrier on the naive path."
    lost = "is worse than not looking at x" if numbers["naive_train"] < numbers["constant"] else "still fits somewhat"
    kept = aligned <= KEPT * naive
    agreement = "agrees" if kept and numbers["naive_train"] < numbers["constant"] else "agrees in part"
    return (
        f"\n\nThis {agreement} with the paper: halfway the naive path {lost}, and of its barrier the aligned path has "
        "{barrier_share_train:.1%} on the training points."
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
    moved = align(sym, q0, q1, restarts=config.restarts, seed=context.seed, show=context.show).aligned
    functionals = {
        name: predictive_likelihood(
            model, part, likelihood=GaussianNoise(config.noise), samples=config.samples, seed=context.seed, name=name
        )
        for name, part in zip(PARTS, (dataset.train, dataset.test), strict=True)
    }
    ways = {}
    for name, end in (("naive", q1), ("aligned", moved)):
        path = geodesic(q0, end)
        profiles = barrier(path, functionals, points=config.points, show=context.show)
        ways[name] = Way(float(wasserstein2_squared(q0, end)), path(0.5), profiles)
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
    caption = (
        "Predictive log-likelihood in nats per point (q1 and its aligned copy predict the same: they differ by their "
        "random draws); ± is the Monte Carlo standard error of the barrier; W₂ of the ends, and λ of definition 2 on "
        "the training points."
    )
    return Table(("T", "path", *measured, "W₂", "λ"), rows, caption)


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
