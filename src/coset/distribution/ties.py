"""Tied weights: one tensor under several names is one parameter, and stays one."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from torch import Tensor

from coset._values import memory_of
from coset.errors import InputError


def ties(*parts: Mapping[str, Tensor]) -> dict[str, str]:
    """Name → the first name under which the same tensor stands, in every one of ``parts``."""
    # A mapping may make its tensors anew each time; those whose memory is compared are kept till the end.
    held = [dict(part) for part in parts]
    seen: dict[tuple[object, ...], str] = {}
    return {name: seen.setdefault(tuple(memory_of(part[name]) for part in held), name) for name in held[0]}


def once(names: Iterable[str], first: Mapping[str, str]) -> tuple[str, ...]:
    """The ``names`` with each tied tensor counted once, under its first name, in order."""
    return tuple(dict.fromkeys(first[name] for name in names))


def map_tied(function: Callable[[str], Tensor], first: Mapping[str, str]) -> dict[str, Tensor]:
    """``function`` of the first name of every tensor; names that are tied get one result."""
    made = {name: function(name) for name in dict.fromkeys(first.values())}
    return {name: made[one] for name, one in first.items()}


def check_alike(what: str, parts: Sequence[Mapping[str, Tensor]]) -> None:
    """Raise unless all have the names and shapes of the first; ``what`` one of them is called."""
    for number, part in enumerate(parts):
        if odd := sorted(part.keys() ^ parts[0].keys()):
            has, lacks = (number, 0) if odd[0] in part else (0, number)
            raise InputError(f"{what} {has} has '{odd[0]}' and {what} {lacks} has not")
        for name, tensor in part.items():
            if tensor.shape != parts[0][name].shape:
                raise InputError(
                    f"'{name}' has shape {tuple(tensor.shape)} in {what} {number} and {tuple(parts[0][name].shape)} "
                    f"in {what} 0; expected equal shapes"
                )
