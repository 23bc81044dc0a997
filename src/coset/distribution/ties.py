"""Tied weights: one tensor under several names is one parameter, and stays one."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from torch import Size, Tensor

from coset._values import ties as ties
from coset.errors import InputError


def once(names: Iterable[str], first: Mapping[str, str]) -> tuple[str, ...]:
    """The ``names`` with each tied tensor counted once, under its first name, in order."""
    return tuple(dict.fromkeys(first[name] for name in names))


def map_tied(function: Callable[[str], Tensor], first: Mapping[str, str]) -> dict[str, Tensor]:
    """``function`` of the first name of every tensor; names that are tied get one result."""
    made = {name: function(name) for name in dict.fromkeys(first.values())}
    return {name: made[one] for name, one in first.items()}


def check_alike(
    labels: Sequence[str], parts: Sequence[Mapping[str, Tensor]], kinds: Sequence[str] = ("shape",)
) -> None:
    """Raise unless all have the names of the first, and its tensors' ``kinds``: "shape", "dtype", "device".

    ``labels``: what each of them is called.
    """
    for label, part in zip(labels, parts, strict=True):
        if odd := [name for name in (*parts[0], *part) if name not in parts[0] or name not in part]:
            has, lacks = (label, labels[0]) if odd[0] in part else (labels[0], label)
            raise InputError(f"{has} has '{odd[0]}' and {lacks} has not; expected networks of one architecture")
        for name, tensor in parts[0].items():
            for kind in kinds:
                mine, theirs = getattr(tensor, kind), getattr(part[name], kind)
                if mine != theirs:
                    raise InputError(
                        f"'{name}' has {kind} {_shown(mine)} in {labels[0]} and {_shown(theirs)} in {label}; expected "
                        f"the same in both"
                    )


def _shown(value: object) -> str:
    return str(tuple(value) if isinstance(value, Size) else value)
