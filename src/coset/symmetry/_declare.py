"""Symmetries declared by hand: axes written in the language of ``grammar``, everything checked against a model."""

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor, nn

from coset._checks import check_choice
from coset.errors import InputError
from coset.symmetry._grammar import parse_axis
from coset.symmetry.axes import Charge, Fixed, Node, size_of, units_of
from coset.symmetry.intertwiners._intertwiner import DIAGONALS, Diagonal, Intertwiner
from coset.symmetry.parameters import Family, Parameter
from coset.symmetry.structure import UnitClass

Parts = tuple[dict[str, UnitClass], dict[str, Family], dict[str, Parameter]]
"""Classes, families and parameters of a symmetry."""


@dataclass(frozen=True)
class Variance:
    """Axes of a running variance: var + eps is what scales, exactly: var → c²(var + ε) − ε.

    Where that would be negative var → c²·var, and ``gain`` (the norm's weight, if it has one) makes up for the rest.
    """

    axes: str
    eps: float
    gain: str | None = None


@dataclass(frozen=True)
class _Declared:
    """A parameter as read: its axes with sizes not yet known."""

    axes: tuple[Node, ...]
    text: str = field(compare=False)
    shift: float
    gain: str | None


def parts_from_axes(
    axes: Mapping[str, "str | Variance"],
    like: nn.Module | Mapping[str, Tensor],
    *,
    scales: Diagonal | Intertwiner | Mapping[str, Diagonal | Intertwiner],
    sizes: Mapping[str, int],
    inside: Mapping[str, str],
    ordered: Collection[str],
    follows: Mapping[str, str],
) -> Parts:
    """See ``Symmetry.from_axes``."""
    tensors = dict(like.state_dict(keep_vars=True)) if isinstance(like, nn.Module) else dict(like)
    declared, parents = _read(axes, tensors)
    for child, parent in inside.items():
        if parents.get(child) not in (None, parent):
            raise InputError(f"class '{child}' is nested in '{parents[child]}' by its axes and in '{parent}' by inside")
        parents[child] = parent
    declared = _tie(declared, tensors)
    found = _sizes(declared, tensors, sizes)
    order = [unit.name for item in declared.values() for node in item.axes for unit in units_of(node)]
    classes = _classes(found, order, parents, ordered, follows)
    parameters = {}
    for name, tensor in tensors.items():
        item = declared.get(name, _Declared((Fixed(0),) * tensor.ndim, "", 0.0, None))
        buffer = isinstance(like, nn.Module) and not isinstance(tensor, nn.Parameter)
        axes_here = _filled(item.axes, tensor)
        parameters[name] = Parameter(tuple(tensor.shape), axes_here, item.shift, item.gain, buffer=buffer)
    return classes, _families(scales, classes, declared), parameters


def _read(
    axes: Mapping[str, "str | Variance"], tensors: Mapping[str, Tensor]
) -> tuple[dict[str, _Declared], dict[str, str | None]]:
    declared: dict[str, _Declared] = {}
    parents: dict[str, str | None] = {}
    for name, value in axes.items():
        if name not in tensors:
            close = difflib.get_close_matches(name, tensors, n=1)
            hint = f"; did you mean '{close[0]}'?" if close else f"; it has {', '.join(list(tensors)[:6])}, …"
            raise InputError(f"'{name}' is not a parameter or buffer of the model{hint}")
        text = value.axes if isinstance(value, Variance) else value
        if not isinstance(text, str):
            raise InputError(
                f"the axes of '{name}' are given as {type(text).__name__}; expected a string like 'h2 /h1'"
            )
        words = text.split()
        shape = tuple(tensors[name].shape)
        if len(words) > len(shape):
            raise InputError(
                f"'{name}': axis {len(shape)} ('{words[len(shape)]}') does not exist; its shape is {shape}"
            )
        nodes = []
        for axis, word in enumerate(words):
            node, nested = parse_axis(word, f"'{name}' axis {axis}")
            nodes.append(node)
            for child, parent in nested.items():
                if parent is not None and parents.get(child) not in (None, parent):
                    raise InputError(
                        f"'{name}': class '{child}' is nested in '{parent}' here and in '{parents[child]}' elsewhere"
                    )
                parents[child] = parent or parents.get(child)
        nodes += [Fixed(0)] * (len(shape) - len(words))
        shift, gain = (value.eps, value.gain) if isinstance(value, Variance) else (0.0, None)
        declared[name] = _Declared(tuple(nodes), text, shift, gain)
    return declared, parents


