"""The command line: thin; every command is a function of the library."""

import io
import json
import math
import os
import signal
import sys
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

# Threads that spin while they wait collapse as soon as anything else runs; torch reads this when it is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from coset.errors import InputError
from coset.tables import text_table

app = typer.Typer(
    help="Neural networks modulo their symmetries.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
study_app = typer.Typer(help="Studies: figures and tables of the papers, one command each.", no_args_is_help=True)
store_app = typer.Typer(help="The store of trained networks that studies share.", no_args_is_help=True)
data_app = typer.Typer(help="Datasets: list, fetch, check.", no_args_is_help=True)
app.add_typer(study_app, name="study")
app.add_typer(store_app, name="store")
app.add_typer(data_app, name="data")

Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of text.")]
Seed = Annotated[int, typer.Option(help="Seed of all randomness: same seed, same result.")]
StoreFolder = Annotated[
    Path | None, typer.Option("--store", help="Folder of the store [default: COSET_STORE or the user's cache].")
]


def _print_json(content: Any) -> None:
    print(json.dumps(_plain(content), ensure_ascii=False, indent=1, allow_nan=False, default=str))


def _plain(content: Any) -> Any:
    """``content`` with null for NaN and infinities, which JSON does not have."""
    if isinstance(content, float):
        return content if math.isfinite(content) else None
    if isinstance(content, dict):
        return {name: _plain(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [_plain(value) for value in content]
    return content


def _show(columns: list[str], rows: list[list[str]], title: str = "") -> None:
    if title:
        print(f"\n{title}")
    print(text_table(columns, rows))


@app.command()
def version(as_json: Json = False) -> None:
    """Print the versions of coset and of what it stands on."""
    import platform
    from importlib.metadata import version as installed

    versions = {"coset": installed("coset"), "torch": installed("torch"), "python": platform.python_version()}
    if as_json:
        _print_json(versions)
    else:
        print(" ".join(f"{name} {number}" for name, number in versions.items()))


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the figure and the numbers.")] = Path("coset-demo"),
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Move a network along its orbit: same function, other weights."""
    from coset.demo import run_demo

    result = run_demo(out, seed=seed)
    if as_json:
        _print_json(json.loads(result.results.read_text(encoding="utf-8")))
        return
    print(result.symmetry)
    _show(
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
        "A: trained; g·A: A moved by a random symmetry g; B: trained from another seed",
    )
    moved, other = result.rows[1], result.rows[2]
    print(
        f"g·A is at {moved.weight_distance:.2f} from A (another trained network: {other.weight_distance:.2f}) and its "
        f"outputs differ from A's by {moved.output_difference:.0e}.\nfigure: {result.figure}"
    )


@app.command()
def discover(
    model: Annotated[
        str, typer.Argument(help="MODULE:FACTORY, FILE.py:FACTORY, or a built-in model such as resnet20.")
    ],
    shapes: Annotated[
        list[str] | None,
        typer.Option(
            "--input", help="Shape of an input, e.g. 2,3,32,32; once per input; i:2,16:1000 for whole numbers < 1000."
        ),
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(help="An option of the factory as NAME=VALUE; may be repeated.")
    ] = None,
    verify: Annotated[bool, typer.Option("--verify/--no-verify", help="Check f(g·θ) = f(θ) in float64.")] = True,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Write the symmetry to this JSON file.")] = None,
    as_json: Json = False,
) -> None:
    """Find the symmetry group of a model: permutations, scales and signs."""
    import coset
    from coset.models import build, example_input

    network = build(model, seed=0, **_options(option or [])).eval()
    inputs = tuple(_example(shape) for shape in shapes) if shapes else (example_input(network),)
    sym = coset.discover(network, inputs, verify=verify)
    if out is not None:
        sym.save(out)
    print(sym.to_json() if as_json else sym, end="" if as_json else "\n")


def _options(pairs: list[str]) -> dict[str, Any]:
    """NAME=VALUE, the value read as JSON where it is JSON and as text otherwise."""
    result: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name.isidentifier():
            raise InputError(f"--option takes NAME=VALUE, found '{pair}'")
        try:
            result[name] = json.loads(text)
        except json.JSONDecodeError:
            result[name] = text
    return result


def _example(text: str) -> Any:
    """A random tensor of a shape written as 2,3,32,32, or of whole numbers as i:2,16:1000."""
    import torch

    whole = text.startswith("i:")
    words, _, limit = text.removeprefix("i:").partition(":")
    try:
        shape = [int(word) for word in words.split(",")]
        high = int(limit) if limit else 2
        if min(shape) < 1 or high < 1:
            raise ValueError(text)
    except ValueError as error:
        raise InputError(f"--input takes a shape such as 2,3,32,32 or i:2,16:1000, found '{text}'") from error
    generator = torch.Generator().manual_seed(0)
    if whole:
        return torch.randint(0, high, shape, generator=generator)
    return torch.randn(shape, generator=generator)


@study_app.command("list")
def study_list(as_json: Json = False) -> None:
    """List the studies."""
    from coset.studies import studies

    known = studies()
    if as_json:
        _print_json([{"name": s.name, "title": s.title, "reference": s.reference} for s in known.values()])
        return
    _show(["study", "title", "reference"], [[s.name, s.title, s.reference] for s in known.values()])


@study_app.command("run")
def study_run(
    name: Annotated[str, typer.Argument(help="A name from `coset study list`.")],
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
    from coset.studies import run_study

    run = run_study(name, preset, out, seed=seed, device=device, store=Store(store) if store else None)
    if as_json:
        _print_json(run.results())
    else:
        print(run)


@study_app.command("show")
def study_show(
    name: Annotated[str, typer.Argument(help="A name from `coset study list`.")],
    out: Annotated[Path, typer.Option(help="Folder of an earlier run.")] = Path("coset-study"),
    as_json: Json = False,
) -> None:
    """Show what an earlier run of a study found."""
    from coset.studies import show_study

    run = show_study(name, out)
    if as_json:
        _print_json(run.results())
    else:
        print(run)


@store_app.command("list")
def store_list(
    store: StoreFolder = None,
    check: Annotated[bool, typer.Option("--check", help="Verify the checksum of every entry.")] = False,
    as_json: Json = False,
) -> None:
    """List the trained networks in the store."""
    from coset.store import Store

    rows = Store(store).entries(check=check)
    if as_json:
        _print_json([asdict(row) for row in rows])
        return
    _show(
        ["key", "kind", "made", "MB", "problem"],
        [[r.key[:12], r.kind or "", str(r.created or ""), f"{r.size / 1e6:.2f}", r.problem] for r in rows],
        f"{len(rows)} entries, {sum(row.size for row in rows) / 1e6:.1f} MB",
    )


@store_app.command("prune")
def store_prune(
    store: StoreFolder = None,
    kind: Annotated[str | None, typer.Option(help="Only entries of this kind.")] = None,
    older_than: Annotated[float | None, typer.Option(help="Only entries older than so many days.")] = None,
    keep: Annotated[int | None, typer.Option(help="Spare the newest so many.")] = None,
    unreadable: Annotated[bool, typer.Option("--unreadable", help="Remove damaged entries too.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    as_json: Json = False,
) -> None:
    """Remove entries of the store, and what interrupted writes left behind."""
    from coset.store import Store

    try:
        age = None if older_than is None else timedelta(days=older_than)
    except (ValueError, OverflowError) as error:
        raise InputError(f"--older-than is {older_than}, expected a number of days") from error
    pruned = Store(store).prune(kind=kind, older_than=age, keep=keep, unreadable=unreadable, dry_run=dry_run)
    counts = {
        "entries": len(pruned.entries),
        "leftovers": len(pruned.leftovers),
        "bytes": pruned.size,
        "dry_run": dry_run,
    }
    if as_json:
        _print_json(counts)
        return
    verb = "would remove" if dry_run else "removed"
    print(f"{verb} {counts['entries']} entries and {counts['leftovers']} leftovers, {pruned.size / 1e6:.1f} MB")


@data_app.command("list")
def data_list(as_json: Json = False) -> None:
    """List the datasets: which are on this machine, and the command that fetches each of the others."""
    from coset.data import available

    rows = available()
    if as_json:
        _print_json([asdict(row) for row in rows])
        return
    _show(
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
        _print_json(fetched)


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
    from coset.data import available, check
    from coset.progress import progress

    chosen = names or [row.name for row in available(root) if row.found or row.incomplete]
    reports = []
    with progress("checking", len(chosen)) as bar:
        for name in chosen:
            reports.append(check(name, root))
            bar.advance(note=name)
    if as_json:
        _print_json([asdict(report) for report in reports])
    else:
        _show(
            ["dataset", "folder", "state"],
            [[report.name, report.folder, "whole" if report.ok else f"{report.problem}"] for report in reports],
        )
    if not all(report.ok for report in reports):
        raise typer.Exit(1)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line: bad input gets one line and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that knows no Greek gets question marks, not a traceback.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    if arguments is None and hasattr(signal, "SIGPIPE"):
        # The reader of a pipe may go away (coset … | head): end quietly, as other commands do.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        code = app(arguments, standalone_mode=False)
        if code == 130:  # the parser's word for an interruption
            print("coset: interrupted", file=sys.stderr)
    except InputError as error:
        code = _complain(str(error))
    except (KeyboardInterrupt, typer.Abort):
        print("coset: interrupted", file=sys.stderr)
        code = 130
    except OSError as error:
        code = _complain(f"{error.strerror or error}: {error.filename or 'output'}")
    except Exception as error:
        # Usage errors of the parser; its classes moved between versions, their method did not.
        if not hasattr(error, "format_message"):
            raise
        message = error.format_message()
        if message.lstrip().startswith("Usage:"):  # a command without arguments: its help
            print(message)
            sys.exit(0)
        code = _complain(message)
    sys.exit(code if isinstance(code, int) else 0)


def _complain(message: str) -> int:
    print("coset: " + " ".join(message.split()), file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()
