"""Chains of Hamiltonian Monte Carlo that R̂ calls unmixed on weights, and mixed on functions and modulo symmetry."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from coset.distribution import Samples
from coset.distribution.files import pack, unpack
from coset.models import build
from coset.posterior import Diagnostics, GaussianNoise, diagnose, fit_hmc
from coset.study import Context, Findings, Scalar, Table, study
from coset.symmetry import Symmetry, discover
from coset_studies.posteriors.rhat._page import CAPTION, CLAIMS, NEAR, SIDES, TABLES, TEXT, draw

CHECKPOINT_SECONDS = 5.0


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
    Izmailov et al. run Hamiltonian Monte Carlo on networks: R̂ is near 1 for most predictions, while enough weights
    have a large R̂ to show that chains differ in weight space. But a posterior has a copy of every mode for each
    element of the network's symmetry group, and R̂ on weights also asks whether chains have visited the same copies,
    which says nothing about predictions. Here the two questions are told apart: draws are first brought to one gauge.
    """,
    presets={
        "quick": Config(
            data="breast-cancer", noise=None, points=40, held_out=20, width=2, widths=(2,), chains=4, warmup=20,
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
    claims=CLAIMS,
    text={"small": TEXT},
    tables=TABLES,
    figure=draw,
    caption=CAPTION,
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
    return Findings(numbers, {"mixing": _mixing_table(chains), "copies": _copies_table(chains)})


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
    return Table(columns, rows)


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
    return Table(columns, rows)
