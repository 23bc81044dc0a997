"""Curves as plain text, for terminals: braille characters have two by four dots each."""

from collections.abc import Mapping, Sequence

from coset.errors import InputError

WIDTH, HEIGHT = 72, 12
BLANK = 0x2800
"""The braille character without dots; each dot is a bit."""

DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""The bits of the left and of the right column, from the top."""

Curve = tuple[Sequence[float], Sequence[float]]
"""x, rising, and y."""


def text_plot(
    curves: Mapping[str, Curve], *, x_label: str, y_label: str, width: int = WIDTH, height: int = HEIGHT
) -> str:
    """Curves from one x to another, straight between their points, each with its name beside it.

    ``height`` lines of curves between a heading and the axis, none longer than ``width`` characters.
    """
    first, last = _stretch(curves)
    low, high = min(min(ys) for _, ys in curves.values()), max(max(ys) for _, ys in curves.values())
    ticks = {row: f"{high - (high - low) * row / (height - 1):.2f}" for row in (0, (height - 1) // 2, height - 1)}
    margin = max(map(len, ticks.values()))
    columns = width - margin - 2
    places = [first + (last - first) * dot / (2 * columns - 1) for dot in range(2 * columns)]
    scale = (4 * height - 1) / (high - low) if high > low else 0.0
    rows = {name: [round((high - _between(x, *curve)) * scale) for x in places] for name, curve in curves.items()}
    canvas = _drawn(rows, columns, height)
    for name in rows:
        _write(canvas, name, rows)
    lines = [y_label]
    for row, cells in enumerate(canvas):
        lines.append(f"{ticks.get(row, ''):>{margin}} {'┤' if row in ticks else '│'}{''.join(cells)}")
    middle = columns // 2
    lines.append(f"{'':>{margin}} └{'─' * (middle - 1)}┴{'─' * (columns - middle - 1)}┘")
    named = f"{x_label} = {first:g}".ljust(middle - 1) + f"{(first + last) / 2:g}"
    lines.append(f"{'':>{margin}}  {named}{last:>{columns - len(named)}g}")
    return "\n".join(line.rstrip() for line in lines)


def _stretch(curves: Mapping[str, Curve]) -> tuple[float, float]:
    """The x at which all curves begin and end."""
    if not curves:
        raise InputError("curves is empty; expected at least one")
    for name, (xs, ys) in curves.items():
        if len(xs) != len(ys) or len(xs) < 2 or list(xs) != sorted(set(xs)):
            raise InputError(f"the curve '{name}' has x {list(xs)} and {len(ys)} y; expected two or more, x rising")
    stretches = {(xs[0], xs[-1]) for xs, _ in curves.values()}
    if len(stretches) > 1:
        raise InputError(f"curves go from x to x as {sorted(stretches)}; expected the same of all")
    return stretches.pop()


def _between(x: float, xs: Sequence[float], ys: Sequence[float]) -> float:
    """The curve at x."""
    after = next((index for index in range(1, len(xs)) if x <= xs[index]), len(xs) - 1)
    share = (x - xs[after - 1]) / (xs[after] - xs[after - 1])
    return (1 - share) * ys[after - 1] + share * ys[after]


def _drawn(rows: Mapping[str, Sequence[int]], columns: int, height: int) -> list[list[str]]:
    cells = [[BLANK] * columns for _ in range(height)]
    for dots in rows.values():
        for dot, row in enumerate(dots):
            before = dots[max(dot - 1, 0)]
            # Down or up to here from the dot before: a steep curve has no holes.
            for filled in range(min(row, before), max(row, before) + 1):
                cells[filled // 4][dot // 2] |= DOTS[dot % 2][filled % 4]
    return [[" " if cell == BLANK else chr(cell) for cell in line] for line in cells]


def _write(canvas: list[list[str]], name: str, rows: Mapping[str, Sequence[int]]) -> None:
    """Put a name on blank cells near its curve, where the curve is farthest from the others."""
    mine, others = rows[name], [dots for other, dots in rows.items() if other != name]

    def apart(dot: int) -> tuple[int, float]:
        return min((abs(mine[dot] - dots[dot]) for dots in others), default=0), -abs(dot - len(mine) / 2)

    best = max(range(len(mine)), key=apart)
    start = min(max(best // 2 - len(name) // 2, 0), max(len(canvas[0]) - len(name), 0))
    for line in sorted(range(len(canvas)), key=lambda line: abs(line + 0.5 - mine[best] / 4)):
        cells = canvas[line][max(start - 1, 0) : start + len(name) + 1]
        if len(cells) >= len(name) and all(cell == " " for cell in cells):
            canvas[line][start : start + len(name)] = name
            return
