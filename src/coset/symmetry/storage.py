"""Symmetries on disk: readable JSON, versioned, refused when it is not what it says."""

import json
import os
import reprlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from coset._files.atomic import parse_json
from coset.errors import InputError
from coset.symmetry._grammar import parse_axis, render_axis
from coset.symmetry.axes import Fixed, Node
from coset.symmetry.graph import Graph
from coset.symmetry.layers import Activation, Contraction, Layer
from coset.symmetry.mixing import KINDS, Mixed, Mixing
from coset.symmetry.parameters import Family, Parameter
from coset.symmetry.structure import UnitClass
from coset.symmetry.translations import KINDS as TRANSLATION_KINDS
from coset.symmetry.translations import Divided, Level, Link, Move, Take, Through, Translation
from coset.symmetry.turning import ORDERS, Taken, Turn, Turned

if TYPE_CHECKING:
    from coset.symmetry.symmetry import Symmetry

T = TypeVar("T")

FORMAT = "coset.symmetry"
VERSION = 1


def to_json(sym: "Symmetry") -> str:
    """One line a class, a family, a parameter."""

    def block(rows: dict[str, Any]) -> str:
        lines = [f"  {json.dumps(name)}: {json.dumps(row, ensure_ascii=False)}" for name, row in rows.items()]
        return "{\n" + ",\n".join(lines) + "\n }" if lines else "{}"

    classes = {
        name: {"size": item.size, "inside": item.parent, "permutes": item.permutes}
        | ({} if item.follows is None else {"follows": item.follows})
        for name, item in sym.classes.items()
    }
    families = {
        key: {"class": item.owner, "name": item.name, "scales": item.scales, "signs": item.signs}
        for key, item in sym.families.items()
    }
    parameters = {name: _parameter_row(item) for name, item in sym.parameters.items()}
    parts = {
        "format": json.dumps(FORMAT),
        "version": json.dumps(VERSION),
        "classes": block(classes),
        "families": block(families),
        "parameters": block(parameters),
        "notes": json.dumps(list(sym.notes), ensure_ascii=False),
        "pinned": json.dumps(list(sym.pinned), ensure_ascii=False),
    }
    told = {"unverified": sym.unverified, "unsaved": sym.unsaved}
    parts |= {name: json.dumps(list(lines), ensure_ascii=False) for name, lines in told.items() if lines}
    if sym.continuous:
        parts["continuous"] = block({name: _mixing_row(item) for name, item in sym.continuous.items()})
    if sym.turns:
        parts["turns"] = block({key: _turn_row(item) for key, item in sym.turns.items()})
    if sym.translations:
        parts["translations"] = block({item.name: _translation_row(item) for item in sym.translations})
    if sym.graph.layers or sym.graph.activations:
        parts["graph"] = json.dumps(_graph_row(sym.graph), ensure_ascii=False)
    return "{" + ",\n ".join(f'"{name}": {text}' for name, text in parts.items()) + "}\n"


def _mixing_row(mixing: Mixing) -> dict[str, Any]:
    places = {name: [[place.way, *place.gains] for place in items] for name, items in mixing.places.items()}
    return {"kind": mixing.kind, "places": places}


def _mixing(row: Any, where: str) -> Mixing:
    kind, places = _field(row, "kind", str, where), _field(row, "places", dict, where)
    try:
        found = {
            str(name): tuple(Mixed(int(way), tuple(map(str, gains))) for way, *gains in items)
            for name, items in places.items()
        }
    except (TypeError, ValueError) as error:
        raise InputError(f"{where} is damaged: its places cannot be read ({type(error).__name__})") from error
    if kind not in KINDS or any(place.way not in (-1, 0, 1) for items in found.values() for place in items):
        raise InputError(f"{where} is damaged: it is of kind {kind!r}, or entries are multiplied in no known way")
    return Mixing(kind, found)


def _turn_row(turn: Turn) -> dict[str, Any]:
    places = {name: [[item.flip, item.shift] for item in items] for name, items in turn.places.items()}
    taken = [[item.weight, item.bias, item.amount, item.axis, item.number] for item in turn.taken]
    return {"class": turn.owner, "name": turn.name, "order": turn.order, "places": places, "taken": taken}


def _turn(row: Any, where: str) -> Turn:
    owner, name, order = (_field(row, part, kind, where) for part, kind in _TURN.items())
    places, taken = _field(row, "places", dict, where), _field(row, "taken", list, where)
    if order not in ORDERS:
        raise InputError(f"{where} is damaged: it is of order {order}")
    try:
        return Turn(
            owner,
            order,
            {str(key): tuple(Turned(bool(flip), float(c)) for flip, c in items) for key, items in places.items()},
            tuple(Taken(str(w), str(b), float(amount), int(axis), int(n)) for w, b, amount, axis, n in taken),
            name,
        )
    except (TypeError, ValueError) as error:
        raise InputError(f"{where} is damaged: its places cannot be read ({type(error).__name__})") from error


_TURN: dict[str, type] = {"class": str, "name": str, "order": int}


