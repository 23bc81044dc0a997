"""Learning-rate schedules: the factor by which the recipe's rate is multiplied at each step.

A schedule maps (step, total) with 0 ≤ step < total to a factor; t = step / total is the share of the run that is done.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coset.train._recipe import Recipe

Schedule = Callable[[int, int, "Recipe"], float]

# The start and the end of a one-cycle run, as fractions of the peak (Smith and Topin 2019, the defaults of PyTorch).
ONE_CYCLE_START = 1 / 25
ONE_CYCLE_END = ONE_CYCLE_START / 1e4


def constant(step: int, total: int, recipe: "Recipe") -> float:
    """1 throughout."""
    return 1.0


def linear(step: int, total: int, recipe: "Recipe") -> float:
    """1 − t: decays to 0, which it would reach one step after the last."""
    return 1 - step / total


def cosine(step: int, total: int, recipe: "Recipe") -> float:
    """(1 + cos πt) / 2, Loshchilov and Hutter 2017 without restarts."""
    return (1 + math.cos(math.pi * step / total)) / 2


def steps(step: int, total: int, recipe: "Recipe") -> float:
    """``drop_factor``^⌊(drops + 1) t⌋: evenly spaced drops cut the run into ``drops`` + 1 equal stretches."""
    return recipe.drop_factor ** ((recipe.drops + 1) * step // total)


def triangular(step: int, total: int, recipe: "Recipe") -> float:
    """Straight up from 0 to 1 at t = ``peak``, then straight down to 0, read at the middle of each step."""
    t = (step + 0.5) / total
    return t / recipe.peak if t <= recipe.peak else (1 - t) / (1 - recipe.peak)


def one_cycle(step: int, total: int, recipe: "Recipe") -> float:
    """Up to 1 at t = ``peak`` and down again along half cosines, Smith and Topin 2019.

    The same numbers as ``torch.optim.lr_scheduler.OneCycleLR`` with its defaults.
    """
    top, last = recipe.peak * total - 1, total - 1
    if step <= top:
        start, end, share = ONE_CYCLE_START, 1.0, step / top if top > 0 else 1.0
    else:
        start, end, share = 1.0, ONE_CYCLE_END, (step - top) / (last - top)
    return end + (start - end) * (1 + math.cos(math.pi * share)) / 2


SCHEDULES: dict[str, Schedule] = {
    "constant": constant,
    "linear": linear,
    "cosine": cosine,
    "step": steps,
    "triangular": triangular,
    "one-cycle": one_cycle,
}


def learning_rate(recipe: "Recipe", step: int, steps_per_epoch: int) -> float:
    """The rate at one step of the run: a straight warm-up that reaches the full rate, then the schedule."""
    warmup = recipe.warmup_epochs * steps_per_epoch
    if step < warmup:
        return recipe.learning_rate * (step + 1) / (warmup + 1)
    total = recipe.epochs * steps_per_epoch
    return recipe.learning_rate * SCHEDULES[recipe.schedule](step - warmup, total - warmup, recipe)
