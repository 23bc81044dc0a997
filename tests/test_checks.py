"""Counts, seeds and numbers: what passes, what is refused, and in which words."""

import math
import re
from fractions import Fraction

import pytest

from coset._checks import check_choice, check_count, check_positive, check_seed, is_number
from coset.errors import InputError


def test_counts_are_whole_numbers_from_least_on():
    assert check_count("steps", 3) == 3
    assert check_count("warmup", 0, least=0) == 0
    for value in (0, -1, True, 1.0, "1", None):
        with pytest.raises(InputError, match=rf"^steps is {value!r}; expected a whole number ≥ 1$"):
            check_count("steps", value)


def test_seeds_are_what_a_generator_takes():
    assert [check_seed(seed) for seed in (0, 2**63 - 1)] == [0, 2**63 - 1]
    for value in (-1, 2**63, True, 1.5, "a", None):
        with pytest.raises(InputError, match=rf"^seed is {value!r}; expected a whole number from 0 to 2\^63 - 1$"):
            check_seed(value)
    with pytest.raises(InputError, match=r"2\^63 - 1, or a torch.Generator$"):
        check_seed(-1, otherwise=", or a torch.Generator")


def test_numbers_are_real_and_finite():
    assert all(is_number(value) for value in (0, -1.5, Fraction(1, 3)))
    assert not any(is_number(value) for value in (True, "1", None, 1j, math.nan, math.inf, 10**400))


def test_positive_numbers():
    assert check_positive("rate", 0.5) == 0.5
    assert check_positive("rate", 0, zero=True) == 0
    with pytest.raises(InputError, match=r"^rate is 0; expected a number > 0$"):
        check_positive("rate", 0)
    for value in (-1.0, math.nan, math.inf, True, "a"):
        with pytest.raises(InputError, match=rf"^rate is {value!r}; expected a number ≥ 0$"):
            check_positive("rate", value, zero=True)


def test_choices_are_listed():
    assert check_choice("kind", "chain", {"bezier": 1, "chain": 2}) == "chain"
    for value in ("other", None, ["chain"]):
        with pytest.raises(InputError, match=rf"^kind is {re.escape(repr(value))}; expected one of bezier, chain$"):
            check_choice("kind", value, ("bezier", "chain"))
    with pytest.raises(InputError, match=r"^kind is 'x'; expected one of 'bezier', 'chain'$"):
        check_choice("kind", "x", ("bezier", "chain"), quoted=True)
