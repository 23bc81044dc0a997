"""Which classes are pairs of coordinates that may turn: those of queries and keys with rotary positions.

Rotations by positions tell the pairs of a head apart, so that nothing of them permutes; what is left is a scale and a
sign common to both coordinates of a pair. Where moreover nothing but linear maps with constant factors sees the pairs
between the weights that write them and the contractions in which they meet, they may turn as well, if all these maps
commute with rotations. Whether they do is a matter of numbers (cosines and sines), which verification tells.
"""

from collections.abc import Callable, Mapping, Sequence

from coset.symmetry.axes import units_of
from coset.symmetry.discovery.linearity import ASKING, REARRANGING
from coset.symmetry.discovery.relations import Value
from coset.symmetry.discovery.terms import Atom, Plus, Term, atoms, parts_of, resolve
from coset.symmetry.discovery.tracing import Step, Tracing
from coset.symmetry.mixing import Mixed, Mixing
from coset.symmetry.pairs import couples, paired_structure
from coset.symmetry.symmetry import Symmetry


def rotary_classes(sym: Symmetry, tracing: Tracing, classes: Mapping[str, Atom]) -> dict[str, Mixing]:
    """The classes whose pairs may turn, if maps between them commute with rotations; ``classes``: the atom of each."""
    found = {name: mixing for name in sym.classes if name in classes and (mixing := _candidate(sym, name)) is not None}
    reader = _Reader(tracing, {classes[name]: mixing.places for name, mixing in found.items()})
    for step in tracing.steps if found else ():
        reader.read(step)
    return {name: mixing for name, mixing in found.items() if classes[name] not in reader.lost}


def _candidate(sym: Symmetry, name: str) -> Mixing | None:
    """A class in a fixed order, whose units stand two by two with equal powers on all weights that carry these."""
    item = sym.classes[name]
    if item.permutes or item.follows is not None or any(other.parent == name for other in sym.classes.values()):
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
        for name, value in tracing.parameters.items():
            if moving := {atom for atom, known in places.items() if name in known}:
                self.known[id(value)] = moving

    def read(self, step: Step) -> None:
        """What one operation does to the pairs on the tensors it is given."""
        given, results = step.given, step.results
        name = step.name.removesuffix("_")
        rule = _RULES.get(name)
        for atom in {atom for value in given for atom in self.known.get(id(value), ())} if name not in ASKING else ():
            moving = [atom in self.known.get(id(value), ()) for value in given]
            carried = [_carries(value, atom) for value in results]
            kept = rule is not None and rule(moving, [_carries(value, atom) for value in given], carried)
            if not kept and not _is_cut_off(name, atom, given, results):
                self.lost.add(atom)
            for value, there in zip(results, carried, strict=True):
                if there:
                    self.known.setdefault(id(value), set()).add(atom)


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
    return list(moving) == list(given) == [True, True, *[False] * (len(moving) - 2)] and not any(results)


_RULES: dict[str, _Rule] = {
    **dict.fromkeys((*REARRANGING, "view_as_complex", "view_as_real", "embedding"), _rearranged),
    **dict.fromkeys(("add", "sub"), _added),
    **dict.fromkeys(("linear", "matmul", "mm", "bmm", "einsum"), _contracted),
    **dict.fromkeys(("addmm", "baddbmm"), _contracted_behind_bias),
    "mul": _multiplied,
    "div": _divided,
    "scaled_dot_product_attention": _attended,
}
