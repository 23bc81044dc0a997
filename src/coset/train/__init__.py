"""Training of single networks: one fast, exact and resumable loop on tensors in memory."""

from coset.train.loop import DivergenceError
from coset.train.metrics import Metrics, evaluate
from coset.train.recipe import Recipe
from coset.train.recipes import RECIPES
from coset.train.result import Callback, Epoch, Moment, TrainResult
from coset.train.training import fit

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
