"""Tables as plain text, for terminals, pipes and files alike, and as CSV."""

import csv
import io
from collections.abc import Collection, Iterable, Sequence


def text_table(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> str:
    """Columns two spaces apart under a ruled heading; those numbered in ``right`` are aligned to the right."""
    lines = [list(columns), *(list(row) for row in rows)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    lines.insert(1, ["─" * width for width in widths])
    return "\n".join(
        "  ".join(
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def csv_table(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """CSV under a heading, for other programs: floats in full, an empty cell for None."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()
