"""What commands on flows begin with: a file of a flow, and how its differential equation is solved."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from coset.flow import Flow, Solver

FlowFile = Annotated[Path, typer.Argument(metavar="FLOW", help="A flow, as `coset flow fit -o` wrote it.")]
Count = Annotated[int, typer.Option("-n", "--networks", metavar="N", help="So many samples.")]
SolverName = Annotated[
    str | None,
    typer.Option("--solver", metavar="NAME", help="euler, midpoint, rk4 or dopri5 [default: that of the flow]."),
]
SolverSteps = Annotated[
    int | None, typer.Option("--steps", metavar="N", help="Steps of the solver [default: those of the flow].")
]


def loaded_flow(file: Path) -> "Flow":
    """Read a flow; torch is loaded only now."""
    from coset.flow import load_flow

    return load_flow(file)


def chosen_solver(flow: "Flow", name: str | None, steps: int | None) -> "Solver":
    """That of the flow, with what the command line says otherwise."""
    from dataclasses import replace

    chosen: dict[str, Any] = {"method": name, "steps": steps}
    changed = {key: value for key, value in chosen.items() if value is not None}
    return replace(flow.solver, **{**changed, "grid": None}) if changed else flow.solver


def about_flow(flow: "Flow") -> dict[str, Any]:
    """What it is a flow of, and by what its densities are."""
    frame = flow.frame
    by = {"euclidean": "weights", "geometric": "the volume of the manifold of canonical weights"}
    return {
        "geometry": frame.geometry,
        "order": frame.order,
        "coordinates": frame.space.size,
        "field": flow.spec.name,
        "coupling": flow.recipe.coupling,
        "density": by.get(frame.geometry),
    }
