"""Where training takes a network next, told by a reader of its weights with an equivariant head."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from coset.data import Split
from coset.metanet import RelationalTransformer, fit_reader
from coset.models import example_input
from coset.running import outputs_of_stack
from coset.study import Claim, Context, Estimate, Findings, Results, Scalar, Table, prose, study
from coset.symmetry import Symmetry, discover
from coset.symmetry.stacks import act_stack, random_stack
from coset.train import Recipe
from coset_studies.metanet._snapshots import (
    Direction,
    Edits,
    Pairs,
    Snapshots,
    Stack,
    by_layer,
    descending,
    extrapolating,
    flat,
    left_over,
    shrinking,
    trained_pairs,
    unflat,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STAY, NEXT = "no change", "next snapshot"
SHRUNK, EXTRAPOLATED, GRADIENT = "factor of each layer", "extrapolation of each layer", "gradient of each layer"
READER, BOTH = "reader", "reader on top of extrapolation"
SCHEMA = 1
"""Version of what is stored of trained readers."""
PARTS = 5


@dataclass(frozen=True)
class Config:
    """``zoo``: networks with snapshots. The rest: the reader and its training."""

    zoo: Snapshots
    channels: int
    layers: int
    heads: int
    recipe: Mapping[str, Any]
    gauge: str = "layers"


_ADAM = {"optimizer": "adamw", "weight_decay": 0.01, "schedule": "one-cycle", "clip": 1.0, "loss": "mse"}
_SGD = {"optimizer": "sgd", "learning_rate": 0.05, "batch_size": 64}
_TANH = {"in_features": 30, "widths": [16, 16], "out_features": 2, "activation": "tanh"}
QUICK = Config(
    Snapshots("breast-cancer", {**_TANH, "widths": [3, 3]}, {**_SGD, "epochs": 3}, (1, 2, 3), train=8, test=5),
    channels=4,
    layers=1,
    heads=2,
    recipe={**_ADAM, "epochs": 1, "batch_size": 8, "learning_rate": 3e-3},
)
SMALL = Config(
    Snapshots("breast-cancer", _TANH, {**_SGD, "epochs": 32}, (4, 8, 16, 32), train=200, test=50),
    channels=16,
    layers=3,
    heads=4,
    recipe={**_ADAM, "epochs": 8, "batch_size": 8, "learning_rate": 6e-3},
)
PAPER = Config(
    Snapshots("breast-cancer", _TANH, {**_SGD, "epochs": 64}, (2, 4, 8, 16, 32, 64), train=2000, test=200),
    channels=32,
    layers=4,
    heads=4,
    recipe={**_ADAM, "epochs": 100, "batch_size": 32, "learning_rate": 2e-3},
)


def predicted(
    config: Config, context: Context, name: str, sym: Symmetry, parts: tuple[Pairs, Pairs], known: tuple[Stack, Stack]
) -> tuple[Stack, Tensor]:
    """The moves that a reader predicts of the test networks on top of what is ``known``; trained or from the store.

    And for each of them, in double precision, ‖e(g·θ) − g·e(θ)‖/‖e(θ)‖ of its edits e with a random element g.
    """
    train, test = parts
    kept: dict[str, object] = {"kind": "edits", "schema": SCHEMA, "reader": name, "config": asdict(config)}
    kept |= {"symmetry": sym.fingerprint, "seed": context.seed, "data": context.data(config.zoo.data).fingerprint}

    def make() -> dict[str, Tensor]:
        reader = RelationalTransformer(
            sym,
            head="equivariant",
            gauge=config.gauge,
            channels=config.channels,
            layers=config.layers,
            heads=config.heads,
            seed=context.seed,
        )
        targets = flat(train.moves) - flat(known[0])
        size = targets.square().mean().sqrt()
        groups = (sym, train.before, targets / size)
        recipe = Recipe(**config.recipe)
        fitted = fit_reader(Edits(reader), groups, recipe, seed=context.seed, validation=None, show=context.show)
        edits = size * fitted.predict(sym, test.before)
        fitted.reader.double()
        return {"edits": edits, "defects": defects_of(fitted.reader, sym, test.before, context.generator("elements"))}

    found = context.store.get_or_make(kept, make).params
    own = unflat(found["edits"], test.before)
    return {key: known[1][key] + own[key] for key in own}, found["defects"]


def defects_of(reader: nn.Module, sym: Symmetry, stack: Stack, generator: torch.Generator) -> Tensor:
    """‖e(g·θ) − g·e(θ)‖/‖e(θ)‖ of a reader of double precision, with a random element for each network, (N,)."""
    wide = {name: tensor.double() for name, tensor in stack.items()}
    elements = random_stack(sym, len(next(iter(wide.values()))), generator)
    with torch.no_grad():
        edits = unflat(reader(wide, sym=sym), wide)
        moved = reader(act_stack(sym, elements, wide), sym=sym)
    apart: Tensor = torch.linalg.vector_norm(moved - flat(act_stack(sym, elements, edits)), dim=1)
    whole: Tensor = torch.linalg.vector_norm(flat(edits), dim=1)
    return apart / whole


def over_owners(values: Tensor, pairs: Pairs) -> Tensor:
    """The mean over the snapshots of every network, (networks,)."""
    count = int(pairs.owner.max()) + 1
    total = torch.zeros(count, dtype=torch.float64).index_add_(0, pairs.owner, values.double())
    return total / torch.bincount(pairs.owner, minlength=count)


def in_parts(values: Tensor) -> list[Scalar]:
    """The mean over networks, and the least and the greatest of disjoint parts of them."""
    means = [float(values[start::PARTS].mean()) for start in range(min(PARTS, len(values)))]
    return [float(values.mean()), min(means), max(means)]


def ratio(above: Tensor, below: Tensor) -> list[Scalar]:
    """The ratio of two means over networks, and the least and the greatest of disjoint parts of them."""
    parts = range(min(PARTS, len(above)))
    found = [float(above[start::PARTS].mean() / below[start::PARTS].mean()) for start in parts]
    whole = float(above.mean() / below.mean())
    return [whole, min(*found, whole), max(*found, whole)]


def test_losses(model: nn.Module, part: Split, pairs: Pairs, moves: Mapping[str, Tensor]) -> Tensor:
    """Cross-entropy on test data of networks after these moves, (N,)."""
    after = {name: pairs.before[name] + moves[name] for name in pairs.before}
    outputs = outputs_of_stack(model, after, part.x)
    labels = part.y.expand(len(outputs), -1)
    return (
        nn.functional.cross_entropy(outputs.flatten(0, 1), labels.flatten(), reduction="none")
        .view(len(outputs), -1)
        .mean(1)
    )


def _compared(first: str, second: str) -> Any:
    def estimate(results: Results) -> Estimate | None:
        cells = [results.tables["ratios"].cell(name, {"of": first, "to": second}) for name in ("ratio", *_ENDS)]
        return None if cells[0] is None else Estimate(*(float(str(cell)) for cell in cells))

    return estimate


def _claim(first: str, second: str, threshold: float, paper: str, reason: str) -> Claim:
    return Claim(
        paper=paper,
        source="what an equivariant head has to do; the thesis, section 5.1, and Navon et al. 2023 on edits",
        statistic=f"squared distance to the next snapshot that is left by: {first}, over that left by: {second}",
        direction="below",
        threshold=threshold,
        reason=f"{reason}; set before the run.",
        interval=f"From the least to the greatest of {PARTS} disjoint parts of the held-out networks.",
        possible=(0.0, 1e9),
        estimate=_compared(first, second),
    )


def _defect(results: Results) -> Estimate | None:
    value, low, high = (float(str(results.numbers[f"defect_{name}"])) for name in ("median", "least", "greatest"))
    return Estimate(value, low, high)


_ENDS = ("least part", "greatest part")
CLAIMS = [
    _claim(READER, SHRUNK, 0.8, "A reader of weights tells where training takes a network.",
           "A fifth less than the same weights by a factor for each layer and snapshot leave is no accident"),
    _claim(READER, EXTRAPOLATED, 1.0, "It needs no look back: the weights alone tell it.",
           "Extrapolation is shown the first weights, too"),
    _claim(BOTH, EXTRAPOLATED, 0.9, "It tells more than the way that the network has come.",
           "Extrapolation leaves little already; a tenth less is more than chance"),
    Claim(
        paper="Edits move as the weights do: e(g·θ) = g·e(θ).",
        source="the thesis, section 5.1",
        statistic="‖e(g·θ) − g·e(θ)‖/‖e(θ)‖ with random elements g, in double precision: the median of networks",
        direction="below",
        threshold=1e-9,
        reason="Rounding of a thousand sums in double precision is a thousand times less; set before the run.",
        interval="From the least to the greatest of all held-out networks.",
        possible=(0.0, 1e9),
        estimate=_defect,
    ),
]  # fmt: skip


TEXT = """
Of the squared distance to the next snapshot {left[reader][left over]:.1%} is left by the reader, which sees the
weights alone. A factor of each layer leaves {left[factor of each layer][left over]:.1%}, extrapolation of each layer,
which also knows the first weights and the number of the snapshot, {left[extrapolation of each layer][left over]:.1%};
put on top of that the reader is no better ({left[reader on top of extrapolation][left over]:.1%}). A factor on the
gradient, which needs the training data, leaves {left[gradient of each layer][left over]:.1%} and is best.

