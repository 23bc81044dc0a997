"""From solved structure and gauges to a ``Symmetry``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor, nn

from coset.errors import InputError
from coset.symmetry.axes import Charge, Concat, Fixed, Interleaved, Node, Product, Units, units_of
from coset.symmetry.discovery.charges import AtomPlace, Charges, whole
from coset.symmetry.discovery.crossing import doubled, followed_places, misplaced
from coset.symmetry.discovery.families import Gauge, gauges
from coset.symmetry.discovery.nesting import Nest, companions, inside_out, nest, outside_in
from coset.symmetry.discovery.relations import Value
from coset.symmetry.discovery.remarks import shifts
from coset.symmetry.discovery.terms import Atom, Plus, Term, Times, Woven, atoms, parts_of, resolve
from coset.symmetry.discovery.ties import ties
from coset.symmetry.discovery.tracing import Tracing
from coset.symmetry.graph import Graph
from coset.symmetry.layers import Activation, Contraction, without_sizes
from coset.symmetry.parameters import Family, Parameter
from coset.symmetry.structure import UnitClass, check_standing
from coset.symmetry.symmetry import Symmetry

NETWORK = "network"
"""The class of one unit that carries what is common to all entries of a tensor."""

_TOLD = 12
"""How many operations are told of an axis."""


@dataclass
class _Names:
    """Names of classes, and of families by gauge."""

    classes: dict[Atom, str]
    families: dict[int, str]


def assemble(tracing: Tracing, movable: Mapping[str, Tensor]) -> tuple[Symmetry, dict[str, Atom]]:
    """Solve the charges, find what is nested in what, name and write down everything; with the atom of each class."""
    used = tracing.parameters
    charges = Charges(tracing.book)
    standing = dict.fromkeys(
        atom for value in used.values() for dim in range(value.ndim) for atom in charges.leaves(value, dim) if atom.size
    )
    nested, free, kept = _solved(tracing, charges, standing)
    around = nested.around
    names = _names(kept, nested, charges, used, free)
    # One tensor under several names is exported under one of them.
    owner = {id(movable[name]): name for name in used}
    tied = {tie.two: tie.one for tie in ties(movable) if tie.same}
    carried = _charges_by_place(free, names.families)
    networked = {name for name, value in used.items() if whole(value) in carried}
    for variance, gain, _ in tracing.variances:
        # A gain takes up what its variance cannot: both carry the same classes.
        if gain is not None and {variance, gain} & networked:
            networked |= {variance, gain}
    passed = _operations(tracing, standing)
    parameters = {}
    for name, tensor in movable.items():
        own = owner.get(id(tensor), name)
        made = _parameter(own, tensor, used.get(own), names, carried, tracing, networked, nested, charges)
        parameters[name] = replace(made, why=_why(used.get(own), tensor, passed), tied=tied.get(name))
    for name, item in parameters.items():
        if item.gain is not None and _classes_of(item) != _classes_of(parameters[item.gain]):
            # A gain that has more to carry takes up nothing: var + ε stays positive, whatever becomes of var.
            parameters[name] = replace(item, gain=None)
    classes = {}
    for atom in outside_in(kept, around):
        outer = around.get(atom)
        parent = names.classes[outer] if outer is not None else None
        followed = names.classes[nested.follows[atom]] if atom in nested.follows else None
        moves = atom.pinned is None and followed is None
        classes[names.classes[atom]] = UnitClass(names.classes[atom], atom.size, parent, moves, followed)
    if any(gauge.atom is None for gauge in free):
        classes[NETWORK] = UnitClass(NETWORK, 1, None, False)
    families = {}
    for number, gauge in enumerate(free):
        owned = NETWORK if gauge.atom is None else names.classes[gauge.atom]
        family = Family(owned, names.families[number], bool(gauge.scale), bool(gauge.sign))
        families[family.key] = family
    contractions = tuple(Contraction(name, (None,) * count) for name, count in tracing.contractions)
    seen = _seen(tracing, names, carried, nested, charges, free, classes)
    graph = Graph(contractions=contractions, nodes=classes).with_tensors(seen)
    sym = Symmetry(classes, families, parameters, graph=graph)
    shared = tuple(
        f"the units of '{names.classes[atom]}' lie in blocks of '{parent or names.classes[other]}' and of "
        f"'{names.classes[other]}' at once: they permute and scale alike in all of the latter"
        for atom, other in nested.beside.items()
        if atom in names.classes and other in names.classes
        for parent in (sym.classes[names.classes[atom]].parent,)
    )
    notes = (*shifts(sym, movable), *shared)
    return sym.annotated(notes=notes), {name: atom for atom, name in names.classes.items()}


def _classes_of(parameter: Parameter) -> list[list[str]]:
    return [[unit.name for unit in units_of(node)] for node in parameter.axes]


def _solved(
    tracing: Tracing, charges: Charges, standing: Mapping[Atom, None]
) -> tuple[Nest, list[Gauge], dict[Atom, None]]:
    """What lies in what, the free scales and signs, and the atoms that become classes.

    An atom lies across pinned ones only where these are needed for nothing else: neither have they scales of their own,
    nor units in them that do not lie in the other block.
    """
    common = companions(tracing.book, standing)
    on = [
        {atom for dim in range(value.ndim) for atom in charges.leaves(value, dim)}
        for value in tracing.parameters.values()
    ]
    banned: set[Atom] = set()
    twice = doubled(tracing.book, charges, common)
    way: dict[Atom, int] = {}
    while True:
        nested = nest(common, banned, twice, way)
        activations = list(tracing.activations.values())
        free = gauges(charges, tracing.parameters, activations, inside_out(standing, nested.around), nested)
        kept = _kept(standing, nested.around, free)
        scaled = {gauge.atom for gauge in free}
        odd: set[Atom] = set()
        for atoms_here in on:
            here = [atom for atom in atoms_here if atom in kept]
            needed = {outer for atom in here for outer in nested.chain(atom)} | scaled
            for pinned, blocks in nested.blocks_on(here).items():
                if len(blocks) > 1 or pinned in needed:
                    odd |= {atom for atom in here if blocks & set(nested.chain(atom))}
        wrong = misplaced(charges, tracing.parameters.values(), nested, kept, free)
        if not odd - banned and not wrong:
            return nested, free, kept
        banned |= odd
        way |= {atom: way.get(atom, 0) + 1 for atom in wrong}


def _operations(tracing: Tracing, standing: Mapping[Atom, None]) -> dict[Atom, dict[str, None]]:
    """The operations whose results carry each atom, in the order of the graph."""
    passed: dict[Atom, dict[str, None]] = {atom: {} for atom in standing}
    own = {id(value) for value in tracing.parameters.values()}
    for value in tracing.book.values:
        if not value.inert and id(value) not in own:
            for dim in value.dims:
                for atom in atoms(resolve(dim)):
                    if atom in passed:
                        passed[atom].setdefault(value.where)
    return passed


def _why(value: Value | None, tensor: Tensor, passed: Mapping[Atom, dict[str, None]]) -> tuple[str, ...]:
    """For each axis, in words: why it is fixed, or through which operations its units go."""
    if value is None:
        return ("the function does not use it",) * tensor.ndim
    reasons = []
    for dim in value.dims:
        parts = []
        for atom in dict.fromkeys(atoms(resolve(dim))):
            places = list(passed.get(atom, {}))
            more = f" and {len(places) - _TOLD} more" if len(places) > _TOLD else ""
            through = ", ".join(places[:_TOLD]) + more or "nothing"
            parts.append(f"fixed: {atom.pinned}" if atom.pinned else f"through {through}")
        reasons.append("; ".join(dict.fromkeys(parts)) or "a single position")
    return tuple(reasons)


def _kept(standing: Mapping[Atom, None], around: Mapping[Atom, Atom], free: list[Gauge]) -> dict[Atom, None]:
    """Atoms that permute or scale, and the ones around them."""
    kept = {atom: None for atom in standing if atom.pinned is None or any(g.atom is atom for g in free)}
    for atom in list(kept):
        while (outer := around.get(atom)) is not None:
            kept[outer] = None
            atom = outer
    return {atom: None for atom in standing if atom in kept} | {atom: None for atom in kept if atom not in standing}


def _names(
    kept: Mapping[Atom, None],
    nested: Nest,
    charges: Charges,
    used: Mapping[str, Value],
    free: list[Gauge],
) -> _Names:
    """A class is called after the module that writes it first; a family after the parameter it begins with."""
    owners = {id(value): name for name, value in used.items()}
    writers: dict[Atom, str] = {}
    for only_first_axis in (True, False):
        for name, value in used.items():
            for dim in range(min(1, value.ndim) if only_first_axis else value.ndim):
                for atom in charges.leaves(value, dim):
                    writers.setdefault(atom, name)
    classes: dict[Atom, str] = {}
    outside = {nested.around[atom] for atom in kept if atom in nested.around}
    for atom in kept:
        writer = writers[nested.made_of.get(atom, atom)]
        base = _word(writer.rpartition(".")[0] or writer)
        if atom in outside:
            base += ".blocks"
        elif atom in nested.around:
            base += ".inside"
        taken, number = base, 2
        while taken in classes.values() or taken == NETWORK:
            taken, number = f"{base}.{number}", number + 1
        classes[atom] = taken
    families: dict[int, str] = {}
    seen: set[Atom | None] = set()
    for number, gauge in enumerate(free):
        families[number] = "" if gauge.atom not in seen else _word(owners[gauge.pivot.value])
        while any(families[n] == families[number] and free[n].atom is gauge.atom for n in range(number)):
            families[number] += "_"
        seen.add(gauge.atom)
    return _Names(classes, families)


def _word(path: str) -> str:
    """A path as a name of the axes language."""
    word = "".join(c if c.isalnum() or c in "._" else "_" for c in path)
    return word if word[:1].isalpha() or word[:1] == "_" else f"u{word}"


def _parameter(
    name: str,
    tensor: Tensor,
    value: Value | None,
    names: _Names,
    carried: Mapping[AtomPlace, tuple[Charge, ...]],
    tracing: Tracing,
    networked: set[str],
    nested: Nest,
    charges: Charges,
) -> Parameter:
    shape, buffer = tuple(tensor.shape), not isinstance(tensor, nn.Parameter)
    if value is None:
        return Parameter(shape, tuple(Fixed(n) for n in shape), buffer=buffer)
    axes = _axes(value, names, carried, nested, charges, name in networked)
    for variance, gain, eps in tracing.variances:
        if variance == name and any(not isinstance(axis, Fixed) for axis in axes):
            return Parameter(shape, tuple(axes), eps, gain, buffer=buffer)
    return Parameter(shape, tuple(axes), buffer=buffer)


def _axes(
    value: Value,
    names: _Names,
    carried: Mapping[AtomPlace, tuple[Charge, ...]],
    nested: Nest,
    charges: Charges,
    networked: bool,
) -> list[Node]:
    """What stands on each axis of a tensor."""
    here = [atom for dim in value.dims for atom in atoms(resolve(dim)) if atom in names.classes]
    blocks = {pinned: names.classes[next(iter(found))] for pinned, found in nested.blocks_on(here).items()}
    named = followed_places(charges, value, nested)
    axes = [_axis(value, dim, names, carried, blocks, named) for dim in range(value.ndim)]
    if networked:
        unit = Units(NETWORK, carried.get(whole(value), ()))
        axes[:1] = [Product((axes[0], unit)) if axes else unit]
    return axes


def _seen(
    tracing: Tracing,
    names: _Names,
    carried: Mapping[AtomPlace, tuple[Charge, ...]],
    nested: Nest,
    charges: Charges,
    free: Sequence[Gauge],
    classes: Mapping[str, UnitClass],
) -> dict[str, Activation]:
    """What modules give and contractions read, but for that whose powers are no whole numbers, or whose units lie in
    blocks that only the data tell (an expert's).
    """
    uneven = {place.value for gauge in free for place in gauge.uneven}
    found: dict[str, Activation] = {}
    known: dict[int, Activation] = {}
    builds: dict[tuple[Node, ...], bool] = {}
    for name, value in tracing.activations.items():
        if id(value) in known:
            found[name] = known[id(value)]
        elif id(value) not in uneven:
            axes = tuple(_axes(value, names, carried, nested, charges, whole(value) in carried))
            bare = tuple(without_sizes(node) for node in axes)
            if bare not in builds:
                builds[bare] = _builds(axes, classes, name)
            if builds[bare]:
                found[name] = known[id(value)] = Activation(value.shape, bare)
    return found


def _builds(axes: tuple[Node, ...], classes: Mapping[str, UnitClass], name: str) -> bool:
    """Whether all units on these axes stand beside what they lie in."""
    if all(classes[unit.name].parent is None for node in axes for unit in units_of(node)):
        return True
    try:
        check_standing(axes, classes, name)
    except InputError:
        return False
    return True


def _charges_by_place(free: list[Gauge], families: Mapping[int, str]) -> dict[AtomPlace, tuple[Charge, ...]]:
    """The charges of every place that carries a gauge, sorted by family."""
    found: dict[AtomPlace, list[Charge]] = {}
    for number, gauge in enumerate(free):
        for place in dict.fromkeys((*gauge.scale, *gauge.sign)):
            charge = Charge(families[number], gauge.scale.get(place, 0), gauge.sign.get(place, 0))
            found.setdefault(place, []).append(charge)
    return {place: tuple(sorted(charges, key=lambda charge: charge.family)) for place, charges in found.items()}


def _axis(
    value: Value,
    dim: int,
    names: _Names,
    carried: Mapping[AtomPlace, tuple[Charge, ...]],
    blocks: Mapping[Atom, str],
    named: Mapping[AtomPlace, Atom],
) -> Node:
    counter = iter(range(10**9))

    def walk(term: Term) -> Node:
        if isinstance(term, Atom) and term.stuck:
            return Fixed(term.size)
        if isinstance(term, Atom):
            place = AtomPlace(id(value), dim, next(counter))
            if place in named:
                return Units(names.classes[named[place]])
            if term in blocks:
                return Units(blocks[term])
            if term not in names.classes:
                return Fixed(term.size)
            return Units(names.classes[term], carried.get(place, ()))
        if isinstance(term, Woven):
            woven = [walk(segment) for segment in parts_of(term)]
            still = all(isinstance(segment, Fixed) for segment in woven)
            return Fixed(term.size) if still else Interleaved(tuple(woven))
        if isinstance(term, Plus):
            return _merged([walk(segment) for segment in term.segments])
        assert isinstance(term, Times)
        factors = [walk(factor) for factor in term.factors]
        if all(isinstance(factor, Fixed) for factor in factors):
            return Fixed(term.size)
        return factors[0] if len(factors) == 1 else Product(tuple(factors))

    return walk(resolve(value.dims[dim]))


def _merged(segments: list[Node]) -> Node:
    """A concatenation whose neighbouring fixed parts are one."""
    merged: list[Node] = []
    for segment in segments:
        if merged and isinstance(segment, Fixed) and isinstance(last := merged[-1], Fixed):
            merged[-1] = Fixed(last.size + segment.size)
        else:
            merged.append(segment)
    return merged[0] if len(merged) == 1 else Concat(tuple(merged))
