"""A hundred perceptrons with two hidden layers: what of the quality of samples is memory."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from coset.alignment import align_many, align_stack
from coset.data import Split
from coset.flow import SampleScores, cheap_samples, measure_zoo, score_against
from coset.study import Claim, Context, Estimate, Findings, Results, Scalar, Table, study
from coset.symmetry import Symmetry
from coset_studies.flows._sampled import (
    SCORED,
    Kind,
    accuracies,
    difference_of_shares,
    mean_and_error,
    of_rows,
    scored,
    unit_kind,
)
from coset_studies.flows._zoos import Networks, Stack, chosen, counted, in_turn

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PUBLISHED_WAY, UNITS = "MLP, permutations", "units, orbits"
LONG, TO_MEAN, BY_INPUTS = "MLP, permutations, long", "MLP, to the mean", "units, by inputs"


@dataclass(frozen=True)
class Config:
    """``zoo``: of which the last ``held_out`` networks are seen by no generator; ``steps`` of training of each of the
    ``kinds``; ``samples`` of each; ``bar``: the accuracy of performant networks. ``shares``: of the distance from the
    mean of aligned networks to a network, at which accuracies are measured.
    """

    zoo: Networks
    held_out: int
    kinds: Mapping[str, Kind]
    samples: int
    steps: int
    batch_size: int
    bar: float
    shares: tuple[float, ...] = (0.5, 0.7, 0.9)


def _kinds(components: int, field: Mapping[str, int | float], hidden: int, long: int) -> dict[str, Kind]:
    plain = {"field": "mlp", "field_options": {"hidden": hidden}, "projection": "pca", "components": components}
    return {
        "MLP, raw": Kind({**plain, "order": "given"}, {}),
        PUBLISHED_WAY: Kind({**plain, "order": "aligned"}, {}),
        "MLP, permutations and scales": Kind({**plain, "order": "aligned", "geometry": "normalized"}, {}),
        LONG: Kind(
            {**plain, "field_options": {"hidden": 2 * hidden}, "order": "aligned"}, {"learning_rate": 1e-3}, steps=long
        ),
        TO_MEAN: Kind({**plain, "order": "aligned"}, {}),
        UNITS: unit_kind(field, min(components, 128), learning_rate=1e-3),
        BY_INPUTS: unit_kind(field, min(components, 48), learning_rate=1e-3, coupling="independent", by_inputs=True),
    }


_DATA = {"name": "mnist", "flatten": True}
QUICK = Config(
    Networks(
        "mlp",
        {"in_features": 64, "widths": [4, 3], "out_features": 10},
        {"name": "digits", "flatten": True, "subset": 200},
        {"optimizer": "adam", "learning_rate": 1e-2, "batch_size": 50, "epochs": 2},
        10,
        order="shared",
    ),
    held_out=2,
    kinds=_kinds(5, {"channels": 8, "layers": 1, "heads": 2, "pairs": 2}, 8, 3),
    samples=4,
    steps=2,
    batch_size=4,
    bar=0.1,
)
SMALL = Config(
    Networks(
        "mlp",
        {"in_features": 784, "widths": [32, 32], "out_features": 10},
        _DATA,
        {"optimizer": "adam", "learning_rate": 2e-3, "batch_size": 100, "epochs": 5},
        100,
        order="shared",
    ),
    held_out=10,
    kinds=_kinds(89, {"channels": 128, "layers": 3, "heads": 4, "dropout": 0.1}, 256, 5000),
    samples=64,
    steps=600,
    batch_size=32,
    bar=0.95,
)


def _behind(results: Results) -> Estimate | None:
    found = of_rows(results, "generators", "accuracy", "standard error", generator=PUBLISHED_WAY)
    zoo = results.numbers.get("zoo accuracy")
    if found is None or zoo is None:
        return None
    return Estimate(*(float(str(zoo)) - value for value in (found.value, found.high, found.low)))


def _share(column: str) -> Claim:
    return Claim(
        paper="Four published generators of weights mostly give back their training networks.",
        source="Zeng et al., CVPR 2026",
        statistic=f"share of samples of {PUBLISHED_WAY!r} that are {column}",
        direction="below", threshold=0.5, published=None,
        reason="More than half of all samples of a generator that knows the zoo's distribution are novel, since half "
        "of the networks of the zoo would be; set before the run.",
        interval="95 %, normal approximation over samples.",
        estimate=lambda r: _of_share(r, column),
    )  # fmt: skip


def _of_share(results: Results, column: str, name: str = PUBLISHED_WAY) -> Estimate | None:
    cell = results.tables["generators"].cell(column, {"generator": name})
    if cell is None:
        return None
    p, n = float(str(cell)), float(str(results.numbers["samples"]))
    error = 1.96 * (p * (1 - p) / n) ** 0.5
    return Estimate(p, p - error, p + error)


def _above(one: str, other: str) -> Claim:
    return Claim(
        paper="A flow gives networks that are new and good.",
        source="anchors of the field: interpolations and soups of aligned networks are the baselines that count",
        statistic=f"share of novel and performant samples, the flow {one!r} less {other}",
        direction="above", threshold=0.0,
        reason="A generator that does no better has learned nothing of use; set before the run.",
        interval="95 %, normal approximation over samples.",
        estimate=lambda r: difference_of_shares(r, "generators", "novel and performant", one, other),
    )  # fmt: skip


CLAIMS = [
    Claim(
        paper="Four published generators of weights mostly give back their training networks.",
        source="Zeng et al., CVPR 2026",
        statistic=f"share of samples of {LONG!r} that are memorised",
        direction="above", threshold=0.5, published=None,
        reason="Most of them; set before the run.",
        interval="95 %, normal approximation over samples.",
        estimate=lambda r: _of_share(r, "memorised", LONG),
    ),
    Claim(
        paper="Of 100 networks of 96.32 ± .20 % an MLP field on aligned weights samples networks of 96.17 ± .31 %.",
        source="DeepWeightFlow 2026, MNIST 784-32-32-10",
        statistic=f"test accuracy of the zoo less that of one sample of {PUBLISHED_WAY!r}",
        direction="below", threshold=0.003, published=0.0015,
        reason="Twice the published distance; set before the run.",
        interval="1.96 standard errors over samples.",
        estimate=_behind,
    ),
    _share("novel"),
    *(_above(one, other) for one in (UNITS, BY_INPUTS, LONG) for other in ("interpolation", "soup")),
]  # fmt: skip

TEXT = """
{networks} networks with a test accuracy of {zoo accuracy:.4f} ± {zoo deviation:.4f}; {held out} more are held out.
Performant from {bar}. All principal components of the aligned networks are learned by the MLP, as published.
"""


@study(
    name="flows-mnist-wide",
    title="A hundred perceptrons with two hidden layers, and memory",
    reference="DeepWeightFlow 2026; Zeng et al., Generative modeling of weights, CVPR 2026",
    paper="""
    A plain MLP as the field of a flow over 100 aligned networks 784-32-32-10 samples networks of 96.17 ± .31 % where
    the originals have 96.32 ± .20 %; a small field 57.8 % aligned and 25.5 % raw. It uses 99 principal components of
    100 networks, so that samples lie in the span of the training set.
    """,
    presets={"quick": QUICK, "small": SMALL, "paper": replace(SMALL, steps=10_000)},
    claims=CLAIMS,
    text={"small": TEXT},
)
def run(config: Config, context: Context) -> Findings:
    """Flows in several frames and cheap generators, by what is good and what is new."""
    everything = config.zoo.trained(context).last
    model, sym = config.zoo.built()
    data = context.data(str(config.zoo.data["name"]), flatten=True)
    count = counted(everything) - config.held_out
    stack, unseen = chosen(everything, slice(0, count)), chosen(everything, slice(count, None))
    zoo = measure_zoo(model, sym, stack, (data.test.x, data.test.y), held_out=unseen, seed=context.seed, show=False)
    sets: dict[str, Stack] = {}
    mean = mean_of_aligned(sym, stack, context.seed)
    inputs = data.train.x[:20_000]

    def fit(name: str) -> None:
        kind = config.kinds[name]
        if name == TO_MEAN:
            kind = replace(kind, options={**kind.options, "reference": mean})
        flow = kind.fitted(sym, stack, config.steps, config.batch_size, context.seed, inputs)
        sets[name] = flow.sample(config.samples, context.generator(f"samples {name}"))

    in_turn(context, "flows", list(config.kinds), fit)
    aligned = dict(align_stack(sym, chosen(stack, torch.tensor(0)), stack, show=False).aligned)
    sets |= cheap_samples(aligned, config.samples, seed=context.seed, options={"soup": {"count": min(16, count)}})
    sets["held-out networks"] = unseen
    scores = in_turn(
        context, "scores", list(sets), lambda name: score_against(zoo, sets[name], bar=config.bar, show=False)
    )
    spans = [
        row
        for name, target in (("the first network", chosen(stack, torch.tensor(0))), ("the mean", mean))
        for row in spanned(sym, model, data.test, stack, unseen, name, target, config.shares)
    ]
    rows: list[list[Scalar]] = [scored(name, one) for name, one in scores.items()]
    return Findings(
        numbers={
            "networks": count, "held out": config.held_out, "samples": config.samples, "bar": config.bar,
            "steps": config.steps, "zoo accuracy": float(zoo.evaluation.measures.mean()),
            "zoo deviation": float(zoo.evaluation.measures.std()),
        },
        tables={
            "generators": Table(SCORED, rows, _GENERATORS),
            "span": Table(("aligned to", "variance left", "networks", "accuracy", "standard error"), spans, _SPAN),
        },
        figure=lambda: _figure(scores, zoo.novel_from),
        caption=_CAPTION,
    )  # fmt: skip


def mean_of_aligned(sym: Symmetry, stack: Stack, seed: int) -> dict[str, Tensor]:
    """The mean of networks that are all aligned to each other, by rounds in which each joins the mean of the others."""
    networks = [chosen(stack, torch.tensor(number)) for number in range(counted(stack))]
    moved = align_many(sym, networks, method="mean", seed=seed, show=False).aligned
    return {name: torch.stack([one[name] for one in moved]).mean(0) for name in moved[0]}


def spanned(
    sym: Symmetry,
    model: nn.Module,
    part: Split,
    stack: Stack,
    unseen: Stack,
    told: str,
    target: Stack,
    shares: tuple[float, ...],
) -> list[list[Scalar]]:
    """What a generator can give that stays in the span of the aligned training networks.

    Accuracies of held-out networks, brought to their nearest point in m + span; of these and of training networks at a
    share of the way from the mean m: how exactly a network has to be met. Variances are over those as trained.
    """
    seen, other = (dict(align_stack(sym, target, one, show=False).aligned) for one in (stack, unseen))
    names = list(stack)
    rows, others = (torch.cat([one[name].flatten(1).double() for name in names], 1) for one in (seen, other))
    raw = torch.cat([stack[name].flatten(1).double() for name in names], 1)
    mean = rows.mean(0)
    left = float((rows - mean).square().sum() / (raw - raw.mean(0)).square().sum())
    basis = torch.linalg.qr((rows - mean)[:-1].T)[0]
    nearest = mean + (others - mean) @ basis @ basis.T

    def measured(name: str, found: Tensor) -> list[Scalar]:
        sizes = [stack[n][0].numel() for n in names]
        parts = zip(names, torch.split(found.float(), sizes, 1), strict=True)
        made = {n: one.reshape(-1, *stack[n].shape[1:]) for n, one in parts}
        return [told, left, name, *mean_and_error(accuracies(model, part, made))]

    found = [
        measured("held-out networks", others),
        measured("held-out networks, nearest in the span", nearest),
        measured("the mean", mean[None].repeat(2, 1)),
    ]
    for share in shares:
        found.append(measured(f"training networks, {share:g} of the way from the mean", mean + share * (rows - mean)))
    return found


_SPAN = (
    "Networks aligned to a reference; the variance that is left of that as trained; test accuracies of held-out "
    "networks in the affine span of the training networks, which no generator by principal components leaves, and of "
    "training networks on the way to their mean."
)
_GENERATORS = (
    "On the test data; distances modulo permutations and scales. Cheap generators: on networks aligned to the first. "
    "What networks that were held out score is what a generator that knows the distribution would."
)
_CAPTION = (
    "Accuracy and distance to the nearest training network, modulo the group; right of the line are novel networks."
)


def _figure(scores: Mapping[str, SampleScores], novel_from: float) -> "Figure":
    from coset.figures import new_figure

    figure = new_figure(6.4, 3.4)
    panel = figure.subplots()
    for number, (name, one) in enumerate(scores.items()):
        marker = "o" if number < 10 else "^"
        panel.plot(one.nearest, one.evaluation.measures, marker, color=f"C{number % 10}", markersize=2.5, label=name)
    panel.axvline(novel_from, color="0.6", linewidth=0.8)
    panel.set_xlabel("distance to the nearest training network")
    panel.set_ylabel("test accuracy")
    panel.legend(fontsize=6, frameon=False)
    return figure
