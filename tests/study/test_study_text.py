"""Texts of pages: fields that results fill, and one clear line for each that they do not."""

import re
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coset.errors import InputError
from coset.study import Table
from coset.study._text import filled, paragraphs

RESULTS = SimpleNamespace(
    numbers={"barrier_naive": 1.51812, "members": 3, "held out": 0.25, "found": True, "absent": None, "name": "MNIST"},
    tables={
        "two-barriers": Table(
            ("data", "width", "barrier, nats [test]", "error: %"),
            [("A", 8, 0.5, 1.0), ("A", 16, 0.25, None), ("B, small", 0.5, 2.0, 3.0)],
        )
    },
)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{barrier_naive:.3f} nats of {members} members", "1.518 nats of 3 members"),
        ("{held out:.0%}, {found}, {name}", "25%, yes, MNIST"),
        ("{two-barriers[A, 8][error: %]:.1f}", "1.0"),
        ("{two-barriers[A, 16][width]}", "16"),
        ("{two-barriers[B, small][width]:g} {two-barriers[B, small, 0.5][error: %]:g}", "0.5 3"),
        ("{{braces}}", "{braces}"),
    ],
)
def test_fields_are_filled_with_numbers_and_cells(template: str, expected: str) -> None:
    assert filled(template, RESULTS, "it") == expected


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (
            "{barrier_naiv:.3f}",
            "the text of x has the field {barrier_naiv}, which is not among its numbers; the nearest",
        ),
        (
            "{two-barrier[A][width]}",
            "{two-barrier[A][width]}, which is not among its tables; the nearest are two-barriers",
        ),
        ("{two-barriers[A][width]}", "{two-barriers[A][width]}, and 2 rows of the table begin like that"),
        ("{two-barriers[C][width]}", "and no rows of the table begin like that"),
        ("{two-barriers[A, 8][depth]}", "and the table has no such column: data, width, barrier"),
        ("{absent:.3f}", "{absent}, for which there is no value"),
        ("{two-barriers[A, 16][error: %]:.1f}", "for which there is no value"),
        ("{name:.3f}", "{name} with the format '.3f'"),
        ("{members", "the text of x is not a template"),
        ("{}", "the text of x has the field {0}, which is not among its numbers"),
    ],
)
def test_a_field_that_cannot_be_filled_is_one_clear_line(template: str, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)) as error:
        filled(template, RESULTS, "the text of x")
    assert "\n" not in str(error.value)


@given(st.dictionaries(st.from_regex(r"[a-z]+( [a-z]+)*", fullmatch=True), st.floats(-1e9, 1e9), min_size=1))
def test_every_digit_of_a_number_can_be_told(numbers: dict[str, float]) -> None:
    results = SimpleNamespace(numbers=numbers, tables={})
    template = "|".join(f"{{{name}!r}}" for name in numbers)
    assert [float(part) for part in filled(template, results, "it").split("|")] == list(numbers.values())


def test_lines_of_code_are_paragraphs_and_lists() -> None:
    text = """
    One
    paragraph - of two lines.

    - An item
      of two lines
    - and another.

    The end.
    """
    assert paragraphs(text) == "One paragraph - of two lines.\n\n- An item of two lines\n- and another.\n\nThe end."