def _translation_row(item: Translation) -> dict[str, Any]:
    row: dict[str, Any] = {"kind": item.kind, "shape": list(item.shape), "moves": [_move_row(m) for m in item.moves]}
    further = {"free": None if item.free is None else _link_row(item.free), "target": item.target}
    row |= {key: value for key, value in further.items() if value is not None}
    return row | ({"centred": item.centred} if item.centred else {})


def _move_row(move: Move) -> dict[str, Any]:
    row: dict[str, Any] = {"parameters": list(move.parameters), "factor": move.factor}
    further = {"links": [_link_row(link) for link in move.links], "over": list(move.over), "gain": move.gain}
    blocks = {"blocks": move.blocks} if move.blocks > 1 else {}
    return row | {key: value for key, value in further.items() if value} | blocks


def _link_row(link: Link) -> list[Any]:
    if isinstance(link, Take):
        return ["take", link.times, [list(run) for run in link.runs]]
    if isinstance(link, Through):
        return ["through", link.parameter, link.axis, link.groups]
    if isinstance(link, Divided):
        return ["divided", link.gain]
    return ["level", link.gain, link.offset, link.power]


def _translation(row: Any, where: str) -> Translation:
    try:
        kind, free, target = row["kind"], row.get("free"), row.get("target")
        if kind not in TRANSLATION_KINDS:
            raise ValueError(kind)
        return Translation(
            kind,
            tuple(map(int, row["shape"])),
            tuple(_move(move) for move in row["moves"]),
            None if free is None else _taken(*free[1:]),
            tuple(tuple(map(int, axes)) for axes in row.get("centred", ())),
            None if target is None else tuple(map(str, target)),
        )
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise InputError(f"{where} is damaged: it cannot be read ({type(error).__name__})") from error


def _move(row: Any) -> Move:
    gain = row.get("gain")
    links = tuple(_link(*link) for link in row.get("links", ()))
    names = tuple(map(str, row["parameters"]))
    over = tuple(map(int, row.get("over", ())))
    return Move(names, float(row["factor"]), links, over, gain and str(gain), int(row.get("blocks", 1)))


def _taken(times: Any, runs: Any) -> Take:
    return Take(tuple((int(first), int(step), int(count)) for first, step, count in runs), int(times))


def _link(kind: str, *parts: Any) -> Link:
    if kind == "take":
        return _taken(*parts)
    if kind == "through":
        return Through(str(parts[0]), int(parts[1]), int(parts[2]))
    if kind == "level":
        return Level(parts[0] and str(parts[0]), str(parts[1]), int(parts[2]))
    if kind == "divided":
        return Divided(str(parts[0]))
    raise ValueError(kind)


def _graph_row(graph: Graph) -> dict[str, Any]:
    """Layers as lists, axes in the language of symmetries."""
    return {
        "layers": [[layer.name, layer.kind, list(layer.parameters), list(layer.reads)] for layer in graph.layers],
        "ends": list(graph.ends),
        "activations": {
            name: [list(item.shape), [render_axis(node) for node in item.axes]] for name, item in graph.tensors.items()
        },
        "contractions": [[item.operation, len(item.operands)] for item in graph.contractions],
    }


def _graph(data: Any, where: str) -> Graph:
    """A graph from what ``_graph_row`` made of it."""
    try:
        layers = tuple(
            Layer(str(name), str(kind), tuple(map(str, parameters)), tuple(map(str, reads)))
            for name, kind, parameters, reads in data["layers"]
        )
        activations = {
            str(name): Activation(tuple(int(n) for n in shape), tuple(parse_axis(word, where)[0] for word in words))
            for name, (shape, words) in data["activations"].items()
        }
        contractions = tuple(
            Contraction(str(operation), (None,) * int(count)) for operation, count in data.get("contractions", ())
        )
        ends = tuple(str(name) for name in data["ends"])
        return Graph(layers, ends, contractions=contractions).with_tensors(activations)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise InputError(f"{where} is damaged: its graph cannot be read ({type(error).__name__})") from error


# What a parameter may have beside its shape and axes: of which kind, and what it is where nothing is said.
_FURTHER: dict[str, tuple[type | tuple[type, ...], Any]] = {
    "shift": ((int, float), 0.0),
    "gain": (str, None),
    "why": (list, ()),
    "buffer": (bool, False),
    "tied": (str, None),
}


def _parameter_row(item: Parameter) -> dict[str, Any]:
    row: dict[str, Any] = {"shape": list(item.shape), "axes": [render_axis(node) for node in item.axes]}
    return row | {key: getattr(item, key) for key, (_, default) in _FURTHER.items() if getattr(item, key) != default}


