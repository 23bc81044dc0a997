"""``naive_and_aligned``: what lies between two networks as they are, and once one of them is brought to the other."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coset._checks import check_choice
from coset._values import freeze
from coset.alignment import Alignment, align
from coset.errors import InputError
from coset.landscape._barrier import POINTS, At, Measured, barrier
from coset.landscape._geodesic import PATHS
from coset.landscape._profile import Profiles
from coset.symmetry import Symmetry

WAYS = ("naive", "aligned")
"""From the first to the second as it is, and from the first to the second modulo the group."""


@dataclass(frozen=True, eq=False)
class Ways:
    """``ends`` and ``profiles`` of every way, and the ``alignment`` that gave the second, None without."""

    ends: Mapping[str, tuple[Any, Any]]
    profiles: Mapping[str, Profiles]
    alignment: Alignment[Any] | None

    def __post_init__(self) -> None:
        freeze(self, "ends", "profiles")


def naive_and_aligned(
    sym: Symmetry | None,
    first: Any,
    second: Any,
    functionals: Mapping[str, Measured],
    *,
    ways: Sequence[str] = WAYS,
    path: str = "geodesic",
    method: str = "weights",
    options: Mapping[str, Any] | None = None,
    points: int = POINTS,
    tolerance: float | None = None,
    at: Callable[[tuple[Any, Any]], At | None] | None = None,
    show: bool | None = None,
) -> Ways:
    """Follow the path from ``first`` to ``second``, and from ``first`` to g·``second`` with the g that aligns them.

    Networks or posteriors; ``path``: a name in ``PATHS``; ``method`` and ``options``: of ``coset.align``, which may
    move the first of the aligned pair, too. ``points`` and ``tolerance``: of ``barrier``; ``at`` gives, for the two
    ends of a way, what is applied to every point of it. ``sym`` is needed where ``ways`` has "aligned".
    """
    check_choice("path", path, PATHS)
    if not ways:
        raise InputError(f"ways is empty; expected some of {', '.join(WAYS)}")
    for way in ways:
        check_choice("a way", way, WAYS)
    alignment = None
    ends = {}
    for way in ways:
        if way == "naive":
            ends[way] = (first, second)
        elif sym is None:
            raise InputError("sym is None; expected the Symmetry of the networks that are to be aligned")
        else:
            alignment = align(sym, first, second, method, **(options or {}))
            ends[way] = alignment.ends(first)
    profiles = {}
    for way, pair in ends.items():
        hook = None if at is None else at(pair)
        profiles[way] = barrier(PATHS[path](*pair), functionals, points=points, tolerance=tolerance, at=hook, show=show)
    return Ways(ends, profiles, alignment)
