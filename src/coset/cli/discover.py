"""``coset discover``."""

from pathlib import Path
from typing import Annotated

import typer

from coset.cli.networks import build_model
from coset.cli.options import MODEL_HELP, FactoryOptions, InputShapes, Json


def discover(
    model: Annotated[str, typer.Argument(help=MODEL_HELP)],
    shapes: InputShapes = None,
    option: FactoryOptions = None,
    verify: Annotated[bool, typer.Option("--verify/--no-verify", help="Check f(g·θ) = f(θ) in float64.")] = True,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Write the symmetry to this JSON file.")] = None,
    draw: Annotated[
        Path | None, typer.Option("--draw", help="Draw the layers and their classes of units: FILE.svg or FILE.dot.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Find the symmetry group of a model: permutations, scales and signs."""
    import coset
    from coset._files.atomic import write_text

    if draw is not None and draw.suffix not in (".svg", ".dot"):
        raise coset.InputError(f"--draw is {draw}; expected a file that ends in .svg or .dot")

    network, inputs = build_model(model, option, shapes)
    sym = coset.discover(network, inputs, verify=verify)
    if out is not None:
        sym.save(out)
    if draw is not None:
        write_text(draw, sym.graph.to_svg() if draw.suffix == ".svg" else sym.graph.to_dot())
    print(sym.to_json() if as_json else sym, end="" if as_json else "\n")