def parts_from_json(text: str, where: str) -> dict[str, Any]:
    """The parts of a symmetry that ``to_json`` wrote; anything else is an error that names ``where``."""
    data = parse_json(text, where)
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        found = data.get("format") if isinstance(data, dict) else type(data).__name__
        raise InputError(f"{where} is not a symmetry: its format is {reprlib.repr(found)}, expected {FORMAT!r}")
    if data.get("version") != VERSION:
        raise InputError(f"{where} has version {reprlib.repr(data.get('version'))}; this coset reads version {VERSION}")
    rows = {part: _field(data, part, dict, where) for part in ("classes", "families", "parameters")}
    inside = {
        name: _field(row, "inside", (str, type(None)), f"{where}: {name}") for name, row in rows["classes"].items()
    }
    classes = {
        name: UnitClass(
            name,
            _field(row, "size", int, at),
            inside[name],
            _field(row, "permutes", bool, at),
            _optional(row, "follows", str, at),
        )
        for name, row in rows["classes"].items()
        for at in (f"{where}: class {name}",)
    }
    return {
        "classes": classes,
        "families": {
            key: Family(*(_field(row, part, kind, f"{where}: family {key}") for part, kind in _FAMILY.items()))
            for key, row in rows["families"].items()
        },
        "parameters": {name: _parameter(row, inside, f"{where}: {name}") for name, row in rows["parameters"].items()},
        **{part: tuple(_field(data, part, list, where)) for part in ("notes", "pinned")},
        **{part: tuple(_optional(data, part, list, where, ())) for part in ("unverified", "unsaved")},
        "continuous": {
            name: _mixing(row, f"{where}: what mixes {name}")
            for name, row in _optional(data, "continuous", dict, where, {}).items()
        },
        "turns": {
            key: _turn(row, f"{where}: turns of {key}")
            for key, row in _optional(data, "turns", dict, where, {}).items()
        },
        "translations": tuple(
            _translation(row, f"{where}: the translation {name}")
            for name, row in _optional(data, "translations", dict, where, {}).items()
        ),
        "graph": replace(_graph(data["graph"], where), nodes=classes) if "graph" in data else Graph(),
    }


_FAMILY: dict[str, type] = {"class": str, "name": str, "scales": bool, "signs": bool}


def _field(row: Any, key: str, kind: type | tuple[type, ...], where: str) -> Any:
    """A part of the JSON of the right kind."""
    if not isinstance(row, dict) or key not in row:
        raise InputError(f"{where} is damaged: it has no '{key}'")
    if not isinstance(row[key], kind) or (isinstance(row[key], bool) and kind is not bool):
        raise InputError(f"{where} is damaged: '{key}' is {reprlib.repr(row[key])}")
    return row[key]


def _optional(row: Any, key: str, kind: type | tuple[type, ...], where: str, default: Any = None) -> Any:
    """A part of the JSON of the right kind, or what stands for it where there is none."""
    return _field(row, key, kind, where) if key in row else default


def _parameter(row: Any, inside: dict[str, str | None], where: str) -> Parameter:
    shape, words = _field(row, "shape", list, where), _field(row, "axes", list, where)
    if not all(isinstance(n, int) for n in shape) or not all(isinstance(word, str) for word in words):
        raise InputError(f"{where} is damaged: shape {reprlib.repr(shape)}, axes {reprlib.repr(words)}")
    axes: list[Node] = []
    for number, word in enumerate(words):
        try:
            node, parents = parse_axis(word, where)
        except RecursionError as error:
            raise InputError(f"{where}: an axis is nested too deeply: {reprlib.repr(word)}") from error
        for child, parent in parents.items():
            if parent is not None and inside.get(child) != parent:
                raise InputError(
                    f"{where}: '{child}' stands inside '{parent}' here, but its class says {inside.get(child)!r}"
                )
        whole = isinstance(node, Fixed) and node.size == 0 and number < len(shape)
        axes.append(Fixed(shape[number]) if whole else node)
    further = {key: _optional(row, key, kind, where, default) for key, (kind, default) in _FURTHER.items()}
    further |= {"shift": float(further["shift"]), "why": tuple(further["why"])}
    return Parameter(tuple(shape), tuple(axes), **further)


def load(path: str | os.PathLike[str], read: Callable[[str, str], T]) -> T:
    """What ``read`` makes of the text, and of the name, of a JSON file written by ``Symmetry.save``."""
    source = Path(path)
    if not source.is_file():
        raise InputError(f"{source} does not exist; expected a symmetry written by Symmetry.save")
    try:
        text = source.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{source} is not a text file: {error}") from error
    except OSError as error:
        raise InputError(f"{source} cannot be read: {error.strerror or error}") from error
    try:
        return read(text, str(source))
    except InputError as error:
        # What people wrote into the file may be in it, with ends of lines.
        told = " ".join(str(error).split())
        raise InputError(told if str(source) in told else f"{source} holds no symmetry: {told}") from error


def require_fingerprint(found: object, sym: "Symmetry", what: str) -> None:
    """Raise unless ``what`` was made for ``sym``, as its file says; a file that says nothing (None) passes."""
    if found is not None and found not in (sym.fingerprint, sym.monomial.fingerprint):
        raise InputError(
            f"{what} belongs to the symmetry with fingerprint {reprlib.repr(found)}, expected {sym.fingerprint[:12]}…"
        )
