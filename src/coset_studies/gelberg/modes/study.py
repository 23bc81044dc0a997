"""Distance to the nearest equivalent mode against the width: networks, and means of mean-field posteriors."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from coset.data import Dataset
from coset.models import build, example_input
from coset.posterior.symmetrized import nearest_mode, pair_bound, volume_bound
from coset.study import Context, Findings, Scalar, Table, prose, study
from coset.symmetry import Symmetry, discover
from coset.train import Recipe
from coset_studies.gelberg.modes._claims import CLAIMS
from coset_studies.gelberg.modes._figure import CAPTION, DEPTHS, draw
from coset_studies.gelberg.modes._found import (
    Case,
    Measured,
    Networks,
    Posteriors,
    Run,
    error,
    exponents,
    mean,
    of_depth,
    shortfall,
    spread,
    thresholds,
)
from coset_studies.gelberg.modes._page import NETWORK_CAPTION, TABLES, TEXT, posterior_caption
from coset_studies.gelberg.modes._posteriors import Sampling, few, loss, measure, options_of

Shape = tuple[int, ...]  # widths of the hidden layers
Columns = Mapping[str, tuple[Callable[..., Scalar], str]]  # a statistic over seeds, and of what


@dataclass(frozen=True)
class Config:
    """Networks trained by ``recipe``, ``seeds`` of each shape, and the posteriors of some runs."""

    data: str
    widths: tuple[int, ...]
    deep_widths: tuple[int, ...]
    seeds: int
    recipe: Recipe
    posteriors: tuple[Run, ...]
    sampling: Sampling


_RECIPE = Recipe(epochs=3, batch_size=500, learning_rate=1e-3, optimizer="adam", schedule="linear")
_ANNEALED = Run("annealed", None, (5, 20, 100), 10, 200, 1e-2, "cosine", 2)
_CONSTANT = Run("constant", None, (5, 20, 100), 10, 100, 1e-3, "constant", 2)


@study(
    name="gelberg-modes",
    title="How far the nearest equivalent mode is",
    reference="Gelberg et al. 2024, Variational inference failures under model symmetries: permutation invariant "
    "posteriors for Bayesian neural networks, theorem 3.1, section 3 and appendix B",
    paper="""
    For every ω of an MLP with one hidden layer some permutation g ≠ e has ‖ω − g·ω‖ = O((d_i + d_o)/log(d_h))·‖ω‖: in
    wide networks the nearest equivalent mode is close, relative to ‖ω‖. As VI interpolates between modes that are
    closer than about 5σ (fig. 3), the paper concludes that it may interpolate between equivalent modes, and underfit.
    No distance is measured there. Its posteriors of MNIST are trained by Adam at 1e-3 for 10 epochs, in batches of 100.
    """,
    presets={
        "quick": Config(
            "digits", (4, 16), (4, 16), 2, replace(_RECIPE, epochs=4, batch_size=100, learning_rate=5e-3),
            (replace(_CONSTANT, widths=(4, 16), epochs=4, batch_size=50, seeds=1),
             replace(_ANNEALED, widths=(4, 16), epochs=4, batch_size=50),
             replace(_ANNEALED, points=50, widths=(4, 16), epochs=10, batch_size=50, seeds=1)), Sampling(4, 500),
        ),
        "small": Config(
            "mnist", (5, 10, 20, 50, 100, 200, 500, 1000), (5, 20, 100, 500), 3, _RECIPE,
            (_CONSTANT, _ANNEALED, replace(_CONSTANT, name="longer", widths=(100,), epochs=40, seeds=1),
             replace(_ANNEALED, points=1000, epochs=200, batch_size=100),
             replace(_ANNEALED, points=100, epochs=2000, batch_size=100)), Sampling(16, 5000),
        ),
        "paper": Config(
            "mnist", (5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000), (5, 20, 100, 500, 1000), 10,
            replace(_RECIPE, epochs=20),
            (replace(_CONSTANT, widths=(5, 10, 20, 30, 100, 300, 1000), seeds=10),
             replace(_ANNEALED, widths=(5, 10, 20, 30, 100, 300, 1000), epochs=100, seeds=10),
             replace(_CONSTANT, name="longer", widths=(5, 10, 20, 30, 100, 300, 1000), epochs=400, seeds=10),
             replace(_ANNEALED, points=1000, widths=(5, 20, 100, 300), epochs=3000, batch_size=100, seeds=10),
             replace(_ANNEALED, points=100, widths=(5, 20, 100, 300), epochs=30_000, batch_size=100, seeds=10)),
            Sampling(64, 60_000),
        ),
    },
    claims=CLAIMS,
    text={"small": TEXT},
    tables=TABLES,
    figure=draw,
    caption=CAPTION,
)  # fmt: skip
def run(config: Config, context: Context) -> Findings:
    """Measure networks at both depths, then posteriors on all images and on few."""
    pixels = context.data(config.data, flatten=True)
    shapes = [(width,) for width in config.widths] + [(width, width) for width in config.deep_widths]
    pairs = [(one, width) for one in config.posteriors for width in one.widths]
    syms = {shape: _permutations(pixels, shape) for shape in {*shapes, *((width,) for _, width in pairs)}}
    networks: dict[tuple[int, int], list[Measured]] = {}
    posteriors: dict[Case, list[Measured]] = {}
    with context.progress("nearest modes", config.seeds * len(shapes) + sum(one.seeds for one, _ in pairs)) as bar:
        for shape in shapes:
            found = networks.setdefault((len(shape), shape[0]), [])
            for seed in range(config.seeds):
                found.append(_network(config, context, syms[shape], shape, seed))
                bar.advance(note=f"hidden layers {shape}: {found[-1]['trained']:.3f}")
        for one, width in pairs:
            data = few(context, config.data, one.points)
            found = posteriors.setdefault(Case(len(data.train), one, width), [])
            for seed in range(one.seeds):
                found.append(measure(one, config.sampling, context, data, syms[width,], seed))
                bar.advance(note=f"posterior of {width}: {found[-1]['sigmas']:.1f}σ")
    return _findings(networks, posteriors, pixels, config.sampling)


def _network(config: Config, context: Context, sym: Symmetry, shape: Shape, seed: int) -> Measured:
    """Distances and bounds in units of ‖ω‖; ``rise`` of the training loss halfway to the nearest mode."""
    data = context.data(config.data, flatten=True)
    options = options_of(data, shape)
    entry = context.trained(
        model="mlp", data=config.data, recipe=config.recipe, seed=seed, options=options, data_options={"flatten": True}
    )
    model = build("mlp", seed=seed, **options)
    start, nearest = nearest_mode(sym, dict(model.state_dict())), nearest_mode(sym, entry.params)
    moved = sym.act(nearest.element, entry.params)
    halfway = {name: (tensor + moved[name]) / 2 for name, tensor in entry.params.items()}
    return {
        "volume": volume_bound(1.0, nearest.dimension, sym.log_permutations),
        "pair": pair_bound(1.0, shape[0]),
        "start": start.distance / start.norm,
        "trained": nearest.distance / nearest.norm,
        "rise": loss(model, data.train, halfway, context) - entry.info["train"]["loss"],
        "accuracy": 100 * entry.info["test"]["accuracy"],
    }


def _permutations(data: Dataset, shape: Shape) -> Symmetry:
    model = build("mlp", seed=0, **options_of(data, shape))
    return discover(model, example_input(model, 2)).restrict(scales=False, signs=False)


def _findings(networks: Networks, posteriors: Posteriors, data: Dataset, how: Sampling) -> Findings:
    return Findings(
        numbers=_numbers_of_networks(networks, data) | _numbers_of_posteriors(posteriors),
        tables={"networks": _network_table(networks), "posteriors": _posterior_table(posteriors, how)},
    )


def _numbers_of_networks(networks: Networks, data: Dataset) -> dict[str, Scalar]:
    numbers: dict[str, Scalar] = {"digits": (data.train.x.shape[1] + data.outputs + 2) / math.log(10)}
    numbers["least_volume"] = min(found[0]["volume"] for found in networks.values())
    for depth in DEPTHS:
        family = of_depth(networks, depth)
        for end, width in (("first", min(family)), ("last", max(family))):
            numbers[f"width_{end}_{depth}"] = width
            numbers |= {f"{key}_{end}_{depth}": mean(family[width], key) for key in family[width][0]}
        for key in ("start", "trained"):
            slopes = exponents(family, key)
            numbers[f"slope_{key}_{depth}"] = statistics.fmean(slopes)
            numbers[f"spread_{key}_{depth}"] = statistics.stdev(slopes)
        numbers[f"slack_{depth}"] = max(mean(found, "pair") / mean(found, "start") for found in family.values())
    return numbers


def _numbers_of_posteriors(posteriors: Posteriors) -> dict[str, Scalar]:
    numbers: dict[str, Scalar] = dict(zip(("mean_field", "full"), thresholds(), strict=True))
    for case, found in posteriors.items():
        numbers |= {case.number(key): mean(found, key) for key in found[0]}
        numbers[case.number("error")] = error(found)
        numbers[case.number("short")] = shortfall(posteriors, case)
    return numbers


def _network_table(networks: Networks) -> Table:
    columns: Columns = {
        "2D/log|G|": (mean, "volume"), "2/√(n − 1)": (mean, "pair"), "at initialisation": (mean, "start"),
        "± initialisation": (spread, "start"), "trained": (mean, "trained"), "± trained": (spread, "trained"),
        "loss halfway, nats": (mean, "rise"), "test accuracy, %": (mean, "accuracy"),
    }  # fmt: skip
    rows = [[*case, *_row(found, columns)] for case, found in networks.items()]
    return Table(("hidden layers", "units", *columns), rows, NETWORK_CAPTION)


def _posterior_table(posteriors: Posteriors, how: Sampling) -> Table:
    columns: Columns = {
        "ELBO, nats per point": (mean, "elbo"), "late rise": (mean, "late"), "‖g·μ − μ‖/‖μ‖": (mean, "relative"),
        "distance, σ": (mean, "sigmas"), "± seeds": (spread, "sigmas"), "along the line, σ": (mean, "along"),
        "Δ, nats": (mean, "log_ratio"), f"pairs within {thresholds()[0]:.2f}σ, %": (mean, "within"),
        "ELBO gained halfway, nats": (mean, "gain"), "± draws": (error, "variance"),
        "loss halfway, nats per point": (mean, "rise"), "I(g; ω)/log n!": (mean, "information"),
    }  # fmt: skip
    rows: list[list[Scalar]] = [
        [case.points, case.run.name, case.run.told, case.run.seeds, case.width, *_row(found, columns)]
        for case, found in posteriors.items()
    ]
    first = ("training points", "inference", "rate, schedule, batch, epochs", "seeds", "units")
    return Table((*first, *columns), rows, prose(posterior_caption(how)))


def _row(found: Sequence[Measured], columns: Columns) -> list[Scalar]:
    return [of(found, key) if key in found[0] else None for of, key in columns.values()]
