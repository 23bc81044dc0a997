"""Barriers between all networks of a zoo, by every method, on lines and great circles: the small MLP of the thesis."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from coset.alignment import align, align_stack
from coset.canonical import canonicalize, manifold
from coset.data import Split
from coset.distribution import normalize_scales
from coset.landscape import barriers, linear, on
from coset.study import Claim, Context, Findings, Scalar, Table, study
from coset.symmetry import Symmetry
from coset_studies.flows._zoos import Networks, Stack, chosen, counted, disjoint_parts, estimate_in, in_turn, joined

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RAW, ORDER = "as trained", "canonical order"
WEIGHTS, NORMAL = "weights", "weights, normalized"
MIDPOINT = "sinkhorn, midpoint"
LEARNED: Mapping[str, Mapping[str, Any]] = {
    "activations": {"method": "activations"},
    "sinkhorn, l2": {"method": "sinkhorn", "objective": "l2"},
    MIDPOINT: {"method": "sinkhorn", "objective": "midpoint"},
    "sinkhorn, random": {"method": "sinkhorn", "objective": "random"},
    "ste, midpoint": {"method": "ste", "objective": "midpoint", "scales": False},
}
"""Methods of ``align`` that go one network at a time."""

LINE, CIRCLE = "line", "great circle"
PATHS = (LINE, CIRCLE)
COLUMNS = {path: (f"{path}, nats", f"{path}, least fifth", f"{path}, greatest fifth") for path in PATHS}

_PANELS = (RAW, ORDER, WEIGHTS, MIDPOINT)
"""The frames on the figure."""

_SHOWN = 40
"""So many networks are on the figure."""

_HELD = 500
"""So many pairs are run together."""

_SCHEMA = 1

Maps = Mapping[str, Mapping[str, Tensor]]
"""By method and path: the barriers of all pairs, (N, N)."""


@dataclass(frozen=True)
class Config:
    """``networks``: so many are drawn from all snapshots, and compared pair by pair.

    ``steps`` of methods that learn, None: as many as each takes by default.
    """

    zoo: Networks
    networks: int
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
    networks=5,
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
    networks=250,
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


def without_scales(sym: Symmetry, stack: Stack) -> dict[str, Tensor]:
    """Every network with units of unit norm, its units in the order in which they stand."""
    found = [normalize_scales(sym, chosen(stack, torch.tensor(i)))[0] for i in range(counted(stack))]
    return {name: torch.stack([one[name] for one in found]) for name in stack}


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


def _claim(method: str, path: str, direction: str, threshold: float, published: float, paper: str, why: str) -> Claim:
    return Claim(
        paper=paper,
        source="Erdogan 2025, barriers between 250 networks of the breast-cancer MLP",
        statistic=f"{method}, {path}: mean midpoint barrier between all networks, nats of training loss",
        direction=direction,
        threshold=threshold,
        published=published,
        reason=why,
        interval="From the least to the greatest of five disjoint parts of the networks.",
        estimate=lambda results: estimate_in(results, "all-pairs", COLUMNS[path], method=method),
    )


CLAIMS = [
    _claim(RAW, LINE, "above", 0.1, 0.244, "Networks as trained are separated by a barrier.",
           "Less than half of the published one would be another landscape; set before the run."),
    _claim(WEIGHTS, LINE, "below", 0.07, 0.070, "Alignment lowers the mean barrier from 0.244 to 0.070.",
           "The published value; set before the run."),
    _claim(NORMAL, CIRCLE, "below", 0.07, 0.070, "Canonical networks are joined by great circles.",
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
    presets={"quick": QUICK, "small": SMALL, "paper": SMALL},
    claims=CLAIMS,
)
def run(config: Config, context: Context) -> Findings:
    """All pairs of many networks, aligned by every method, along straight lines and great circles."""
    trained = config.zoo.trained(context)
    model, sym = config.zoo.built()
    part = context.data(str(config.zoo.data["name"])).train
    everything = joined([*trained.snapshots.values(), trained.last])
    numbers = torch.randperm(counted(everything), generator=context.generator("networks"))[: config.networks]
    stack = chosen(everything, numbers)

    def measured(method: str) -> dict[str, Tensor]:
        aligned = _aligned(config, context, model, sym, stack, method)
        canonical = without_scales(sym, aligned)
        circles = of_all_pairs(model, part, canonical, great_circles(sym, canonical))
        return {LINE: of_all_pairs(model, part, aligned), CIRCLE: circles}

    maps: Maps = in_turn(context, "methods", [RAW, ORDER, WEIGHTS, NORMAL, *LEARNED], measured)
    rows = [[method, *(x for path in PATHS for x in _mean_and_parts(of[path]))] for method, of in maps.items()]
    spread = [[method, *(x for path in PATHS for x in _median_and_greatest(of[path]))] for method, of in maps.items()]
    told = [
        f"{method} {mean_of_pairs(of[LINE]):.3f} and {mean_of_pairs(of[CIRCLE]):.3f}" for method, of in maps.items()
    ]
    return Findings(
        numbers={"networks": counted(stack), "seeds": config.zoo.count},
        tables={
            "all-pairs": Table(("method", *COLUMNS[LINE], *COLUMNS[CIRCLE]), rows, _MEANS),
            "spread": Table(("method", *(f"{path}, {what}" for path in PATHS for what in _SPREAD)), spread, _MEDIANS),
        },
        outcome="Mean barrier halfway, on lines and on great circles: " + "; ".join(told) + ".\n\n" + _TOLD,
        figure=lambda: _heat_maps(maps),
        caption=f"Barriers halfway between pairs of {min(_SHOWN, counted(stack))} networks, on straight lines (above) "
        "and on great circles (below), in nats, one colour range; the means are those of all pairs.",
    )


_SPREAD = ("median, nats", "greatest, nats")
_MEANS = (
    "Loss on training data halfway between two networks less the mean of theirs: the mean over all pairs, and over "
    "those of five disjoint parts of the networks. Every method aligns all networks to the first."
)
_MEDIANS = "The median and the greatest of the same barriers."
_TOLD = """
{networks} networks are drawn from the snapshots of {seeds} trajectories, and each is aligned to the first of them by
every method. Lines join networks as the method leaves them; for great circles the scales of every unit are removed
then, with units in the same order. "canonical order" needs no other network; "weights, normalized" matches networks
whose scales were removed before, so that both paths join canonical networks; all other methods match networks as they
were trained.

