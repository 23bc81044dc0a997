"""What commands print: JSON for machines, plain tables for people."""

import json
import math
from collections.abc import Collection, Mapping
from typing import Any

from coset._show.tables import text_table


def print_json(content: Any) -> None:
    """Print ``content`` as JSON that every reader of JSON takes."""
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


def show_end(told: Mapping[str, Any]) -> None:
    """Print what is worth noting, and which files there are now."""
    for note in told["notes"]:
        print(f"note: {note}")
    if told.get("files"):
        print(f"written: {', '.join(told['files'])}")


def decimals(value: float, places: int) -> str:
    """``value`` with so many decimals; what rounds to 0 is never -0."""
    # 0.0 + -0.0 is 0.0
    return f"{round(value, places) + 0.0:.{places}f}"


def show_table(columns: list[str], rows: list[list[str]], title: str = "", right: Collection[int] = ()) -> None:
    """Print a table, under a title if there is one; columns numbered in ``right`` are aligned to the right."""
    if title:
        print(f"\n{title}")
    print(text_table(columns, rows, right))
