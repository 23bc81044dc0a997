"""Checks of the arguments that several architectures take."""

from collections.abc import Iterable, Sequence

from coset._checks import is_count, is_number
from coset.errors import InputError


def check_count(name: str, value: object, minimum: int = 1) -> int:
    """Return ``value`` if it is an integer of at least ``minimum``."""
    if not is_count(value, minimum):
        raise InputError(f"{name} must be an integer of at least {minimum}, found {value!r}")
    return value


def check_counts(name: str, values: object, minimum: int = 1) -> tuple[int, ...]:
    """Return ``values`` as a tuple if it is a sequence of integers of at least ``minimum``."""
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise InputError(f"{name} must be a sequence of integers, found {values!r}")
    return tuple(check_count(f"{name}[{index}]", value, minimum) for index, value in enumerate(values))


def check_rate(name: str, value: object) -> float:
    """Return ``value`` if it is a probability in [0, 1)."""
    if not is_number(value) or not 0 <= value < 1:
        raise InputError(f"{name} must be a number in [0, 1), found {value!r}")
    return float(value)


def check_flag(name: str, value: object) -> bool:
    """Return ``value`` if it is True or False."""
    if not isinstance(value, bool):
        raise InputError(f"{name} must be True or False, found {value!r}")
    return value


def check_choice(name: str, value: object, known: Iterable[str]) -> str:
    """Return ``value`` if it is one of the ``known`` names."""
    names = list(known)
    if not isinstance(value, str) or value not in names:
        raise InputError(f"{name} must be one of {', '.join(names)}; found {value!r}")
    return value


def scaled_count(name: str, base: int, factor: float) -> int:
    """Return ``base × factor``, which must come out as an integer of at least 1."""
    if not is_number(factor):
        raise InputError(f"{name} must be a finite number, found {factor!r}")
    product = base * factor
    if product < 1 or product != int(product):
        raise InputError(
            f"{name} must turn {base} channels into a whole number of at least 1; {base} × {factor!r} = {product!r}"
        )
    return int(product)
