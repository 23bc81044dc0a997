"""Chains of Hamiltonian Monte Carlo that R̂ calls unmixed on weights, and mixed on functions and modulo symmetry."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from coset.distribution import Samples
from coset.distribution.files import pack, unpack
from coset.models import build
from coset.posterior import Diagnostics, GaussianNoise, diagnose, fit_hmc
from coset.study import Context, Findings, Scalar, Table, study
from coset.symmetry import Symmetry, discover

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CHECKPOINT_SECONDS = 5.0
SIDES = {"weights": "weights as drawn", "functions": "functions", "aligned weights": "weights, aligned"}
NEAR = 1.05
"""R̂ up to here counts as near 1: about what independent draws reach by chance in so short chains."""


@dataclass(frozen=True)
class Config:
    """Networks with one hidden layer of ``widths`` tanh units, ``width`` that of the figure, on ``points`` of ``data``.

    ``noise``: standard deviation of the targets, None for labels; the prior of every weight is N(0, 1). ``chains``
    chains keep ``draws`` states, every ``thin`` iterations of ``steps`` leapfrog steps, after ``warmup`` iterations.
    Functions are looked at on ``held_out`` points more. Few points, for on all 200 of Snelson's chains of this length
    did not agree on functions either (R̂ up to 1.15), and the question would not have arisen.
    """

    data: str
    noise: float | None
    points: int
    held_out: int
    width: int
    widths: tuple[int, ...]
    chains: int
    warmup: int
    draws: int
    thin: int
    steps: int


@dataclass(frozen=True)
class _Chains:
    """The draws of one width, the points functions are looked at on, and how the draws have mixed."""

    model: nn.Module
    sym: Symmetry
    x: Tensor
    samples: Samples
    divergences: float
    found: Diagnostics

    @property
    def aligned(self) -> Samples:
        """The draws in one gauge."""
        assert self.found.alignment is not None
        return self.found.alignment.aligned

    @cached_property
    def copies(self) -> list[list[str]]:
        """For every chain the elements that bring its draws to the common gauge: in which copy of it each lies."""
        assert self.found.alignment is not None
        names = [repr([*_plain(g.permutations), *_plain(g.signs)]) for g in self.found.alignment.elements]
        return [names[first : first + self.samples.draws] for first in range(0, len(names), self.samples.draws)]

    @property
    def visited(self) -> int:
        """The number of copies in which there are draws."""
        return len({name for chain in self.copies for name in chain})

    @property
    def switches(self) -> float:
        """The share of steps from draw to draw that lead to another copy, in per cent."""
        steps = [one != other for chain in self.copies for one, other in pairwise(chain)]
        return 100 * sum(steps) / len(steps)

    @cached_property
    def norms(self) -> list[float]:
        """The mean of ‖θ‖² in every chain: permutations and signs do not change it."""
        squares = [self.samples.params[name].square().flatten(2).sum(2) for name in self.samples.random_names]
        return [float(chain) for chain in torch.stack(squares).sum(0).mean(1)]


@study(
    name="rhat-modulo-symmetry",
    title="Have the chains mixed? R̂ on weights, on functions, and modulo symmetry",
    reference="Vehtari et al. 2021 (rank-normalised split R̂); Izmailov et al. 2021 (R̂ of networks)",
    paper="""
    Izmailov et al. run Hamiltonian Monte Carlo on networks: R̂ is near 1 for most predictions, while enough weights have
    a large R̂ to show that chains differ in weight space. But a posterior has a copy of every mode for each element of
    the network's symmetry group, and R̂ on weights also asks whether chains have visited the same copies, which says
    nothing about predictions. Here the two questions are told apart: draws are first brought to one gauge.
    """,
    presets={
        "quick": Config(
            data="breast-cancer", noise=None, points=40, held_out=20, width=2, widths=(2,), chains=4, warmup=50,
            draws=20, thin=1, steps=10,
        ),
        "small": Config(
            data="snelson", noise=0.3, points=40, held_out=40, width=5, widths=(3, 5, 8), chains=8, warmup=400,
            draws=120, thin=4, steps=25,
        ),
        "paper": Config(
            data="snelson", noise=0.3, points=40, held_out=40, width=5, widths=(2, 3, 5, 8, 12), chains=16,
            warmup=2000, draws=500, thin=10, steps=50,
        ),
    },
)  # fmt: skip
def run(config: Config, context: Context) -> Findings:
    """Draw, align, measure R̂ three ways; then again on the first draws of every chain only."""
    chains: dict[int, _Chains] = {}
    with context.progress("widths", len(config.widths)) as bar:
        for width in config.widths:
            chains[width] = _chains(config, context, width)
            bar.advance(note=f"width {width}")
    main, narrowest, widest = (chains[width] for width in (config.width, config.widths[0], config.widths[-1]))
    course = _course(main)
    sides = main.found.sides
    numbers: dict[str, Scalar] = {
        "width": config.width,
        "data": config.data,
        "points": config.points,
        "chains": config.chains,
        "draws": config.draws,
        "thin": config.thin,
        "near": NEAR,
        "order": round(math.exp(main.sym.log_order)),
        "visited": main.visited,
        "switches": main.switches,
        **{f"{_word(side)}_max": mixing.max_rhat for side, mixing in sides.items()},
        **{f"{_word(side)}_median": mixing.median_rhat for side, mixing in sides.items()},
        **{f"{_word(side)}_near": 100 * (1 - mixing.share_above(NEAR)) for side, mixing in sides.items()},
        **{f"{_word(side)}_ess": float(mixing.bulk_ess.median()) for side, mixing in sides.items()},
        "fewest": min(course),
        **{f"{_word(side)}_fewest": course[min(course)][side] for side in SIDES},
        "least_norm": min(main.norms),
        "largest_norm": max(main.norms),
        "narrowest": config.widths[0],
        "narrowest_functions": narrowest.found.sides["functions"].max_rhat,
        "narrowest_aligned": narrowest.found.sides["aligned weights"].max_rhat,
        "narrowest_least_norm": min(narrowest.norms),
        "narrowest_largest_norm": max(narrowest.norms),
        "widest": config.widths[-1],
        "widest_weights": widest.found.weights.max_rhat,
        "widest_aligned": widest.found.sides["aligned weights"].max_rhat,
        "widest_switches": widest.switches,
    }
    return Findings(
        numbers=numbers,
        tables={"mixing": _mixing_table(chains), "copies": _copies_table(chains)},
        outcome=_OUTCOME,
        figure=lambda: _figure(config, chains, course),
        caption=f"(a) The weight with the largest R̂ of a network with {config.width} units, as drawn; a colour a chain."
        " (b) The same coordinate after all draws were brought to one gauge. (c) R̂ of all scalars, by the number of "
        "units, on a logarithmic scale of R̂ − 1. (d) The largest R̂ if only the first draws of every chain are used.",
    )


_OUTCOME = """
{chains} chains of {draws} draws (every {thin} iterations) of a network with {width} tanh units on {points} points of
{data}. Its group of permutations and signs has {order} elements, and every mode has as many copies; the chains were in
{visited} of them and changed the copy in {switches:.1f} % of the steps. R̂ of the weights as drawn is up to
{weights_max:.2f} (median {weights_median:.2f}), by which the run would be thrown away. On functions it is at most
{functions_max:.3f}. Modulo symmetry it is at most {aligned_weights_max:.3f}; {aligned_weights_near:.0f} % of the
weights are at {near} or below (as drawn: {weights_near:.0f} %), and the median effective sample size of a weight is
{aligned_weights_ess:.0f} instead of {weights_ess:.0f}, beside {functions_ess:.0f} on functions.

