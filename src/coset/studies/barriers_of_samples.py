"""Barriers between posteriors that are draws (SGHMC) or dense Gaussians (Laplace), beside mean fields and points."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from coset import align, discover
from coset.alignment import align_samples
from coset.data import Dataset
from coset.distribution import Distribution, MeanField, Samples
from coset.distribution.divergences import wasserstein2
from coset.landscape import Profile, Profiles, barrier, geodesic, predictive_on
from coset.posterior import Isotropic, fit_laplace
from coset.studies import Context, Findings, Scalar, Table, study
from coset.studies._inferred import inferred, network_of
from coset.studies._uci_methods import Weights
from coset.symmetry import Symmetry

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

METHODS = {"map": "MAP", "mean-field": "mean-field VI", "laplace": "Laplace, dense", "sgmcmc": "SGHMC"}
NAIVE, ALIGNED, EACH = "naive", "aligned", "draw by draw"
LOW = 0.1
"""A barrier has gone with alignment if at most this share of it is left."""


@dataclass(frozen=True)
class Config:
    """MLPs with the hidden ``networks`` on ``data``, from two seeds; the first is the one on which all methods are run.

    Prior N(0, ``prior``²), posterior at ``temperature``. MAP: ``epochs`` of Adam. From there each of the others: mean
    field, twice as many epochs; Laplace, where a network has at most ``dense`` weights; SGHMC, ``chains`` of ``draws``
    draws, every ``thin`` steps of ``step_size`` after ``burn_in``. ``points`` and ``samples``: τ, and networks at each.
    """

    data: str
    networks: tuple[tuple[int, ...], ...]
    prior: float
    temperature: float
    epochs: int
    step_size: float
    burn_in: int
    thin: int
    chains: int
    draws: int
    restarts: int = 10
    dense: int = 2000
    samples: int = 32
    points: int = 25
    batch_size: int = 100
    learning_rate: float = 5e-3


@dataclass(frozen=True, eq=False)
class Way:
    """A path between the two posteriors of a method on a network: W₂ of its ends, and profiles on both parts."""

    network: tuple[int, ...]
    weights: int
    method: str
    alignment: str
    length: float
    profiles: Profiles

    def log_likelihood(self, part: str) -> Profile:
        """The predictive log-likelihood on "train" or "test"."""
        return self.profiles[f"{part} log-likelihood"]


@study(
    name="barriers-of-samples",
    title="Barriers between draws and between dense Gaussians",
    reference="Rossi et al. 2023, definition 3 and the open question of appendix A (Laplace, SGHMC)",
    paper="""
    Barriers are reported for mean-field posteriors only, and vanish with alignment where networks are wide. The paper
    leaves open whether this extends to the Laplace approximation, whose dense covariance its algorithm 1 does not
    take, and to draws as SGHMC gives them, for which the geodesic needs an approximation.
    """,
    presets={
        "quick": Config(
            data="digits", networks=((8,),), prior=0.3, temperature=1.0, epochs=5, step_size=1e-5, burn_in=50,
            thin=5, chains=2, draws=4, restarts=2, samples=8, points=5,
        ),
        "small": Config(
            data="digits", networks=((20,), (128,), (128, 128)), prior=0.3, temperature=1.0, epochs=100,
            step_size=1e-5, burn_in=1000, thin=100, chains=2, draws=16,
        ),
        "paper": Config(
            data="digits", networks=((20,), (128,), (128, 128), (512, 512)), prior=0.3, temperature=1.0, epochs=300,
            step_size=1e-5, burn_in=10000, thin=500, chains=4, draws=32, dense=10000, samples=128,
        ),
    },
)  # fmt: skip
def run(config: Config, context: Context) -> Findings:
    """Infer by every method from two seeds, align, and follow the geodesics."""
    dataset = context.data(config.data, flatten=True)
    ways: list[Way] = []
    with context.progress("networks", len(config.networks)) as bar:
        for widths in config.networks:
            ways += _ways_of_network(config, context, dataset, widths)
            bar.advance()
    numbers = _numbers(config, ways)
    return Findings(
        numbers=numbers,
        tables={"barriers": _table(ways), "profiles": _profile_table(config, ways)},
        outcome=OUTCOME + verdict(numbers) + (SWEEP if len(config.networks) > 1 else ""),
        figure=lambda: _figure(config, ways),
        caption=(
            f"Predictive log-likelihood along the geodesics of the network with {_words(config.networks[0])} hidden "
            f"units (solid: test, dashed: train), and the barrier on the test part by the network."
        ),
    )


def _ways_of_network(config: Config, context: Context, dataset: Dataset, widths: tuple[int, ...]) -> list[Way]:
    options = {"in_features": dataset.shape[0], "widths": list(widths), "out_features": dataset.outputs}
    model = network_of("mlp", options, seed=0).to(context.device)
    count = sum(parameter.numel() for parameter in model.parameters())
    methods = [method for method in METHODS if method != "laplace" or count <= config.dense]
    pairs: dict[str, list[Any]] = {method: [] for method in methods}
    for seed in (context.seed, context.seed + 1):
        for method, posterior in _posteriors(config, context, options, methods, seed).items():
            pairs[method].append(posterior)
    # W₂ is invariant under permutations, not under scales.
    sym = discover(model, dataset.train.x[:2].to(context.device)).restrict(scales=False)
    found = []
    for method, (q0, q1) in pairs.items():
        for alignment, (start, end) in _aligned(config, context, sym, q0, q1).items():
            profiles = _profiles(config, context, model, dataset, start, end)
            length = float(wasserstein2(start, end))
            found.append(Way(widths, count, method, alignment, length, profiles))
    return found


def _posteriors(
    config: Config, context: Context, options: Mapping[str, Any], methods: Iterable[str], seed: int
) -> dict[str, Distribution]:
    """By every method from one seed; all begin at the MAP point of the seed."""
    belief: dict[str, Any] = {"prior": Isotropic(config.prior), "temperature": config.temperature}

    def infer(method: str, **settings: Any) -> Any:
        return inferred(
            context,
            method=method,
            model="mlp",
            data=config.data,
            seed=seed,
            settings={**belief, **settings},
            options=options,
            data_options={"flatten": True},
        ).posterior

    descent = {"batch_size": config.batch_size, "learning_rate": config.learning_rate, "schedule": "cosine"}
    point = infer("map", epochs=config.epochs, **descent)
    start = Weights(point.params)

    def laplace() -> Distribution:
        # Seconds of work: not worth the room that a dense covariance takes in the store.
        model = network_of("mlp", options, seed=seed).to(context.device)
        train = context.data(config.data, flatten=True).train
        return fit_laplace(
            model, train, structure="full", start=start, **belief, seed=seed, show=context.show
        ).posterior

    chains = {name: getattr(config, name) for name in ("step_size", "burn_in", "draws", "thin", "chains", "batch_size")}
    makers: dict[str, Callable[[], Distribution]] = {
        "map": lambda: point,
        "mean-field": lambda: infer("mean-field", epochs=2 * config.epochs, **descent, start=start, std=0.03),
        "laplace": laplace,
        "sgmcmc": lambda: infer("sgmcmc", **chains, start=start, spread=0.0),
    }
    return {method: makers[method]() for method in methods}


def _aligned(config: Config, context: Context, sym: Symmetry, q0: Any, q1: Any) -> dict[str, tuple[Any, Any]]:
    """The ends of the paths: as they are, and aligned; of draws also with an element for each draw."""
    options: dict[str, Any] = {"restarts": config.restarts, "seed": context.seed, "show": context.show}
    if not isinstance(q0, Samples):
        return {NAIVE: (q0, q1), ALIGNED: (q0, align(sym, q0, q1, **options).aligned)}
    # One element for all draws: the one that brings their means and deviations together.
    element = align(sym, MeanField(q0.mean, q0.std), MeanField(q1.mean, q1.std), **options).element
    moved = sym.act(element, q1)
    return {NAIVE: (q0, q1), ALIGNED: (q0, moved), EACH: in_one_gauge(sym, q0, moved, context)}


def in_one_gauge(sym: Symmetry, q0: Samples, q1: Samples, context: Context) -> tuple[Samples, Samples]:
    """Every draw of both moved by an element of its own, to the mean of all: as one set of draws, and taken apart."""
    both = Samples({name: torch.cat([tensor, q1.params[name]]) for name, tensor in q0.params.items()})
    moved = align_samples(sym, both, seed=context.seed, show=context.show).aligned
    first = Samples({name: tensor[: q0.chains] for name, tensor in moved.params.items()})
    return first, Samples({name: tensor[q0.chains :] for name, tensor in moved.params.items()})


def _profiles(config: Config, context: Context, model: nn.Module, dataset: Dataset, start: Any, end: Any) -> Profiles:
    functionals = predictive_on(
        model, samples=config.samples, seed=context.seed, train=dataset.train, test=dataset.test
    )
    return barrier(geodesic(start, end), functionals, points=config.points, show=context.show)


OUTCOME = """
On {data}, with {weights} weights, the barrier in test log-likelihood between two seeds is, naive and aligned, in nats
per point: {map_naive:.3f} and {map_aligned:.3f} for MAP points, {mean_field_naive:.3f} and {mean_field_aligned:.3f} for
mean-field VI, {laplace_naive:.3f} and {laplace_aligned:.3f} for Laplace with a dense covariance, {sgmcmc_naive:.3f} and
{sgmcmc_aligned:.3f} for SGHMC.

