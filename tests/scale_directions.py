"""The oracle of scales: directions in which they move weights, from derivatives of the action."""

import torch


def jacobian_rank(sym, params):
    """How many independent directions the scales have at a generic point, from derivatives of the action."""
    keys = list(sym.scaling)
    sizes = [sym.identity().scales[key].shape for key in keys]

    def moved(vector):
        parts, at = {}, 0
        for key, shape in zip(keys, sizes, strict=True):
            parts[key] = torch.exp(vector[at : at + shape.numel()]).reshape(shape)
            at += shape.numel()
        result = sym.act(sym.element(scales=parts), params)
        return torch.cat([tensor.flatten() for tensor in result.values() if tensor.is_floating_point()])

    total = sum(shape.numel() for shape in sizes)
    if not total:
        return 0
    jacobian = torch.func.jacrev(moved)(torch.zeros(total, dtype=torch.float64))
    return int(torch.linalg.matrix_rank(jacobian, rtol=1e-9))
