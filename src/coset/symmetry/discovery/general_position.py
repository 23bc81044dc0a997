"""Weights and inputs on which nothing is hidden: away from zeros, ones and what happens to be equal."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from coset.symmetry.discovery.evaluation import Results, double, results_of
from coset.symmetry.symmetry import Symmetry


def general_position(
    params: Mapping[str, Tensor],
    sym: Symmetry,
    generator: torch.Generator,
    scale: float = 1.0,
    *,
    lively: float = 0.0,
) -> dict[str, Tensor]:
    """Float64 parameters without the zeros and ones of an initialisation, which would hide a wrong group.

    Each is multiplied by and moved by noise of its own size (``scale`` times that); variances stay positive. With
    ``lively`` matrices get entries of that variance by the number of entries in a row, and vectors entries of size 1:
    signals pass many layers then.
    """
    moved: dict[str, Tensor] = {}
    seen: dict[int, Tensor] = {}
    for name, given in params.items():
        tensor = params.get(sym.parameters[name].tied or name, given)
        if not (tensor.is_floating_point() or tensor.is_complex()):
            moved[name] = tensor
            continue
        if id(tensor) not in seen:
            wide = double(tensor.detach())
            noise = torch.rand(wide.shape, generator=generator, dtype=wide.dtype).to(wide.device)
            size = wide.abs().mean() if wide.numel() and bool(wide.any()) else wide.new_tensor(0.1)
            positive = bool(sym.parameters[name].shift)
            seen[id(tensor)] = (
                wide * (0.5 + noise) if positive else wide * (0.75 + 0.5 * noise) + 0.3 * scale * size * (noise - 0.5)
            )
            if lively and wide.ndim and wide.numel():
                # Gains and variances of norms are as large as they should be, too: near 1.
                wanted = math.sqrt(lively / (wide.numel() // wide.shape[0])) if wide.ndim > 1 else 1.0
                deviation = seen[id(tensor)].abs().square().mean().sqrt()
                seen[id(tensor)] = seen[id(tensor)] * (wanted / deviation)
        moved[name] = seen[id(tensor)]
    return moved


def other_inputs(
    program: torch.export.ExportedProgram,
    theta: Mapping[str, Tensor],
    inputs: Sequence[Any],
    before: list[Tensor],
    generator: torch.Generator,
) -> tuple[list[Any], Results | None]:
    """Inputs near the given ones and the results there; the given ones and None where the model does not take others.

    ``before``: outputs at inputs that it takes.
    """
    others = [perturbed(item, generator) for item in inputs]
    try:
        results = results_of(program, theta, others)
    except (RuntimeError, IndexError):
        # Floating numbers that stand for indices, say: what is near them is none.
        return list(inputs), None
    pairs = zip(before, results[0], strict=True)
    if any(bool((torch.isfinite(one) & ~torch.isfinite(two)).any()) for one, two in pairs if one.shape == two.shape):
        return list(inputs), None  # outside the domain of a logarithm or a root
    return others, results


def perturbed(item: Any, generator: torch.Generator) -> Any:
    """Another input of the same kind: finite fractions change a little, a constant tensor altogether, and whole numbers
    (tokens, masks) change places, so that each stays one that the model knows.
    """
    if not isinstance(item, Tensor) or not item.numel():
        return item
    if item.is_complex():
        wide = double(item.detach())
        return wide * (1 + 0.1 * torch.randn(wide.shape, generator=generator, dtype=wide.dtype).to(wide.device))
    if not item.is_floating_point():
        order = torch.randperm(item.numel(), generator=generator).to(item.device)
        return item.flatten()[order].reshape(item.shape)
    wide = item.detach().double()
    noise = torch.randn(wide.shape, generator=generator, dtype=torch.float64).to(wide.device)
    if bool((wide == wide.flatten()[0]).all()) and bool(torch.isfinite(wide).all()):
        return wide + noise
    return torch.where(torch.isfinite(wide) & (wide != wide.round()), wide * (1 + 0.1 * noise), wide)


def scaled(item: Any, factor: float, generator: torch.Generator) -> Any:
    """An input by a factor; whole numbers change places instead."""
    if isinstance(item, Tensor) and (item.is_floating_point() or item.is_complex()):
        return item * factor
    return perturbed(item, generator)
