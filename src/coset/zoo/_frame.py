"""All networks of a zoo in one frame: aligned to one of them, or in canonical form."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coset._checks import check_choice, keyword_options
from coset.alignment import METHODS, align, align_stack
from coset.alignment.inputs import check_network
from coset.canonical import canonicalize
from coset.errors import InputError
from coset.symmetry import Symmetry
from coset.symmetry.stacks import network_of
from coset.zoo._data import load_data
from coset.zoo._index import Content
from coset.zoo._spec import as_data
from coset.zoo._write import Moved, changed_zoo
from coset.zoo._zoo import Zoo

EXAMPLES = 1000
"""So many examples methods see that need some."""


def align_zoo(
    zoo: Zoo,
    directory: str | Path,
    *,
    reference: int | None = None,
    symmetry: Symmetry | None = None,
    method: str = "weights",
    show: bool | None = None,
    **options: Any,
) -> Zoo:
    """A zoo in a new folder: every network of ``zoo`` aligned to one of them, by default the first that can be used.

    ``method`` and ``options`` are those of ``align``; networks are aligned together by ``align_stack`` where it has the
    options. Methods that need a model and data get, unless they are given, those of the zoo: the first 1,000 examples
    that the reference was trained on. Snapshots are networks, too: each is aligned to the last weights of the
    reference, by an element of its own. Where architectures differ, each has its own reference, the first of it that
    can be used.
    """
    check_choice("method", method, METHODS)
    frames = _frames(zoo, symmetry, reference, needed=True)

    def change(architecture: int, stack: dict[str, Tensor]) -> Moved:
        frame = frames[architecture]
        assert frame.target is not None
        if method == "weights" and options.keys() <= keyword_options(align_stack).keys():
            found = align_stack(frame.sym, frame.target, stack, show=False, **options)
            return Moved(dict(found.aligned), notes=found.notes)
        count = len(next(iter(stack.values())))
        needed = _needed(zoo, frame, method, options)
        ones = [
            align(frame.sym, frame.target, network_of(stack, number), method=method, show=False, **needed)
            for number in range(count)
        ]
        moved = {name: torch.stack([one.params[name] for one in ones]) for name in stack}
        return Moved(moved, notes=tuple(dict.fromkeys(note for one in ones for note in one.notes)))

    return changed_zoo(zoo, directory, change, _made("align", frames, zoo, method), show)


def _needed(zoo: Zoo, frame: "_Frame", method: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a method, with the model and the data of the zoo where it needs some that are not given."""
    known, found = keyword_options(METHODS[method]), dict(options)
    if "model" in known and "model" not in options:
        found["model"] = zoo.model(frame.number)
    if "data" in known and "data" not in options and (spec := zoo.content.get("spec")) is not None:
        number = zoo.content["members"][frame.number]["data"]
        dtype = getattr(torch, zoo.content["model"]["dtype"])
        train = load_data(as_data(spec["data"][number]), dtype).train
        found["data"] = (train.x[:EXAMPLES], train.y[:EXAMPLES])
    return found


def canonicalize_zoo(
    zoo: Zoo,
    directory: str | Path,
    *,
    reference: int | None = None,
    symmetry: Symmetry | None = None,
    method: str = "weights",
    show: bool | None = None,
    **options: Any,
) -> Zoo:
    """A zoo in a new folder: every network in its canonical form, with units in the data-free order.

    With a ``reference`` permutations and signs are those of ``align`` to its canonical form instead, by ``method``.
    ``options`` are those of ``canonicalize``. Snapshots are networks, too: each has a form of its own. With
    ``classifier`` the factor of the last layer is kept in the table as ``logit_factor``, and metrics are left out,
    since probabilities are others then.
    """
    frames = _frames(zoo, symmetry, reference, needed=False)

    def change(architecture: int, stack: dict[str, Tensor]) -> Moved:
        frame = frames[architecture]
        found = canonicalize(frame.sym, stack, reference=frame.target, method=method, **options)
        factors = found.factor.tolist() if options.get("classifier") else None
        return Moved(found.params, factors, found.notes)

    return changed_zoo(zoo, directory, change, _made("canonicalize", frames, zoo, method), show)


@dataclass(frozen=True, eq=False)
class _Frame:
    """What the networks of an architecture are brought to."""

    sym: Symmetry
    target: dict[str, Tensor] | None
    number: int | None


def _frames(zoo: Zoo, symmetry: Symmetry | None, reference: int | None, *, needed: bool) -> dict[int, _Frame]:
    """The symmetry of every architecture that has networks, and the reference, if one is ``needed`` or given."""
    if not zoo.indices:
        raise InputError(f"no network of {zoo.folder} can be used: {next(iter(zoo.problems.values()))}")
    if symmetry is not None or reference is not None:
        zoo.require_one_architecture(zoo.indices)
    frames: dict[int, _Frame] = {}
    for index in zoo.indices:
        if zoo.architecture(index) in frames:
            continue
        sym = zoo.symmetry(index) if symmetry is None else symmetry
        try:
            check_network(sym, zoo[index], f"network {index} of {zoo.folder}")
        except InputError as error:
            raise InputError(f"the symmetry is that of another model than networks of {zoo.folder}: {error}") from error
        number = index if reference is None and needed else reference
        frames[zoo.architecture(index)] = _Frame(sym, None if number is None else zoo[number], number)
    return frames


def _made(how: str, frames: dict[int, _Frame], zoo: Zoo, method: str) -> Content:
    """What the index says of where the networks come from; references and symmetries by architecture."""
    known = [frames.get(number) for number in range(len(zoo.content["architectures"]))]
    return {
        "by": how,
        "method": method if any(frame.number is not None for frame in frames.values()) else None,
        "references": [None if frame is None else frame.number for frame in known],
        "symmetries": [None if frame is None else frame.sym.fingerprint for frame in known],
    }
