"""The results of a study as JSON, Markdown and text."""

import reprlib
import shlex
import textwrap
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from coset._files.atomic import parse_json
from coset._show.tables import text_table
from coset.errors import InputError, one_line
from coset.study._claims import Judgement
from coset.study._findings import Scalar, Table, is_name, scalar

SCHEMA = 1
"""Version of results.json."""


@dataclass(frozen=True)
class StudyRun:
    """One finished run of a study; ``folder`` is OUT/<study> and holds its files."""

    study: str
    title: str
    reference: str
    paper: str
    outcome: str
    caption: str
    preset: str
    seed: int
    device: str
    config: dict[str, Any]
    numbers: dict[str, Scalar]
    tables: dict[str, Table]
    versions: dict[str, str]
    times: dict[str, Any]
    folder: Path
    verdicts: tuple[Judgement, ...] = ()
    shown: tuple[str, ...] | None = None
    """The tables of the page; None is all of them."""

    @property
    def shown_tables(self) -> dict[str, Table]:
        """What page and terminal show."""
        return self.tables if self.shown is None else {name: self.tables[name] for name in self.shown}

    @property
    def page(self) -> Path:
        """The Markdown page, beside the folder."""
        return self.folder.with_name(f"{self.study}.md")

    @property
    def command(self) -> str:
        """The command that gives these results again anywhere: of an absolute folder only its name is told."""
        out = self.folder.parent
        # The preset paper runs where it can; the others on the CPU unless told otherwise.
        device = self.device if self.preset == "paper" or self.device != "cpu" else None
        return command(self.study, self.preset, self.seed, Path(out.name) if out.is_absolute() else out, device)

    def results(self) -> dict[str, Any]:
        """What results.json holds; only ``times`` differs between two runs of one seed."""
        content = {field.name: getattr(self, field.name) for field in fields(self) if field.name in _KINDS}
        content["tables"] = {name: _plain(table) for name, table in self.tables.items()}
        verdicts = {"verdicts": [judgement.to_dict() for judgement in self.verdicts]} if self.verdicts else {}
        return {"schema": SCHEMA, **content, **verdicts}

    def __str__(self) -> str:
        return text(self)


def command(study: str, preset: str, seed: int, out: Path, device: str | None = None) -> str:
    """The command line that runs a study."""
    place = f" --device {device}" if device else ""
    return f"coset study run {study} --preset {preset} --seed {seed}{place} --out {shlex.quote(out.as_posix())}"


def _plain(table: Table) -> dict[str, Any]:
    return {"caption": table.caption, "columns": list(table.columns), "rows": [list(row) for row in table.rows]}


def read_results(folder: Path) -> StudyRun:
    """The run whose results.json lies in ``folder``."""
    path = folder / "results.json"
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is not a regular file, expected the results of a study")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} does not hold the results of a study: {error}") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    content = parse_json(text, f"{path} does not hold the results of a study: it")
    if not isinstance(content, dict) or "schema" not in content:
        raise InputError(f"{path} does not hold the results of a study: it has no schema")
    if content.pop("schema") != SCHEMA:
        raise InputError(f"{path} was written by another version of coset; run the study again")
    try:
        return _run(content, folder)
    except (InputError, KeyError, TypeError) as error:
        raise InputError(f"{path} does not hold the results of a study: {one_line(error)}") from error


def _run(content: dict[str, Any], folder: Path) -> StudyRun:
    """The run that the JSON tells of, each part of it of the kind that it should be."""
    # A study without claims has none, and neither do files that were written before there were any.
    judged = content.pop("verdicts", [])
    if not isinstance(judged, list):
        raise InputError(f"verdicts is {reprlib.repr(judged)}, expected list")
    if content.keys() != _KINDS.keys():
        odd = min(content.keys() ^ _KINDS.keys())
        raise InputError(f"it {'has' if odd in content else 'lacks'} {reprlib.repr(odd)}")
    for name, kind in _KINDS.items():
        if not isinstance(content[name], kind) or isinstance(content[name], bool):
            raise InputError(f"{name} is {reprlib.repr(content[name])}, expected {kind.__name__}")
    if not is_name(content["study"]):
        raise InputError(f"study is {reprlib.repr(content['study'])}, expected a name")
    tables = {name: _table(name, rows) for name, rows in content["tables"].items()}
    numbers = {name: scalar(value, reprlib.repr(name)) for name, value in content["numbers"].items()}
    for name in ("seconds", "processor"):
        value = content["times"].get(name)
        plain = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e18
        if not plain and (value is not None or name == "seconds"):
            raise InputError(f"times has {reprlib.repr(value)} as {name}, expected seconds")
    verdicts = tuple(Judgement.from_dict(item) for item in judged)
    return StudyRun(**{**content, "tables": tables, "numbers": numbers}, folder=folder, verdicts=verdicts)


_KINDS: dict[str, type] = {
    **dict.fromkeys(("study", "title", "reference", "paper", "outcome", "caption", "preset", "device"), str),
    **dict.fromkeys(("config", "numbers", "tables", "versions", "times"), dict),
    "seed": int,
}
"""The parts of results.json that are neither the schema nor the verdicts, and what each of them is in JSON."""


