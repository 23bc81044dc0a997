"""Quick runs of studies, each done once for all tests of a process, and discoveries that are not repeated."""

import hashlib
import io
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from matplotlib.figure import Figure
from torch import nn

from coset import figures
from coset.store import Store
from coset.study import StudyRun, _run, run_study
from coset.symmetry import Symmetry, discover
from discoveries import shared

SAVE = Figure.savefig
FOUND: dict[str, Symmetry] = {}
"""What was discovered, by what it was discovered of."""


def once(model: nn.Module, *arguments: Any, **options: Any) -> Symmetry:
    """As ``discover``, which is asked once about the same model with the same weights and the same arguments."""
    content = io.BytesIO()
    torch.save((model, arguments, options), content)
    key = hashlib.sha256(content.getvalue()).hexdigest()
    if key not in FOUND:
        FOUND[key] = shared(f"studies: {key}", model, lambda: discover(model, *arguments, **options))
    return FOUND[key]


@pytest.fixture(scope="session", name="once")
def discovered_once() -> Callable[..., Symmetry]:
    """``once``, for tests that discover what studies do."""
    return once


def lines_only(figure: Figure, file: io.BytesIO, **options: Any) -> None:
    """As ``savefig``, which writes nothing as PNG: that is made of what the SVG shows."""
    if options["format"] == "svg":
        SAVE(figure, file, **options)


class QuickRun(NamedTuple):
    run: StudyRun
    seconds: float
    again: Callable[[Path], StudyRun]


@pytest.fixture(scope="session")
def quick_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], QuickRun]:
    """The first run of a study in its quick preset, the time it took, and how to run it again, its figure as SVG only.

    All have one store: presets are chosen so that studies share networks.
    """
    store = Store(tmp_path_factory.mktemp("store"))

    @cache
    def run(name: str) -> QuickRun:
        folder: Path = tmp_path_factory.mktemp(name)
        clock = time.perf_counter()

        def into(out: Path, *, png: bool = False) -> StudyRun:
            with pytest.MonkeyPatch.context() as patch:
                # Few pixels: what is drawn is told by the lines, and how it is saved has tests of its own.
                patch.setitem(figures.STYLE, "savefig.dpi", 72.0)
                if not png:
                    patch.setattr(Figure, "savefig", lines_only)
                    patch.setattr(_run, "small_png", lambda png: png)
                for module in [
                    module for name, module in sys.modules.items() if name.startswith(("coset.stud", "coset_studies"))
                ]:
                    if getattr(module, "discover", None) is discover:
                        patch.setattr(module, "discover", once)
                return run_study(name, "quick", out, store=store, show=False)

        made = into(folder / "out", png=True)
        return QuickRun(made, time.perf_counter() - clock, into)

    return run
