"""Random features and the group elements that move them."""

import torch
from torch import Tensor


def pair(seed: int, *, n: int = 12, channels: int = 5, positions: tuple[int, ...] = (3,)) -> tuple[Tensor, Tensor]:
    """Two features that share something, in float64."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, channels, *positions, generator=generator, dtype=torch.float64)
    noise = torch.randn(n, channels, *positions, generator=generator, dtype=torch.float64)
    return x.relu(), (x.roll(1, 1) + 0.5 * noise).relu()


def permuted(x: Tensor, seed: int, *, scales: bool = False, signs: bool = False) -> Tensor:
    """Channels in a random order, with random positive scales and signs."""
    generator = torch.Generator().manual_seed(seed)
    channels = x.shape[1]
    order = torch.randperm(channels, generator=generator)
    factor = torch.ones(channels, dtype=x.dtype)
    if scales:
        factor = factor * torch.exp(torch.randn(channels, generator=generator, dtype=x.dtype))
    if signs:
        factor = factor * (torch.randint(0, 2, (channels,), generator=generator) * 2 - 1)
    return x[:, order] * factor.reshape(-1, *[1] * (x.ndim - 2))


def rotated(x: Tensor, seed: int) -> Tensor:
    """Channels mixed by a random orthogonal matrix."""
    generator = torch.Generator().manual_seed(seed)
    q = torch.linalg.qr(torch.randn(x.shape[1], x.shape[1], generator=generator, dtype=x.dtype)).Q
    return torch.einsum("dc,nc...->nd...", q, x)
