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
    """Move a network along its orbit, and bring another one to it: same functions, other weights."""
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
        ["line", "barrier of the test loss, nats", "test accuracy halfway"],
        [[line.to, f"{line.barrier:.3f}", f"{100 * line.midpoint_accuracy:.1f} %"] for line in result.lines],
        "The line between two networks",
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
        f"outputs differ from A's by {moved.output_difference:.0e}.\nfigure: {result.figure}"
    )
