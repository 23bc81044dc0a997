"""What discovery finds beyond permutations, scales and signs: matrices, turns of units, and translations.

Each is proposed from the graph and then tried in float64: what changes outputs is left out, and noted.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from coset.errors import InputError
from coset.symmetry.discovery.evaluation import evaluate
from coset.symmetry.discovery.general_position import general_position, other_inputs
from coset.symmetry.discovery.linearity import linear_classes
from coset.symmetry.discovery.remarks import some
from coset.symmetry.discovery.rotary import Pairs, rotary_classes
from coset.symmetry.discovery.terms import Atom
from coset.symmetry.discovery.tracing import Tracing
from coset.symmetry.discovery.translating import in_signed_blocks, translations
from coset.symmetry.discovery.turning_units import turning_units
from coset.symmetry.discovery.verification import outputs_stay
from coset.symmetry.mixing import Mixing, mix
from coset.symmetry.symmetry import Symmetry
from coset.symmetry.translations import Translation, random_values, translated
from coset.symmetry.turning import Turn, turned

_T = TypeVar("_T")


@dataclass(frozen=True)
class Proposal:
    """What the graph says: classes that mix, ``pairs`` that may turn, units that turn, translations, all by name.

    Whether the maps between ``pairs`` are rotations is told by their values alone.
    """

    mixing: Mapping[str, Mixing]
    pairs: Mapping[str, Pairs]
    turns: Mapping[str, Turn]
    translations: Mapping[str, Translation]
    notes: tuple[str, ...]

    def unverified(self, sym: Symmetry) -> Symmetry:
        """The symmetry with all that is derived from the graph."""
        notes = [*sym.notes, *self.notes]
        if self.pairs:
            notes.append(
                f"the pairs of {some(list(self.pairs), 3)} may turn: that is told by values, which were not read"
            )
        return replace(
            sym.annotated(notes=tuple(notes)),
            continuous=self.mixing, turns=self.turns, translations=tuple(self.translations.values()),
        )  # fmt: skip

    def derived(
        self,
        sym: Symmetry,
        program: torch.export.ExportedProgram,
        params: Mapping[str, Tensor],
        inputs: Sequence[Any],
    ) -> Symmetry:
        """The same where there are values: the angles of pairs are tried on them, and nothing else is."""
        angles, notes = _angles(_Trial(sym, program, params, inputs), self.pairs)
        sym = replace(self, pairs={}).unverified(sym)
        return replace(sym.annotated(notes=(*sym.notes, *notes)), continuous={**sym.continuous, **angles})


def proposed(
    sym: Symmetry,
    tracing: Tracing,
    atoms: Mapping[str, Atom],
    program: torch.export.ExportedProgram,
    movable: Mapping[str, Tensor],
    fixed: Collection[str],
    *,
    valued: bool,
) -> Proposal:
    """What may move further; what stands behind gains that have zeros may not, where they are ``valued``."""
    mixing = linear_classes(tracing, atoms, movable)
    shifts = {item.name: item for item in in_signed_blocks(sym, translations(program, movable, set(fixed)))}
    mixed_behind = {name: item.gains for name, item in mixing.items()}
    moved_along = {name: item.gains for name, item in shifts.items()}
    gains = dict.fromkeys(gain for group in (mixed_behind, moved_along) for named in group.values() for gain in named)
    dead = {gain for gain in gains if valued and gain in movable and bool((movable[gain] == 0).any())}
    zeros = "has entries that are 0"
    notes = [
        f"'{gain}' {zeros}: the units of '{name}' are not mixed"
        for name, named in mixed_behind.items()
        for gain in named
        if gain in dead
    ]
    along = dict.fromkeys(gain for named in moved_along.values() for gain in named if gain in dead)
    notes += [f"'{gain}' {zeros}: nothing is translated along its inverse" for gain in along]
    return Proposal(
        {name: item for name, item in mixing.items() if dead.isdisjoint(item.gains)},
        rotary_classes(sym, tracing, atoms),
        turning_units(tracing, atoms, movable, sym),
        {name: item for name, item in shifts.items() if dead.isdisjoint(item.gains)},
        tuple(notes),
    )


def confirmed(
    sym: Symmetry,
    proposal: Proposal,
    program: torch.export.ExportedProgram,
    params: Mapping[str, Tensor],
    inputs: Sequence[Any],
    unnoticed: Collection[str],
) -> Symmetry:
    """The symmetry with what changes no output; ``unnoticed``: classes of which outputs say nothing, so none turns."""
    trial = _Trial(sym, program, params, inputs)
    pairs = {name: item for name, item in proposal.pairs.items() if name not in unnoticed}
    mixing = trial.surviving(proposal.mixing, trial.mixed)
    angles, told = _angles(trial, pairs)
    turns = trial.surviving(proposal.turns, trial.turned)
    shifts = trial.surviving(proposal.translations, trial.translated)
    words: dict[str, tuple[Collection[str], Collection[str]]] = {
        "the units of {} seem to be seen by linear maps alone, but outputs change when they mix": (
            proposal.mixing,
            mixing,
        ),
        "the units of {} seem to turn, but outputs change when they do": (proposal.turns, turns),
        "outputs change with the translations {}, which are left out": (proposal.translations, shifts),
    }
    notes = [*proposal.notes, *told]
    for what, (seen, left) in words.items():
        if refused := [name for name in seen if name not in left]:
            notes.append(what.format(some(refused, 3)))
    return replace(
        sym.annotated(notes=(*sym.notes, *notes)),
        continuous={**mixing, **angles}, turns=turns, translations=tuple(shifts.values()),
    )  # fmt: skip


def _angles(trial: "_Trial", pairs: Mapping[str, Pairs]) -> tuple[dict[str, Mixing], list[str]]:
    """The classes of pairs that turn, and what to tell of pairs that rotate alike."""
    found = trial.surviving({name: item.mixing for name, item in pairs.items()}, trial.mixed)
    told = []
    for name in (name for name in found if pairs[name].alike or pairs[name].permute):
        *outer, size = trial.sym.shape(name)
        told.append(pairs[name].told(name, math.prod(outer), size))
    return {name: mixing for name, mixing in found.items() if not pairs[name].permute}, told


@dataclass
class _Trial:
    """Moves of weights in general position, on inputs of their own; there is never more than one copy of the weights
    beside what moves."""

    sym: Symmetry
    program: torch.export.ExportedProgram
    params: Mapping[str, Tensor]
    inputs: Sequence[Any]

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(0)

    def surviving(
        self, found: Mapping[str, _T], move: Callable[[Mapping[str, _T], dict[str, Tensor]], dict[str, Tensor]]
    ) -> dict[str, _T]:
        """Those whose random moves change no output: all at once, or else by halves."""
        if not found or self._keeps(lambda theta: move(found, theta)):
            return dict(found)
        names = list(found)
        halves = (names[: len(names) // 2], names[len(names) // 2 :]) if len(names) > 1 else ()
        return {
            name: item
            for half in halves
            for name, item in self.surviving({name: found[name] for name in half}, move).items()
        }

    def _keeps(self, move: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> bool:
        theta = general_position(self.params, self.sym, self.generator)
        given = evaluate(self.program, theta, self.inputs)
        x, there = other_inputs(self.program, theta, self.inputs, given, self.generator)
        before = given if there is None else there[0]
        try:
            theta = move(theta)
        except InputError:
            return False  # a gain that is 0 in spite of all
        return outputs_stay(before, self.program, theta, x, self.generator)

    def mixed(self, part: Mapping[str, Mixing], theta: dict[str, Tensor]) -> dict[str, Tensor]:
        candidate = replace(self.sym, continuous=part)
        mix(candidate, candidate.random(self.generator).matrices, theta)
        return theta

    def turned(self, part: Mapping[str, Turn], theta: dict[str, Tensor]) -> dict[str, Tensor]:
        candidate = replace(self.sym, turns=part)
        return turned(candidate, candidate.random(self.generator).turns, theta)

    def translated(self, part: Mapping[str, Translation], theta: dict[str, Tensor]) -> dict[str, Tensor]:
        return translated(tuple(part.values()), theta, random_values(tuple(part.values()), theta, self.generator))
