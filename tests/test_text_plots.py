"""Curves as text: every dot is where the curve is, names stand beside their curves, lines keep to the width."""

import pytest

from coset._show.text_plots import BLANK, DOTS, text_plot
from coset.errors import InputError

TAUS = (0.0, 0.5, 1.0)
LABELS = {"x_label": "τ", "y_label": "loss"}


def dots(text, height):
    """{(dot column, dot row)} of the braille characters, and the columns of the canvas."""
    lines = text.splitlines()[1 : height + 1]
    start = min(line.index(mark) for line in lines for mark in "┤│" if mark in line) + 1
    found = set()
    for row, line in enumerate(lines):
        for column, character in enumerate(line[start:]):
            bits = ord(character) - BLANK
            if 0 < bits < 256:
                found |= {(2 * column + c, 4 * row + r) for c in (0, 1) for r in range(4) if bits & DOTS[c][r]}
    return found


def test_a_straight_line_is_straight():
    text = text_plot({"": (TAUS, (1.0, 0.5, 0.0))}, width=40, height=5, **LABELS)
    width = 2 * (40 - len("1.00") - 2)
    found = dots(text, 5)
    assert {column for column, _ in found} == set(range(width))
    for column, row in found:
        assert abs(row - 19 * column / (width - 1)) <= 0.5 + 19 / (width - 1)
    assert text.splitlines()[0] == "loss"
    assert text.splitlines()[1].startswith("1.00 ┤")
    assert text.splitlines()[5].startswith("0.00 ┤")


def test_steep_curves_have_no_holes():
    found = dots(text_plot({"": ((0.0, 0.5, 0.501, 1.0), (0.0, 0.0, 1.0, 1.0))}, width=40, height=8, **LABELS), 8)
    assert {row for _, row in found} == set(range(32))


def test_names_stand_beside_their_curves_and_nothing_is_too_wide():
    curves = {"naive": (TAUS, (-0.1, -1.1, -0.1)), "aligned": (TAUS, (-0.1, -0.15, -0.1))}
    text = text_plot(curves, **LABELS)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 72
    assert len(lines) == 1 + 12 + 2
    above, below = (next(row for row, line in enumerate(lines) if name in line) for name in ("aligned", "naive"))
    assert above <= 4
    assert below >= 8
    assert lines[-1].split() == ["τ", "=", "0", "0.5", "1"]


def test_a_flat_curve_is_drawn():
    text = text_plot({"flat": (TAUS, (0.2, 0.2, 0.2))}, **LABELS)
    assert {row for _, row in dots(text, 12)} == {0}
    assert "flat" in text


@pytest.mark.parametrize(
    ("curves", "message"),
    [
        ({}, "curves is empty"),
        ({"a": ((0.0, 1.0), (1.0,))}, "the curve 'a' has x .* and 1 y; expected two or more, x rising"),
        ({"a": ((1.0, 0.0), (1.0, 1.0))}, "x rising"),
        ({"a": ((0.0, 1.0), (1.0, 1.0)), "b": ((0.0, 2.0), (1.0, 1.0))}, "expected the same of all"),
    ],
)
def test_what_cannot_be_drawn_is_refused(curves, message):
    with pytest.raises(InputError, match=message):
        text_plot(curves, **LABELS)
