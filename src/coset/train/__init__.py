"""Training of single networks: one fast, exact and resumable loop on tensors in memory."""

from coset.train.evaluate import Metrics, evaluate
from coset.train.fit import fit
from coset.train.loop import DivergenceError
from coset.train.published import RECIPES
from coset.train.recipe import Recipe
from coset.train.result import Callback, Epoch, Moment, TrainResult

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
