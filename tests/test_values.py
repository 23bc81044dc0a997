"""Functions of immutable values are called once for each object, and forget it when it is gone."""

import gc
from dataclasses import dataclass

from coset._values import kept


@dataclass(frozen=True)
class Value:
    number: int


def test_once_for_each_object_and_forgotten_with_it():
    calls: list[int] = []

    @kept
    def squared(value: Value) -> int:
        """The square."""
        calls.append(value.number)
        return value.number**2

    three, four = Value(3), Value(4)
    assert [squared(three), squared(four), squared(three), squared(four)] == [9, 16, 9, 16]
    assert calls == [3, 4]
    assert squared(Value(3)) == 9
    assert calls == [3, 4, 3]
    # Another object at the same place in memory is another value.
    for number in range(200):
        assert squared(Value(number)) == number**2
    (known,) = (cell.cell_contents for cell in squared.__closure__ if isinstance(cell.cell_contents, dict))
    gc.collect()
    assert len(known) == 2
    assert squared.__doc__ == "The square."


def test_what_is_raised_is_not_kept():
    tried: list[Value] = []

    @kept
    def refused(value: Value) -> int:
        tried.append(value)
        if len(tried) == 1:
            raise ValueError("not yet")
        return value.number

    value = Value(5)
    try:
        refused(value)
    except ValueError:
        assert refused(value) == 5
    assert tried == [value, value]
