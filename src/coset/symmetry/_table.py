"""A symmetry as a table that a person can read."""

import difflib
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from coset._show.tables import text_table
from coset.errors import InputError
from coset.symmetry._grammar import render_axis
from coset.symmetry.axes import Units, units_of
from coset.symmetry.translations import told as told_translations
from coset.symmetry.turning import Turn

if TYPE_CHECKING:
    from coset.symmetry.symmetry import Symmetry

_SHOWN = 3
_FAMILIES_SHOWN = 20


def render(sym: "Symmetry") -> str:
    """A heading with the group's size, a line per class, a line on what is fixed, and the notes."""
    moving = sum(parameter.moves for parameter in sym.parameters.values())
    digits = sym.log_order / math.log(10)
    lines = [
        f"Symmetry of {len(sym.parameters)} parameters and buffers, {moving} of which move",
        f"finite part: log|G| = {sym.log_order:,.1f} (about 10^{digits:,.0f} elements); "
        f"free positive scales: {sym.scale_dimension:,}",
    ]
    if sym.continuous:
        lines[-1] += f"; with matrices a group of dimension {sym.continuous_dimension:,}"
    if sym.turns:
        units = sum(math.prod(sym.shape(turn.owner)) for turn in sym.turns.values())
        lines[-1] += f"; units that turn: {units:,}"
    if sym.translations:
        lines.append(f"translations, apart from the group: {sym.translation_dimension:,}")
        lines += [f"  {line}" for line in told_translations(sym.translations)]
    if not sym.classes:
        return "\n".join([*lines, "no class of interchangeable units: the group is trivial", *sym.notes])
    header = ["class", "size", "permutations", "scales", "signs", "carried by"]
    rows = [list(_row(sym, name)) for name in sym.classes]
    if sym.continuous:
        header.insert(5, "mixed by")
        for name, row in zip(sym.classes, rows, strict=True):
            row.insert(5, sym.continuous[name].named(sym.classes[name].size) if name in sym.continuous else "–")
    lines += ["", text_table(header, rows)]
    if sym.families:
        shown = [_family_row(sym, key) for key in list(sym.families)[:_FAMILIES_SHOWN]]
        lines += ["", text_table(("scales of", "free", "carried with powers of scale (and ± of sign) by"), shown)]
        if len(sym.families) > _FAMILIES_SHOWN:
            lines.append(
                f"and {len(sym.families) - _FAMILIES_SHOWN} more; explain(name) tells what a parameter carries"
            )
    if sym.turns:
        shown = [_turn_row(sym, key) for key in list(sym.turns)[:_FAMILIES_SHOWN]]
        lines += ["", text_table(("turns of", "kind", "shifted", "flipped", "constants go to"), shown)]
    fixed = [name for name, parameter in sym.parameters.items() if not parameter.moves]
    if fixed:
        lines += ["", f"fixed: {_shortened(fixed)}"]
    told = (("note", sym.notes), ("pinned", sym.pinned), ("unverified", sym.unverified))
    lines += [f"{word}: {line}" for word, texts in told for line in texts]
    return "\n".join(lines)


def _row(sym: "Symmetry", name: str) -> tuple[str, ...]:
    item = sym.classes[name]
    blocks = math.prod(sym.shape(name)[:-1])
    size = f"{blocks}×{item.size} in {item.parent}" if item.parent else f"{item.size}"
    count = f"{item.size}!" if item.permutes else f"as {item.follows}" if item.follows else "–"
    permutations = f"({count})^{blocks}" if item.permutes and item.parent else count
    families = [family for family in sym.families.values() if family.owner == name]

    def free(kind: str) -> str:
        number = sum(getattr(family, kind) for family in families)
        return "–" if not number else f"{blocks * item.size}" if number == 1 else f"{number}×{blocks * item.size}"

    carriers = list(dict.fromkeys(place for place, _ in _appearances(sym, name)))
    return name, size, permutations, free("scales"), free("signs"), _shortened(carriers)


