"""What every distribution needs to draw: noise from a generator, points repeated."""

import torch
from torch import Tensor

from coset.errors import InputError


def check_generator(generator: object) -> None:
    """Raise unless ``generator`` is one: draws never use torch's global state."""
    if not isinstance(generator, torch.Generator):
        raise InputError(f"generator is a {type(generator).__name__}; expected a torch.Generator")


def standard_normal(shape: tuple[int, ...], like: Tensor, generator: torch.Generator) -> Tensor:
    """Standard normal numbers of the type and on the device of ``like``.

    They are drawn where the generator lives: the same seed gives the same numbers on any device.
    """
    return torch.randn(shape, generator=generator, dtype=like.dtype, device=generator.device).to(like.device)


def repeated(tensor: Tensor, n: int) -> Tensor:
    """A view of shape (n, *shape): the same tensor for every draw."""
    return tensor.expand(n, *tensor.shape)
