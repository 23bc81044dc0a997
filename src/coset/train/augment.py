"""What is done to batches of examples: images (B, C, H, W) are moved, examples of any kind are mixed.

Random translations and left-right flips, each image its own.
The motions of a whole epoch are drawn at once, on the CPU, and moved to the device once; row i belongs to the i-th
example in the epoch's order.

Mixing is mixup (Zhang et al. 2018) and CutMix (Yun et al. 2019). Each example is mixed with its neighbour in the batch,
one weight λ for the whole batch. Batches are shuffled, so the neighbour is a random partner. The label is mixed as the
input is: the loss is λ·L(own) + (1 − λ)·L(partner). With both kinds switched on, each batch takes one of the two with
equal probability.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from scipy.special import betaincinv
from torch import Tensor
from torch.nn.functional import pad


@dataclass(frozen=True)
class Motions:
    """One motion per example: ``offsets`` (N, 2), rows then columns, in [−reach, reach]; ``flips`` (N,) bool."""

    reach: int
    offsets: Tensor
    flips: Tensor

    def to(self, device: torch.device) -> "Motions":
        """The same motions on another device."""
        return Motions(self.reach, self.offsets.to(device), self.flips.to(device))


def no_motions(count: int, reach: int, generator: torch.Generator) -> None:
    """The images as they are."""
    return


def shifts(count: int, reach: int, generator: torch.Generator) -> Motions:
    """Translations by up to ``reach`` pixels in both directions, uniform; for digits, which have no mirror images."""
    offsets = torch.randint(-reach, reach + 1, (count, 2), generator=generator, device="cpu")
    return Motions(reach, offsets, torch.zeros(count, dtype=torch.bool, device="cpu"))


def shifts_and_flips(count: int, reach: int, generator: torch.Generator) -> Motions:
    """Translations by up to ``reach`` pixels, and a left-right flip with probability 1/2."""
    moved = shifts(count, reach, generator)
    flips = torch.randint(2, (count,), generator=generator, device="cpu").bool()
    return Motions(reach, moved.offsets, flips)


AUGMENTATIONS: dict[str, Callable[[int, int, torch.Generator], Motions | None]] = {
    "none": no_motions,
    "shift": shifts,
    "shift-flip": shifts_and_flips,
}


def move(images: Tensor, motions: Motions, start: int) -> Tensor:
    """Apply rows ``start``, ``start`` + 1, … of ``motions`` to a batch of images (B, C, H, W).

    out[b, c, i, j] = in[b, c, i + r, j' + s] with (r, s) the offset, j' = W − 1 − j if flipped and j if not; what comes
    from outside is 0, the mean colour of normalised images.
    """
    count, channels, height, width = images.shape
    reach = motions.reach
    offsets = motions.offsets[start : start + count] + reach
    flips = motions.flips[start : start + count]
    rows = torch.arange(height, device=images.device) + offsets[:, :1]
    across = torch.arange(width, device=images.device)
    columns = torch.where(flips[:, None], width - 1 - across, across) + offsets[:, 1:]
    # One gather over flattened padded images is three times as fast as indexing them by rows and columns.
    index = (rows[:, :, None] * (width + 2 * reach) + columns[:, None, :]).reshape(count, 1, height * width)
    padded = pad(images, (reach, reach, reach, reach)).reshape(count, channels, -1)
    return padded.gather(2, index.expand(-1, channels, -1)).reshape(images.shape)


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
