"""Barriers between posteriors that are draws (SGHMC) or dense Gaussians (Laplace), beside mean fields and points."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from coset import align, discover
from coset.alignment import align_samples
from coset.data import Dataset
from coset.distribution import Distribution, MeanField, Samples
from coset.distribution.divergences import wasserstein2
from coset.landscape import Profiles, barrier, geodesic, predictive_on
from coset.posterior import Isotropic, fit_laplace
from coset.study import Context, Findings, study
from coset.study.posteriors import Weights, inferred, network_of
from coset.symmetry import Symmetry
from coset_studies.posteriors.barriers_of_samples._page import (
    ALIGNED,
    CAPTION,
    CLAIMS,
    EACH,
    METHODS,
    NAIVE,
    TABLES,
    TEXT,
    WITHIN,
    draw,
)
from coset_studies.posteriors.barriers_of_samples._report import Way, numbers_of, profile_table, table


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
            data="digits", networks=((5,),), prior=0.3, temperature=1.0, epochs=3, step_size=1e-5, burn_in=20,
            thin=5, chains=2, draws=4, restarts=1, samples=4, points=5,
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
    claims=CLAIMS,
    text={"small": TEXT},
    tables=TABLES,
    figure=draw,
    caption=CAPTION,
)  # fmt: skip
def run(config: Config, context: Context) -> Findings:
    """Infer by every method from two seeds, align, and follow the geodesics."""
    dataset = context.data(config.data, flatten=True)
    ways: list[Way] = []
    with context.progress("networks", len(config.networks)) as bar:
        for widths in config.networks:
            ways += _ways_of_network(config, context, dataset, widths)
            bar.advance()
    numbers = numbers_of(config.data, config.networks, ways)
    return Findings(numbers, {"barriers": table(ways), "profiles": profile_table(config.networks, ways)})


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
    """The ends of the paths: as they are, and aligned; of draws also with an element for each draw.

    And, for comparison, from one half of the first one's chains to the other, as they are: all began at one network,
    and need no alignment as long as they keep its arrangement of units.
    """
    options: dict[str, Any] = {"restarts": config.restarts, "seed": context.seed, "show": context.show}
    if not isinstance(q0, Samples):
        return {NAIVE: (q0, q1), ALIGNED: (q0, align(sym, q0, q1, **options).aligned)}
    # One element for all draws: the one that brings their means and deviations together.
    element = align(sym, MeanField(q0.mean, q0.std), MeanField(q1.mean, q1.std), **options).element
    moved = sym.act(element, q1)
    return {
        NAIVE: (q0, q1),
        ALIGNED: (q0, moved),
        EACH: in_one_gauge(sym, q0, moved, context),
        WITHIN: parted(q0, q0.chains // 2),
    }


def in_one_gauge(sym: Symmetry, q0: Samples, q1: Samples, context: Context) -> tuple[Samples, Samples]:
    """Every draw of both moved by an element of its own, to the mean of all: as one set of draws, and taken apart."""
    both = Samples({name: torch.cat([tensor, q1.params[name]]) for name, tensor in q0.params.items()})
    return parted(align_samples(sym, both, seed=context.seed, show=context.show).aligned, q0.chains)


def parted(samples: Samples, chains: int) -> tuple[Samples, Samples]:
    """The draws of the first ``chains`` chains, and those of the others."""
    first = Samples({name: tensor[:chains] for name, tensor in samples.params.items()})
    return first, Samples({name: tensor[chains:] for name, tensor in samples.params.items()})


def _profiles(config: Config, context: Context, model: nn.Module, dataset: Dataset, start: Any, end: Any) -> Profiles:
    functionals = predictive_on(
        model, samples=config.samples, seed=context.seed, train=dataset.train, test=dataset.test
    )
    return barrier(geodesic(start, end), functionals, points=config.points, show=context.show)
