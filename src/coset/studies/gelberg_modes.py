"""Distance to the nearest equivalent mode against the width: networks, and means of mean-field posteriors."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from coset.data import Dataset, Split
from coset.distribution import MeanField, kl
from coset.distribution.density import vector
from coset.models import build, example_input
from coset.posterior import Isotropic
from coset.posterior.symmetrized import mutual_information, nearest_mode, pair_bound, pair_matrix, volume_bound
from coset.studies import Context, Findings, Scalar, Table, study
from coset.studies._inferred import inferred
from coset.studies._study import prose
from coset.symmetry import Element, Symmetry, discover
from coset.train import Recipe, evaluate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Shape = tuple[int, ...]  # widths of the hidden layers
Measured = Mapping[str, float]
Found = Mapping[tuple[int, int], Sequence[Measured]]  # by depth or training points, and width; a seed each
DEPTHS = {1: "one hidden layer", 2: "two hidden layers"}
THRESHOLDS = (2.92, 5.60)
"""Two equal Gaussians nearer than this many σ are best fitted halfway: by a mean field, by a full covariance."""
PRIOR = 1.0
SETTINGS = {"learning_rate": 1e-2, "schedule": "cosine", "prior": Isotropic(PRIOR), "std": 0.15}
EXACT_UNITS = 20  # the most whose permutations are summed exactly
HARM = 0.01  # a rise of the expected loss, in nats per point, that counts as a worse fit


@dataclass(frozen=True)
class Run:
    """Mean-field VI of one hidden layer, prior N(0, 1), on ``points`` of the training data (None: all)."""

    points: int | None
    widths: tuple[int, ...]
    epochs: int
    batch_size: int


@dataclass(frozen=True)
class Config:
    """Networks trained by ``recipe``; expected losses of ``draws`` on ``images`` training images at most."""

    data: str
    widths: tuple[int, ...]
    deep_widths: tuple[int, ...]
    seeds: int
    recipe: Recipe
    posteriors: tuple[Run, ...]
    posterior_seeds: int
    draws: int
    images: int


_SMALL = Recipe(epochs=3, batch_size=500, learning_rate=1e-3, optimizer="adam", schedule="linear")


@study(
    name="gelberg-modes",
    title="How far the nearest equivalent mode is",
    reference="Gelberg et al. 2024, Variational inference failures under model symmetries: permutation invariant "
    "posteriors for Bayesian neural networks, theorem 3.1, section 3 and appendix B",
    paper="""
    For every ω of an MLP with one hidden layer some permutation g ≠ e has ‖ω − g·ω‖ = O((d_i + d_o)/log(d_h))·‖ω‖: in
    wide networks the nearest equivalent mode is close, relative to ‖ω‖. As VI interpolates between modes that are
    closer than about 5σ (fig. 3), the paper concludes that it may interpolate between equivalent modes, and underfit.
    No distance is measured there.
    """,
    presets={
        "quick": Config(
            "digits", (4, 16, 64), (4, 16), 2, replace(_SMALL, epochs=4, batch_size=100, learning_rate=5e-3),
            (Run(None, (4, 16), 5, 50), Run(50, (4, 16), 80, 50)), 2, 4, 500,
        ),
        "small": Config(
            "mnist", (5, 10, 20, 50, 100, 200, 500, 1000), (5, 20, 100, 500), 3, _SMALL,
            (Run(None, (5, 20, 100), 10, 200), Run(1000, (5, 20, 100), 200, 100), Run(100, (5, 20, 100), 2000, 100)),
            2, 16, 5000,
        ),
        "paper": Config(
            "mnist", (5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000), (5, 20, 100, 500, 1000), 10,
            replace(_SMALL, epochs=20),
            (Run(None, (5, 10, 20, 30, 100, 300, 1000), 100, 200), Run(1000, (5, 20, 100, 300), 3000, 100),
             Run(100, (5, 20, 100, 300), 30_000, 100)), 10, 64, 60_000,
        ),
    },
)  # fmt: skip
def run(config: Config, context: Context) -> Findings:
    """Measure networks at both depths, then posteriors on all images and on few."""
    pixels = context.data(config.data, flatten=True)
    shapes = [(width,) for width in config.widths] + [(width, width) for width in config.deep_widths]
    cases = [(one, width) for one in config.posteriors for width in one.widths]
    syms = {shape: _permutations(pixels, shape) for shape in {*shapes, *((width,) for _, width in cases)}}
    networks: dict[tuple[int, int], list[Measured]] = {}
    exchanges: dict[tuple[int, int], list[Measured]] = {}
    with context.progress("nearest modes", config.seeds * len(shapes) + config.posterior_seeds * len(cases)) as bar:
        for shape in shapes:
            found = networks.setdefault((len(shape), shape[0]), [])
            for seed in range(config.seeds):
                found.append(_network(config, context, syms[shape], shape, seed))
                bar.advance(note=f"hidden layers {shape}: {found[-1]['trained']:.3f}")
        for one, width in cases:
            data = _few(context, config.data, one.points)
            found = exchanges.setdefault((len(data.train), width), [])
            for seed in range(config.posterior_seeds):
                found.append(_posterior(config, one, context, data, syms[width,], seed))
                bar.advance(note=f"posterior of {width}: {found[-1]['sigmas']:.1f}σ")
    return _findings(networks, exchanges, pixels)


def _network(config: Config, context: Context, sym: Symmetry, shape: Shape, seed: int) -> Measured:
    """Distances and bounds in units of ‖ω‖; ``rise`` of the training loss halfway to the nearest mode."""
    data = context.data(config.data, flatten=True)
    options = _options(data, shape)
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
        "rise": _loss(model, data.train, halfway, context) - entry.info["train"]["loss"],
        "accuracy": 100 * entry.info["test"]["accuracy"],
    }


def _posterior(config: Config, one: Run, context: Context, data: Dataset, sym: Symmetry, seed: int) -> Measured:
    """The nearest mode of the mean, the likeliest exchange, and what it is to be halfway there."""
    options = _options(data, (sym.classes[sym.permuting[0]].size,))
    settings = {"epochs": one.epochs, "batch_size": one.batch_size, **SETTINGS}
    fit = inferred(context, method="mean-field", model="mlp", data=data, seed=seed, settings=settings, options=options)
    q: MeanField = fit.posterior
    g, ratios = likeliest_exchange(sym, q)
    nearest = nearest_mode(sym, q)
    sigmas, along = separations(sym, q, g)
    found = {
        "relative": nearest.distance / nearest.norm,
        "sigmas": sigmas,
        "along": along,
        "log_ratio": float(ratios.max()),
        "within": 100 * float((ratios > -0.5 * THRESHOLDS[0] ** 2).double().mean()),
        **_halfway(build("mlp", seed=seed, **options), data, q, interpolated(sym, q, g), config, context),
    }
    if options["widths"][0] <= EXACT_UNITS:
        information = mutual_information(sym, q, samples=config.draws, seed=context.seed).value
        found["information"] = information / sym.log_permutations
    return found


def likeliest_exchange(sym: Symmetry, q: MeanField) -> tuple[Element, Tensor]:
    """The exchange of two units with the largest Δ = log q(g·μ) − log q(μ), and Δ of all n(n − 1)/2 exchanges.

    By ``pair_matrix`` A at the mean Δ is A_ij + A_ji − A_ii − A_jj: −½ the squared distance in deviations of q.
    """
    matrix = pair_matrix(sym, q, q.mean)
    own = matrix.diagonal()
    i, j = torch.triu_indices(len(matrix), len(matrix), offset=1)
    ratios = matrix[i, j] + matrix[j, i] - own[i] - own[j]
    best = ratios.argmax()
    order = torch.arange(len(matrix))
    order[i[best]], order[j[best]] = j[best], i[best]
    return sym.element({sym.permuting[0]: order}), ratios


def separations(sym: Symmetry, q: MeanField, g: Element) -> tuple[float, float]:
    """How far g·μ is from μ in deviations: √Σ (v/s)², and ‖v‖/√(uᵀΣu) along the line, v = g·μ − μ and u = v/‖v‖.

    The first is what a mean field sees, whatever the units of the weights; the second is never larger. Where all
    deviations agree, as in the paper's figures, both are ‖v‖/s.
    """
    parts = (q.mean, sym.act(g, q.mean), q.std)
    mean, moved, std = (vector(part, q.random_names, q.mean).double() for part in parts)
    squares = (moved - mean).square()
    spread = math.sqrt((squares * std.square()).sum())
    return math.sqrt((squares / std.square()).sum()), float(squares.sum()) / spread if spread else 0.0


def interpolated(sym: Symmetry, q: MeanField, g: Element) -> MeanField:
    """The mean field with the moments of ½(q + g·q): halfway, and as wide as both modes together."""
    other = sym.act(g, q)
    mean = {name: (tensor + other.mean[name]) / 2 for name, tensor in q.mean.items()}
    squares = {name: (s.square() + other.std[name].square()) / 2 for name, s in q.std.items()}
    std = {name: (square + (q.mean[name] - mean[name]).square()).sqrt() for name, square in squares.items()}
    return MeanField(mean, std)


def _halfway(
    model: nn.Module, data: Dataset, q: MeanField, other: MeanField, config: Config, context: Context
) -> Measured:
    """``gain`` L(other) − L(q) in nats, its ``variance``, ``rise`` of the loss per point; draws of the same noise."""
    part = Split(data.train.x[: config.images], data.train.y[: config.images])
    zero, wide = ({name: torch.full_like(q.mean[name], value) for name in q.mean} for value in (0.0, PRIOR))
    cost = float(kl(other, MeanField(zero, wide)) - kl(q, MeanField(zero, wide)))
    rises = []
    for draw in range(config.draws):
        drawn = (posterior.sample(1, context.generator(f"draw {draw}")) for posterior in (q, other))
        losses = [_loss(model, part, {name: tensor[0] for name, tensor in one.items()}, context) for one in drawn]
        rises.append(losses[1] - losses[0])
    rise, count = statistics.fmean(rises), len(data.train)
    variance = count**2 * statistics.variance(rises) / len(rises)
    return {"gain": -count * rise - cost, "variance": variance, "rise": rise}


def _loss(model: nn.Module, part: Split, params: Mapping[str, Tensor], context: Context) -> float:
    placed = {name: tensor.to(context.device) for name, tensor in params.items()}
    return evaluate(model.to(context.device), part.x, part.y, params=placed).loss


def _few(context: Context, name: str, points: int | None) -> Dataset:
    """The data in [0, 1] as they come; of the training part ``points`` chosen at random."""
    data = context.data(name, flatten=True, normalize=False)
    if points is None:
        return data
    chosen = torch.randperm(len(data.train), generator=context.generator("points"))[:points].sort().values
    mark = f"{points} points, seed {context.seed}"
    return replace(data, train=data.train.take(chosen), fingerprint=f"{data.fingerprint}, {mark}")


def _options(data: Dataset, shape: Shape) -> dict[str, Any]:
    return {"in_features": data.train.x.shape[1], "widths": list(shape), "out_features": data.outputs}


def _permutations(data: Dataset, shape: Shape) -> Symmetry:
    model = build("mlp", seed=0, **_options(data, shape))
    return discover(model, example_input(model, 2)).restrict(scales=False, signs=False)


def _findings(networks: Found, exchanges: Found, data: Dataset) -> Findings:
    numbers: dict[str, Scalar] = {"mean_field": THRESHOLDS[0], "full": THRESHOLDS[1]}
    numbers["digits"] = (data.train.x.shape[1] + data.outputs + 2) / math.log(10)
    numbers["least_volume"] = min(found[0]["volume"] for found in networks.values())
    for depth in DEPTHS:
        family = _family(networks, depth)
        for end, width in (("first", min(family)), ("last", max(family))):
            numbers[f"width_{end}_{depth}"] = width
            numbers |= {f"{key}_{end}_{depth}": _mean(family[width], key) for key in family[width][0]}
        for key in ("start", "trained"):
            slopes = exponents(family, key)
            numbers[f"slope_{key}_{depth}"] = statistics.fmean(slopes)
            numbers[f"spread_{key}_{depth}"] = statistics.stdev(slopes)
        numbers[f"slack_{depth}"] = max(_mean(found, "pair") / _mean(found, "start") for found in family.values())
    for (points, width), found in exchanges.items():
        numbers |= {f"{key}_{points}_{width}": _mean(found, key) for key in found[0]}
        numbers[f"error_{points}_{width}"] = _error(found)
    return Findings(
        numbers=numbers,
        tables={
            "networks": _table(networks, "hidden layers", NETWORK_COLUMNS, NETWORK_CAPTION),
            "posteriors": _table(exchanges, "training points", POSTERIOR_COLUMNS, POSTERIOR_CAPTION),
        },
        outcome=f"{theorem(networks)}\n\n{judge(exchanges)}",
        figure=lambda: _figure(networks, exchanges),
        caption="(a) Distance to the nearest equivalent mode, mean and standard deviation over seeds, and the bounds "
        "for one hidden layer; grey: 2, which no distance exceeds. (b) The likeliest exchange of two units under "
        "mean-field posteriors, in deviations; shaded: thresholds below which one Gaussian fits two best from halfway.",
    )


def exponents(family: Mapping[int, Sequence[Measured]], key: str) -> list[float]:
    """For each seed the slope of log value against log width, by least squares."""
    logs = np.log([[one[key] for one in found] for found in family.values()])
    return [float(slope) for slope in np.polyfit(np.log(list(family)), logs, 1)[0]]


def theorem(networks: Found) -> str:
    """Whether the bounds hold, whether distances fall, whether the theorem says so, and what lies between modes."""
    every = [one for found in networks.values() for one in found]
    holds = all(max(one["start"], one["trained"]) <= min(one["pair"], one["volume"]) for one in every)
    falls = all(slope < 0 for depth in DEPTHS for slope in exponents(_family(networks, depth), "trained"))
    empty = all(one["volume"] > 2 for one in every)
    return f"""{"As" if holds and falls else "Unlike what"} the theorem says, the nearest equivalent mode of wide
    networks is {"close" if falls else "not closer"}: with one hidden layer it is at {{trained_first_1:.2f}}‖ω‖ for
    {{width_first_1}} units and at {{trained_last_1:.3f}}‖ω‖ for {{width_last_1}}, a decay like
    n^({{slope_trained_1:.2f}} ± {{spread_trained_1:.2f}}) after training, n^({{slope_start_1:.2f}} ±
    {{spread_start_1:.2f}}) before; with two (the best exchange, an upper bound) n^({{slope_trained_2:.2f}} ±
    {{spread_trained_2:.2f}}). {"All distances lie below both bounds." if holds else "Some distance exceeds a bound."}

    {"But the theorem does not tell: its bound" if empty else "The theorem's bound"} 2D/log|G| is at least
    {{least_volume:.0f}} here, and 2 always holds. With one hidden layer between these inputs and outputs it says
    something from about 10^{{digits:.0f}} units on. That two of n units are a small part of ω is enough: 2/√(n − 1) is
    at most a factor of {{slack_1:.2f}} too large at initialisation, where units are nearly orthogonal.

    Close is relative to ‖ω‖. Halfway to the nearest mode, where each of two units is their mean, the training loss
    rises by {{rise_first_1:.2g}} nats at {{width_first_1}} units and by {{rise_last_1:.1g}} at {{width_last_1}}, with
    two hidden layers by {{rise_first_2:.2g}} and {{rise_last_2:.1g}} ({{width_last_2}} units)."""


def judge(exchanges: Found) -> str:
    """How far apart the modes of posteriors are in deviations, and what VI would gain and lose between them."""
    text = """Whether VI interpolates depends on the distance in deviations of the posterior: between two equal
    Gaussians it does below {mean_field}σ (a mean field) to {full}σ (a full covariance)."""
    reached: list[tuple[int, int]] = []
    for points in dict.fromkeys(points for points, _ in exchanges):
        family = _family(exchanges, points)
        near = [width for width, found in family.items() if _mean(found, "sigmas") < THRESHOLDS[1]]
        reached += [(points, width) for width in near]
        listed = ", ".join(f"{{sigmas_{points}_{width}:.3g}}σ ({width} units)" for width in family)
        where = f"within reach at {', '.join(map(str, near))}" if near else "never within reach"
        text += f" With {points:,} training points the likeliest exchange is at {listed}: {where}."
    if not reached:
        return f"{text} There is nothing to interpolate."
    gaining = [_mean(exchanges[case], "gain") > 2 * _error(exchanges[case]) for case in reached]
    where = "everywhere there" if all(gaining) else "in some of these cases" if any(gaining) else "nowhere"
    ends = (of(reached, key=lambda case: _mean(exchanges[case], "gain")) for of in (min, max))
    gains = " to ".join(f"{{gain_{n}_{m}:.2g}} ± {{error_{n}_{m}:.1g}} nats ({n:,} points, {m} units)" for n, m in ends)
    points, width = worst = max(reached, key=lambda case: _mean(exchanges[case], "rise"))
    fit = "suffers" if _mean(exchanges[worst], "rise") > HARM else "hardly suffers"
    return f"""{text}

    Where it is within reach, the mean field halfway, with the moments of both modes, has an ELBO that is higher by
    {gains}: VI would gain by interpolating {where}. Its expected loss is higher by at most
    {{rise_{points}_{width}:.1g}} nats per point: the fit {fit}."""


def _family(found: Found, first: int) -> dict[int, Sequence[Measured]]:
    return {width: measured for (own, width), measured in found.items() if own == first}


def _mean(found: Sequence[Measured], key: str) -> float:
    return statistics.fmean(one[key] for one in found)


def _spread(found: Sequence[Measured], key: str) -> float:
    return statistics.stdev(one[key] for one in found)


def _error(found: Sequence[Measured], key: str = "variance") -> float:
    return math.sqrt(_mean(found, key) / len(found))


def _table(found: Found, first: str, columns: Mapping[str, tuple[Callable[..., float], str]], caption: str) -> Table:
    def row(measured: Sequence[Measured]) -> list[Scalar]:
        return [of(measured, key) if key in measured[0] else None for of, key in columns.values()]

    return Table((first, "units", *columns), [[*case, *row(found[case])] for case in found], prose(caption))


NETWORK_COLUMNS = {
    "2D/log|G|": (_mean, "volume"), "2/√(n − 1)": (_mean, "pair"), "at initialisation": (_mean, "start"),
    "± initialisation": (_spread, "start"), "trained": (_mean, "trained"), "± trained": (_spread, "trained"),
    "loss halfway, nats": (_mean, "rise"), "test accuracy, %": (_mean, "accuracy"),
}  # fmt: skip
NETWORK_CAPTION = "Distances and bounds over ‖ω‖, ± over seeds. Loss halfway: its rise in training at (ω + g·ω)/2."
POSTERIOR_COLUMNS = {
    "‖g·μ − μ‖/‖μ‖": (_mean, "relative"), "distance, σ": (_mean, "sigmas"), "± seeds": (_spread, "sigmas"),
    "along the line, σ": (_mean, "along"), "Δ, nats": (_mean, "log_ratio"),
    f"pairs within {THRESHOLDS[0]}σ, %": (_mean, "within"), "ELBO gained halfway, nats": (_mean, "gain"),
    "± draws": (_error, "variance"), "loss halfway, nats per point": (_mean, "rise"),
    "I(g; ω)/log n!": (_mean, "information"),
}  # fmt: skip
POSTERIOR_CAPTION = """One hidden layer, means over seeds. ‖g·μ − μ‖/‖μ‖: the nearest mode of the mean μ. The rest is
of the exchange with the largest Δ = log q(g·μ) − log q(μ) = −½(distance, σ)². I(g; ω): exact permanents. All depends on
the inference: its rate, 1e-2, was taken for the ELBO of 100 units on MNIST (5e-3 and the paper's 1e-3 gave less in 10
epochs). At 1e-3 and constant 20 units on all of MNIST stay about 35σ apart, and halfway costs hundreds of nats."""


def _figure(networks: Found, exchanges: Found) -> "Figure":
    from coset.figures import BLUE, GREEN, GREY, ORANGE, PALETTE, PURPLE, SKY, VERMILION, label_panel, new_figure

    left, right = (figure := new_figure(9.0, 3.6)).subplots(1, 2)
    family = _family(networks, 1)
    for key, label, colour in (("volume", "2D/log|G| (theorem 3.1)", VERMILION), ("pair", "2/√(n − 1)", GREEN)):
        left.plot(list(family), [_mean(found, key) for found in family.values()], "--", color=colour, label=label)
    left.axhline(2, color=GREY, lw=1.0)
    for depth, colours in ((1, (ORANGE, BLUE)), (2, (PURPLE, SKY))):
        for key, label, colour in zip(("start", "trained"), ("at initialisation", "trained"), colours, strict=True):
            _draw(left, _family(networks, depth), key, f"{DEPTHS[depth]}, {label}", colour)
    right.axhspan(*THRESHOLDS, color="#E8E8E8", lw=0)
    for points, colour in zip(dict.fromkeys(points for points, _ in exchanges), PALETTE, strict=False):
        _draw(right, _family(exchanges, points), "sigmas", f"{points:,} training points", colour)
    label_panel(left, "a", "The nearest equivalent mode")
    label_panel(right, "b", "The likeliest exchange under a mean field")
    for axes, label, found in ((left, "‖ω − g·ω‖ / ‖ω‖", networks), (right, "distance, σ", exchanges)):
        axes.set(xscale="log", yscale="log", xlabel="hidden units", ylabel=label)
        axes.set_xticks(ticks := sorted({width for _, width in found}), list(map(str, ticks)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.tick_params(which="minor", labelbottom=False, labelleft=False)
    left.legend(loc="center right", bbox_to_anchor=(1.0, 0.62))
    right.legend()
    return figure


def _draw(axes: "Axes", family: Mapping[int, Sequence[Measured]], key: str, label: str, colour: str) -> None:
    means, spread = ([of(found, key) for found in family.values()] for of in (_mean, _spread))
    axes.errorbar(list(family), means, spread, fmt="o-", color=colour, label=label)
