"""``coset discover``."""

from pathlib import Path
from typing import Annotated

import typer

from coset.cli.models import build_model
from coset.cli.options import MODEL_HELP, FactoryOptions, InputShapes, Json


def discover(
    model: Annotated[str, typer.Argument(help=MODEL_HELP)],
    shapes: InputShapes = None,
    option: FactoryOptions = None,
    verify: Annotated[bool, typer.Option("--verify/--no-verify", help="Check f(g·θ) = f(θ) in float64.")] = True,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Write the symmetry to this JSON file.")] = None,
    as_json: Json = False,
) -> None:
    """Find the symmetry group of a model: permutations, scales and signs."""
    import coset

    network, inputs = build_model(model, option, shapes)
    sym = coset.discover(network, inputs, verify=verify)
    if out is not None:
        sym.save(out)
    print(sym.to_json() if as_json else sym, end="" if as_json else "\n")
