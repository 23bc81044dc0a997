"""What is discovered of the networks of the tables: once for all processes of a test session, which share a folder."""

import hashlib
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock
from torch import nn

from coset.symmetry import Symmetry
from coset.symmetry.preserving import remember

FOLDERS: list[Path] = []
"""The folder that processes share, once the session has one."""


def shared(name: str, model: nn.Module, discovered: Callable[[], Symmetry]) -> Symmetry:
    """What ``discovered()`` gives of ``model``, or gave to another process of this session under the same ``name``.

    For tests of what symmetries are used for: tests of discovery call it themselves.
    """
    if not FOLDERS:
        return discovered()
    path = FOLDERS[0] / f"{hashlib.sha256(name.encode()).hexdigest()}.json"
    with FileLock(path.with_suffix(".lock")):
        if path.exists():
            sym = Symmetry.load(path)
            # As discovery does: this model needs no second verification.
            remember(sym, model)
            return sym
        sym = discovered()
        sym.save(path)
        return sym