What remains falls as chains grow: with the first {fewest} draws of a chain the largest R̂ of the aligned weights is
{aligned_weights_fewest:.3f}, with all of them {aligned_weights_max:.3f}; on functions {functions_fewest:.3f} and
{functions_max:.3f}, as drawn {weights_fewest:.2f} and {weights_max:.2f}. That is what slow movement inside a mode would
do; that the gauge has a part in it is not excluded, for no other gauge was tried.

Chains in modes that the group does not relate stay apart. With {narrowest} units R̂ is up to {narrowest_functions:.2f}
on functions and {narrowest_aligned:.2f} modulo symmetry; the mean of ‖θ‖², which no permutation or sign changes, is
from {narrowest_least_norm:.0f} to {narrowest_largest_norm:.0f} over the chains, and from {least_norm:.0f} to
{largest_norm:.0f} with {width} units. With {widest} units {widest_switches:.0f} % of the steps change the copy, R̂ is
{widest_weights:.2f} as drawn and {widest_aligned:.3f} modulo symmetry. All of this is one seed and one choice of
points.
"""


def _plain(part: Mapping[str, Tensor]) -> list[list[float]]:
    return [part[name].tolist() for name in sorted(part)]


def _word(side: str) -> str:
    return side.replace(" ", "_")


def _chains(config: Config, context: Context, width: int) -> _Chains:
    data = context.data(config.data, dtype=torch.float64, flatten=True)
    order = torch.randperm(len(data.train.x), generator=context.generator("points"))
    fitted, looked_at = order[: config.points], order[config.points : config.points + config.held_out]
    sizes = {"in_features": data.train.x.shape[1], "widths": [width], "out_features": data.outputs}
    options = {**sizes, "activation": "tanh"}
    network = build("mlp", seed=context.seed, **options).double().eval().to(context.device)
    likelihood = "categorical" if config.noise is None else GaussianNoise(config.noise)
    settings: dict[str, Any] = {
        "chains": config.chains, "warmup": config.warmup, "draws": config.draws, "thin": config.thin,
        "leapfrog_steps": config.steps, "prior": 1.0, "spread": "prior",
    }  # fmt: skip
    key = {
        "kind": "posterior on a part of the data",
        "schema": 1,
        "method": "hmc",
        "model": options,
        "data": data.name,
        "fingerprint": data.fingerprint,
        "points": fitted.tolist(),
        "likelihood": repr(likelihood),
        "settings": settings,
        "seed": context.seed,
    }

    def make() -> tuple[Mapping[str, Tensor], Mapping[str, object]]:
        part = (data.train.x[fitted].to(context.device), data.train.y[fitted].to(context.device))
        found = fit_hmc(
            network, part, likelihood=likelihood, seed=context.seed, show=context.show, **settings,
            checkpoint=context.store.checkpoint(key), checkpoint_seconds=CHECKPOINT_SECONDS,
        )  # fmt: skip
        tensors, description = pack(found.posterior)
        divergences = sum(record["divergences"] for record in found.trace if not record["burn_in"])
        return tensors, {"distribution": description, "divergences": divergences}

    entry = context.store.get_or_make(key, make)
    samples = unpack(entry.params, entry.info["distribution"])
    assert isinstance(samples, Samples)
    x = data.train.x[looked_at]
    sym = discover(network, x[:2].to(context.device))
    found = diagnose(samples, model=network, x=x, likelihood=likelihood, sym=sym, show=context.show)
    return _Chains(network, sym, x, samples, entry.info["divergences"], found)


def _course(chains: _Chains) -> dict[int, dict[str, float]]:
    """The largest R̂ of each side on the first draws of every chain: by their number, from 10 on."""
    total = chains.samples.draws
    counts = sorted({*(10 * 2**power for power in range(int(math.log2(total / 10)) + 1)), total})
    course = {}
    for count in counts:
        drawn, aligned = (
            Samples({name: tensor[:, :count] for name, tensor in samples.params.items()})
            for samples in (chains.samples, chains.aligned)
        )
        found = diagnose(drawn, model=chains.model, x=chains.x, show=False)
        assert found.functions is not None
        numbers = (found.weights, found.functions, diagnose(aligned, show=False).weights)
        course[count] = {side: mixing.max_rhat for side, mixing in zip(SIDES, numbers, strict=True)}
    return course


def _mixing_table(chains: Mapping[int, _Chains]) -> Table:
    columns = (
        "units", "R̂ of", "scalars", "max R̂", "median R̂", f"R̂ ≤ {NEAR}, %", "R̂ ≤ 1.01, %", "least bulk ESS",
        "median bulk ESS", "least tail ESS",
    )  # fmt: skip
    rows: list[list[Scalar]] = [
        [
            width, SIDES[side], len(mixing), mixing.max_rhat, mixing.median_rhat,
            100 * (1 - mixing.share_above(NEAR)), 100 * (1 - mixing.share_above(1.01)),
            mixing.min_bulk_ess, float(mixing.bulk_ess.median()), mixing.min_tail_ess,
        ]
        for width, one in chains.items()
        for side, mixing in one.found.sides.items()
    ]  # fmt: skip
    return Table(columns, rows, "R̂ and effective sample sizes (ESS) of the same draws, seen in three ways.")


def _copies_table(chains: Mapping[int, _Chains]) -> Table:
    columns = (
        "units", "copies of a mode", "copies visited", "steps that change the copy, %", "alignment settled",
        "least ‖θ‖² of a chain", "largest", "divergences",
    )  # fmt: skip
    rows: list[list[Scalar]] = [
        [
            width,
            round(math.exp(one.sym.log_order)),
            one.visited,
            one.switches,
            one.found.alignment is not None and one.found.alignment.settled,
            min(one.norms),
            max(one.norms),
            one.divergences,
        ]
        for width, one in chains.items()
    ]
    return Table(
        columns,
        rows,
        "Where the chains were; ‖θ‖², the mean over a chain, is the same in all copies.",
    )


def _figure(config: Config, chains: Mapping[int, _Chains], course: Mapping[int, Mapping[str, float]]) -> "Figure":
    from coset.figures import BLUE, GREEN, VERMILION, label_panel, new_figure

    colours = dict(zip(SIDES, (VERMILION, GREEN, BLUE), strict=True))
    figure = new_figure(9.0, 6.0)
    (raw, aligned), (strips, lengths) = figure.subplots(2, 2)
    main = chains[config.width]
    worst = int(main.found.weights.rhat.argmax())
    name = main.found.weights.name(worst)
    for axes, samples, letter, title in (
        (raw, main.samples, "a", f"{name}, as drawn"),
        (aligned, main.aligned, "b", f"{name}, aligned"),
    ):
        _trace(axes, samples, int(main.found.weights.places[worst]))
        label_panel(axes, letter, title)
    aligned.sharey(raw)
    _strips(strips, chains, colours)
    label_panel(strips, "c", f"{_RHAT} of every scalar")
    for side, label in SIDES.items():
        shown = [(count, _shown(numbers[side])) for count, numbers in course.items()]
        lengths.plot(*zip(*shown, strict=True), "o-", color=colours[side], label=label)
    lengths.set_xscale("log", base=2)
    lengths.set_xticks(list(course), [str(count) for count in course], minor=False)
    lengths.set_xlabel("draws of each chain")
    lengths.set_ylabel(f"largest {_RHAT}")
    _log_rhat(lengths)
    lengths.legend()
    label_panel(lengths, "d", f"With longer chains, {config.width} units")
    return figure


def _trace(axes: "Axes", samples: Samples, place: int) -> None:
    """One scalar of every draw, a colour a chain."""
    from coset.figures import GREY, INK, PALETTE

    flat = torch.cat([samples.params[name].flatten(2) for name in samples.random_names], 2)
    colours = (*PALETTE, INK, GREY)
    for number, chain in enumerate(flat[..., place].tolist()):
        axes.plot(range(1, len(chain) + 1), chain, ".", markersize=3, color=colours[number % len(colours)])
    axes.set_xlabel("draw")
    axes.set_ylabel("value of the weight")


def _strips(axes: "Axes", chains: Mapping[int, _Chains], colours: Mapping[str, str]) -> None:
    """R̂ of all scalars as dots side by side, in the order of their names."""
    for group, one in enumerate(chains.values()):
        for column, (side, mixing) in enumerate(one.found.sides.items()):
            across = [group + 0.27 * (column - 1 + 0.7 * (at + 0.5) / len(mixing) - 0.35) for at in range(len(mixing))]
            heights = [_shown(rhat) for rhat in mixing.rhat.tolist()]
            label = SIDES[side] if not group else None
            axes.plot(across, heights, ".", markersize=4, alpha=0.7, color=colours[side], label=label)
    axes.set_xticks(range(len(chains)), [f"{width} units" for width in chains])
    axes.grid(False, axis="x")
    axes.set_ylabel(_RHAT)
    axes.legend(ncols=3, loc="upper center", handletextpad=0.1, columnspacing=1.0)
    _log_rhat(axes)


def _shown(rhat: float) -> float:
    """R̂ − 1 inside the frame of the logarithmic axis."""
    return min(max(rhat - 1, _FLOOR), _CEILING)


_FLOOR, _CEILING = 1e-3, 9.0
_RHAT = r"$\hat{R}$"
"""As mathematics: the font sets a combining hat beside its letter."""


def _log_rhat(axes: "Axes") -> None:
    from coset.figures import INK

    axes.set_yscale("log")
    axes.set_ylim(0.8 * _FLOOR, _CEILING)
    marks = {0.001: "≤ 1.001", 0.01: "1.01", NEAR - 1: str(NEAR), 0.2: "1.2", 1.0: "2", 4.0: "5"}
    axes.set_yticks(list(marks), list(marks.values()))
    axes.minorticks_off()
    axes.axhline(NEAR - 1, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
