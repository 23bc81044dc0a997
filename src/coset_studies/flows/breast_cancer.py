"""Barriers between all networks of a zoo, as they are and in one frame: the small MLP of the thesis' final form."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from coset.alignment import align, align_stack
from coset.canonical import canonicalize, manifold
from coset.data import Split
from coset.landscape import barriers, linear, on
from coset.study import Claim, Context, Findings, Scalar, Table, study
from coset.symmetry import Symmetry
from coset_studies.flows._zoos import Networks, Stack, chosen, counted, disjoint_parts, estimate_in, in_turn, joined

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RAW, WEIGHTS, CIRCLES = "as trained", "weights", "weights, great circles"
ORDER, NORMAL = "canonical order", "weights, normalized"
LEARNED: Mapping[str, Mapping[str, Any]] = {
    "activations": {"method": "activations"},
    "sinkhorn, l2": {"method": "sinkhorn", "objective": "l2"},
    "sinkhorn, midpoint": {"method": "sinkhorn", "objective": "midpoint"},
    "ste, midpoint": {"method": "ste", "objective": "midpoint", "scales": False},
}
"""Methods of ``align`` that go one network at a time."""

ALL_COLUMNS = ("mean barrier, nats", "least fifth", "greatest fifth")

_SHOWN = 60
"""So many networks are on the figure."""

_HELD = 500
"""So many pairs are run together."""


@dataclass(frozen=True)
class Config:
    """``all_pairs``: of so many networks, drawn from all snapshots; ``compared``: of so many for every method.

    ``steps`` of methods that learn, None: as many as each takes by default.
    """

    zoo: Networks
    all_pairs: int
    compared: int
    steps: int | None = None


_OPTIONS = {"in_features": 30, "widths": [16, 16], "out_features": 2}
QUICK = Config(
    Networks(
        "mlp",
        {**_OPTIONS, "widths": [5, 4]},
        {"name": "breast-cancer", "subset": 100},
        {"optimizer": "adam", "learning_rate": 1e-2, "batch_size": 50, "epochs": 4},
        3,
        (3,),
    ),
    all_pairs=5,
    compared=3,
    steps=3,
)
SMALL = Config(
    Networks(
        "mlp",
        _OPTIONS,
        {"name": "breast-cancer"},
        {"optimizer": "adam", "learning_rate": 1e-3, "batch_size": 32, "epochs": 20},
        100,
        (14, 16, 18),
    ),
    all_pairs=250,
    compared=40,
)


def midpoint_barriers(
    model: nn.Module, part: Split, first: Stack, second: Stack, path: Callable[[Stack, Stack], Any]
) -> Tensor:
    """Loss halfway less the mean of the ends' losses, of pairs (N, …), on a part of the data."""
    functionals = {"loss": on(model, part=(part.x, part.y))["part loss"]}
    found = []
    for start in range(0, counted(first), _HELD):
        rows = slice(start, start + _HELD)
        profile = barriers(
            path(chosen(first, rows), chosen(second, rows)), functionals, taus=(0.0, 0.5, 1.0), show=False
        )
        found.append(profile["loss"].excess[:, 1])
    return torch.cat(found)


def of_all_pairs(model: nn.Module, part: Split, stack: Stack, path: Callable[[Stack, Stack], Any] = linear) -> Tensor:
    """The barriers of all pairs of a stack, (N, N) with zeros on the diagonal."""
    count = counted(stack)
    i, j = torch.triu_indices(count, count, 1)
    result = torch.zeros(count, count, dtype=torch.float64)
    result[i, j] = midpoint_barriers(model, part, chosen(stack, i), chosen(stack, j), path)
    return result + result.T


def mean_of_pairs(matrix: Tensor) -> float:
    """The mean over pairs of different networks."""
    count = len(matrix)
    return float(matrix.sum() / (count * (count - 1)))


def great_circles(sym: Symmetry, stack: Stack) -> Callable[[Stack, Stack], Any]:
    """Geodesics on the manifold of canonical weights."""
    space = manifold(sym, at=(stack,))
    return lambda a, b: lambda tau: space.geodesic(a, b, tau)


def one_by_one(context: Context, sym: Symmetry, stack: Stack, name: str, **options: Any) -> dict[str, Tensor]:
    """Every network aligned to the first, by a method that takes one at a time."""
    first, aligned = chosen(stack, torch.tensor(0)), []
    with context.progress(name, counted(stack)) as bar:
        for number in range(counted(stack)):
            other = chosen(stack, torch.tensor(number))
            aligned.append(dict(align(sym, first, other, show=False, **options).params) if number else first)
            bar.advance()
    return {key: torch.stack([one[key] for one in aligned]) for key in stack}


def _claim(method: str, direction: str, threshold: float, published: float, paper: str, reason: str) -> Claim:
    return Claim(
        paper=paper,
        source="Erdogan 2025, barriers between 250 networks of the breast-cancer MLP",
        statistic=f"{method}: mean midpoint barrier between all networks, nats of training loss",
        direction=direction,
        threshold=threshold,
        published=published,
        reason=reason,
        interval="From the least to the greatest of five disjoint parts of the networks.",
        estimate=lambda results: estimate_in(results, "all-pairs", ALL_COLUMNS, method=method),
    )


CLAIMS = [
    _claim(RAW, "above", 0.1, 0.244, "Networks as trained are separated by a barrier.",
           "Less than half of the published one would be another landscape; set before the run."),
    _claim(WEIGHTS, "below", 0.07, 0.070, "Alignment lowers the mean barrier from 0.244 to 0.070.",
           "The published value; set before the run."),
    _claim(CIRCLES, "below", 0.07, 0.070, "Canonical networks are joined by great circles.",
           "The value that is published for aligned lines; set before the run."),
]  # fmt: skip


