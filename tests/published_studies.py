"""Digests of the numbers and tables of the published results: what was computed does not change by rewriting pages.

``PYTHONPATH=src:tests python -m published_studies NAME…`` notes those of results that were computed anew.
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs" / "studies"
NOTED = Path(__file__).with_name("studies") / "digests.json"


def published() -> list[str]:
    """The studies with results."""
    return sorted(path.parent.name for path in DOCS.glob("*/results.json"))


def digest(content: Any) -> str:
    """Of numbers, or of the columns and rows of a table: every value counts with all of its digits."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()[:16]


def digests(name: str) -> dict[str, str]:
    """Of all numbers of a study together, and of each of its tables without its caption."""
    content = json.loads((DOCS / name / "results.json").read_text(encoding="utf-8"))
    tables = {key: digest([table["columns"], table["rows"]]) for key, table in content["tables"].items()}
    return {"numbers": digest(content["numbers"])} | {f"table {key}": tables[key] for key in sorted(tables)}


def noted() -> dict[str, dict[str, str]]:
    """The digests of the last results, by study."""
    found: dict[str, dict[str, str]] = json.loads(NOTED.read_text(encoding="utf-8"))
    return found


def note(names: list[str]) -> None:
    """Note the digests of these studies as they are now, a study in every line."""
    content = (noted() if NOTED.exists() else {}) | {name: digests(name) for name in names}
    lines = [f"{json.dumps(name)}: {json.dumps(content[name])}" for name in sorted(content)]
    NOTED.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    note(sys.argv[1:])
