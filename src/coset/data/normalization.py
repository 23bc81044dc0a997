"""Centring and scaling, recorded with the data so that it can be undone."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coset.errors import InputError


@dataclass(frozen=True)
class Normalization:
    """z = (x − mean) / std for every channel of an image, or every feature of a table.

    ``mean`` and ``std`` have one number per channel or feature; ``std`` is the population standard deviation, and 1 for
    what is constant.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def fit(cls, x: Tensor) -> "Normalization":
        """The normalization that gives each channel or feature of x, (N, C, ...), mean 0 and standard deviation 1.

        For data loaded with ``normalize=False`` and cut by ``split``: fitted to the part that is trained on, it knows
        nothing of the part held out.
        """
        if x.ndim < 2 or not x.numel():
            raise InputError(f"x has shape {tuple(x.shape)}, expected (N, C, ...) with at least one example")
        values = x.detach().to("cpu", torch.float64).movedim(1, -1).reshape(-1, x.shape[1])
        return fit_array(values.numpy())

    def apply(self, x: Tensor) -> Tensor:
        """(x − mean) / std for x of shape (N, C, ...), or (N, C·...) where images were flattened."""
        return apply_in_place(self, x.clone(memory_format=torch.contiguous_format))

    def undo(self, z: Tensor) -> Tensor:
        """z · std + mean, the inverse of ``apply``; same shapes."""
        mean, std = self._columns(z)
        return (z.reshape(self._groups(z)) * std + mean).reshape(z.shape)

    def _columns(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean = torch.tensor(self.mean, dtype=x.dtype, device=x.device)
        std = torch.tensor(self.std, dtype=x.dtype, device=x.device)
        return mean[:, None], std[:, None]

    def _groups(self, x: Tensor) -> tuple[int, int, int]:
        """(N, C, values per channel): one shape for images, flattened images and tables."""
        channels, values = len(self.mean), math.prod(x.shape[1:])
        if x.ndim < 2 or values % channels or (x.ndim > 2 and x.shape[1] != channels):
            raise InputError(
                f"x has shape {tuple(x.shape)}, expected (N, {channels}, ...) or (N, a multiple of {channels})"
            )
        return len(x), channels, values // channels


def apply_in_place(normalization: Normalization, x: Tensor) -> Tensor:
    """``normalization.apply(x)`` written over a contiguous ``x``, which may be too large to hold twice."""
    mean, std = normalization._columns(x)
    x.view(normalization._groups(x)).sub_(mean).div_(std)
    return x


def identity(channels: int) -> Normalization:
    """The normalization that changes nothing."""
    return Normalization((0.0,) * channels, (1.0,) * channels)


def fit_array(x: NDArray[Any], scale: float = 1.0) -> Normalization:
    """The normalization that gives ``x / scale`` mean 0 and standard deviation 1; x is (N, C, H, W) bytes or (N, D).

    Sums over bytes are exact integers (taken from histograms), so that images are normalized alike on every machine.
    """
    if x.dtype == np.uint8:
        return _fit_bytes(x, scale)
    mean, std = x.mean(axis=0), x.std(axis=0)
    # Rounding can give a constant column a tiny spread, which must not be blown up to 1.
    constant = x.max(axis=0) == x.min(axis=0)
    mean, std = np.where(constant, x[0], mean) / scale, np.where(constant, scale, std) / scale
    return Normalization(tuple(mean.tolist()), tuple(std.tolist()))


def _fit_bytes(x: NDArray[np.uint8], scale: float) -> Normalization:
    means, stds = [], []
    for channel in range(x.shape[1]):
        pixels = torch.from_numpy(np.require(x[:, channel], requirements=["C", "W"])).reshape(-1)
        counts = torch.bincount(pixels, minlength=256).tolist()
        number = sum(counts)
        first = sum(value * count for value, count in enumerate(counts))
        second = sum(value * value * count for value, count in enumerate(counts))
        # number² · variance is an integer; dividing once at the end rounds once.
        variance = (number * second - first * first) / (number * number)
        means.append(first / number / scale)
        stds.append(math.sqrt(variance) / scale if variance > 0 else 1.0)
    return Normalization(tuple(means), tuple(stds))