A Gaussian is aligned by its means and marginal deviations and carries its covariance along; draws are aligned by one
element that brings their means and deviations together. With an element for each draw (each moved to the mean of all)
the barrier of SGHMC is {sgmcmc_each:.3f}, and W₂ {w2_each:.2f} beside {w2_aligned:.2f} with one for all and
{w2_naive:.2f} without.

"""


def verdict(numbers: Mapping[str, Any]) -> str:
    """The sentences on agreement that the numbers allow."""
    lower = [method for method in METHODS if numbers[f"{_key(method)}_aligned"] < numbers[f"{_key(method)}_naive"]]
    gone = [method for method in lower if numbers[f"{_key(method)}_share"] <= LOW]
    new = [method for method in ("laplace", "sgmcmc") if method in lower]
    if len(new) == 2:
        text = "Here the answer to the open question is yes: alignment lowers both of the new barriers. "
    elif new:
        text = (
            f"Here the answer to the open question is mixed: alignment lowers the barrier of {METHODS[new[0]]} only. "
        )
    else:
        text = "Here the answer to the open question is no: alignment lowers neither of the new barriers. "
    text += "Of the naive barrier there remain {laplace_share:.1%} (Laplace) and {sgmcmc_share:.1%} (SGHMC), beside "
    text += "{mean_field_share:.1%} (mean-field VI) and {map_share:.1%} (MAP). "
    if len(gone) == len(METHODS):
        return text + "Even so narrow a network aligns: a tenth or less is left by every method.\n\n"
    left = ", ".join(METHODS[method] for method in METHODS if method not in gone)
    return text + f"So narrow a network does not align perfectly: more than a tenth is left for {left}.\n\n"


SWEEP = """
On the widest network ({widest}), where Laplace's covariance is too large, the aligned test barriers are
{widest_map:.3f} (MAP), {widest_mean_field:.3f} (mean-field VI) and {widest_sgmcmc:.3f} (SGHMC; {widest_each:.3f} draw
by draw), of naive ones of {widest_map_naive:.3f}, {widest_mean_field_naive:.3f} and {widest_sgmcmc_naive:.3f}.
"""


def _key(method: str) -> str:
    return method.replace("-", "_")


def _words(widths: tuple[int, ...]) -> str:
    return " and ".join(str(width) for width in widths)


def _numbers(config: Config, ways: Iterable[Way]) -> dict[str, Any]:
    found = {(way.network, way.method, way.alignment): way for way in ways}
    first, widest = config.networks[0], config.networks[-1]
    numbers: dict[str, Any] = {
        "data": config.data,
        "weights": found[first, "map", NAIVE].weights,
        "widest": f"{_words(widest)} hidden units",
        "w2_naive": found[first, "sgmcmc", NAIVE].length,
        "w2_aligned": found[first, "sgmcmc", ALIGNED].length,
        "w2_each": found[first, "sgmcmc", EACH].length,
        "sgmcmc_each": found[first, "sgmcmc", EACH].log_likelihood("test").barrier,
        "widest_each": found[widest, "sgmcmc", EACH].log_likelihood("test").barrier,
    }
    for method in METHODS:
        name = _key(method)
        ends = [found[first, method, alignment] for alignment in (NAIVE, ALIGNED)]
        for part, suffix in (("test", ""), ("train", "_train")):
            naive, aligned = (way.log_likelihood(part).barrier for way in ends)
            numbers |= {f"{name}_naive{suffix}": naive, f"{name}_aligned{suffix}": aligned}
            numbers[f"{name}_share{suffix}"] = aligned / naive if naive > 0 else 1.0
        if (widest, method, ALIGNED) in found:
            naive, aligned = (
                found[widest, method, alignment].log_likelihood("test").barrier for alignment in (NAIVE, ALIGNED)
            )
            numbers |= {f"widest_{name}": aligned, f"widest_{name}_naive": naive}
    return numbers


def _table(ways: Iterable[Way]) -> Table:
    rows: list[list[Scalar]] = []
    for way in ways:
        train, test, error = way.log_likelihood("train"), way.log_likelihood("test"), way.profiles["test error"]
        row: list[Scalar] = [_words(way.network), way.weights, METHODS[way.method], way.alignment, way.length]
        for profile in (train, test):
            row += [(profile.values[0] + profile.values[-1]) / 2, profile.barrier, profile.barrier_error]
        rows.append([*row, 50 * (error.values[0] + error.values[-1]), 100 * error.midpoint.value])
    columns = (
        "hidden units", "weights", "method", "path", "W₂", "train, ends", "train barrier", "± train", "test, ends",
        "test barrier", "± test", "test error, ends, %", "halfway, %",
    )  # fmt: skip
    caption = (
        "Predictive log-likelihood in nats per point: the mean of both ends, and the barrier with its Monte Carlo "
        "standard error. Errors: the mean of both ends, and at τ = 1/2."
    )
    return Table(columns, rows, caption)


def _profile_table(config: Config, ways: Iterable[Way]) -> Table:
    shown = {
        f"{METHODS[way.method]}, {way.alignment}, {part}": way.log_likelihood(part)
        for way in ways
        if way.network == config.networks[0]
        for part in ("train", "test")
    }
    taus = next(iter(shown.values())).taus
    rows = list(zip(taus, *(profile.values for profile in shown.values()), strict=True))
    caption = (
        f"Predictive log-likelihood along the paths of the network with {_words(config.networks[0])} hidden units."
    )
    return Table(("τ", *shown), rows, caption)


def _figure(config: Config, ways: list[Way]) -> "Figure":
    from coset.figures import label_panel, new_figure

    sweep = len(config.networks) > 1
    figure = new_figure(12.0 if sweep else 9.6, 3.0)
    panels = figure.subplots(1, len(METHODS) + sweep)
    for axes, letter, (method, title) in zip(panels, "abcd", METHODS.items(), strict=False):
        for way in ways:
            if way.network == config.networks[0] and way.method == method:
                _draw(axes, way)
        label_panel(axes, letter, title)
        axes.set_xlabel("τ")
        axes.legend(loc="lower center")
    low = min(axes.get_ylim()[0] for axes in panels[: len(METHODS)])
    for axes in panels[: len(METHODS)]:
        # The legend stands below the curves.
        axes.set_ylim(1.35 * low, 0.0)
    panels[0].set_ylabel("log-likelihood (nats)")
    if sweep:
        _draw_sweep(panels[-1], config, ways)
        label_panel(panels[-1], "e", "by network")
    return figure


def _draw(axes: "Axes", way: Way) -> None:
    from coset.figures import BLUE, GREEN, VERMILION

    colour = {NAIVE: VERMILION, ALIGNED: BLUE, EACH: GREEN}[way.alignment]
    for part, stroke, label in (("test", "-", way.alignment), ("train", "--", None)):
        profile = way.log_likelihood(part)
        axes.plot(profile.taus, profile.values, color=colour, linestyle=stroke, label=label, linewidth=1.4)


def _draw_sweep(axes: "Axes", config: Config, ways: list[Way]) -> None:
    from coset.figures import PALETTE

    for number, (method, title) in enumerate(METHODS.items()):
        for alignment, stroke in ((NAIVE, ":"), (ALIGNED, "-")):
            found = [way for way in ways if way.method == method and way.alignment == alignment]
            places = [config.networks.index(way.network) for way in found]
            # A barrier of 0 has no place on a logarithmic axis.
            heights = [max(way.log_likelihood("test").barrier, 1e-4) for way in found]
            label = title if alignment == ALIGNED else None
            axes.plot(places, heights, color=PALETTE[number], marker="osD^"[number], linestyle=stroke, label=label)
    axes.set_yscale("log")
    axes.set_xticks(range(len(config.networks)), ["\n".join(map(str, widths)) for widths in config.networks])
    axes.set_xlabel("hidden units")
    axes.set_ylabel("test barrier (nats)")
    axes.legend(title="aligned; dotted: naive", title_fontsize=8.0, loc="best")