def _tie(declared: dict[str, _Declared], tensors: Mapping[str, Tensor]) -> dict[str, _Declared]:
    """One tensor under several names has one role: the other names inherit it, and two different ones are an error."""
    result = dict(declared)
    owners: dict[tuple[object, ...], str] = {}
    for name in [*declared, *(name for name in tensors if name not in declared)]:
        tensor = tensors[name]
        if tensor.numel() == 0:
            continue
        # Tensors without storage (meta) all have address 0; there only being the same object makes a tie.
        place = (tensor.data_ptr() or ("object", id(tensor)), tuple(tensor.shape), tensor.stride())
        first = owners.setdefault(place, name)
        if first == name or first not in declared:
            continue
        if name in declared and declared[name] != declared[first]:
            raise InputError(
                f"'{first}' and '{name}' are one tied weight with two roles: '{declared[first].text}' and "
                f"'{declared[name].text}'"
            )
        result[name] = declared[first]
    return result


def _sizes(
    declared: Mapping[str, _Declared],
    tensors: Mapping[str, Tensor],
    given: Mapping[str, int],
) -> dict[str, int]:
    """Solve the sizes of the classes from the shapes: one unknown at a time, each axis an equation."""
    for name, size in given.items():
        if not isinstance(size, int) or size < 1:
            raise InputError(f"sizes['{name}'] is {size!r}; expected a whole number ≥ 1")
    known = dict(given)
    origin = dict.fromkeys(given, "sizes")
    equations = [
        (name, axis, node, int(tensors[name].shape[axis]))
        for name, item in declared.items()
        for axis, node in enumerate(item.axes)
        if any(True for _ in units_of(node))
    ]
    while True:
        progress = False
        for name, axis, node, total in equations:
            unknown = {unit.name for unit in units_of(node)} - known.keys()
            if len(unknown) == 1:
                (missing,) = unknown
                known[missing] = _solve(node, missing, known, total, f"'{name}' axis {axis}")
                origin[missing] = f"'{name}' axis {axis}"
                progress = True
        if not progress:
            break
    for name, axis, node, total in equations:
        unknown = {unit.name for unit in units_of(node)} - known.keys()
        if unknown:
            raise InputError(
                f"'{name}' axis {axis}: the size of class '{sorted(unknown)[0]}' cannot be told from the shapes; "
                f"give it, as in sizes={{'{sorted(unknown)[0]}': 8}}"
            )
        if size_of(node, known) != total:
            parts = ", ".join(
                f"'{unit.name}' has size {known[unit.name]} by {origin[unit.name]}" for unit in units_of(node)
            )
            raise InputError(
                f"'{name}' axis {axis} has {total} positions but its classes make {size_of(node, known)}: {parts}"
            )
    return known


def _solve(node: Node, missing: str, known: Mapping[str, int], total: int, where: str) -> int:
    """The size of the only unknown class of an axis; the axis's length grows with it, so bisection finds it."""
    low, high = 1, total
    while low < high:
        middle = (low + high) // 2
        if size_of(node, {**known, missing: middle}) < total:
            low = middle + 1
        else:
            high = middle
    if size_of(node, {**known, missing: low}) != total:
        raise InputError(f"{where} has {total} positions; no size of class '{missing}' fits its description")
    return low


