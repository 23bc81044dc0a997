"""Weights as vectors, for densities and draws: taken from a dict with whatever leading axes they carry."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from coset._checks import check_count
from coset.errors import InputError
from coset.symmetry.action import Action
from coset.symmetry.element import Element
from coset.symmetry.turning import turned


def rows(params: Mapping[str, Tensor], name: str, like: Tensor) -> Tensor:
    """One parameter as (…, number of its entries), whatever the leading axes (…); ``like`` has its shape."""
    if name not in params:
        raise InputError(f"params lacks '{name}', over which the density runs")
    tensor = params[name]
    lead = tensor.ndim - like.ndim
    if lead < 0 or tensor.shape[lead:] != like.shape:
        raise InputError(
            f"params['{name}'] has shape {tuple(tensor.shape)}; expected {tuple(like.shape)}, or that behind leading "
            f"sample axes"
        )
    return tensor.reshape(*tensor.shape[:lead], like.numel())


def vector(params: Mapping[str, Tensor], names: Sequence[str], like: Mapping[str, Tensor]) -> Tensor:
    """The named parameters one after the other, (…, D); their leading axes are broadcast."""
    parts = [rows(params, name, like[name]) for name in names]
    lead = torch.broadcast_shapes(*(part.shape[:-1] for part in parts))  # type: ignore[no-untyped-call]
    return torch.cat([part.expand(*lead, part.shape[-1]) for part in parts], dim=-1)


def pieces(flat: Tensor, names: Sequence[str], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of ``vector``: (…, D) taken apart into parameters, each of its own shape and type."""
    parts = torch.split_with_sizes(flat, [like[name].numel() for name in names], dim=-1)
    return {
        name: part.reshape(*flat.shape[:-1], *like[name].shape).to(like[name])
        for name, part in zip(names, parts, strict=True)
    }


def check_draws(n: object, generator: object) -> None:
    """Raise unless ``n`` draws can be made with ``generator``."""
    check_count("n", n)
    check_generator(generator)


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


def monomial(action: Action, mean: Mapping[str, Tensor], names: Sequence[str]) -> tuple[Tensor, Tensor]:
    """(index, factor), both (D,), with (Ax)_i = factor_i·x[index_i] on the named parameters one after the other.

    A is the linear part of θ → g·θ around ``mean``: where a gain makes up for a variance (see ``Symmetry.act``) its
    factor depends on the mean. Found by letting the action move the numbers 1…D and ones.
    """
    action.check_monomial()
    sizes = [mean[name].numel() for name in names]
    device = mean[names[0]].device
    numbers = torch.arange(1, 1 + sum(sizes), dtype=torch.float64, device=device).split_with_sizes(sizes)
    numbered = {name: part.reshape(mean[name].shape) for name, part in zip(names, numbers, strict=True)}
    finite = Action(action.sym, Element(action.g.permutations, signs=action.g.signs), whole=False)
    moved = vector(turned(action.sym, action.g.turns, finite(numbered, partial=True), linear=True), names, mean)
    ones = {name: torch.ones_like(part) for name, part in numbered.items()}
    magnitude = vector(action.spread(ones, mean), names, mean)
    # Rounded, because a variance is moved with its shift.
    return moved.abs().round().long() - 1, magnitude * moved.sign()
