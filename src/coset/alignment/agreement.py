"""How well two networks agree, class by class."""

from collections.abc import Mapping

import torch
from torch import Tensor

from coset.symmetry import Symmetry


def agreement(sym: Symmetry, reference: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> dict[str, float]:
    """For every class that moves, cos(θ, θ') over the trained parameters that carry it; 0 where one vanishes."""
    products = {name: _products(reference[name], other[name]) for name in sym.structures if _counts(sym, name, other)}
    result = {}
    for label, item in sym.classes.items():
        if not item.permutes:
            continue
        carried = [products[name] for name in sym.carriers(label) if name in products]
        ab, aa, bb = (float(sum(row[part] for row in carried)) for part in range(3))
        result[label] = ab / (aa * bb) ** 0.5 if aa > 0 and bb > 0 else 0.0
    return result


def _counts(sym: Symmetry, name: str, params: Mapping[str, Tensor]) -> bool:
    return not sym.parameters[name].buffer and params[name].is_floating_point()


def _products(a: Tensor, b: Tensor) -> tuple[float, float, float]:
    a, b = a.detach().reshape(-1), b.detach().reshape(-1).to(a.device)
    dtype = torch.promote_types(a.dtype, torch.float32)
    a, b = a.to(dtype), b.to(dtype)
    return float(a @ b), float(a @ a), float(b @ b)
