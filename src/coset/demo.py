"""The demonstration: two networks trained on digits, one moved along its orbit, one brought to it; a posterior."""

import json
import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from coset.alignment import align
from coset.data import Dataset, load
from coset.distribution import MeanField
from coset.errors import InputError
from coset.files import output_folder, write_bytes, write_text
from coset.landscape import Profiles, barrier, linear, on
from coset.models import MLP
from coset.posterior import fit_mean_field, predictive, score
from coset.progress import progress
from coset.symmetry import Element, Symmetry, discover
from coset.train import Recipe, fit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTHS = (64, 64)
RECIPE = Recipe(epochs=30, batch_size=64, learning_rate=2e-3, optimizer="adam", schedule="linear")
VARIATIONAL: dict[str, Any] = {
    "epochs": 30,
    "batch_size": 64,
    "learning_rate": 2e-3,
    "schedule": "linear",
    "prior": 1.0,
    "std": 0.05,
    # Mean-field posteriors of small data are too wide at T = 1: the effect of cold posteriors.
    "temperature": 0.1,
}


@dataclass(frozen=True)
class Row:
    """A network beside network A: how far its weights and its outputs are from A's."""

    network: str
    test_accuracy: float
    weight_distance: float
    output_difference: float
    same_labels: float


@dataclass(frozen=True)
class Line:
    """The line from A to another network: the barrier of the test loss on it, and the accuracy halfway."""

    to: str
    barrier: float
    midpoint_accuracy: float


@dataclass(frozen=True)
class Prediction:
    """How well one network, or a posterior, predicts the test labels; nll in nats per image."""

    by: str
    nll: float
    accuracy: float
    ece: float


@dataclass(frozen=True)
class DemoResult:
    """What was found: the symmetry, a row for each network, lines from A, predictions, and the files written."""

    symmetry: Symmetry
    rows: tuple[Row, ...]
    lines: tuple[Line, ...]
    predictions: tuple[Prediction, ...]
    figure: Path
    results: Path


def run_demo(out: str | os.PathLike[str], *, seed: int = 0, show: bool | None = None) -> DemoResult:
    """Train networks A and B on digits, move A by a random element g of its group, bring B to A by alignment.

    Weights are compared by ‖θ − θ_A‖/‖θ_A‖, outputs by the largest difference of a logit on the test images in float64;
    then the loss is followed on the line from A to B, and to B aligned. Last, mean-field VI from A's weights makes a
    posterior, which is compared with A in what it predicts.
    """
    if not 0 <= seed < 2**63 - 1:
        raise InputError(f"seed must be an integer from 0 to 2^63 - 2, found {seed}")
    with output_folder(out) as folder:
        digits = load("digits", flatten=True)
        model = MLP(digits.train.x.shape[1], WIDTHS, digits.outputs)
        sym = discover(model, digits.test.x[:2])
        generator = torch.Generator().manual_seed(seed)
        a, b = _train_two(digits, seed, generator, show)
        g = sym.random(generator)
        aligned = align(sym, a, b, seed=seed, show=False).aligned
        networks = {"A": a, "g·A": sym.act(g, a), "B": b, "B aligned": aligned}
        x, y = digits.test.x.double(), digits.test.y
        logits = {name: _logits(model, params, x) for name, params in networks.items()}
        rows = tuple(
            Row(
                name,
                float((logits[name].argmax(1) == y).double().mean()),
                _distance(params, a),
                float((logits[name] - logits["A"]).abs().max()),
                float((logits[name].argmax(1) == logits["A"].argmax(1)).double().mean()),
            )
            for name, params in networks.items()
        )
        profiles = {
            f"A to {name}": barrier(linear(a, networks[name]), on(model, test=(x, y)), show=False)
            for name in ("B", "B aligned")
        }
        lines = tuple(
            Line(name, profile["test loss"].barrier, 1 - profile["test error"].midpoint.value)
            for name, profile in profiles.items()
        )
        predictions = _predictions(digits, model, a, seed, show)
        # matplotlib takes long to import, and only this needs it.
        from coset.figures import render

        image, _ = render(lambda: _figure(g, networks, logits, profiles))
        content = {
            "seed": seed,
            "log_order": sym.log_order,
            "scales": sym.scale_dimension,
            "rows": [asdict(row) for row in rows],
            "lines": [asdict(line) for line in lines],
            "predictions": [asdict(prediction) for prediction in predictions],
        }
        result = DemoResult(sym, rows, lines, predictions, folder / "demo.png", folder / "demo.json")
        write_bytes(result.figure, image)
        write_text(result.results, json.dumps(content, ensure_ascii=False, indent=1) + "\n")
    return result


def _train_two(digits: Dataset, seed: int, generator: torch.Generator, show: bool | None) -> list[dict[str, Tensor]]:
    """The weights of two networks trained from different initial weights, in float64.

    Rounding of float32 training is not what is shown here: the comparison is made in float64.
    """
    trained: list[dict[str, Tensor]] = []
    with progress("training two networks on digits", 2 * RECIPE.epochs, show=show) as bar:
        for number in range(2):
            result = fit(
                _initial(digits.train.x.shape[1], digits.outputs, generator),
                digits.train.x,
                digits.train.y,
                RECIPE,
                seed=seed + number,
                show=False,
                callback=lambda moment: (
                    bar.advance(note=f"loss {moment.record.train.loss:.4f}") if moment.record else None
                ),
            )
            trained.append({name: tensor.double() for name, tensor in result.params.items()})
    return trained


