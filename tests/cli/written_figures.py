"""The four files of a figure that a command wrote."""

import csv
import json
from pathlib import Path


def read_figure(out, stem):
    """Raise unless ``out`` ends in the names of the files and these are there; give what JSON and CSV hold."""
    names = [f"{stem}.{kind}" for kind in ("png", "svg", "json", "csv")]
    assert out.splitlines()[-1] == f"written: {', '.join(names)}"
    assert sorted(map(str, Path(stem).parent.iterdir())) == sorted(names)
    assert Path(names[0]).read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in Path(names[1]).read_bytes()
    return json.loads(Path(names[2]).read_text()), list(csv.DictReader(Path(names[3]).read_text().splitlines()))
