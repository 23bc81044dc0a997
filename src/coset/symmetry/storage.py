"""Symmetries on disk: readable JSON, versioned, refused when it is not what it says."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coset.errors import InputError
from coset.files import write_text
from coset.symmetry.grammar import parse_axis, render_axis
from coset.symmetry.structure import UnitClass

if TYPE_CHECKING:
    from coset.symmetry.symmetry import Parameter, Symmetry

FORMAT = "coset.symmetry"
VERSION = 1


def to_json(sym: "Symmetry") -> str:
    """One line a class, a family, a parameter."""

    def block(rows: dict[str, Any]) -> str:
        lines = [f"  {json.dumps(name)}: {json.dumps(row, ensure_ascii=False)}" for name, row in rows.items()]
        return "{\n" + ",\n".join(lines) + "\n }" if lines else "{}"

    classes = {
        name: {"size": item.size, "inside": item.parent, "permutes": item.permutes}
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
    return "{" + ",\n ".join(f'"{name}": {text}' for name, text in parts.items()) + "}\n"


def _parameter_row(item: "Parameter") -> dict[str, Any]:
    row: dict[str, Any] = {"shape": list(item.shape), "axes": [render_axis(node) for node in item.axes]}
    if item.shift:
        row["shift"] = item.shift
    if item.gain is not None:
        row["gain"] = item.gain
    return row


def from_json(text: str, where: str) -> "Symmetry":
    """Read what ``to_json`` wrote; anything else is an error that names ``where``."""
    from coset.symmetry.symmetry import Family, Parameter, Symmetry

    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{where} is not JSON: {error}") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise InputError(f"{where} is not a symmetry: its format is {_format_of(data)!r}, expected {FORMAT!r}")
    if data.get("version") != VERSION:
        raise InputError(f"{where} has version {data.get('version')!r}; this coset reads version {VERSION}")
    try:
        return Symmetry(
            {
                name: UnitClass(name, int(row["size"]), row["inside"], bool(row["permutes"]))
                for name, row in data["classes"].items()
            },
            {
                key: Family(row["class"], row["name"], bool(row["scales"]), bool(row["signs"]))
                for key, row in data["families"].items()
            },
            {
                name: Parameter(
                    tuple(row["shape"]),
                    tuple(parse_axis(axis, f"{where}: {name}")[0] for axis in row["axes"]),
                    float(row.get("shift", 0.0)),
                    row.get("gain"),
                )
                for name, row in data["parameters"].items()
            },
            tuple(data["notes"]),
            tuple(data["pinned"]),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{where} is damaged: {type(error).__name__} {error}") from error


def _format_of(data: Any) -> Any:
    return data.get("format") if isinstance(data, dict) else type(data).__name__


def save(sym: "Symmetry", path: str | os.PathLike[str]) -> None:
    """Write the JSON atomically."""
    write_text(path, to_json(sym))


def load(path: str | os.PathLike[str]) -> "Symmetry":
    """Read a JSON file written by ``save``."""
    source = Path(path)
    if not source.is_file():
        raise InputError(f"{source} does not exist; expected a symmetry written by Symmetry.save")
    try:
        text = source.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{source} is not a text file: {error}") from error
    return from_json(text, str(source))