{train} networks {layers} with tanh on the data set {data} are there to learn from, {test} of other seeds are predicted.
tanh has signs and no scales, and SGD moves as the weights do under these. Snapshots are taken after {epochs} epochs of
SGD, and each is predicted from the one before. Factors of layers are fitted by least squares on the networks to learn
from, for every parameter and every snapshot. The reader is told neither the snapshot nor the first weights: it sees the
weights of one network alone.

Edits of networks moved by random elements of the group (orders and signs of units) differ from the edits moved alike by
{defect_median:.1e} of their norm, at most {defect_greatest:.1e}, in double precision.
"""


@study(
    name="metanet-editing",
    title="The next snapshot of training, from the weights alone",
    reference="Navon et al. 2023, Zhou et al. 2023; the thesis on flows over weights, section 5",
    paper="""
    A network that reads weights can also write them: its head gives a value to every parameter, and whatever element of
    the group moves the weights moves the edits alike. The thesis uses such heads as velocities of flows.
    """,
    presets={"quick": QUICK, "small": SMALL, "paper": PAPER},
    claims=CLAIMS,
    text={"small": TEXT},
)
def run(config: Config, context: Context) -> Findings:
    """Baselines by layer, the reader alone, and the reader on top of the best baseline that sees no data."""
    train, test = parts = trained_pairs(context, config.zoo)
    model = config.zoo.built().eval()
    sym = discover(model, example_input(model))
    data = context.data(config.zoo.data, flatten=True)
    directions: dict[str, Direction] = {SHRUNK: shrinking, EXTRAPOLATED: extrapolating}
    directions[GRADIENT] = descending(model, data.train)
    known = {name: by_layer(direction, train, test) for name, direction in directions.items()}
    nothing = tuple({name: torch.zeros_like(tensor) for name, tensor in part.before.items()} for part in parts)
    moves = {STAY: nothing[1], **{name: found[1] for name, found in known.items()}}
    moves[READER], defects = predicted(config, context, READER, sym, parts, (nothing[0], nothing[1]))
    moves[BOTH], _ = predicted(config, context, BOTH, sym, parts, known[EXTRAPOLATED])
    left = {name: over_owners(left_over(test, found), test) for name, found in moves.items()}
    losses = {
        name: over_owners(test_losses(model, data.test, test, found), test)
        for name, found in {**moves, NEXT: test.moves}.items()
    }
    rows: list[list[Scalar]] = [
        [name, _SEES[name], *(in_parts(left[name]) if name in left else [None] * 3), float(losses[name].mean())]
        for name in losses
    ]
    pairs = ((READER, SHRUNK), (READER, EXTRAPOLATED), (BOTH, EXTRAPOLATED))
    ratios: list[list[Scalar]] = [[one, two, *ratio(left[one], left[two])] for one, two in pairs]
    sizes = [config.zoo.options["in_features"], *config.zoo.options["widths"], config.zoo.options["out_features"]]
    numbers: dict[str, Scalar] = {
        "train": config.zoo.train,
        "test": config.zoo.test,
        "epochs": ", ".join(map(str, config.zoo.epochs)),
        "layers": "-".join(map(str, sizes)),
        "data": config.zoo.data,
        "defect_median": float(defects.median()),
        "defect_least": float(defects.min()),
        "defect_greatest": float(defects.max()),
    }
    return Findings(
        numbers=numbers,
        tables={
            "left": Table(("edit", "sees", "left over", *_ENDS, "test loss after"), rows, prose(_LEFT)),
            "ratios": Table(("of", "to", "ratio", *_ENDS), ratios, "What one leaves over what another leaves."),
        },
        figure=lambda: _figure(test, moves, losses),
        caption="(a) What is left of the squared distance to the next snapshot, for each snapshot from which it is "
        "predicted; means over held-out networks, colours as in (b). (b) Their mean loss on test data after the edit.",
    )


_SEES = {
    STAY: "nothing",
    SHRUNK: "weights, number of the snapshot",
    EXTRAPOLATED: "weights, first weights, number of the snapshot",
    GRADIENT: "weights, training data, number of the snapshot",
    READER: "weights",
    BOTH: "weights, first weights, number of the snapshot",
    NEXT: "",
}
_LEFT = """
‖θ̂ − θ′‖²/‖θ − θ′‖² for the next snapshot θ′ and what is predicted for it from θ, on networks that were not trained on,
with the least and the greatest of five disjoint parts of them; and the mean cross-entropy on test data of θ̂.
"""


def _figure(test: Pairs, moves: Mapping[str, Stack], losses: Mapping[str, Tensor]) -> "Figure":
    """Bars for every snapshot, and bars of losses."""
    from coset.figures import GREY, PALETTE, label_panel, new_figure

    figure = new_figure(7.0, 3.0)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    steps = range(int(test.step.max()) + 1)
    colours = {**dict(zip((name for name in moves if name != STAY), PALETTE, strict=False)), STAY: GREY, NEXT: "black"}
    shown = [name for name in moves if name != STAY]
    for at, name in enumerate(shown):
        values = left_over(test, moves[name])
        for step in steps:
            mean = float(values[test.step == step].mean())
            x = step + 0.8 * (at - (len(shown) - 1) / 2) / len(shown)
            left.bar(x, mean, 0.72 / len(shown), color=colours[name])
    left.set_xticks(list(steps), [f"snapshot {step + 1}" for step in steps])
    left.set_ylabel("left over")
    left.grid(axis="x", visible=False)
    label_panel(left, "a", "distance to the next snapshot")
    for at, (name, found) in enumerate(losses.items()):
        right.barh(at, float(found.mean()), 0.7, color=colours[name])
    right.set_yticks(range(len(losses)), list(losses), fontsize=7)
    right.invert_yaxis()
    right.set_xlabel("test loss after the edit, nats")
    right.grid(axis="y", visible=False)
    label_panel(right, "b", "the edited networks")
    return figure
