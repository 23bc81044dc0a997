"""An architecture of another library: how a small one is built, and its inputs."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Inputs = dict[str, Any]
"""Keyword arguments of a model."""

Maker = Callable[[torch.Generator, int, int], Inputs]
"""Inputs from a generator, a batch size and a size: the number of tokens or frames, the side of an image."""


@dataclass(frozen=True)
class Architecture:
    """``build``: the model with random weights, from a small configuration. ``inputs``: see ``Maker``.

    ``example``: batch size and size of the example that discovery is given; ``others``: those of the inputs on which
    its group is checked besides, of a model that takes no other size with other numbers in them. ``in_double``:
    setters of the model and their values with which it computes the same in float64, where a kernel does not.
    """

    build: Callable[[], nn.Module]
    inputs: Maker
    example: tuple[int, int]
    others: tuple[tuple[int, int], ...]
    in_double: tuple[tuple[str, str], ...] = ()


def of_transformers(model: str, config: str, settings: dict[str, Any]) -> Callable[[], nn.Module]:
    """Builds a model of ``transformers`` from its configuration."""

    def build() -> nn.Module:
        library = importlib.import_module("transformers")
        made: nn.Module = getattr(library, model)(getattr(library, config)(**settings))
        return made.eval()

    return build


def of_diffusers(model: str, settings: dict[str, Any]) -> Callable[[], nn.Module]:
    """Builds a model of ``diffusers`` from its settings."""

    def build() -> nn.Module:
        made: nn.Module = getattr(importlib.import_module("diffusers"), model)(**settings)
        return made.eval()

    return build


def tokens(generator: torch.Generator, batch: int, length: int) -> torch.Tensor:
    """Words of a vocabulary of 50, none of them padding or another token with a meaning of its own."""
    return torch.randint(5, 50, (batch, length), generator=generator)


def images(channels: int = 3, name: str = "pixel_values") -> Maker:
    """Square images of random pixels."""

    def make(generator: torch.Generator, batch: int, side: int) -> Inputs:
        return {name: torch.randn(batch, channels, side, side, generator=generator)}

    return make
