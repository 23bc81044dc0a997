"""Every registered study runs in its quick preset, in seconds, and gives the same again from what the store has."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coset.study import show_study, studies

QUICK_SECONDS = 60.0  # on a busy machine; alone each takes a few
TIMED = {"flows-mnist-fields", "rossi-timings", "symmetrized-estimators"}
"""Studies of how long something takes: no two runs are the same."""


@pytest.mark.parametrize("name", studies())
def test_quick_preset(name: str, quick_run: Callable[[str], Any], tmp_path: Path) -> None:
    first, seconds, again = quick_run(name)
    assert seconds < QUICK_SECONDS
    assert show_study(name, first.folder.parent) == first
    if name in TIMED:
        return
    # That training and inference give the same from the same seed, and discovery the same group, has tests of its own.
    second = again(tmp_path)
    ones, twos = ({key: value for key, value in run.results().items() if key != "times"} for run in (first, second))
    assert json.dumps(ones) == json.dumps(twos)
    # That both formats are the same bytes each time has a test of its own: here lines and images suffice.
    assert (first.folder / "figure.svg").read_bytes() == (second.folder / "figure.svg").read_bytes()
    assert (first.folder / "figure.png").read_bytes().startswith(b"\x89PNG")
