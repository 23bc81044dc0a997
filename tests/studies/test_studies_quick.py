"""Every registered study runs in its quick preset, in seconds, and gives the same again from what the store has."""

import json
import time
from pathlib import Path

import pytest

from coset.store import Store
from coset.study import run_study, show_study, studies

QUICK_SECONDS = 60.0  # on a busy machine; alone each takes a few
TIMED = {"rossi-timings", "symmetrized-estimators"}
"""Studies of how long something takes: no two runs are the same."""


@pytest.mark.parametrize("name", studies())
def test_quick_preset(name: str, tmp_path: Path) -> None:
    clock = time.perf_counter()
    store = Store(tmp_path / "store")
    first = run_study(name, "quick", tmp_path / "one", store=store)
    assert time.perf_counter() - clock < QUICK_SECONDS
    assert show_study(name, tmp_path / "one") == first
    if name in TIMED:
        return
    # That training and inference give the same from the same seed has tests of its own.
    second = run_study(name, "quick", tmp_path / "two", store=store)
    ones, twos = ({key: value for key, value in run.results().items() if key != "times"} for run in (first, second))
    assert json.dumps(ones) == json.dumps(twos)
    for file in ("figure.png", "figure.svg"):
        assert (first.folder / file).read_bytes() == (second.folder / file).read_bytes()
