"""Weights as vectors, for densities: taken from a dict with whatever leading axes they carry."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from coset.errors import InputError


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
