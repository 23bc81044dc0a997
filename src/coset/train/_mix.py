"""Mixing of examples: mixup (Zhang et al. 2018) and CutMix (Yun et al. 2019).

Each example is mixed with its neighbour in the batch, one weight λ for the whole batch. Batches are shuffled, so the
neighbour is a random partner. The label is mixed as the input is: the loss is λ·L(own) + (1 − λ)·L(partner).
With both kinds switched on, each batch takes one of the two with equal probability.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from scipy.special import betaincinv
from torch import Tensor


@dataclass(frozen=True)
class Mix:
    """How one batch is mixed: the weight λ of the own label; for CutMix the box that comes from the partner."""

    weight: float
    box: tuple[int, int, int, int] | None = None
    """Top, bottom, left, right; the lower and right ends excluded."""


def beta_quantile(alpha: float, uniform: float) -> float:
    """The quantile of Beta(α, α), so that uniform draws from an explicit generator become weights λ."""
    return float(betaincinv(alpha, alpha, uniform))


def cut_box(weight: float, centre: tuple[float, float], height: int, width: int) -> Mix:
    """A box of relative side √(1 − λ) about ``centre`` (in [0, 1)²), cut at the border; λ becomes the exact area left.

    Yun et al. 2019, equation 2, and the correction of λ of their published code.
    """
    side = (1 - weight) ** 0.5
    tall, wide = int(height * side), int(width * side)
    row, column = int(centre[0] * height), int(centre[1] * width)
    top, bottom = max(row - tall // 2, 0), min(row - tall // 2 + tall, height)
    left, right = max(column - wide // 2, 0), min(column - wide // 2 + wide, width)
    return Mix(1 - (bottom - top) * (right - left) / (height * width), (top, bottom, left, right))


def draw_mixes(
    steps: int, mixup: float, cutmix: float, shape: tuple[int, ...], generator: torch.Generator
) -> list[Mix] | None:
    """One :class:`Mix` per step of an epoch, or None where both strengths α are 0.

    ``shape`` is that of one example; CutMix takes its last two axes as height and width.
    """
    if mixup == 0 and cutmix == 0:
        return None
    # Always four numbers a step, whatever is switched on.
    draws = torch.rand(steps, 4, dtype=torch.float64, generator=generator, device="cpu").tolist()
    mixes = []
    for choice, uniform, row, column in draws:
        if cutmix == 0 or (mixup > 0 and choice < 0.5):
            mixes.append(Mix(beta_quantile(mixup, uniform)))
        else:
            mixes.append(cut_box(beta_quantile(cutmix, uniform), (row, column), shape[-2], shape[-1]))
    return mixes


def partner(batch: Tensor) -> Tensor:
    """For each example of a batch the one it is mixed with."""
    return batch.roll(1, 0)


def mix_inputs(inputs: Tensor, mix: Mix) -> Tensor:
    """λ·x + (1 − λ)·x' for mixup; for CutMix x with the partner's pixels inside the box. A new tensor."""
    if mix.box is None:
        return torch.lerp(partner(inputs), inputs, mix.weight)
    top, bottom, left, right = mix.box
    mixed = inputs.clone()
    mixed[..., top:bottom, left:right] = partner(inputs)[..., top:bottom, left:right]
    return mixed


def mix_values(value: Callable[[Tensor], Tensor], targets: Tensor, mix: Mix) -> Tensor:
    """λ·value(targets) + (1 − λ)·value(partners): a loss or a score against mixed labels."""
    return mix.weight * value(targets) + (1 - mix.weight) * value(partner(targets))