def _table(name: str, content: Any) -> Table:
    if not isinstance(content, dict) or content.keys() != {"caption", "columns", "rows"}:
        raise InputError(f"the table {reprlib.repr(name)} is {reprlib.repr(content)}")
    caption, columns, rows = content["caption"], content["columns"], content["rows"]
    named = isinstance(columns, list) and all(isinstance(column, str) for column in columns)
    if not isinstance(caption, str) or not named or not isinstance(rows, list):
        raise InputError(f"the table {reprlib.repr(name)} has no caption, columns and rows")
    if not all(isinstance(row, list) for row in rows):
        raise InputError(f"the table {reprlib.repr(name)} has rows that are not lists")
    return Table(columns, rows, caption)


def page(run: StudyRun) -> str:
    """The Markdown page, to lie beside the run's folder."""
    link = f"{run.study}/"
    parts = [f"# {run.title}", run.reference, *_verdicts(run), "## What the paper found", run.paper]
    parts += ["## What came out here", *([run.outcome] if run.outcome else [])]
    parts += [f"![{run.caption}]({link}figure.png)", f"*{run.caption}*"]
    for name, table in run.shown_tables.items():
        parts += [f"## Table: {name}", *([table.caption] if table.caption else []), _markdown_table(table)]
    versions = ", ".join(f"{name} {value}" for name, value in run.versions.items())
    parts += ["## How to run it", f"```sh\n{run.command}\n```"]
    parts += [
        f"Preset {run.preset}, seed {run.seed}, on {run.device}, {_times(run)}, with {versions}. All settings, numbers "
        f"and tables are in [results.json]({link}results.json); a run writes the figure as SVG and tables as CSV, too."
    ]
    return "\n\n".join(parts) + "\n"


def text(run: StudyRun) -> str:
    """Findings and tables for a terminal."""
    parts = [run.title, _wrap(run.reference)]
    if run.verdicts:
        parts.append(_text_table(_verdict_table(run, brief=True)))
    parts.append(f"What the paper found\n{_wrap(run.paper)}")
    if run.outcome:
        parts.append(f"What came out here\n{_wrap(run.outcome)}")
    for name, table in run.shown_tables.items():
        parts.append(f"{table.caption or name}\n{_text_table(table)}")
    parts.append(f"{run.command}\n{_times(run)}, on {run.device}; files in {run.folder}")
    return "\n\n".join(parts)


def _verdicts(run: StudyRun) -> list[str]:
    """The table of claims, what their intervals cover and why their thresholds are what they are."""
    if not run.verdicts:
        return []
    claims = [judgement.claim for judgement in run.verdicts]
    reasons = dict.fromkeys(f"- {claim.criterion}: {claim.reason}" for claim in claims)
    intervals = " ".join(dict.fromkeys(claim.interval for claim in claims))
    rule = "A claim holds if its interval lies wholly on the right side of the threshold, fails if on the wrong one."
    return [_markdown_table(_verdict_table(run)), f"{rule} {intervals}", "\n".join(reasons)]


def _verdict_table(run: StudyRun, *, brief: bool = False) -> Table:
    """A row for each claim; ``brief``: with the source of the statement in place of it."""
    rows = []
    for judgement in run.verdicts:
        claim = judgement.claim
        paper = claim.source if brief else f"{claim.paper} ({claim.source})"
        if claim.published is not None:
            paper += f": {claim.published:g}"
        here = "not measured" if judgement.estimate is None else str(judgement.estimate)
        rows.append([f"{claim.statistic}: {claim.criterion}", paper, here, str(judgement.verdict)])
    return Table(("claim", "paper", "here, with interval", "verdict"), rows)


def _wrap(prose: str) -> str:
    def line(text: str) -> str:
        return textwrap.fill(text, 100, subsequent_indent="  " if text.startswith("- ") else "")

    return "\n\n".join("\n".join(map(line, paragraph.split("\n"))) for paragraph in prose.split("\n\n"))


def _cell(value: Scalar) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.5g}"
    return str(value)


def _markdown_table(table: Table) -> str:
    def line(cells: list[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    rules = ["---" if _is_text(table, index) else "---:" for index in range(len(table.columns))]
    rows = [line([_cell(value) for value in row]) for row in table.rows]
    return "\n".join([line(list(table.columns)), line(rules), *rows])


def _text_table(table: Table) -> str:
    numbers = [index for index in range(len(table.columns)) if not _is_text(table, index)]
    return text_table(table.columns, [[_cell(value) for value in row] for row in table.rows], numbers)


def _is_text(table: Table, index: int) -> bool:
    return any(isinstance(row[index], str) for row in table.rows)


def _times(run: StudyRun) -> str:
    """How long the run took, and what the whole takes at most where nothing of it is in the store yet."""
    seconds: float = run.times["seconds"]
    processor: Any = run.times.get("processor")
    # Elsewhere than on the CPU the processor only waits.
    known = processor is not None and run.device == "cpu"
    whole = f" (from an empty store {_duration(processor)} of one core)" if known else ""
    return f"in {_duration(seconds)}{whole}"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
