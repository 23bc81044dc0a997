"""``coset version`` and ``coset demo``."""

import json
from pathlib import Path
from typing import Annotated

import typer

from coset.cli.options import Json, Seed
from coset.cli.printing import print_json, show_table


def version(as_json: Json = False) -> None:
    """Print the versions of coset and of what it stands on."""
    import platform
    from importlib.metadata import version as installed

    versions = {"coset": installed("coset"), "torch": installed("torch"), "python": platform.python_version()}
    if as_json:
        print_json(versions)
    else:
        print(" ".join(f"{name} {number}" for name, number in versions.items()))


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the figure and the numbers.")] = Path("coset-demo"),
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Move a network along its orbit, and bring another one to it: same functions, other weights.

    Ends in the barriers between two networks and between two posteriors, before and after alignment.
    """
    from coset._show.text_plots import text_plot
    from coset.demo import run_demo

    result = run_demo(out, seed=seed)
    if as_json:
        print_json(json.loads(result.results.read_text(encoding="utf-8")))
        return
    print(result.symmetry)
    show_table(
        ["network", "test accuracy", "‖θ − θ_A‖ / ‖θ_A‖", "largest |logit − A's|", "same labels as A"],
        [
            [
                row.network,
                f"{100 * row.test_accuracy:.1f} %",
                f"{row.weight_distance:.3f}",
                f"{row.output_difference:.1e}",
                f"{100 * row.same_labels:.1f} %",
            ]
            for row in result.rows
        ],
        "A: trained; g·A: A moved by a random symmetry g; B: trained from another seed; B aligned: B brought to A",
    )
    show_table(
        ["by", "negative log-likelihood, nats", "test accuracy", "calibration error"],
        [
            [one.by, f"{one.nll:.3f}", f"{100 * one.accuracy:.1f} %", f"{100 * one.ece:.1f} %"]
            for one in result.predictions
        ],
        "Predictions on test images, by A alone and by a posterior around it",
    )
    moved, other = result.rows[1], result.rows[2]
    print(
        f"g·A is at {moved.weight_distance:.2f} from A (another trained network: {other.weight_distance:.2f}) and its "
        f"outputs differ from A's by {moved.output_difference:.0e}."
    )
    show_table(
        ["between two", "images", "naive", "aligned"],
        [
            [row.between, row.images, _nats(row.naive, row.naive_error), _nats(row.aligned, row.aligned_error)]
            for row in result.barriers
        ],
        "Barriers: how much log-likelihood is lost on the way from A to B, and to B aligned; nats per image",
    )
    found = {way: profiles["test log-likelihood"] for way, profiles in result.curves.items()}
    print(
        "\n"
        + text_plot(
            {way: (profile.taus, profile.values) for way, profile in found.items()},
            x_label="τ",
            y_label="Log-likelihood of test images, nats, from posterior A (τ = 0) to B (τ = 1)",
        )
    )
    print(f"figure: {result.figure}")


def _nats(value: float, error: float) -> str:
    return f"{value:.3f} ± {error:.3f}" if error else f"{value:.3f}"
