"""How much of the variance of trained weights is symmetry."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from coset.alignment import align_stack
from coset.canonical import canonicalize
from coset.study import Claim, Context, Estimate, Findings, Results, Scalar, Table, study
from coset.symmetry import Symmetry
from coset_studies.flows._zoos import Networks, Stack, chosen, counted, disjoint_parts, in_turn, over_parts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RAW, PERMUTED, SCALED, FLIPPED, WHOLE = (
    "as trained",
    "permutations",
    "and scales",
    "and signs",
    "and matrices, translations",
)
FRAMES = (RAW, PERMUTED, SCALED, FLIPPED, WHOLE)
PARTS = 5
"""The interval of a share covers its values on so many disjoint parts of a zoo."""

_MNIST = {"name": "mnist", "flatten": True}
_ADAM = {"optimizer": "adam", "learning_rate": 1e-3, "batch_size": 100}


@dataclass(frozen=True)
class Config:
    """Zoos by the name of their architecture; the first ``mixed`` networks are compared over matrices."""

    zoos: Mapping[str, Networks]
    mixed: int


def _mlp(activation: str, count: int) -> Networks:
    options = {"in_features": 784, "widths": [10], "out_features": 10, "activation": activation}
    return Networks("mlp", options, _MNIST, {**_ADAM, "epochs": 3}, count)


_SMALL_CNN = Networks(
    "myrtle",
    {"width": 4},
    {"name": "cifar10-slice"},
    {"optimizer": "adam", "learning_rate": 3e-3, "batch_size": 50, "epochs": 6},
    60,
)
_SMALL_TRANSFORMER = Networks(
    "transformer",
    {"vocabulary": 65, "context": 32, "dim": 32, "depth": 2, "heads": 2},
    {"name": "tinyshakespeare", "window": 32, "subset": 8000},
    {"optimizer": "adamw", "learning_rate": 3e-3, "batch_size": 50, "epochs": 6},
    10,
)
QUICK = Config(
    {
        "MLP, ReLU": Networks(
            "mlp",
            {"in_features": 64, "widths": [4], "out_features": 10},
            {"name": "digits", "flatten": True, "subset": 200},
            {**_ADAM, "epochs": 2},
            10,
        ),
        "transformer": Networks(
            "transformer",
            {"vocabulary": 12, "context": 8, "dim": 8, "depth": 1, "heads": 2},
            {"name": "digits-text", "window": 8, "subset": 100},
            {"optimizer": "adamw", "learning_rate": 3e-3, "batch_size": 50, "epochs": 1},
            3,
        ),
    },
    mixed=2,
)
SMALL = Config(
    {
        "MLP, ReLU": _mlp("relu", 1000),
        "MLP, tanh": _mlp("tanh", 200),
        "CNN": _SMALL_CNN,
        "transformer": _SMALL_TRANSFORMER,
    },
    mixed=10,
)

FULL = Config({name: replace(zoo, count=1000) for name, zoo in SMALL.zoos.items()}, mixed=100)


def frames(sym: Symmetry, stack: Stack, mixed: int) -> dict[str, Stack]:
    """The networks as they are, and brought to the first of them by more and more of the group."""
    first = chosen(stack, torch.tensor(0))
    permuted = sym.restrict(scales=False, signs=False, continuous=False)
    found: dict[str, Stack] = {
        RAW: stack,
        PERMUTED: align_stack(permuted, first, stack, show=False).aligned,
    }
    if sym.scaling:
        scaled = sym.restrict(signs=False, continuous=False)
        found[SCALED] = canonicalize(scaled, stack, first).params
    if sym.flipping:
        found[FLIPPED] = canonicalize(sym.monomial, stack, first).params
    if sym.continuous or sym.translations:
        found[WHOLE] = canonicalize(sym, chosen(stack, slice(0, mixed)), first).params
    return found


def share_of_variance(sym: Symmetry, stack: Stack) -> float:
    """Σᵢ‖θᵢ − θ̄‖²/Σᵢ‖θᵢ‖² over trained parameters: 0 where all networks are one, near 1 where they have no mean."""
    apart = total = 0.0
    for name, tensor in stack.items():
        known = sym.parameters.get(name)
        if (known is not None and (known.buffer or known.tied is not None)) or not tensor.is_floating_point():
            continue
        wide = tensor.double()
        apart += float((wide - wide.mean(0)).square().sum())
        total += float(wide.square().sum())
    return apart / total


@dataclass(frozen=True)
class Shares:
    """The share of variance of a zoo in every frame, on the whole of it and on parts."""

    networks: int
    accuracy: float | None
    whole: Mapping[str, float]
    parts: Mapping[str, list[float]]


def shares_of(context: Context, zoo: Networks, mixed: int) -> Shares:
    """Train a zoo and measure it in every frame."""
    trained = zoo.trained(context)
    _, sym = zoo.built()
    found = frames(sym, trained.last, mixed)
    parts = {}
    for name, stack in found.items():
        count = counted(stack)
        # Parts hold fewer networks, whose own mean is nearer to them: n/(n − 1) makes up for it.
        fair = (count - 1) / count
        parts[name] = [
            fair * share_of_variance(sym, chosen(stack, one)) * len(one) / (len(one) - 1)
            for one in disjoint_parts(count, PARTS)
        ]
    scores = [row["test_accuracy"] for row in trained.rows if "test_accuracy" in row]
    accuracy = sum(scores) / len(scores) if scores else None
    whole = {name: share_of_variance(sym, stack) for name, stack in found.items()}
    return Shares(counted(trained.last), accuracy, whole, parts)


def _claim(setting: str, frame: str, threshold: float, reason: str, paper: str) -> Claim:
    def estimate(results: Results) -> Estimate | None:
        table = results.tables["shares"]
        rows = [row for row in table.rows if row[0] == setting and row[2] in (RAW, frame)]
        known = {str(row[2]): [float(str(cell)) for cell in row[3:6]] for row in rows}
        if frame not in known:
            return None
        value, low, high = (here / known[RAW][0] for here in known[frame])
        return Estimate(value, low, high)

    return Claim(
        paper=paper,
        source="thesis on flows over weights, section 4",
        statistic=f"{setting}: share of variance after {frame}, over that of the networks as trained",
        direction="below",
        threshold=threshold,
        reason=reason,
        interval=f"From the least to the greatest of {PARTS} disjoint parts of the zoo.",
        possible=(0.0, 1e9),
        estimate=estimate,
    )


_NEARER = "Networks that are aligned are nearer to each other, which makes flows over weights easier to learn."
_MORE = "A twentieth of the variance is more than chance; the same for all architectures, set before the run."
CLAIMS = [
    _claim(setting, frame, 0.95, _MORE, _NEARER)
    for setting, frame in (
        ("MLP, ReLU", PERMUTED),
        ("MLP, ReLU", SCALED),
        ("MLP, tanh", FLIPPED),
        ("CNN", SCALED),
        ("transformer", WHOLE),
    )
]


@study(
    name="flows-variance",
    title="How much of the variance of trained weights is symmetry",
    reference="the thesis on flows over weights, section 4",
    paper="""
    Networks that differ in their seed alone differ by elements of the group, too. The thesis aligns and normalises the
    networks before it learns a flow over them, and does not say how much of their variance that removes.
    """,
    presets={"quick": QUICK, "small": SMALL, "paper": FULL},
    claims=CLAIMS,
)
def run(config: Config, context: Context) -> Findings:
    """Every zoo in every frame."""
    found: dict[str, Shares] = in_turn(
        context, "zoos", list(config.zoos), lambda name: shares_of(context, config.zoos[name], config.mixed)
    )
    rows: list[list[Scalar]] = []
    for setting, shares in found.items():
        for frame, value in shares.whole.items():
            interval = over_parts(value, shares.parts[frame])
            rows.append([setting, shares.networks, frame, value, interval.low, interval.high])
    columns = ("architecture", "networks", "modulo", "share of variance", "least part", "greatest part")
    caption = "Σ‖θ − mean‖²/Σ‖θ‖² over the networks of a zoo, each brought to the first by a part of the group."
    scores: list[list[Scalar]] = [[name, one.networks, one.accuracy] for name, one in found.items()]
    told = [
        f"{name}: " + ", ".join(f"{frame} {value:.3f}" for frame, value in one.whole.items()) + "."
        for name, one in found.items()
    ]
    return Findings(
        numbers={},
        tables={
            "shares": Table(columns, rows, caption),
            "networks": Table(("architecture", "networks", "mean test accuracy"), scores, "The zoos."),
        },
        outcome="\n\n".join([*told, _TOLD]),
        figure=lambda: _bars(found),
        caption="Share of variance that is left, modulo more and more of the group.",
    )


_TOLD = """
Every network is brought to the first of its zoo on weights; so the shares are bounds from above of what the best frame
would leave. From "and scales" on, the incoming weights of every unit have norm one, in all networks: shares are of the
variance in that gauge. A share of 1 − 1/N is that of N networks that have nothing in common. Gains of batch norms are
near 1 in all networks, and much of Σ‖θ‖² of a CNN as it is trained; in the gauge without scales they are not, and the
share rises.
"""


def _bars(found: Mapping[str, Shares]) -> "Figure":
    """A group of bars for each architecture."""
    from coset.figures import GREY, PALETTE, new_figure

    figure = new_figure(6.4, 2.8)
    panel = figure.subplots()
    colours = dict(zip(FRAMES, (GREY, *PALETTE), strict=False))
    for at, shares in enumerate(found.values()):
        width = 0.8 / len(shares.whole)
        for number, (frame, value) in enumerate(shares.whole.items()):
            interval = over_parts(value, shares.parts[frame])
            x = at + width * (number - (len(shares.whole) - 1) / 2)
            panel.bar(x, value, 0.9 * width, color=colours[frame])
            panel.plot([x, x], [interval.low, interval.high], color="black", linewidth=0.8)
    panel.set_xticks(range(len(found)), list(found))
    panel.set_ylabel("share of variance")
    used = [frame for frame in FRAMES if any(frame in one.whole for one in found.values())]
    handles = [panel.plot([], [], "s", color=colours[frame], label=frame)[0] for frame in used]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(used))
    panel.grid(axis="x", visible=False)
    return figure