def _family_row(sym: "Symmetry", key: str) -> tuple[str, ...]:
    family = sym.families[key]
    places = [
        f"{place}^{charge.scale}{'±' if charge.sign else ''}"
        for place, unit in _appearances(sym, family.owner)
        for charge in unit.charges
        if charge.family == family.name
    ]
    free = " ".join(word for word, is_free in (("scales", family.scales), ("signs", family.signs)) if is_free)
    return key, free, _shortened(places)


def _turn_row(sym: "Symmetry", key: str) -> tuple[str, ...]:
    turn = sym.turns[key]
    shifted = [f"{name} by {item.shift:.4g}" for name, items in turn.places.items() for item in items if item.shift]
    flipped = [name for name, items in turn.places.items() if any(item.flip for item in items)]
    biases = list(dict.fromkeys(item.bias for item in turn.taken))
    return key, turn.named, *(_shortened(names) or "–" for names in (shifted, flipped, biases))


def _appearances(sym: "Symmetry", name: str) -> Iterator[tuple[str, Units]]:
    """Every appearance of a class, with the parameter and its axis as people write them."""
    for parameter, item in sym.parameters.items():
        for axis, node in enumerate(item.axes):
            yield from ((f"{parameter}[{axis}]", unit) for unit in units_of(node) if unit.name == name)


def _shortened(places: list[str]) -> str:
    more = f", and {len(places) - _SHOWN} more" if len(places) > _SHOWN else ""
    return ", ".join(places[:_SHOWN]) + more


def explain(sym: "Symmetry", name: str) -> str:
    """What stands on each axis of a parameter and why, a paragraph an axis."""
    if name not in sym.parameters:
        close = difflib.get_close_matches(name, sym.parameters, n=1)
        hint = f"; did you mean '{close[0]}'?" if close else ""
        raise InputError(f"'{name}' is not a parameter of this symmetry{hint}")
    parameter = sym.parameters[name]
    parents = {key: item.parent for key, item in sym.classes.items()}
    lines = [f"{name} has shape {parameter.shape}."]
    for axis, node in enumerate(parameter.axes):
        units = list(units_of(node))
        reason = parameter.why[axis] if parameter.why else ""
        if not units:
            told = reason.removeprefix("fixed: ") or "as declared"
            lines.append(f"axis {axis}: fixed, {parameter.shape[axis]} positions ({told})")
            continue
        lines.append(f"axis {axis}: {render_axis(node, parents)}")
        lines += [f"  {_told(sym, unit, name)}" for unit in dict.fromkeys(units)]
        if reason:
            lines.append(f"  {reason}")
    lines += [f"{turn.named} of '{key}': {told}" for key, turn in sym.turns.items() for told in _turned(turn, name)]
    for item in sym.translations:
        if item.pivot == name:
            others = [key for key in item.parameters if key != name]
            back = f", which {_shortened(others)} take back" if others else ", which nothing sees"
            lines.append(f"translation '{item.name}': {item.dimension} free numbers are added{back}")
    return "\n".join(lines)


def _turned(turn: Turn, name: str) -> list[str]:
    """What turns of units do to a parameter, in words."""
    places = turn.places.get(name, ())
    found = [f"each shifts its entries by {item.shift:.6g}" for item in places if item.shift]
    found += ["each flips its entries"] if any(item.flip for item in places) else []
    return found + [
        f"it takes up {item.amount:g} times what '{item.weight}' reads of them"
        for item in turn.taken
        if item.bias == name
    ]


def _told(sym: "Symmetry", unit: Units, name: str) -> str:
    item = sym.classes[unit.name]
    where = f" in every unit of '{item.parent}'" if item.parent else ""
    order = "which permute" if item.permutes else "in a fixed order"
    if item.follows is not None:
        order = f"which move as those of '{item.follows}' do"
    others = [key for key in sym.carriers(unit.name) if key != name]
    shared = f", shared with {_shortened(others)}" if others else ""
    powers = []
    for charge in unit.charges:
        key = charge.key(unit.name)
        family = sym.families.get(key)
        if family is not None and ((family.scales and charge.scale) or (family.signs and charge.sign)):
            sign = " and its sign" if family.signs and charge.sign else ""
            powers.append(f"carries '{key}' with power {charge.scale}{sign}")
    return f"the {item.size} units of '{unit.name}'{where}, {order}{shared}" + "".join(f"; {text}" for text in powers)
