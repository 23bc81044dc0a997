"""Settings shared by all tests: one thread, reproducible hypothesis runs, data found through the environment."""

import gc
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings

import discoveries

torch.set_num_threads(1)
# A search for garbage in everything that is imported takes half a second, and finds little: it is done less often.
gc.set_threshold(700, 10, 200)
# Time limits per example would fail on a busy machine, not on a wrong program.
settings.register_profile("coset", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("coset")


def pytest_collection_finish() -> None:
    """What is imported by now stays: no search for garbage, pytest's own at the end included, need go through it."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With several workers: who has nothing left takes from the others, else one may be left with the long tests."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log) if config.getvalue("dist") == "load" else None


@pytest.fixture(scope="session", autouse=True)
def shared_discoveries(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> None:
    """A folder of this session in which its processes find what another one has discovered."""
    own = tmp_path_factory.getbasetemp()
    # Folders of workers lie in the one of the session.
    folder = (own.parent if hasattr(request.config, "workerinput") else own) / "discoveries"
    folder.mkdir(exist_ok=True)
    discoveries.FOLDERS[:] = [folder]


def _folder(variable: str) -> Path:
    value = os.environ.get(variable)
    if not value or not Path(value).is_dir():
        pytest.skip(f"{variable} is not set to a folder")
    return Path(value)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of real datasets."""
    return _folder("COSET_DATA")


@pytest.fixture(scope="session")
def checkpoint_folder() -> Path:
    """The folder of networks trained by others."""
    return _folder("COSET_CHECKPOINTS")
