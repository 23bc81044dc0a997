"""How well two networks agree, class by class."""

from collections.abc import Iterable

import torch
from torch import Tensor

from coset._magnitudes import exponent, scaled
from coset.alignment._result import Params
from coset.symmetry import Symmetry


def agreement(sym: Symmetry, reference: Params, other: Params) -> dict[str, float]:
    """For every class that moves, cos(θ, θ') over the trained parameters that carry it; 0 where one vanishes."""
    counted = {name for name in sym.structures if is_trained(sym, name, other)}
    products: dict[tuple[str, int, int], tuple[float, float, float]] = {}
    result = {}
    for label, item in sym.classes.items():
        if not item.permutes:
            continue
        names = [name for name in sym.carriers(label) if name in counted]
        by = [exponent(*(network[name] for name in names)) if names else 0 for network in (reference, other)]
        for name in names:
            if (name, *by) not in products:
                parts = [scaled(network[name].detach(), e) for network, e in zip((reference, other), by, strict=True)]
                products[name, by[0], by[1]] = _products(*parts)
        ab, aa, bb = (float(sum(products[name, by[0], by[1]][part] for name in names)) for part in range(3))
        result[label] = ab / (aa * bb) ** 0.5 if aa > 0 and bb > 0 else 0.0
    return result


def mean_agreement(sym: Symmetry, middle: Params, networks: Iterable[Params]) -> dict[str, float]:
    """For every class that moves, the mean over ``networks`` of its cosine with the one in the middle."""
    rows = [agreement(sym, middle, network) for network in networks]
    return {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}


def is_trained(sym: Symmetry, name: str, params: Params) -> bool:
    """Whether a tensor is a weight of floating numbers, and no buffer."""
    return not sym.parameters[name].buffer and params[name].is_floating_point()


def _products(a: Tensor, b: Tensor) -> tuple[float, float, float]:
    a, b = a.reshape(-1), b.reshape(-1).to(a.device)
    dtype = torch.promote_types(a.dtype, torch.float32)
    a, b = a.to(dtype), b.to(dtype)
    return float(a @ b), float(a @ a), float(b @ b)
