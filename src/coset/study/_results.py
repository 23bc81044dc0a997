"""results.json: one record in every line, so that a repository can tell what changed."""

import json
from typing import Any

from coset.study._report import StudyRun


def results_text(run: StudyRun) -> str:
    """What results.json holds, a line for each number, row of a table and verdict."""
    content = run.results()
    content["numbers"] = _Lines({name: _Line(value) for name, value in content["numbers"].items()})
    content["tables"] = _Lines(
        {
            name: _Lines(
                {"caption": _Line(table["caption"]), "columns": _Line(table["columns"]), "rows": table["rows"]}
            )
            for name, table in content["tables"].items()
        }
    )
    return _text(_Lines(content)) + "\n"


class _Lines(dict[str, Any]):
    """A mapping written over several lines."""


class _Line:
    """A value written in one."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _text(value: Any) -> str:
    if isinstance(value, _Lines):
        return _block("{}", [f"{_json(name)}: {_text(item)}" for name, item in value.items()])
    if isinstance(value, list):
        return _block("[]", [_json(item) for item in value])
    return _json(value.value if isinstance(value, _Line) else value)


def _block(brackets: str, lines: list[str]) -> str:
    return "\n".join([brackets[0], ",\n".join(lines), brackets[1]]) if lines else brackets


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
