"""Schedules against their closed forms and against PyTorch's own."""

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, OneCycleLR

from coset.train import RECIPES, Recipe
from coset.train.schedule import learning_rate

BASE = Recipe(epochs=10, batch_size=1, learning_rate=0.5)
STEPS = 7


def rates(**settings: Any) -> list[float]:
    recipe = replace(BASE, **settings)
    return [learning_rate(recipe, step, STEPS) for step in range(recipe.epochs * STEPS)]


def torch_rates(make: Any) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=0.5)
    scheduler: LRScheduler = make(optimizer)
    found = []
    for _ in range(10 * STEPS):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


def test_constant() -> None:
    assert rates() == [0.5] * 70


def test_linear_falls_in_equal_steps_to_zero() -> None:
    found = [*rates(schedule="linear"), 0.0]
    assert found[0] == 0.5
    assert [a - b for a, b in itertools.pairwise(found)] == pytest.approx([0.5 / 70] * 70)


def test_cosine_is_that_of_torch() -> None:
    assert rates(schedule="cosine") == pytest.approx(torch_rates(lambda o: CosineAnnealingLR(o, 70)))


@pytest.mark.parametrize("peak", [0.3, 0.5])
def test_one_cycle_is_that_of_torch(peak: float) -> None:
    expected = torch_rates(lambda o: OneCycleLR(o, 0.5, total_steps=70, pct_start=peak, cycle_momentum=False))
    assert rates(schedule="one-cycle", peak=peak) == pytest.approx(expected)


def test_step_drops_at_a_fifth_two_fifths_and_so_on() -> None:
    found = rates(schedule="step")
    expected = [0.5 * 0.5 ** (step // 14) for step in range(70)]
    assert found == expected


def test_godfrey_drops_after_ten_twenty_thirty_and_forty_epochs() -> None:
    recipe = RECIPES["godfrey-cifar"]
    per_epoch = [learning_rate(recipe, epoch * 1563, 1563) for epoch in range(50)]
    assert per_epoch == [1e-3 * 0.5 ** (epoch // 10) for epoch in range(50)]


def test_triangular_rises_and_falls_in_straight_lines() -> None:
    found = rates(schedule="triangular", peak=0.2)
    rise = [0.5 * (step + 0.5) / 14 for step in range(14)]
    fall = [0.5 * (70 - step - 0.5) / 56 for step in range(14, 70)]
    assert found == pytest.approx(rise + fall)


def test_warm_up_then_the_whole_schedule() -> None:
    found = rates(schedule="cosine", warmup_epochs=2)
    assert found[:14] == pytest.approx([0.5 * (step + 1) / 15 for step in range(14)])
    assert found[14] == 0.5
    assert found[14:] == pytest.approx([0.25 * (1 + math.cos(math.pi * step / 56)) for step in range(56)])


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine", "step", "triangular", "one-cycle"])
def test_every_schedule_is_positive_and_at_most_the_given_rate(schedule: str) -> None:
    found = rates(schedule=schedule)
    assert all(0 < rate <= 0.5 for rate in found)
    assert max(found) > 0.9 * 0.5
