"""Training of single networks: one fast, exact and resumable loop on tensors in memory."""

from coset.train._recipe import RECIPES, Recipe
from coset.train._result import Callback, Epoch, Moment, TrainResult
from coset.train._training import fit
from coset.train.loop import DivergenceError
from coset.train.metrics import Metrics, evaluate

__all__ = [
    "RECIPES",
    "Callback",
    "DivergenceError",
    "Epoch",
    "Metrics",
    "Moment",
    "Recipe",
    "TrainResult",
    "evaluate",
    "fit",
]
