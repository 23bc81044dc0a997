"""Run a study and write what it found; show or render again what an earlier run wrote."""

import json
import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from coset._checks import is_seed
from coset._files.atomic import atomic_path, output_folder
from coset._show.tables import csv_table
from coset.errors import InputError
from coset.store import Store
from coset.study._discovery import find_study
from coset.study._findings import Findings, is_name
from coset.study._picture import small_png
from coset.study._report import StudyRun, command, page, read_results
from coset.study._results import results_text
from coset.study._study import Context, Study
from coset.study._text import filled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FILES = ("results.json", "figure.png", "figure.svg")


def run_study(
    name: str,
    preset: str,
    out: str | os.PathLike[str],
    *,
    seed: int = 0,
    device: str | None = None,
    store: Store | None = None,
    show: bool | None = None,
) -> StudyRun:
    """Run the study ``name``; write its page OUT/<name>.md and OUT/<name>/ with results, tables and figure.

    Nothing is written before all of it is computed, and results.json last; that ``out`` can be written to is tried
    first. The preset paper runs on a GPU if there is one, the others on the CPU, unless ``device`` says otherwise.
    ``show`` forces progress bars on or off.
    """
    chosen = find_study(name)
    if preset not in chosen.presets:
        raise InputError(f"the study {name} has no preset {preset!r}; there are: {', '.join(chosen.presets)}")
    if not is_seed(seed):
        raise InputError(f"seed must be an integer from 0 to 2^63 - 1, found {seed!r}")
    context = Context(seed, _device(device, preset), Store() if store is None else store, show)
    with output_folder(out) as parent, output_folder(parent / name) as folder:
        _refuse_folders([folder.with_name(f"{name}.md"), *(folder / file for file in _FILES)])
        started, clock = datetime.now(UTC), time.perf_counter()
        with context.store.work.measured() as cost:
            findings = chosen.run(chosen.presets[preset], context)
        times = {
            "started": started.isoformat(timespec="seconds"),
            "seconds": round(time.perf_counter() - clock, 3),
            "processor": None if (spent := cost()) is None else round(spent, 3),
        }
        run = _study_run(chosen, preset, context, findings, times, folder)
        _write(run, findings.figure if chosen.figure is None else partial(chosen.figure, run))
    return run


def show_study(name: str, out: str | os.PathLike[str]) -> StudyRun:
    """The earlier run of the study ``name`` in ``out``; ``str`` of it gives text and tables."""
    return _with_shown(find_study(name), _earlier(name, out))


def render_study(name: str, out: str | os.PathLike[str]) -> StudyRun:
    """Write page, verdicts, tables and figure of an earlier run again, without computing anything.

    What the study declares is taken as it is now: title, reference, what the paper found, claims, text, captions and
    the figure, if it is drawn from results. Numbers and tables stay as the run left them.
    """
    chosen, earlier = find_study(name), _earlier(name, out)
    run = rendered(chosen, earlier)
    with output_folder(out) as parent, output_folder(parent / name):
        _write(run, None if chosen.figure is None else partial(chosen.figure, run))
    return run


def rendered(study: Study, run: StudyRun) -> StudyRun:
    """The run with all that the study declares now, and with its claims judged by the run's numbers and tables."""
    template = study.template(run.preset, run.seed)
    told = run.outcome if template is None else filled(template, run, f"the text of the study {study.name}")
    captions = study.tables or {}
    if unknown := captions.keys() - run.tables.keys():
        raise InputError(f"the study {study.name} shows the table {min(unknown)!r}, which its findings do not have")
    return _with_shown(
        study,
        replace(
            run,
            title=study.title,
            reference=study.reference,
            paper=study.paper,
            outcome=told,
            caption=study.caption or run.caption,
            tables={
                name: replace(table, caption=captions.get(name) or table.caption) for name, table in run.tables.items()
            },
            verdicts=tuple(claim.judge(run) for claim in study.claims),
        ),
    )


