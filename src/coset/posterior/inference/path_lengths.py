"""How long a trajectory should be: an ascent on how far it takes a chain around its centre (Hoffman et al. 2021).

ChEES = ¼ E[(‖z′ − m‖² − ‖z − m‖²)²] is the expected squared change of the distance to the centre m, for z the weights
in units of the mass. With T the length, its derivative by log T from one trajectory is

    T (‖z′ − m‖² − ‖z − m‖²) ⟨z′ − m, dz′/dt⟩,

averaged over the chains by how likely each end is accepted. Here every chain has a centre of its own, its running mean:
chains of a network sit in different modes, and the mean of all of them is a place where none is.
"""

import math

import torch
from torch import Tensor

RATE, DECAY = 0.05, 0.95
"""Of the ascent on log T: its step, and the memory of squared slopes it is divided by."""

FIRST_STEPS = 8
"""Leapfrog steps of the first trajectory."""

CENTRE = 0.05
"""The least share that a new state has in a running mean."""


def fresh_path(length: float) -> Tensor:
    """The state of the ascent (4,) float64: log T, its average, the mean squared slope, the count."""
    return torch.tensor([math.log(length), math.log(length), 0.0, 0.0], dtype=torch.float64)


def update_path(state: Tensor, slope: float, most: float) -> None:
    """One step along the slope by its sign and relative size; T stays ≤ ``most``."""
    log_length, average, square, count = state.tolist()
    count += 1
    square = DECAY * square + (1 - DECAY) * slope * slope
    size = math.sqrt(square / (1 - DECAY**count))
    if size > 0:
        log_length += RATE * slope / size
    log_length = min(log_length, math.log(most))
    weight = count**-0.5
    average = weight * log_length + (1 - weight) * average
    state.copy_(torch.tensor([log_length, min(average, math.log(most)), square, count], dtype=torch.float64))


def current_length(state: Tensor) -> float:
    """T to explore with in the warm-up."""
    return math.exp(float(state[0]))


def average_length(state: Tensor) -> float:
    """T to sample with after it."""
    return math.exp(float(state[1]))


def slope_of(begin: Tensor, end: Tensor, flow: Tensor, centre: Tensor, accept: Tensor, time: float) -> float:
    """The derivative by log T from trajectories of that ``time``: begin, end, dz/dt at the end and centres (C, D).

    Ends that are not finite count for nothing, as their ``accept`` (C,) is 0.
    """
    usable = (accept > 0).unsqueeze(-1)
    before, after = begin - centre, torch.where(usable, end - centre, torch.zeros_like(end))
    change = after.square().sum(-1) - before.square().sum(-1)
    along = (after * torch.where(usable, flow, torch.zeros_like(flow))).sum(-1)
    # Relative to the spread, so that squares stay in range; only sign and relative size of slopes count.
    spread = before.square().sum(-1).mean().clamp(min=torch.finfo(begin.dtype).tiny)
    slopes = time * (change / spread).double() * (along / spread).double()
    weights = accept.double()
    total = float(weights.sum())
    slope = float((weights * slopes).sum()) / total if total > 0 else 0.0
    return slope if math.isfinite(slope) else 0.0


def update_centre(centre: Tensor, position: Tensor, count: int) -> None:
    """Take states (C, D) into running means, ``count`` states after the first."""
    centre += max(1 / (count + 2), CENTRE) * (position - centre)