def _classes(
    found: Mapping[str, int],
    order: Sequence[str],
    parents: Mapping[str, str | None],
    ordered: Collection[str],
    follows: Mapping[str, str],
) -> dict[str, UnitClass]:
    """Classes as they first appear, outer ones before those nested in them; refuses circles and unknown names."""
    for kind, names in (("sizes", found), ("ordered", ordered), ("inside", parents), ("follows", follows)):
        for name in names:
            if name not in order:
                raise InputError(f"{kind} names the class '{name}', which no axis carries")
    classes: dict[str, UnitClass] = {}

    def enter(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            raise InputError(f"the classes {' → '.join((*path, name))} are nested in each other")
        parent = parents.get(name)
        if name in classes:
            return
        if name not in found:
            raise InputError(f"the class '{name}', in which '{path[-1]}' is nested, stands on no axis")
        if parent is not None:
            enter(parent, (*path, name))
        moves = name not in ordered and name not in follows
        classes[name] = UnitClass(name, found[name], parent, moves, follows.get(name))

    for name in order:
        enter(name, ())
    return classes


def _families(
    scales: Diagonal | Intertwiner | Mapping[str, Diagonal | Intertwiner],
    classes: Mapping[str, UnitClass],
    declared: Mapping[str, _Declared],
) -> dict[str, Family]:
    """The free families; what is freed must be carried somewhere, and as the activation lets it pass."""
    wanted = dict(scales) if isinstance(scales, Mapping) else dict.fromkeys(classes, scales)
    families = {}
    for key, value in wanted.items():
        diagonal = value.diagonal if isinstance(value, Intertwiner) else value
        check_choice(f"scales['{key}']", diagonal, DIAGONALS)
        owner, _, name = key.partition(":")
        if owner not in classes:
            raise InputError(f"scales names the class '{owner}', which no axis carries; classes: {', '.join(classes)}")
        if diagonal == "one":
            continue
        carried = [
            (parameter, charge)
            for parameter, item in declared.items()
            for node in item.axes
            for unit in units_of(node)
            for charge in unit.charges
            if unit.name == owner and charge.family == name
        ]
        for kind, free in (("scale", diagonal != "sign"), ("sign", diagonal != "positive")):
            if free and not any(getattr(charge, kind) for _, charge in carried):
                if not isinstance(scales, Mapping):
                    break  # one word for all classes frees those that are charged
                raise InputError(f"scales frees the {kind}s of '{key}', but no axis carries one")
        else:
            if isinstance(value, Intertwiner):
                _check_powers(key, value, carried)
            families[key] = Family(owner, name, diagonal != "sign", diagonal != "positive")
    return families


def _check_powers(key: str, group: Intertwiner, carried: Sequence[tuple[str, Charge]]) -> None:
    """Behind an activation of power p a reader divides by the p-th power of the scale its units were written with."""
    if group.scales and group.scale_power != int(group.scale_power):
        raise InputError(f"{group.name} has the scale power {group.scale_power:g}; charges are whole numbers")
    reads = (-int(group.scale_power) if group.scales else None, group.sign_power % 2 if group.signs else None)
    for parameter, charge in carried:
        if charge.scale > 0:
            continue
        for kind, expected in (("scale", reads[0]), ("sign", reads[1])):
            if expected is not None and getattr(charge, kind) != expected:
                raise InputError(
                    f"'{parameter}' reads '{key}' with {kind} power {getattr(charge, kind)}; behind {group.name} it "
                    f"must be {expected} (write /{key}^{int(group.scale_power)}~{group.sign_power % 2})"
                )


def _filled(axes: tuple[Node, ...], tensor: Tensor) -> tuple[Node, ...]:
    """Give "the whole axis is fixed" its size."""
    return tuple(
        Fixed(tensor.shape[axis]) if isinstance(node, Fixed) and node.size == 0 else node
        for axis, node in enumerate(axes)
    )
