"""What is said beside the group: what is known beyond it, what is not read, and where what is known ends."""

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from coset.symmetry.axes import units_of
from coset.symmetry.discovery.terms import CLASH, Plus, atoms, resolve
from coset.symmetry.discovery.tracing import Tracing
from coset.symmetry.incidence import positions_of
from coset.symmetry.symmetry import Symmetry


def shifts(sym: Symmetry, movable: Mapping[str, Tensor]) -> list[str]:
    """Symmetries beyond the group: shifts of biases before a batch norm."""
    carried: dict[str, dict[str, int]] = {key: {} for key in sym.families}
    for name, parameter in sym.parameters.items():
        for unit in (unit for axis in parameter.axes for unit in units_of(axis)):
            for charge in unit.charges:
                key = charge.key(unit.name)
                if key in carried:
                    carried[key][name] = charge.scale
    found = []
    for key, powers in carried.items():
        if not any(power == 2 and sym.parameters[name].shift for name, power in powers.items()):
            continue
        # Of the layer right before the norm, whose weight is scaled, too; not of one before that.
        before = {_module(name) for name, power in powers.items() if power == 1 and movable[name].ndim > 1}
        for name, power in powers.items():
            is_bias = power == 1 and movable[name].ndim == 1 and isinstance(movable[name], nn.Parameter)
            if is_bias and _module(name) in before:
                found.append(
                    f"'{name}' stands before a batch norm: any shift of it can be taken up by the running mean ({key})"
                )
    return found


def _module(name: str) -> str:
    return name.rpartition(".")[0]


def not_read(sym: Symmetry, unread: Sequence[str]) -> tuple[str, ...]:
    """The entries of parameters on which no output depends at all, by class that stands there and nowhere else."""
    sizes = {name: item.size for name, item in sym.classes.items()}
    found = []
    for name in unread:
        for carrier in sym.carriers(name):
            for dim, axis in enumerate(sym.parameters[carrier].axes):
                places = positions_of(axis, sizes, name).tolist()
                if len(places) == (sym.parameters[carrier].shape or (1,))[dim]:
                    found.append(f"'{carrier}' has no influence on the outputs for this example")
                elif places:
                    what = _entries(places, dim, len(sym.parameters[carrier].axes))
                    found.append(f"{what} of '{carrier}' are not read by the example; give a longer one")
    return tuple(dict.fromkeys(found))


def _entries(places: Sequence[int], dim: int, ndim: int) -> str:
    """Positions of an axis as people say them: rows 5-7, columns 0-2."""
    whole = places[-1] - places[0] + 1 == len(places)
    numbers = f"{places[0]}-{places[-1]}" if whole else ", ".join(str(place) for place in places[:8])
    if ndim == 1:
        return f"entries {numbers}"
    return f"{('rows', 'columns')[dim]} {numbers}" if ndim == 2 else f"positions {numbers} on axis {dim}"


def reported(tracing: Tracing) -> tuple[str, ...]:
    """Where what is known of operations ends: those at which an axis of a parameter was pinned for that reason."""
    standing = tracing.standing()
    told = dict.fromkeys(tracing.pinned)
    for reason, terms in tracing.book.limits.items():
        if any(atom in standing and atom.pinned == reason for term in terms for atom in atoms(resolve(term))):
            told.setdefault(reason)
    for atom in sorted(standing, key=lambda atom: atom.number):
        if atom.stuck and atom.pinned and atom.pinned.endswith(CLASH):
            told.setdefault(atom.pinned)
    return tuple(told)


def smaller(tracing: Tracing) -> tuple[str, ...]:
    """What of the symmetry of units is not looked for, where parameters have such units."""
    standing = tracing.standing()
    return tuple(
        what
        for what, terms in tracing.book.smaller.items()
        if any(atom in standing and not atom.pinned for term in terms for atom in atoms(resolve(term)))
    )


def read_one_by_one(tracing: Tracing) -> tuple[str, ...]:
    """Axes of matrices whose positions are all taken apart: whole modules behind them might be exchanged with them."""
    return tuple(
        f"the positions of axis {axis} of '{name}' are read one by one: exchanges of them together with all that reads "
        "them, such as whole modules, are not looked for"
        for name, value in tracing.parameters.items()
        for axis, dim in enumerate(value.dims if value.ndim > 1 else ())
        if isinstance(term := resolve(dim), Plus) and all(segment.size == 1 for segment in term.segments)
    )


def some(items: Sequence[object], shown: int) -> str:
    """The first items, and how many more there are."""
    more = f" and {len(items) - shown} more" if len(items) > shown else ""
    return ", ".join(str(item) for item in items[:shown]) + more
