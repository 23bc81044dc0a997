"""Which units turn: half-turns in front of sin and cos, reflections of functions that are odd about some point.

Behind every function of which an affine relation f(s·z + c) = t·f(z) + e is known, the biases that write its units are
shifted, and all operations are gone through with what has become of the tensors: z → ±z + constant. Maps that read such
a tensor flip their columns, and their biases take up the constant. Whatever cannot follow ends it: the unit stays.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from torch import Tensor

from coset.symmetry.axes import units_of
from coset.symmetry.discovery.affine_moves import Blocked, Course, Moves
from coset.symmetry.discovery.calls import tensors_in
from coset.symmetry.discovery.relations import Value
from coset.symmetry.discovery.terms import Atom, atoms, resolve
from coset.symmetry.discovery.ties import ties
from coset.symmetry.discovery.tracing import Step, Tracing
from coset.symmetry.structure import ancestors
from coset.symmetry.symmetry import Symmetry
from coset.symmetry.turning import Taken, Turn


def turning_units(
    tracing: Tracing, classes: Mapping[str, Atom], movable: Mapping[str, Tensor], sym: Symmetry
) -> dict[str, Turn]:
    """Key → Turn of all units that turn; none of classes whose units something tells apart.

    ``movable``: all parameters; one tensor under several names is read under one of them.
    """
    sources = [(step, source) for step in tracing.steps for source in _sources(step)]
    if not sources:
        return {}
    names = {atom: name for name, atom in classes.items() if atom.pinned is None}
    shared = {name for tie in ties(movable) if not tie.same for name in (tie.one, tie.two)}
    course, found = Course(tracing), list[Turn]()
    done: set[tuple[int, str]] = set()
    for step, (sign, shift) in sources:
        for atom in dict.fromkeys(_atoms_on(step.result, names)):
            if (id(step), names[atom]) in done or not _alone(sym, names[atom]):
                continue
            turn = _turn(course, step, sign, shift, atom, names[atom], sym, movable, shared)
            if turn is not None:
                done.add((id(step), names[atom]))
                found += [] if turn in found else [turn]
    return _named(found)


def _atoms_on(value: Value, names: Mapping[Atom, str]) -> list[Atom]:
    return [atom for dim in value.dims for atom in atoms(resolve(dim)) if atom in names]


def _alone(sym: Symmetry, name: str) -> bool:
    """Whether a class follows no other, and none follows it."""
    return sym.classes[name].follows is None and not any(item.follows == name for item in sym.classes.values())


def _sources(step: Step) -> Iterator[tuple[int, float]]:
    """(s, c) of the affine relations of a function, the smallest turns first."""
    name = step.name.removesuffix("_")
    given = tensors_in((*step.args, *step.kwargs.values())) if name in _RELATIONS else []
    if len(given) == 1 and not given[0].inert and isinstance(step.result, Value):
        numbers = [arg for arg in (*step.args[1:], *step.kwargs.values()) if isinstance(arg, int | float)]
        yield from _RELATIONS[name](numbers)


def _periodic(*periods: float) -> Callable[[Sequence[float]], list[tuple[int, float]]]:
    return lambda _: [(1, period) for period in periods]


def _odd(centre: float = 0.0) -> Callable[[Sequence[float]], list[tuple[int, float]]]:
    return lambda _: [(-1, 2 * centre)]


def _clipped(bounds: Sequence[float]) -> list[tuple[int, float]]:
    return [(-1, float(sum(bounds)))] if len(bounds) == 2 else [(-1, 0.0)] if not bounds else []


_RELATIONS: dict[str, Callable[[Sequence[float]], list[tuple[int, float]]]] = {
    **dict.fromkeys(("sin", "cos"), _periodic(math.pi, 2 * math.pi)),
    "tan": _periodic(math.pi),
    **dict.fromkeys(("sigmoid", "special_expit", "hardsigmoid"), _odd()),
    # Constants behind an odd function take its sign away, and readers give it back.
    **dict.fromkeys(("tanh", "erf", "atan", "softsign"), _odd()),
    "relu6": _odd(3.0),
    **dict.fromkeys(("hardtanh", "clamp", "clip"), _clipped),
}
"""Where a function has an affine relation: sign and constant of its argument."""


def _turn(
    course: Course,
    source: Step,
    sign: int,
    shift: float,
    atom: Atom,
    name: str,
    sym: Symmetry,
    movable: Mapping[str, Tensor],
    shared: set[str],
) -> Turn | None:
    """The turn of a class in front of one function; None where something cannot follow it."""
    moves = Moves(course, atom)
    try:
        moves.write(tensors_in(source.args)[0], sign, shift)
        moves.settle()
        places = {key: moves.places(key) for key in moves.parameters}
        taken = [Taken(weight, bias, amount, row, at) for (weight, bias, row, at), amount in moves.taken.items()]
    except Blocked:
        return None
    shifts = any(place.shift for items in places.values() for place in items)
    if shared & {*places, *(item.bias for item in taken)} or not (shifts or taken):
        return None  # without constants it is a sign, which is found with the others
    order = 0 if sign > 0 else 2
    if not all(_free(sym, key, name, order) for key, items in places.items() if any(place.shift for place in items)):
        return None
    return _under_all_names(Turn(name, order, places, tuple(taken)), movable)


def _free(sym: Symmetry, parameter: str, name: str, order: int) -> bool:
    """Whether what shifts has no scale, no classes but this one and those around it, and a sign only of its own.

    Half-turns may have signs that all entries share, as of a stream of LayerNorms, beside their own.
    """
    for unit in (unit for axis in sym.parameters[parameter].axes for unit in units_of(axis)):
        alone = math.prod(sym.shape(unit.name)) == 1
        if unit.name != name and not alone and unit.name not in ancestors(name, sym.classes):
            return False
        for charge in unit.charges:
            family = sym.families.get(charge.key(unit.name))
            scaled = family is not None and family.scales and charge.scale
            flipped = family is not None and family.signs and charge.sign
            flipped = flipped and (order or (unit.name != name and not alone))
            if scaled or flipped:
                return False
    return True


def _under_all_names(turn: Turn, movable: Mapping[str, Tensor]) -> Turn:
    """The same with all names under which the tensors stand."""
    same = {id(movable[key]): places for key, places in turn.places.items()}
    places = {key: same[id(tensor)] for key, tensor in movable.items() if id(tensor) in same}
    names = {item.bias: [key for key, tensor in movable.items() if tensor is movable[item.bias]] for item in turn.taken}
    taken = tuple(
        Taken(item.weight, key, item.amount, item.axis, item.number) for item in turn.taken for key in names[item.bias]
    )
    return Turn(turn.owner, turn.order, places, taken)


def _named(turns: Sequence[Turn]) -> dict[str, Turn]:
    """Turns by key: the first of a class has its name, others a number."""
    found: dict[str, Turn] = {}
    for turn in turns:
        number = 1 + sum(other.owner == turn.owner for other in found.values())
        own = Turn(turn.owner, turn.order, turn.places, turn.taken, "" if number == 1 else f"turn{number}")
        found[own.key] = own
    return found
