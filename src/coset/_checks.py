"""Checks of counts, seeds, numbers and options that a person gives; ``is_…`` for callers that word the refusal."""

import inspect
import math
from collections.abc import Callable, Iterable
from numbers import Real
from typing import Any, TypeGuard

from coset.errors import InputError


def is_count(value: object, least: int = 1) -> TypeGuard[int]:
    """Whether ``value`` is a whole number ≥ ``least``; neither True nor False is one."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def is_seed(value: object) -> TypeGuard[int]:
    """Whether a ``torch.Generator`` takes ``value`` as it is: a whole number from 0 to 2^63 - 1."""
    return is_count(value, 0) and value < 2**63


def is_number(value: object) -> TypeGuard[float]:
    """Whether ``value`` is a finite real number: no text, and neither True nor False."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        # A whole number beyond all floats.
        return False


def check_count(name: str, value: object, least: int = 1) -> int:
    """``value``, which must be a whole number ≥ ``least``."""
    if not is_count(value, least):
        raise InputError(f"{name} is {value!r}; expected a whole number ≥ {least}")
    return value


def check_seed(seed: object, *, otherwise: str = "") -> int:
    """``seed``, which must be one; ``otherwise`` ends the sentence of the refusal, as ", or a torch.Generator"."""
    if not is_seed(seed):
        raise InputError(f"seed is {seed!r}; expected a whole number from 0 to 2^63 - 1{otherwise}")
    return seed


def check_positive(name: str, value: object, *, zero: bool = False) -> float:
    """``value``, which must be a finite number > 0, or ≥ 0 if ``zero``."""
    if not is_number(value) or value < 0 or (value == 0 and not zero):
        raise InputError(f"{name} is {value!r}; expected a number {'≥' if zero else '>'} 0")
    return value


def check_choice(name: str, value: object, choices: Iterable[str], *, quoted: bool = False, otherwise: str = "") -> str:
    """``value``, which must be one of ``choices``; the refusal lists them, ``quoted`` or not, then ``otherwise``."""
    known = tuple(choices)
    if not isinstance(value, str) or value not in known:
        listed = ", ".join(repr(choice) if quoted else choice for choice in known)
        raise InputError(f"{name} is {value!r}; expected one of {listed}{otherwise}")
    return value


def keyword_options(function: Callable[..., Any]) -> dict[str, bool]:
    """The options that ``function`` takes by keyword only, and of each whether it must be given."""
    parts = inspect.signature(function).parameters.values()
    return {part.name: part.default is part.empty for part in parts if part.kind is part.KEYWORD_ONLY}
