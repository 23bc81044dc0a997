"""A small regression problem that needs no download: a noisy wave, for the quick forms of studies."""

import math

import torch

from coset.data import Dataset, Split
from coset.data.normalization import Normalization

NOISE = 0.3


def wave(count: int = 60, features: int = 1, seed: int = 0) -> Dataset:
    """y = sin(3 x₁) + 0.3·noise, x uniform on [−1.5, 1.5]; three quarters to train on, the rest to test."""
    generator = torch.Generator().manual_seed(seed)
    x = 3 * torch.rand(count, features, generator=generator) - 1.5
    y = torch.sin(3 * x[:, :1]) + NOISE * torch.randn(count, 1, generator=generator)
    cut = 3 * count // 4
    y = (y - y[:cut].mean()) / y[:cut].std()
    same = Normalization((0.0,), (1.0,))
    train, test = Split(x[:cut], y[:cut]), Split(x[cut:], y[cut:])
    name = f"wave-{count}-{features}-{seed}"
    fingerprint = f"{name} {math.fsum(y[:, 0].tolist()):.6f}"
    return Dataset(name, "regression", train, test, (), same, same, fingerprint)
