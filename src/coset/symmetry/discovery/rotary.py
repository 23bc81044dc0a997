"""Which classes are pairs of coordinates that may turn: those of queries and keys with rotary positions.

Rotations by positions tell the pairs of a head apart, so that nothing of them permutes; what is left is a scale and a
sign common to both coordinates of a pair. Where moreover nothing but linear maps with constant factors sees the pairs
between the weights that write them and the contractions in which they meet, they may turn as well, if all these maps
commute with rotations. Whether they do is a matter of numbers (cosines and sines), which verification tells. Pairs that
all constants multiply alike could be mixed by complex matrices, which are not looked for: they are told in a note.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from coset.symmetry.axes import units_of
from coset.symmetry.discovery.linearity import ASKING, REARRANGING
from coset.symmetry.discovery.relations import Value
from coset.symmetry.discovery.remarks import some
from coset.symmetry.discovery.terms import Atom, Plus, Term, Times, Woven, atoms, parts_of, resolve
from coset.symmetry.discovery.tracing import Step, Tracing
from coset.symmetry.mixing import Mixed, Mixing
from coset.symmetry.pairs import couples, paired_structure
from coset.symmetry.symmetry import Symmetry


@dataclass(frozen=True)
class Pairs:
    """How a class of pairs is mixed, and which of its pairs rotate ``alike``, group by group.

    ``permute``: its pairs are units that permute, too, as heads of a single pair do; such are no part of the group.
    """

    mixing: Mixing
    alike: tuple[tuple[int, ...], ...]
    permute: bool

    def told(self, name: str, blocks: int, size: int) -> str:
        """What is missed: angles, and of GL(m, ℂ) for each m pairs that rotate alike 2m² − 2m dimensions."""
        if self.permute:
            return (
                f"pairs of '{name}' may turn, but permute, too, and are not turned: at least {blocks * size} dimensions"
            )
        missed = blocks * sum(2 * len(group) * (len(group) - 1) for group in self.alike)
        which = "; ".join(some([str(unit) for unit in group], 4) for group in self.alike[:3])
        return (
            f"pairs of '{name}' rotate alike ({which}): complex matrices that mix them are not looked for, "
            f"{missed} more dimensions"
        )


def rotary_classes(sym: Symmetry, tracing: Tracing, classes: Mapping[str, Atom]) -> dict[str, Pairs]:
    """The classes whose pairs may turn, if maps between them commute with rotations; ``classes``: the atom of each."""
    found = {name: mixing for name in sym.classes if name in classes and (mixing := _candidate(sym, name)) is not None}
    reader = _Reader(tracing, {classes[name]: mixing.places for name, mixing in found.items()})
    for step in tracing.steps if found else ():
        reader.read(step)
    kept = {name: mixing for name, mixing in found.items() if classes[name] not in reader.lost}
    return {
        name: Pairs(mixing, reader.alike(classes[name]), sym.classes[name].permutes) for name, mixing in kept.items()
    }


def _candidate(sym: Symmetry, name: str) -> Mixing | None:
    """A class whose units stand two by two with equal powers on all weights that carry these."""
    if sym.classes[name].follows is not None:
        return None
    places: dict[str, tuple[Mixed, ...]] = {}
    for key in sym.carriers(name):
        axes = sym.parameters[key].axes
        if any(unit.charges for node in axes for unit in units_of(node) if unit.name == name):
            found = couples(paired_structure(axes, name, sym.classes, key), name)
            if found is None:
                return None
            places[key] = (Mixed(1),) * len(found)
    return Mixing("rotary", places) if places else None


class _Reader:
    """Follows the pairs of some classes from the weights on; classes that more than linear maps see are lost."""

    def __init__(self, tracing: Tracing, places: Mapping[Atom, Mapping[str, tuple[Mixed, ...]]]) -> None:
        self.lost: set[Atom] = set()
        self.known: dict[int, set[Atom]] = {}
        self._constants = tracing.known
        self._factors: dict[Atom, list[Tensor] | None] = {}
        for name, value in tracing.parameters.items():
            if moving := {atom for atom, known in places.items() if name in known}:
                self.known[id(value)] = moving

    def read(self, step: Step) -> None:
        """What one operation does to the pairs on the tensors it is given."""
        given, results = step.given, step.results
        name = step.name.removesuffix("_")
        rule = _RULES.get(name)
        given = given[:1] if name == "expand_as" else given
        for atom in {atom for value in given for atom in self.known.get(id(value), ())} if name not in ASKING else ():
            moving = [atom in self.known.get(id(value), ()) for value in given]
            carried = [_carries(value, atom) for value in results]
            kept = rule is not None and rule(moving, [_carries(value, atom) for value in given], carried)
            if not kept and not _is_cut_off(name, atom, given, results):
                self.lost.add(atom)
            if rule in (_multiplied, _divided):
                others = [value for value, moves in zip(given, moving, strict=True) if not moves]
                self._multiply(atom, results[0], others)
            # What attention gives has the heads, which may be the pairs, and none of their coordinates.
            for value, there in zip(results, carried, strict=True):
                if there and rule is not _attended:
                    self.known.setdefault(id(value), set()).add(atom)

    def _multiply(self, atom: Atom, result: Value, factors: Sequence[Value]) -> None:
        """Take down by what the units of a class are multiplied; None where that is not known."""
        for dim, term in enumerate(result.dims, start=-result.ndim):
            unit = _units_along(resolve(term), atom)
            varying = [factor for factor in factors if -dim <= factor.ndim and factor.shape[dim] > 1]
            for factor in varying if bool((unit >= 0).any()) else ():
                entries, before = self._constants.get(id(factor)), self._factors.setdefault(atom, [])
                if entries is None or before is None:
                    self._factors[atom] = None
                else:
                    rows = entries.cpu().movedim(dim, 0).flatten(1)
                    before.append(torch.stack([rows[unit == number].flatten() for number in range(atom.size)]))

    def alike(self, atom: Atom) -> tuple[tuple[int, ...], ...]:
        """The units of a class by which constants they are multiplied, where several are multiplied alike."""
        factors = self._factors.get(atom)
        if factors is None:
            return ()
        groups: dict[tuple[object, ...], list[int]] = {}
        for unit in range(atom.size):
            groups.setdefault(tuple(number for rows in factors for number in rows[unit].tolist()), []).append(unit)
        return tuple(tuple(group) for group in groups.values() if len(group) > 1)


def _units_along(term: Term, atom: Atom) -> Tensor:
    """Which unit of a class stands at each position of a dimension; −1 where none does."""
    if isinstance(term, Atom):
        return torch.arange(term.size) if term is atom else torch.full((term.size,), -1)
    inside = term.factors if isinstance(term, Times) else parts_of(term)
    parts = [_units_along(resolve(part), atom) for part in inside]
    if isinstance(term, Plus):
        return torch.cat(parts)
    if isinstance(term, Woven):
        return torch.stack(parts, 1).flatten()
    units = torch.full((1,), -1)
    for part in parts:
        units = torch.where(part[None] >= 0, part[None], units[:, None]).flatten()
    return units


def _is_cut_off(name: str, atom: Atom, given: Sequence[Value], results: Sequence[Value]) -> bool:
    """Whether what is taken out of a tensor may be a part without pairs: coordinates that do not rotate, or values."""
    if name not in REARRANGING or any(_carries(value, atom) for value in results):
        return False
    segments = [part for value in given for dim in value.dims for part in _segments(dim)]
    return not all(_carries(value, atom) for value in given) or any(atom not in atoms(part) for part in segments)


def _segments(dim: Term) -> tuple[Term, ...]:
    term = resolve(dim)
    return parts_of(term) if isinstance(term, Plus) else ()


def _carries(value: Value, atom: Atom) -> bool:
    return any(atom in atoms(resolve(dim)) for dim in value.dims)


# Rules: which tensors given are multiplied by rotations, which carry the class at all, which results do so.
_Rule = Callable[[Sequence[bool], Sequence[bool], Sequence[bool]], bool]


def _rearranged(moving: Sequence[bool], given: Sequence[bool], results: Sequence[bool]) -> bool:
    """Entries in other places; beside constants of the class they would not turn as one."""
    return list(moving) == list(given) and any(results)


def _added(moving: Sequence[bool], given: Sequence[bool], results: Sequence[bool]) -> bool:
    return all(moving) and len(moving) == 2


def _multiplied(moving: Sequence[bool], given: Sequence[bool], results: Sequence[bool]) -> bool:
    """By constants."""
    return sum(moving) == 1


def _divided(moving: Sequence[bool], given: Sequence[bool], results: Sequence[bool]) -> bool:
    return moving[0] and sum(moving) == 1


def _normed(moving: Sequence[bool], given: Sequence[bool], results: Sequence[bool]) -> bool:
    """By a norm without a gain, of the pairs as a whole."""
    return list(moving) == [True]


def _contracted(moving: Sequence[bool], given: Sequence[bool], results: Sequence[bool]) -> bool:
    """Two with each other; or one of them, with the bias if there is one, and the result has what it has."""
    (one, two), bias = moving[:2], moving[2:]
    if list(moving) != list(given):
        return False
    return (one != two and all(bias)) if any(results) else (one and two and not any(bias))


def _contracted_behind_bias(moving: Sequence[bool], given: Sequence[bool], results: Sequence[bool]) -> bool:
    return _contracted([*moving[1:], moving[0]], [*given[1:], given[0]], results)


def _attended(moving: Sequence[bool], given: Sequence[bool], results: Sequence[bool]) -> bool:
    """Queries with keys."""
    return list(moving) == [True, True, *[False] * (len(moving) - 2)]


_RULES: dict[str, _Rule] = {
    **dict.fromkeys((*REARRANGING, "view_as_complex", "view_as_real", "embedding"), _rearranged),
    **dict.fromkeys(("add", "sub"), _added),
    **dict.fromkeys(("linear", "matmul", "mm", "bmm", "einsum"), _contracted),
    **dict.fromkeys(("addmm", "baddbmm"), _contracted_behind_bias),
    "mul": _multiplied,
    "div": _divided,
    "scaled_dot_product_attention": _attended,
    **dict.fromkeys(("rms_norm", "_fused_rms_norm", "linalg_vector_norm"), _normed),
}
