"""The table of architectures: a row each, and the place in the documentation where it stands."""

import math
import re
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from coset.errors import InputError
from coset.symmetry import Symmetry
from fuzz.architectures.check import Finding

PAGE = Path(__file__).resolve().parents[2] / "docs" / "discovery.md"
BEGIN, END = "<!-- architectures: begin -->", "<!-- architectures: end -->"
COLUMNS = (
    "architecture",
    "parameters",
    "classes",
    "log₁₀ of the order",
    "scales",
    "with matrices",
    "signs",
    "seconds",
    "largest change",
    "pinned, and why",
)
TIMED = ("seconds", "largest change")
"""Columns that differ from machine to machine."""

# What holds of every network and needs no word.
_EVERYWHERE = (
    "an input of the model",
    "positions of a convolution",
    "rows of an embedding",
    "a single position",
)

_MISSING = "no rule for "


def row(name: str, finding: Finding) -> str:
    """A line of the table."""
    sym = finding.sym
    if sym is None:
        cells = ["–"] * 5 + [f"{finding.seconds:.1f}", "–", textwrap.shorten(finding.refused, 200)]
    else:
        verdict = "" if finding.sound else " **unsound**"
        told = [pinned(sym), _counted("unverified", sym.unverified), _counted("unnoticed", finding.unnoticed)]
        cells = [
            f"{len(sym.classes)}",
            f"{sym.log_order / math.log(10):,.0f}",
            f"{sym.scale_dimension:,}",
            f"{sym.continuous_dimension:,}",
            f"{round((sym.log_order - sym.log_permutations) / math.log(2)):,}",
            f"{finding.seconds:.1f}",
            f"{finding.change:.0e}{verdict}",
            "; ".join(filter(None, told)) or "–",
        ]
    return "| " + " | ".join([name, f"{finding.parameters:,}", *(cell.replace("|", "\\|") for cell in cells)]) + " |"


def _counted(word: str, classes: Sequence[str]) -> str:
    return f"{word}: {len(classes)} {'class' if len(classes) == 1 else 'classes'}" if classes else ""


def pinned(sym: Symmetry) -> str:
    """Operations without a rule and other limits, then what tells units apart and on how many axes."""
    limits = dict.fromkeys(_anywhere(line) for line in sym.pinned)
    reasons: Counter[str] = Counter()
    for parameter in sym.parameters.values():
        for size, why in zip(parameter.shape, parameter.why, strict=False):
            known = [reason.removeprefix("fixed: ") for reason in why.split("; ") if reason.startswith("fixed: ")]
            if size > 1 and known:
                reasons[_anywhere(known[0])] += 1
    missing = [line.removeprefix(_MISSING) for line in limits if line.startswith(_MISSING)]
    told = [_MISSING + ", ".join(missing)] if missing else []
    told += [line for line in limits if not line.startswith(_MISSING)]
    told += [
        f"{reason} ({number} {'axis' if number == 1 else 'axes'})"
        for reason, number in reasons.most_common()
        if reason not in _EVERYWHERE and reason not in limits
    ]
    return "; ".join(told)


def _anywhere(line: str) -> str:
    """A reason without the place: operations of one kind in all layers are one."""
    reason = line[line.index(_MISSING) :] if _MISSING in line else line
    return re.sub(r"(?<=[.])[0-9]+(?=[.: ]|$)", "*", reason)


def render(rows: Mapping[str, str]) -> str:
    """The whole table."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "| --- |" + " ---: |" * (len(COLUMNS) - 2) + " --- |"]
    return "\n".join([*lines, *rows.values()])


def read(text: str) -> dict[str, str]:
    """The rows of the table in a page, by the name of their architecture."""
    lines = [line for line in _between(text).splitlines() if line.startswith("|")]
    return {line.split("|")[1].strip(): line for line in lines[2:]}


def cells(line: str) -> dict[str, str]:
    """A row's cells by the names of their columns."""
    return dict(zip(COLUMNS, (cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]), strict=True))


def written(text: str, rows: Mapping[str, str]) -> str:
    """The page with these rows as its table."""
    return text.replace(BEGIN + _between(text) + END, f"{BEGIN}\n{render(rows)}\n{END}")


def _between(text: str) -> str:
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise InputError(f"{PAGE.name} has not one line '{BEGIN}' and one line '{END}', between which the table stands")
    return text.partition(BEGIN)[2].partition(END)[0]
