"""What is measured between two ends, naive and aligned, and whether it can be."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from coset.cli.ends import Ends
from coset.cli.examples import Choice
from coset.cli.networks import method_options, moved_units
from coset.errors import InputError

if TYPE_CHECKING:
    from coset.landscape import Profiles


@dataclass(frozen=True)
class Asked:
    """What is to be measured; ``align``: None for both ways."""

    path: str
    points: int
    tolerance: float | None
    samples: int
    method: str
    renormalize: str
    align: bool | None
    settings: Mapping[str, Any]
    seed: int

    @property
    def aligned(self) -> bool:
        """Whether anything is to be aligned."""
        return self.align is not False


@dataclass(frozen=True)
class Found:
    """``profiles`` of "naive" and "aligned"; ``alignment``: what it did, None without; ``notes`` for the user."""

    profiles: "Mapping[str, Profiles]"
    alignment: Mapping[str, Any] | None
    notes: tuple[str, ...]


def check_asked(asked: Asked, choice: Choice) -> set[str]:
    """Refuse what is not there, before anything is read; give the options that the alignment has."""
    from coset.alignment.merging import RENORMALIZATIONS
    from coset.landscape import PATHS

    if asked.path not in PATHS:
        raise InputError(f"--path is '{asked.path}', expected one of {', '.join(PATHS)}")
    if asked.renormalize not in RENORMALIZATIONS:
        raise InputError(f"--renormalize is '{asked.renormalize}', expected one of {', '.join(RENORMALIZATIONS)}")
    if asked.renormalize != "none" and asked.path != "geodesic":
        raise InputError(f"--renormalize {asked.renormalize} is for averages of A and B; --path {asked.path} has none")
    if asked.tolerance is not None and not 0 < asked.tolerance < math.inf:
        raise InputError(f"--tolerance is {asked.tolerance}; expected a number > 0")
    if not asked.aligned and asked.settings:
        raise InputError(f"with --no-align there is no alignment that could have the setting '{min(asked.settings)}'")
    return method_options(asked.method, asked.settings, choice)


def joinable(asked: Asked) -> Callable[[Any, Any], object]:
    """A check that two networks can be joined, and aligned and averaged where that is asked for."""
    from coset.distribution import Gaussian, LowRank, MeanField
    from coset.landscape import PATHS

    def check(a: Any, b: Any) -> None:
        if asked.aligned and not isinstance(a, Mapping | MeanField | Gaussian | LowRank):
            raise InputError(f"a {type(a).__name__} cannot be aligned; measure it as it is with --no-align")
        if asked.renormalize != "none" and not isinstance(a, Mapping | MeanField):
            raise InputError(f"--renormalize {asked.renormalize} is for networks and mean-field posteriors")
        PATHS[asked.path](a, b)

    return check


def measure(ends: Ends, asked: Asked, choice: Choice, known: set[str]) -> Found:
    """Align where that is asked for, and follow the path each way; ``known``: the options that the alignment has."""
    from coset.alignment import align
    from coset.landscape import PATHS, predictive_on
    from coset.landscape import barrier as follow

    a, b = ends.networks
    pairs = {} if asked.align is True else {"naive": (a, b)}
    alignment: dict[str, Any] | None = None
    notes: list[str] = []
    if asked.aligned:
        assert ends.symmetry is not None
        needed = {"model": ends.model, "seed": asked.seed, "data": ends.splits["train"], "criterion": choice.criterion}
        options = {name: value for name, value in needed.items() if name in known} | dict(asked.settings)
        result = align(ends.symmetry, a, b, asked.method, **options)
        pairs["aligned"] = (a, result.aligned)
        moved = sum(moved_units(result.element).values())
        alignment = {"before": result.history[0], "after": result.objective, "moved": moved}
        notes += result.notes
    draws: dict[str, Any] = {"samples": asked.samples, "seed": asked.seed, **ends.splits}
    measures = predictive_on(ends.model, likelihood=ends.likelihood, **draws)
    functionals = {name: item for name, item in measures.items() if not name.endswith("expected loss")}
    profiles = {}
    for way, pair in pairs.items():
        at = None if asked.renormalize == "none" else _renormalized(ends, pair, asked, notes)
        route = PATHS[asked.path](*pair)
        profiles[way] = follow(route, functionals, points=asked.points, tolerance=asked.tolerance, at=at)
    return Found(profiles, alignment, tuple(dict.fromkeys(notes)))


def _renormalized(ends: Ends, pair: tuple[Any, Any], asked: Asked, notes: list[str]) -> Callable[[Any, float], Any]:
    """At τ, the average of the two ends again, renormalised: of mean-field posteriors, too, it is on the geodesic."""
    from coset.alignment import merge
    from coset.alignment.merging import options_of

    assert ends.symmetry is not None
    sym = ends.symmetry
    data = ends.splits["train"][0] if "data" in options_of(asked.renormalize) else None

    def at(point: Any, tau: float) -> Any:
        merged = merge(
            sym,
            pair,
            weights=(1 - tau, tau),
            align=False,
            renormalize=asked.renormalize,
            model=ends.model,
            data=data,
            seed=asked.seed,
            show=False,
        )
        notes.extend(merged.notes)
        return merged.network

    return at