def _with_shown(study: Study, run: StudyRun) -> StudyRun:
    return replace(
        run, shown=None if study.tables is None else tuple(name for name in study.tables if name in run.tables)
    )


def _earlier(name: str, out: str | os.PathLike[str]) -> StudyRun:
    find_study(name)
    folder = Path(out) / name
    if not (folder / "results.json").exists():
        raise InputError(f"the study {name} has no results in {Path(out)}; run: {command(name, 'quick', 0, Path(out))}")
    return read_results(folder)


def _device(device: str | None, preset: str) -> torch.device:
    if device is None:
        return torch.device("cuda" if preset == "paper" and torch.cuda.is_available() else "cpu")
    try:
        usable = torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"the device {device!r} cannot be used: {str(error).splitlines()[0]}") from error
    if usable.is_meta:
        raise InputError(f"the device {device!r} cannot be used: its tensors have no values")
    return torch.device(device)


def _study_run(
    study: Study, preset: str, context: Context, findings: Findings, times: dict[str, object], folder: Path
) -> StudyRun:
    if findings.figure is None and study.figure is None:
        raise InputError(f"the study {study.name} has no figure, neither declared nor in its findings")
    plain = StudyRun(
        study=study.name,
        title=study.title,
        reference=study.reference,
        paper=study.paper,
        outcome=filled(findings.outcome, findings, f"the outcome of the study {study.name}"),
        caption=findings.caption,
        preset=preset,
        seed=context.seed,
        device=str(context.device),
        config=json.loads(json.dumps(asdict(study.presets[preset]), allow_nan=False)),
        numbers=dict(findings.numbers),
        tables=dict(findings.tables),
        versions={
            "coset": version("coset"),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": version("numpy"),
            "matplotlib": version("matplotlib"),
        },
        times=times,
        folder=folder,
    )
    return rendered(study, plain)


def _write(run: StudyRun, figure: "Callable[[], Figure] | None") -> None:
    """Write all files of a run, and remove the tables of an earlier one that it no longer has.

    Without ``figure`` the picture is the earlier one, in fewer bytes where it was large.
    """
    pictures = {}
    if figure is None:
        picture = run.folder / "figure.png"
        _refuse_folders([picture])
        if picture.exists():
            pictures = {picture: small_png(picture.read_bytes())}
    else:
        # matplotlib takes long to import, and only this needs it.
        from coset.figures import render

        png, svg = render(figure)
        pictures = {run.folder / "figure.png": small_png(png), run.folder / "figure.svg": svg}
    contents = {
        run.folder / f"{name}.csv": csv_table(table.columns, table.rows).encode() for name, table in run.tables.items()
    }
    stale = [path for path in _tables(run.folder) if path not in contents]
    contents |= {**pictures, run.page: page(run).encode()}
    _write_files(run, contents, stale)


def _write_files(run: StudyRun, contents: Mapping[Path, bytes], stale: Iterable[Path]) -> None:
    """Write ``contents`` and results.json, and remove what is ``stale``.

    A failure before all contents are on the disk leaves everything as it was. One while they are moved to their places
    leaves no results.json, which vouches for the other files: it goes first and comes last.
    """
    results = run.folder / "results.json"
    _refuse_folders([*contents, *stale])
    with atomic_path(results) as part:
        part.write_bytes(results_text(run).encode())
        with ExitStack() as others:
            for path, content in contents.items():
                others.enter_context(atomic_path(path)).write_bytes(content)
            results.unlink(missing_ok=True)
        for path in stale:
            path.unlink(missing_ok=True)


def _tables(folder: Path) -> list[Path]:
    """The tables that an earlier run wrote, as its results.json names them; of one that cannot be read, none."""
    try:
        earlier = read_results(folder)
    except InputError:
        return []
    return [folder / f"{name}.csv" for name in earlier.tables if is_name(name)]


def _refuse_folders(paths: Iterable[Path]) -> None:
    for path in paths:
        if path.is_dir():
            raise InputError(f"{path} is a folder, expected a file or nothing")
