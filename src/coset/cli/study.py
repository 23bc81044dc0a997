"""``coset study``: list, run, show, render."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coset.cli.options import Json, Seed, StoreFolder
from coset.cli.printing import print_json, show_table

if TYPE_CHECKING:
    from coset.study import StudyRun

StudyName = Annotated[str, typer.Argument(help="A name from `coset study list`.")]
EarlierRun = Annotated[Path, typer.Option("--out", help="Folder of an earlier run.")]

study_app = typer.Typer(help="Studies: figures and tables of the papers, one command each.", no_args_is_help=True)


@study_app.command("list")
def study_list(as_json: Json = False) -> None:
    """List the studies."""
    from coset.study import broken_studies, studies

    known = studies()
    for error in broken_studies():
        print(f"coset: {error}", file=sys.stderr)
    if as_json:
        print_json([{"name": s.name, "title": s.title, "reference": s.reference} for s in known.values()])
        return
    show_table(["study", "title", "reference"], [[s.name, s.title, s.reference] for s in known.values()])


@study_app.command("run")
def study_run(
    name: StudyName,
    preset: Annotated[
        str,
        typer.Option(help="quick: seconds, embedded data; small: up to 30 minutes on two cores; paper: as published."),
    ] = "quick",
    out: Annotated[Path, typer.Option(help="Folder for results, tables, figure and page.")] = Path("coset-study"),
    seed: Seed = 0,
    device: Annotated[
        str | None, typer.Option(help="Device, e.g. cpu or cuda [default: cuda for paper if any].")
    ] = None,
    store: StoreFolder = None,
    as_json: Json = False,
) -> None:
    """Run a study; an interrupted one goes on where it stopped, and a second run trains nothing."""
    from coset.store import Store
    from coset.study import run_study

    _tell(run_study(name, preset, out, seed=seed, device=device, store=Store(store) if store else None), as_json)


def _tell(run: "StudyRun", as_json: bool) -> None:
    if as_json:
        print_json(run.results())
    else:
        print(run)


@study_app.command("show")
def study_show(name: StudyName, out: EarlierRun = Path("coset-study"), as_json: Json = False) -> None:
    """Show what an earlier run of a study found."""
    from coset.study import show_study

    _tell(show_study(name, out), as_json)


@study_app.command("render")
def study_render(name: StudyName, out: EarlierRun = Path("coset-study"), as_json: Json = False) -> None:
    """Write the page and the verdicts of an earlier run again; nothing is computed."""
    from coset.study import render_study

    _tell(render_study(name, out), as_json)
