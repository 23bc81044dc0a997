"""Every registered study runs in its quick preset, in seconds, and the same twice."""

import json
import time
from pathlib import Path

import pytest

from coset.store import Store
from coset.studies import run_study, show_study, studies

QUICK_SECONDS = 60.0  # on a busy machine; alone each takes a few
TIMED = {"rossi-timings", "symmetrized-estimators"}
"""Studies of how long something takes: no two runs are the same."""


@pytest.mark.parametrize("name", studies())
def test_quick_preset(name: str, tmp_path: Path) -> None:
    clock = time.perf_counter()
    first = run_study(name, "quick", tmp_path / "one", store=Store(tmp_path / "store one"))
    assert time.perf_counter() - clock < QUICK_SECONDS
    assert show_study(name, tmp_path / "one") == first
    if name in TIMED:
        return
    second = run_study(name, "quick", tmp_path / "two", store=Store(tmp_path / "store two"))
    ones, twos = ({key: value for key, value in run.results().items() if key != "times"} for run in (first, second))
    assert json.dumps(ones) == json.dumps(twos)
    for file in ("figure.png", "figure.svg"):
        assert (first.folder / file).read_bytes() == (second.folder / file).read_bytes()
