"""Text of a page, written by hand with fields that the results fill."""

import difflib
import re
import string
from collections.abc import Mapping, Sequence
from typing import Any

from coset.errors import InputError, one_line
from coset.study._claims import Results
from coset.study._findings import Scalar, Table

_CELL = re.compile(r"(?P<table>[^\[\]]+)\[(?P<row>[^\[\]]*)\]\[(?P<column>[^\[\]]*)\]")


def filled(template: str, results: Results, what: str) -> str:
    """``template`` with its fields filled from numbers and tables.

    ``{name:.3f}`` is a number, ``{table[row][column]:.3f}`` a cell: ``row`` tells the row by its first cells, joined by
    ", ", as many as make it the only one. ``what`` names the text in the message about a field that cannot be filled.
    """
    try:
        return _Fields(results, what).vformat(template, (), {})
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"{what} is not a template: {error}") from error


class _Fields(string.Formatter):
    """``str.format`` on results, with one clear line for every field that they do not have."""

    def __init__(self, results: Results, what: str) -> None:
        self.results, self.what, self.field = results, what, ""

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        self.field = f"{self.what} has the field {{{field_name}}}"
        if field_name in self.results.numbers:
            return self.results.numbers[field_name], field_name
        cell = _CELL.fullmatch(field_name)
        if cell is not None and cell["table"] in self.results.tables:
            return self._cell(self.results.tables[cell["table"]], cell["row"], cell["column"]), field_name
        names = self.results.numbers if cell is None else self.results.tables
        lacking = "numbers" if cell is None else "tables"
        near = difflib.get_close_matches(field_name if cell is None else cell["table"], list(names), 3)
        nearest = f"; the nearest are {', '.join(near)}" if near else ""
        raise InputError(f"{self.field}, which is not among its {lacking}{nearest}")

    def format_field(self, value: Any, format_spec: str) -> str:
        if value is None:
            raise InputError(f"{self.field}, for which there is no value")
        if isinstance(value, bool):
            value = "yes" if value else "no"
        try:
            return str(super().format_field(value, format_spec))
        except (TypeError, ValueError) as error:
            raise InputError(f"{self.field} with the format {format_spec!r}: {error}") from error

    def _cell(self, table: Table, row: str, column: str) -> Scalar:
        if column not in table.columns:
            raise InputError(f"{self.field}, and the table has no such column: {', '.join(table.columns)}")
        rows = [cells for cells in table.rows if row in _names_of(cells)]
        if len(rows) != 1:
            raise InputError(f"{self.field}, and {len(rows) or 'no'} rows of the table begin like that")
        return rows[0][table.columns.index(column)]


def _names_of(cells: Sequence[Scalar]) -> set[str]:
    """All ways to tell a row: its first cell, its first two, and so on."""
    words = [f"{cell:g}" if isinstance(cell, float) else str(cell) for cell in cells]
    return {", ".join(words[:count]) for count in range(1, len(words) + 1)}


def paragraphs(text: str) -> str:
    """Markdown written over several lines of code: one line for every paragraph and every item of a list."""
    blocks = re.split(r"\n\s*\n", text.strip())
    return "\n\n".join("\n".join(one_line(part) for part in re.split(r"\n\s*(?=- )", block)) for block in blocks)
