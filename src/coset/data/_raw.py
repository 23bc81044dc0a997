"""What the readers of the formats return: arrays just as the files hold them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coset.errors import InputError


@dataclass(frozen=True, eq=False)
class Raw:
    """Inputs as bytes (N, C, H, W) or float64 (N, D); labels (N,) as integers or targets (N, 1) as float64.

    ``scale`` is the largest value that a byte of the inputs can take, so that ``x / scale`` lies in [0, 1]; tables have
    scale 1. ``unlabelled`` are inputs without targets.
    """

    x_train: NDArray[Any]
    y_train: NDArray[Any]
    x_test: NDArray[Any]
    y_test: NDArray[Any]
    scale: float = 1.0
    unlabelled: NDArray[Any] | None = None


def check_labels(path: Path, labels: NDArray[Any], classes: int, kind: str = "label") -> None:
    """Refuse labels outside 0 .. classes − 1, naming the first of them."""
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(wrong):
        raise InputError(
            f"{path}: {kind} {int(labels[wrong[0]])} at position {int(wrong[0])}, expected 0 to {classes - 1}"
        )
