"""The demonstration: two networks trained on digits, one moved along its orbit, one brought to it; posteriors."""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from coset._checks import is_seed
from coset._files.atomic import output_folder, write_bytes, write_text
from coset._show.progress import progress
from coset.alignment import align
from coset.data import Dataset, load
from coset.distribution import MeanField
from coset.errors import InputError
from coset.landscape import Profiles, naive_and_aligned, predictive_on
from coset.models import MLP, build
from coset.posterior import fit_mean_field, predictive, score
from coset.running import outputs_with
from coset.symmetry import Element, Symmetry, discover
from coset.train import Recipe, fit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTHS = (64, 64)
RECIPE = Recipe(epochs=30, batch_size=64, learning_rate=2e-3, optimizer="adam", schedule="linear")
POSTERIOR = "posterior at T = 0.1, 128 draws"
SAMPLES = 16
POINTS = {"networks": 25, "posteriors": 13}
"""So many τ; each takes as many passes as there are draws."""

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
class Barrier:
    """The largest drop of the log-likelihood between A and B, nats per image, as B is and after bringing it to A.

    Standard errors are 0 for networks, which are not drawn.
    """

    between: str
    images: str
    naive: float
    naive_error: float
    aligned: float
    aligned_error: float


def _profiles_between(
    model: nn.Module, sym: Symmetry, digits: Dataset, a: Any, b: Any, points: int, seed: int, show: bool | None
) -> dict[str, Profiles]:
    """What happens on the geodesic from ``a`` to ``b``, networks or posteriors: naive, and after alignment."""
    measures = predictive_on(model, samples=SAMPLES, seed=seed, train=digits.train, test=digits.test)
    options = {"seed": seed, "show": False}
    return dict(naive_and_aligned(sym, a, b, measures, options=options, points=points, show=show).profiles)


def _barriers_of(between: str, found: Mapping[str, Profiles]) -> list[Barrier]:
    """A row for the train and one for the test images."""
    rows = []
    for images in ("train", "test"):
        naive, aligned = (found[way][f"{images} log-likelihood"] for way in ("naive", "aligned"))
        doubts = [profile.barrier_error or 0.0 for profile in (naive, aligned)]
        rows.append(Barrier(between, images, naive.barrier, doubts[0], aligned.barrier, doubts[1]))
    return rows


@dataclass(frozen=True)
class Row:
    """A network beside network A: how far its weights and its outputs are from A's."""

    network: str
    test_accuracy: float
    weight_distance: float
    output_difference: float
    same_labels: float


@dataclass(frozen=True)
class Prediction:
    """How well one network, or a posterior, predicts the test labels; nll in nats per image."""

    by: str
    nll: float
    accuracy: float
    ece: float


@dataclass(frozen=True)
class DemoResult:
    """What was found: the symmetry, a row for each network, predictions, barriers, and the files written.

    ``curves``: between the two posteriors, naive and aligned.
    """

    symmetry: Symmetry
    rows: tuple[Row, ...]
    predictions: tuple[Prediction, ...]
    barriers: tuple[Barrier, ...]
    curves: Mapping[str, Profiles]
    figure: Path
    results: Path


def run_demo(out: str | os.PathLike[str], *, seed: int = 0, show: bool | None = None) -> DemoResult:
    """Train networks A and B on digits, move A by a random element g of its group, bring B to A by alignment.

    Weights are compared by ‖θ − θ_A‖/‖θ_A‖, outputs by the largest difference of a logit on the test images in float64.
    Mean-field VI from the weights of A and of B makes two posteriors; the first is compared with A in what it predicts.
    Last, the log-likelihood is followed on the way from A to B, and to B aligned: of the networks, on a line, and of
    the posteriors, on Wasserstein geodesics.
    """
    if not is_seed(seed) or not is_seed(seed + 1):
        raise InputError(f"seed must be an integer from 0 to 2^63 - 2, found {seed!r}")
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
        with torch.no_grad():
            logits = {name: outputs_with(model, params, x) for name, params in networks.items()}
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
        posteriors = {
            name: fit_mean_field(model, digits.train, **VARIATIONAL, start=start, seed=own, show=show).posterior
            for name, start, own in (("A", a, seed), ("B", b, seed + 1))
        }
        predictions = _predictions(digits, model, {"network A": a, POSTERIOR: posteriors["A"]}, seed)
        profiles = {
            between: _profiles_between(model, sym, digits, pair["A"], pair["B"], POINTS[between], seed, show)
            for between, pair in (("networks", networks), ("posteriors", posteriors))
        }
        barriers = tuple(row for between, found in profiles.items() for row in _barriers_of(between, found))
        # matplotlib takes long to import, and only this needs it.
        from coset.figures import render

        image, _ = render(lambda: _figure(g, networks, logits, profiles["networks"]))
        content = {
            "seed": seed,
            "log_order": sym.log_order,
            "scales": sym.scale_dimension,
            "rows": [asdict(row) for row in rows],
            "predictions": [asdict(prediction) for prediction in predictions],
            "barriers": [asdict(row) for row in barriers],
            "curves": {way: found.to_dict() for way, found in profiles["posteriors"].items()},
        }
        files = (folder / "demo.png", folder / "demo.json")
        result = DemoResult(sym, rows, predictions, barriers, profiles["posteriors"], *files)
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
            initial = int(torch.randint(2**31, (1,), generator=generator))
            result = fit(
                build("mlp", seed=initial, widths=WIDTHS, in_features=digits.shape[0], out_features=digits.outputs),
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
    digits: Dataset, model: nn.Module, both: Mapping[str, Mapping[str, Tensor] | MeanField], seed: int
) -> tuple[Prediction, ...]:
    """How well network A predicts, and the posterior around it."""
    found = []
    for name, q in both.items():
        scores = score(predictive(model, q, digits.test.x, y=digits.test.y, seed=seed, show=False))
        found.append(Prediction(name, scores["nll"], scores["accuracy"], scores["ece"]))
    return tuple(found)


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
    loss = {
        "A to B": profiles["naive"]["test expected loss"],
        "A to B aligned": profiles["aligned"]["test expected loss"],
    }
    for (label, profile), colour in zip(loss.items(), (VERMILION, GREEN), strict=True):
        axes.plot(profile.taus, profile.values, color=colour, label=label)
    axes.set_xlabel("τ along the line")
    axes.set_ylabel("test loss, nats")
    # Room for the legend above the curves.
    axes.set_ylim(0, 1.4 * max(value for profile in loss.values() for value in profile.values))
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