Networks are trained until their loss is about that of the published ones (0.048). With fifty epochs at ten times the
rate, the first setting, networks overfit, and the average of two of them had a lower loss on test data than either,
which says nothing of a barrier. The new setting was chosen by the loss of single networks alone; barriers are of the
loss that was trained on.
"""


def _aligned(
    config: Config, context: Context, model: nn.Module, sym: Symmetry, stack: Stack, method: str
) -> Mapping[str, Tensor]:
    """The networks in the frame of a method; what takes minutes is found in the store the next time."""
    first = chosen(stack, torch.tensor(0))
    if method == RAW:
        return stack
    if method == ORDER:
        return canonicalize(sym, stack).params
    if method == NORMAL:
        return canonicalize(sym, stack, first).params
    if method == WEIGHTS:
        return align_stack(sym, first, stack, show=False).aligned
    options: dict[str, Any] = {**LEARNED[method], "model": model}
    data = context.data(str(config.zoo.data["name"]))
    if method == "activations":
        options["data"] = data.train.x
    else:
        options |= {"data": (data.train.x, data.train.y), "batch_size": 64}
        options |= {"steps": config.steps} if config.steps else {}
    told = {key: value for key, value in options.items() if key not in ("model", "data")}
    key: dict[str, object] = {"kind": "networks aligned to one", "schema": _SCHEMA, "zoo": asdict(config.zoo)}
    key |= {"networks": config.networks, "seed": context.seed, "method": method, "options": told}
    key |= {"data": data.fingerprint}
    return context.store.get_or_make(key, lambda: one_by_one(context, sym, stack, method, **options)).params


def _pairs(matrix: Tensor) -> Tensor:
    i, j = torch.triu_indices(len(matrix), len(matrix), 1)
    return matrix[i, j]


def _mean_and_parts(matrix: Tensor) -> list[Scalar]:
    whole = mean_of_pairs(matrix)
    means = [mean_of_pairs(matrix[one][:, one]) for one in disjoint_parts(len(matrix), 5)] or [whole]
    return [whole, min(means), max(means)]


def _median_and_greatest(matrix: Tensor) -> list[Scalar]:
    return [float(_pairs(matrix).median()), float(matrix.max())]


def _heat_maps(maps: Maps) -> "Figure":
    """One heat map for each frame and path."""
    from coset.figures import label_panel, new_figure

    figure = new_figure(7.0, 4.2)
    panels = figure.subplots(len(PATHS), len(_PANELS), squeeze=False)
    top = max(float(_pairs(maps[RAW][LINE]).quantile(0.95)), 1e-3)
    letters = iter("abcdefgh")
    for row, path in zip(panels, PATHS, strict=True):
        for panel, method in zip(row, _PANELS, strict=True):
            matrix = maps[method][path]
            image = panel.imshow(matrix[:_SHOWN, :_SHOWN], cmap="magma", vmin=0, vmax=top, interpolation="nearest")
            label_panel(panel, next(letters), f"{method}\nmean {mean_of_pairs(matrix):.3f}")
            panel.set_xticks([])
            panel.set_yticks([])
        row[0].set_ylabel(path)
    figure.colorbar(image, ax=panels, shrink=0.8, label="nats")
    return figure