@study(
    name="flows-breast-cancer",
    title="Barriers between the networks of a zoo, aligned and on great circles",
    reference="Erdogan 2025, Geometric flow models over neural network weights; the thesis, chapter 4",
    paper="""
    Between 250 networks 30-16-16-2 on the breast-cancer data the mean barrier halfway is 0.244 nats, and 0.070 after
    alignment to one of them.
    """,
    presets={"quick": QUICK, "small": SMALL, "paper": replace(SMALL, compared=100)},
    claims=CLAIMS,
)
def run(config: Config, context: Context) -> Findings:
    """All pairs of many networks in three frames, and of fewer by every method."""
    trained = config.zoo.trained(context)
    model, sym = config.zoo.built()
    part = context.data(str(config.zoo.data["name"])).train
    everything = joined([*trained.snapshots.values(), trained.last])
    numbers = torch.randperm(counted(everything), generator=context.generator("networks"))[: config.all_pairs]
    stack = chosen(everything, numbers)
    maps = _in_frames(model, sym, part, stack)
    rows = [_row(method, matrix) for method, matrix in maps.items()]
    fewer = _by_every_method(config, context, model, sym, part, chosen(trained.last, slice(0, config.compared)))
    table = ("mean barrier, nats", "median, nats", "greatest, nats")
    compared: list[list[Scalar]] = [
        [method, mean_of_pairs(matrix), float(_pairs(matrix).median()), float(matrix.max())]
        for method, matrix in fewer.items()
    ]
    means = {method: mean_of_pairs(matrix) for method, matrix in maps.items()}
    return Findings(
        numbers={"networks": counted(stack), "compared": config.compared, "seeds": config.zoo.count},
        tables={
            "all-pairs": Table(("method", *ALL_COLUMNS), rows, _ALL),
            "methods": Table(("method", *table), compared, _FEWER),
        },
        outcome="Mean barrier halfway: " + ", ".join(f"{m} {v:.3f}" for m, v in means.items()) + ".\n\n" + _TOLD,
        figure=lambda: _heat_maps(maps),
        caption="Barriers halfway between pairs of the first networks, in nats, one colour range; means of all pairs.",
    )


_ALL = "Loss on training data halfway between two networks less the mean of theirs, over all pairs."
_FEWER = "The same between fewer networks at the end of training, every one aligned to the first, by every method."
_TOLD = """
{networks} networks are drawn from the snapshots of {seeds} trajectories, and {compared} of different seeds are compared
by every method. "weights" are matched to the first network as they are, "weights, normalized" without their scales;
great circles join canonical networks that are matched to the canonical form of the first.

Networks are trained until their loss is about that of the published ones (0.048). With fifty epochs at ten times the
rate, the first setting, networks overfit, and the average of two of them had a lower loss on test data than either,
which says nothing of a barrier. The new setting was chosen by the loss of single networks alone; barriers are of the
loss that was trained on.
"""


def _in_frames(model: nn.Module, sym: Symmetry, part: Split, stack: Stack) -> dict[str, Tensor]:
    first = chosen(stack, torch.tensor(0))
    canonical = canonicalize(sym, stack, first).params
    return {
        RAW: of_all_pairs(model, part, stack),
        WEIGHTS: of_all_pairs(model, part, align_stack(sym, first, stack, show=False).aligned),
        CIRCLES: of_all_pairs(model, part, canonical, great_circles(sym, canonical)),
    }


def _by_every_method(
    config: Config, context: Context, model: nn.Module, sym: Symmetry, part: Split, stack: Stack
) -> dict[str, Tensor]:
    first = chosen(stack, torch.tensor(0))
    train = context.data(str(config.zoo.data["name"])).train
    maps = _in_frames(model, sym, part, stack)
    maps[ORDER] = of_all_pairs(model, part, canonicalize(sym, stack).params)
    maps[NORMAL] = of_all_pairs(model, part, canonicalize(sym, stack, first).params)

    def matched(name: str) -> Tensor:
        options: Mapping[str, Any] = {**LEARNED[name], "model": model}
        data: Any = train.x if name == "activations" else (train.x, train.y)
        own: dict[str, Any] = {} if name == "activations" else {"batch_size": 64}
        own |= {"steps": config.steps} if own and config.steps else {}
        return of_all_pairs(model, part, one_by_one(context, sym, stack, name, **options, data=data, **own))

    return maps | in_turn(context, "methods", list(LEARNED), matched)


def _pairs(matrix: Tensor) -> Tensor:
    i, j = torch.triu_indices(len(matrix), len(matrix), 1)
    return matrix[i, j]


def _row(method: str, matrix: Tensor) -> list[Scalar]:
    whole = mean_of_pairs(matrix)
    means = [mean_of_pairs(matrix[one][:, one]) for one in disjoint_parts(len(matrix), 5)] or [whole]
    return [method, whole, min(means), max(means)]


def _heat_maps(maps: Mapping[str, Tensor]) -> "Figure":
    """One heat map for each frame."""
    from coset.figures import label_panel, new_figure

    figure = new_figure(7.0, 2.5)
    panels = figure.subplots(1, len(maps), squeeze=False)[0]
    top = max(float(_pairs(maps[RAW]).quantile(0.95)), 1e-3)
    for panel, letter, (method, matrix) in zip(panels, "abc", maps.items(), strict=True):
        image = panel.imshow(matrix[:_SHOWN, :_SHOWN], cmap="magma", vmin=0, vmax=top, interpolation="nearest")
        label_panel(panel, letter, f"{method}: mean {mean_of_pairs(matrix):.3f}")
        panel.set_xticks([])
        panel.set_yticks([])
    figure.colorbar(image, ax=panels, shrink=0.8, label="nats")
    return figure
