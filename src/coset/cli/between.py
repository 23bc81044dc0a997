"""Two ends of a path from files, networks or posteriors, and what is measured between them, naive and aligned."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coset._checks import check_choice
from coset.cli.examples import Choice, load_examples
from coset.cli.networks import Networks, Source, method_options, moved_units, read_networks
from coset.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from coset.landscape import Profiles
    from coset.posterior.likelihoods import Likelihood


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


@dataclass(frozen=True, eq=False)
class Ends:
    """Two networks, or posteriors of one class, with what a path between them is measured with.

    ``splits``: inputs and targets of each part of the data that has examples.
    """

    read: Networks
    splits: dict[str, tuple["Tensor", "Tensor"]]
    likelihood: "Likelihood"


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

    check_choice("--path", asked.path, PATHS)
    check_choice("--renormalize", asked.renormalize, RENORMALIZATIONS)
    if asked.renormalize != "none" and asked.path != "geodesic":
        raise InputError(f"--renormalize {asked.renormalize} is for averages of A and B; --path {asked.path} has none")
    if asked.tolerance is not None and not 0 < asked.tolerance < math.inf:
        raise InputError(f"--tolerance is {asked.tolerance}; expected a number > 0")
    return method_options(asked.method, asked.settings, choice, align=asked.aligned)


def read_ends(files: tuple[Path, Path], source: Source, choice: Choice, likelihood: str | None, asked: Asked) -> Ends:
    """Read and check everything before anything long is computed; the symmetry is discovered last, if it is needed."""
    chosen = _likelihood(likelihood, choice)
    read = read_networks(files, source, posteriors=True)
    a, b = read.values
    try:
        _check_joinable(a, b, asked)
    except InputError as error:
        raise InputError(f"no path from {files[0]} to {files[1]}: {error}") from error
    ends = Ends(read, _splits(choice, read), chosen)
    _check_outputs(ends, f"--data {choice.name} does not suit the model {source.model}")
    return ends


def _check_joinable(a: Any, b: Any, asked: Asked) -> None:
    """Raise unless two networks can be joined, and aligned and averaged where that is asked for."""
    from coset.alignment.inputs import is_correlated, is_network
    from coset.landscape import PATHS

    if asked.aligned and not is_network(a):
        raise InputError(f"a {type(a).__name__} cannot be aligned; measure it as it is with --no-align")
    if asked.renormalize != "none" and (not is_network(a) or is_correlated(a)):
        raise InputError(f"--renormalize {asked.renormalize} is for networks and mean-field posteriors")
    PATHS[asked.path](a, b)


def _splits(choice: Choice, read: Networks) -> dict[str, tuple["Tensor", "Tensor"]]:
    from coset.data.catalog import lookup

    entry = lookup(choice.name)
    parts = [part for part, count in (("train", entry.train), ("test", entry.test)) if count]
    return {part: load_examples(replace(choice, part=part), read.inputs, read.dtype) for part in parts}


def _likelihood(name: str | None, choice: Choice) -> "Likelihood":
    """By its name, or Gaussian noise of a given deviation; None: what the data ask for."""
    from coset.data.catalog import lookup
    from coset.posterior.likelihoods import LIKELIHOODS, GaussianNoise

    task = lookup(choice.name).task
    if name is None:
        name = "categorical" if task == "classification" else "learned-noise"
    try:
        found = LIKELIHOODS[name] if name in LIKELIHOODS else GaussianNoise(float(name))
    except (ValueError, InputError) as error:
        expected = f"{', '.join(LIKELIHOODS)}, or the deviation of Gaussian noise, a number > 0"
        raise InputError(f"--likelihood is '{name}'; expected {expected}") from error
    if found.task != task:
        raise InputError(f"--likelihood {name} is for {found.task}; --data {choice.name} is for {task}")
    return found


def _check_outputs(ends: Ends, complaint: str) -> None:
    """Raise unless the outputs of the model suit the targets."""
    import torch

    from coset.running import outputs_with, suited, whole_weights

    weights = whole_weights(ends.read.model, ends.read.params[0])
    for part, (x, y) in ends.splits.items():
        with torch.no_grad():
            outputs = outputs_with(ends.read.model, weights, suited(x[:2], weights))
        try:
            ends.likelihood.fit_targets(y, outputs, f"the {part} part")
        except InputError as error:
            raise InputError(f"{complaint}: {error}") from error


def measure(ends: Ends, asked: Asked, choice: Choice, known: set[str]) -> Found:
    """Align where that is asked for, and follow the path each way; ``known``: the options that the alignment has."""
    from coset.landscape import naive_and_aligned, predictive_on

    model, (a, b) = ends.read.model, ends.read.values
    options: dict[str, Any] = {}
    if asked.aligned:
        needed = {"model": model, "seed": asked.seed, "data": ends.splits["train"], "criterion": choice.criterion}
        options = {name: value for name, value in needed.items() if name in known} | dict(asked.settings)
    draws: dict[str, Any] = {"samples": asked.samples, "seed": asked.seed, **ends.splits}
    measures = predictive_on(model, likelihood=ends.likelihood, **draws)
    functionals = {name: item for name, item in measures.items() if not name.endswith("expected loss")}
    later: list[str] = []
    found = naive_and_aligned(
        ends.read.symmetry if asked.aligned else None,
        a,
        b,
        functionals,
        ways=[*([] if asked.align is True else ["naive"]), *(["aligned"] if asked.aligned else [])],
        path=asked.path,
        method=asked.method,
        options=options,
        points=asked.points,
        tolerance=asked.tolerance,
        at=None if asked.renormalize == "none" else lambda pair: _renormalized(ends, pair, asked, later),
    )
    alignment: dict[str, Any] | None = None
    notes: tuple[str, ...] = ()
    if found.alignment is not None:
        result, notes = found.alignment, found.alignment.notes
        moved = sum(moved_units(result.element).values())
        alignment = {"before": result.history[0], "after": result.objective, "moved": moved}
    return Found(found.profiles, alignment, tuple(dict.fromkeys([*notes, *later])))


def _renormalized(ends: Ends, pair: tuple[Any, Any], asked: Asked, notes: list[str]) -> Callable[[Any, float], Any]:
    """At τ, the average of the two ends again, renormalised: of mean-field posteriors, too, it is on the geodesic."""
    from coset.alignment import merge
    from coset.alignment.merging import options_of

    sym = ends.read.symmetry
    data = ends.splits["train"][0] if "data" in options_of(asked.renormalize) else None

    def at(point: Any, tau: float) -> Any:
        merged = merge(
            sym,
            pair,
            weights=(1 - tau, tau),
            align=False,
            renormalize=asked.renormalize,
            model=ends.read.model,
            data=data,
            seed=asked.seed,
            show=False,
        )
        notes.extend(merged.notes)
        return merged.network

    return at
