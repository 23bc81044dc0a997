"""``coset data``: list, fetch, check."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from coset.cli.options import Json
from coset.cli.printing import print_json, show_table

data_app = typer.Typer(help="Datasets: list, fetch, check.", no_args_is_help=True)


@data_app.command("list")
def data_list(as_json: Json = False) -> None:
    """List the datasets: which are on this machine, and the command that fetches each of the others."""
    from coset.data import available

    rows = available()
    if as_json:
        print_json([asdict(row) for row in rows])
        return
    show_table(
        ["dataset", "task", "train", "test", "where"],
        [[r.name, r.task, str(r.train), str(r.test), r.found or _absence(r.incomplete, r.command)] for r in rows],
    )


def _absence(incomplete: str | None, command: str | None) -> str:
    return f"{f'incomplete in {incomplete}' if incomplete else 'missing'}; run: {command}"


@data_app.command("fetch")
def data_fetch(
    names: Annotated[list[str], typer.Argument(help="Names from `coset data list`.")],
    root: Annotated[
        Path | None, typer.Option(help="Folder to put them in [default: data in the user's cache].")
    ] = None,
    source: Annotated[
        str | None, typer.Option("--from", help="Address with the same files, in place of the official one.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Download datasets from their official addresses, checked by SHA-256; an interrupted download is resumed.

    COSET_DATA is only read unless --root names it; what is there already and right stays.
    """
    from coset.data import fetch

    fetched = []
    for name in names:
        files = [str(file) for file in fetch(name, root=root, source=source)]
        fetched.append({"name": name, "files": files})
        if not as_json:
            print(f"{name}: {', '.join(files) or 'comes with scikit-learn'}")
    if as_json:
        print_json(fetched)


@data_app.command("check")
def data_check(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Names from `coset data list` [default: all that are here, whole or not]."),
    ] = None,
    root: Annotated[Path | None, typer.Option(help="Folder to look in [default: COSET_DATA, then the cache].")] = None,
    as_json: Json = False,
) -> None:
    """Verify that datasets are whole: presence, checksums and a full parse of every file."""
    from coset._show.progress import progress
    from coset.data import available, check

    chosen = names or [row.name for row in available(root) if row.found or row.incomplete]
    reports = []
    with progress("checking", len(chosen)) as bar:
        for name in chosen:
            reports.append(check(name, root))
            bar.advance(note=name)
    if as_json:
        print_json([asdict(report) for report in reports])
    else:
        show_table(
            ["dataset", "folder", "state"],
            [[report.name, report.folder, "whole" if report.ok else f"{report.problem}"] for report in reports],
        )
    if not all(report.ok for report in reports):
        raise typer.Exit(1)
