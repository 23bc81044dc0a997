"""Quick runs of studies, each done once for all tests of a process."""

import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from coset.store import Store
from coset.study import StudyRun, run_study


class QuickRun(NamedTuple):
    run: StudyRun
    store: Store
    seconds: float


@pytest.fixture(scope="session")
def quick_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], QuickRun]:
    """The first run of a study in its quick preset, with the store it filled and the time it took."""

    @cache
    def run(name: str) -> QuickRun:
        folder: Path = tmp_path_factory.mktemp(name)
        clock, store = time.perf_counter(), Store(folder / "store")
        made = run_study(name, "quick", folder / "out", store=store, show=False)
        return QuickRun(made, store, time.perf_counter() - clock)

    return run
