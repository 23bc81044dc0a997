"""Step sizes by dual averaging and a diagonal mass from pooled draws, learned in the warm-up of Hamiltonian chains.

Both write to tensors of the state in place, so that a checkpoint holds them.
"""

import math

import torch
from torch import Tensor

SHRINKAGE, STEPS_AHEAD, DECAY = 0.05, 10, 0.75
"""γ, t₀ and κ of Hoffman and Gelman (2014)."""


def fresh_averaging(step_size: float) -> Tensor:
    """The state of dual averaging (5,) float64: log ε, its average, the mean error, the count, the point of attraction.

    Steps are drawn towards 10 times the first one: long trajectories are cheap to try.
    """
    log_step = math.log(step_size)
    return torch.tensor([log_step, log_step, 0.0, 0.0, math.log(10) + log_step], dtype=torch.float64)


def update_averaging(state: Tensor, accept: float, target: float) -> None:
    """One iteration with acceptance ``accept`` (Hoffman and Gelman 2014, eq. 6 and algorithm 5)."""
    _, average, error, count, centre = state.tolist()
    count += 1
    share = 1 / (count + STEPS_AHEAD)
    error = (1 - share) * error + share * (target - accept)
    log_step = centre - math.sqrt(count) / SHRINKAGE * error
    weight = count**-DECAY
    average = weight * log_step + (1 - weight) * average
    state.copy_(torch.tensor([log_step, average, error, count, centre], dtype=torch.float64))


def current_step(state: Tensor) -> float:
    """ε to explore with in the warm-up."""
    return math.exp(float(state[0]))


def average_step(state: Tensor) -> float:
    """ε to sample with after it."""
    return math.exp(float(state[1]))


SETTLING = 0.15
"""The share of the warm-up in which only the step size is adapted."""


def mass_windows(warmup: int) -> list[range]:
    """The iterations whose draws make a mass each: windows of 25, 50, 100, …, between 15 % and 90 % of the warm-up.

    As in Stan the last window takes what is left over; a warm-up too short for one window has none.
    """
    low, high, size = int(SETTLING * warmup), int(0.9 * warmup), 25
    windows = []
    while low + size <= high:
        end = low + size if low + size + 2 * size <= high else high
        windows.append(range(low, end))
        low, size = end, 2 * size
    return windows


def fresh_moments(like: Tensor) -> Tensor:
    """Running moments of vectors (D,): rows (count, mean, sum of squared deviations), (3, D) float64."""
    return torch.zeros(3, like.shape[-1], dtype=torch.float64, device=like.device)


def update_moments(moments: Tensor, positions: Tensor) -> None:
    """Take in the states of all chains (C, D) (Chan et al. 1983)."""
    count, mean, squares = moments.unbind()
    states = positions.double()
    fresh, own = len(states), states.mean(0)
    shift = own - mean
    total = count + fresh
    squares += (states - own).square().sum(0) + shift.square() * count * fresh / total
    mean += shift * fresh / total
    count += fresh


def inverse_mass_of(moments: Tensor) -> Tensor:
    """M⁻¹ (D,): the variances, drawn towards 10⁻³ as by 5 further draws, as in Stan."""
    count, _, squares = moments.unbind()
    variance = squares / (count - 1).clamp(min=1)
    return (count * variance + 5e-3) / (count + 5)