def _predictions(
    digits: Dataset, model: nn.Module, a: dict[str, Tensor], seed: int, show: bool | None
) -> tuple[Prediction, ...]:
    """Network A, and the posterior that mean-field VI finds from there."""
    posterior = fit_mean_field(model, digits.train, **VARIATIONAL, start=a, seed=seed, show=show).posterior
    both: dict[str, dict[str, Tensor] | MeanField] = {"network A": a, "posterior at T = 0.1, 128 draws": posterior}
    found = []
    for name, q in both.items():
        scores = score(predictive(model, q, digits.test.x, y=digits.test.y, seed=seed, show=False))
        found.append(Prediction(name, scores["nll"], scores["accuracy"], scores["ece"]))
    return tuple(found)


def _initial(inputs: int, outputs: int, generator: torch.Generator) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(int(torch.randint(2**31, (1,), generator=generator)))
        return MLP(inputs, WIDTHS, outputs)


def _logits(model: nn.Module, params: dict[str, Tensor], x: Tensor) -> Tensor:
    with torch.no_grad():
        output: Tensor = torch.func.functional_call(model, params, (x,))
        return output


def _distance(params: dict[str, Tensor], reference: dict[str, Tensor]) -> float:
    squares = sum(float((params[name] - reference[name]).square().sum()) for name in reference)
    return math.sqrt(squares / sum(float(tensor.square().sum()) for tensor in reference.values()))


def _figure(
    g: Element,
    networks: dict[str, dict[str, Tensor]],
    logits: dict[str, Tensor],
    profiles: dict[str, Profiles],
) -> "Figure":
    from matplotlib.patches import Rectangle

    from coset.figures import BLUE, GREEN, GREY, INK, ORANGE, VERMILION, label_panel, new_figure

    figure = new_figure(12.5, 3.0)
    grid = figure.add_gridspec(1, 5, width_ratios=(1, 1, 1, 0.9, 0.9))
    went_to = g.permutations["layers.0"].argsort()
    titles = ("network A", "g·A: the same function", "B: another function")
    for column, (letter, title, params) in enumerate(zip("abc", titles, networks.values(), strict=False)):
        axes = figure.add_subplot(grid[0, column])
        axes.imshow(_tiles(params["layers.0.weight"]).numpy(), cmap="RdBu_r", vmin=-1, vmax=1, interpolation="nearest")
        axes.set_axis_off()
        label_panel(axes, letter, title)
        for unit, colour in zip((9, 27, 44), (INK, GREEN, ORANGE), strict=True):
            # Three units of A, and where g takes them.
            place = unit if column == 0 else int(went_to[unit])
            corner = (9 * (place % 8) - 1, 9 * (place // 8) - 1)
            if column < 2:
                axes.add_patch(Rectangle(corner, 9, 9, fill=False, ec=colour, lw=2.0))
    axes = figure.add_subplot(grid[0, 3])
    reference = logits["A"].flatten().numpy()
    ends = [float(reference.min()), float(reference.max())]
    axes.plot(ends, ends, color=GREY, lw=0.9, zorder=1)
    axes.plot(reference, logits["B"].flatten().numpy(), ".", color=VERMILION, ms=1.5, alpha=0.5, label="B", zorder=2)
    axes.plot(reference, logits["g·A"].flatten().numpy(), ".", color=BLUE, ms=1.5, label="g·A", zorder=3)
    axes.set_xlabel("logits of A")
    axes.set_ylabel("logits of the other network")
    axes.legend(loc="upper left", markerscale=6)
    label_panel(axes, "d", "outputs on test images")
    axes = figure.add_subplot(grid[0, 4])
    for (label, profile), colour in zip(profiles.items(), (VERMILION, GREEN), strict=True):
        loss = profile["test loss"]
        axes.plot(loss.taus, loss.values, color=colour, label=label)
    axes.set_xlabel("τ along the line")
    axes.set_ylabel("test loss, nats")
    # Room for the legend above the curves.
    axes.set_ylim(0, 1.4 * max(value for profile in profiles.values() for value in profile["test loss"].values))
    axes.legend(loc="upper center")
    label_panel(axes, "e", "before and after alignment")
    return figure


def _tiles(weight: Tensor, units: int = 64) -> Tensor:
    """The incoming weights of the first hidden units as 8×8 images, each over its largest value, on a square grid."""
    side = int(units**0.5)
    tiles = weight[:units].reshape(units, 8, 8)
    tiles = tiles / tiles.abs().amax((1, 2), keepdim=True)
    framed = torch.nn.functional.pad(tiles, (0, 1, 0, 1), value=float("nan"))
    return framed.reshape(side, side, 9, 9).permute(0, 2, 1, 3).reshape(side * 9, side * 9)
