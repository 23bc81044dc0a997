"""What a study found: numbers, tables, text and a figure."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING

from coset.errors import InputError, one_line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Scalar = bool | int | float | str | None
"""A number of the findings, or a cell of a table; None where there is none (NaN and infinities are refused)."""

_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


@dataclass(frozen=True)
class Table:
    """Rows under named columns; ``caption`` says what they are."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Scalar]]
    caption: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self.columns))
        for index, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise InputError(
                    f"row {index} has {len(row)} cells, expected {len(self.columns)}: {list(self.columns)}"
                )
        rows = tuple(
            tuple(scalar(cell, f"row {index}, column {name!r}") for name, cell in zip(self.columns, row, strict=True))
            for index, row in enumerate(self.rows)
        )
        object.__setattr__(self, "rows", rows)

    def cell(self, column: str, where: Mapping[str, Scalar]) -> Scalar:
        """The cell under ``column`` in the one row whose other cells are as in ``where``; None where there is none."""
        unknown = {column, *where} - set(self.columns)
        if unknown:
            raise InputError(f"the table has no column {min(unknown)!r}, expected one of {list(self.columns)}")
        places = {self.columns.index(name): value for name, value in where.items()}
        rows = [row for row in self.rows if all(row[index] == value for index, value in places.items())]
        if len(rows) > 1:
            raise InputError(f"{len(rows)} rows of the table have {dict(where)}, expected at most one")
        return rows[0][self.columns.index(column)] if rows else None


@dataclass(frozen=True)
class Findings:
    """What a study found: numbers by name and tables by name.

    The text of the page and, where it can, the figure are declared with the study and filled from these. Otherwise
    ``outcome`` is the text, a template as ``text`` of ``coset.study.study``, and ``figure`` draws the figure from what
    the run has in its hands; it is called once, with the shared style in force, and ``caption`` belongs to it.
    """

    numbers: Mapping[str, Scalar]
    tables: Mapping[str, Table]
    outcome: str = ""
    figure: Callable[[], "Figure"] | None = None
    caption: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "numbers", {name: scalar(value, name) for name, value in self.numbers.items()})
        object.__setattr__(self, "outcome", prose(self.outcome))
        object.__setattr__(self, "caption", prose(self.caption))
        for name in self.tables:
            if not is_name(name):
                raise InputError(f"the table name {name!r} must be lower-case words joined by hyphens")


def is_name(name: str) -> bool:
    """Whether ``name`` is lower-case words joined by hyphens, as studies and tables are called."""
    return _NAME.fullmatch(name) is not None


def prose(text: str) -> str:
    """Text written over several lines of code as paragraphs of one line each."""
    return "\n\n".join(one_line(paragraph) for paragraph in re.split(r"\n\s*\n", text.strip()))


def scalar(value: object, where: str) -> Scalar:
    """``value`` as a plain finite number, text, truth value or None; anything else is refused by its place."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        number = float(value)
        if not math.isfinite(number):
            raise InputError(f"{where} is {number}; findings hold finite numbers, and None where there is none")
        return number
    raise InputError(f"{where} is a {type(value).__qualname__}; findings hold numbers, texts, truth values and None")
