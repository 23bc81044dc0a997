"""Convolutional networks with more or fewer channels than those that a flow was trained on."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from coset.data import Split
from coset.flow import Flow, Solver, for_architecture
from coset.models import build, example_input
from coset.study import Claim, Context, Estimate, Findings, Results, Scalar, Table, study
from coset.symmetry import discover
from coset_studies.flows._sampled import Kind, accuracies, averaged, mean_and_error, of_rows, unit_kind
from coset_studies.flows._stored_flows import stored_flow
from coset_studies.flows._zoos import Networks, Stack, chosen, counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FLOW, SHARP, GAUSSIAN = "flow", "flow, contrast", "independent units"
WAYS = ("as sampled", "over the ratio")
"""Weights into later layers: as they are, or over the ratio of numbers of channels, so that sums stay as large."""


@dataclass(frozen=True)
class Config:
    """``zoo``: its last ``held_out`` networks are not learned. ``widths``: channels of each layer of the networks that
    are sampled, ``samples`` of each, of which ``average`` are averaged. ``contrast``: of the sharper samples.
    """

    zoo: Networks
    held_out: int
    kind: Kind
    steps: int
    batch_size: int
    widths: tuple[int, ...]
    samples: int
    average: int
    contrast: float = 1.5

    @property
    def own(self) -> int:
        """The number of channels of the networks that are learned."""
        return int(self.zoo.options["width"])


_MODEL = "coset_studies.flows._small_cnn:SmallCNN"
_ADAM = {"optimizer": "adam", "batch_size": 50, "schedule": "cosine"}
QUICK = Config(
    Networks(
        _MODEL,
        {"width": 3, "pool": 1, "size": 8},
        {"name": "digits", "subset": 100},
        {**_ADAM, "learning_rate": 1e-2, "epochs": 1},
        8,
        order="shared",
    ),
    held_out=2,
    kind=unit_kind({"channels": 8, "layers": 1, "heads": 2, "pairs": 2}, 5, coupling="independent"),
    steps=2,
    batch_size=4,
    widths=(3, 6),
    samples=2,
    average=2,
)
SMALL = Config(
    Networks(
        _MODEL,
        {"width": 8},
        {"name": "mnist", "subset": 10_000},
        {**_ADAM, "learning_rate": 1e-2, "epochs": 3},
        300,
        order="shared",
    ),
    held_out=30,
    kind=replace(
        unit_kind({"channels": 128, "layers": 4, "heads": 4, "dropout": 0.1}, 64, coupling="independent"),
        solver=Solver("midpoint", 20),
    ),
    steps=1500,
    batch_size=32,
    widths=(4, 8, 16, 32),
    samples=64,
    average=32,
)


def _accuracy(results: Results, generator: str, width: str, way: str) -> Estimate | None:
    known = results.numbers.get(width)
    if known is None:
        return None
    return of_rows(results, "channels", "accuracy", "standard error", generator=generator, width=known, weights=way)


def _less(one: Estimate | None, other: Estimate | None) -> Estimate | None:
    if one is None or other is None:
        return None
    value, error = one.value - other.value, ((one.high - one.value) ** 2 + (other.high - other.value) ** 2) ** 0.5
    return Estimate(value, value - error, value + error)


def _claim(statistic: str, estimate: Any, reason: str) -> Claim:
    return Claim(
        paper="A flow over MLPs of width 10 samples networks of width 32 that are better than those of width 10.",
        source="Erdogan 2025, MNIST MLP 784-10-10", statistic=statistic, direction="above", threshold=0.0,
        reason=f"{reason}; set before the run.", interval="1.96 standard errors over samples of both.",
        estimate=estimate,
    )  # fmt: skip


CLAIMS = [
    _claim(
        "test accuracy of samples of the flow with twice the channels, less that with the channels it knows",
        lambda r: _less(_accuracy(r, FLOW, "twice", WAYS[0]), _accuracy(r, FLOW, "own", WAYS[0])),
        "Wider networks of exchangeable units should average their errors",
    ),
    _claim(
        "test accuracy of samples of the flow with twice the channels, less that of independent units",
        lambda r: _less(_accuracy(r, FLOW, "twice", WAYS[0]), _accuracy(r, GAUSSIAN, "twice", WAYS[0])),
        "What a Gaussian of units gives is no merit of the flow",
    ),
    _claim(
        "test accuracy of samples of the flow with the channels it knows, less that of independent units",
        lambda r: _less(_accuracy(r, FLOW, "own", WAYS[0]), _accuracy(r, GAUSSIAN, "own", WAYS[0])),
        "What a Gaussian of units gives is no merit of the flow",
    ),
]

TEXT = """
A flow over {networks} networks with {own} channels in each of two layers, {weights} weights; {held out} more are held
out and have a test accuracy of {zoo accuracy:.4f}. Contrast of the sharper samples: {contrast}.
"""


@study(
    name="flows-mnist-channels",
    title="Convolutional networks with other numbers of channels",
    reference="Erdogan 2025, Geometric flow models over neural network weights; the thesis, chapter 3",
    paper="""
    A flow over MLPs 784-10-10 samples networks of width 32 without retraining, whose accuracies are .826, .203 and .890
    (Euclidean, normalized, geometric) where samples of width 10 have .737 to .786.
    """,
    presets={"quick": QUICK, "small": SMALL, "paper": replace(SMALL, steps=20_000)},
    claims=CLAIMS,
    text={"small": TEXT},
)
def run(config: Config, context: Context) -> Findings:
    """One flow, whose tokens are channels, and networks of several widths."""
    everything = config.zoo.trained(context).last
    model, sym = config.zoo.built()
    part = context.data(str(config.zoo.data["name"])).test
    count = counted(everything) - config.held_out
    stack, unseen = chosen(everything, slice(0, count)), chosen(everything, slice(count, None))
    flow, _ = stored_flow(context, config.zoo, config.kind, sym, stack, config.steps, config.batch_size)
    rows: list[list[Scalar]] = []
    found: dict[str, list[tuple[int, float]]] = {}
    for width in config.widths:
        for name, contrast in ((FLOW, 1.0), (SHARP, config.contrast), (GAUSSIAN, 0.0)):
            for way, own in _of_width(config, context, flow, width, contrast).items():
                wide = build(config.zoo.model, seed=0, **{**config.zoo.options, "width": width}).eval()
                rows.append([name, width, way, *_measured(wide, part, own, config.average)])
                if way == WAYS[0]:
                    found.setdefault(name, []).append((width, float(str(rows[-1][3]))))
    rows.append(
        [
            "held-out networks",
            config.own,
            WAYS[0],
            *_measured(model, part, unseen, min(config.average, config.held_out)),
        ]
    )
    return Findings(
        numbers={
            "networks": count, "held out": config.held_out, "steps": config.steps, "contrast": config.contrast,
            "own": config.own, "twice": 2 * config.own, "zoo accuracy": float(accuracies(model, part, unseen).mean()),
            "weights": sum(tensor[0].numel() for tensor in stack.values()),
        },
        tables={"channels": Table(_COLUMNS, rows, _TABLE)},
        figure=lambda: _figure(found, accuracies(model, part, unseen)),
        caption="Test accuracy of a sample, as it is sampled, by the number of channels; the grey line is the zoo.",
    )  # fmt: skip


def _of_width(config: Config, context: Context, flow: Flow, width: int, contrast: float) -> dict[str, Stack]:
    like = build(config.zoo.model, seed=0, **{**config.zoo.options, "width": width}).eval()
    sym = discover(like, example_input(like))
    drawn = for_architecture(flow, sym, like.state_dict()).sample(
        config.samples, context.generator(f"channels {width}"), contrast=contrast
    )
    ratio = config.own / width
    later = {"conv2.weight", "fc.weight"}
    return {
        WAYS[0]: drawn,
        WAYS[1]: {name: tensor * ratio if name in later else tensor for name, tensor in drawn.items()},
    }


def _measured(model: Any, part: Split, stack: Stack, average: int) -> tuple[float, float, float]:
    return *mean_and_error(accuracies(model, part, stack)), averaged(model, part, stack, average)[0]


_COLUMNS = ("generator", "width", "weights", "accuracy", "standard error", "averaged")
_TABLE = (
    "Accuracy on the test data by channels of each layer, without training; weights into later layers as sampled, or "
    "over the ratio of widths. Independent units: the Gaussian that the flow begins with (contrast 0)."
)


def _figure(found: dict[str, list[tuple[int, float]]], zoo: Tensor) -> "Figure":
    from coset.figures import new_figure

    figure = new_figure(4.2, 2.8)
    panel = figure.subplots()
    for name, points in found.items():
        panel.plot([width for width, _ in points], [value for _, value in points], "o-", markersize=3, label=name)
    panel.axhline(float(zoo.mean()), color="0.6", linewidth=0.8)
    panel.set_xscale("log", base=2)
    panel.set_xlabel("channels")
    panel.set_ylabel("test accuracy")
    panel.legend(fontsize=7, frameon=False)
    return figure
