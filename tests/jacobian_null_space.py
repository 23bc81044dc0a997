"""How many directions of weight space leave the function where it is: the null space of its Jacobian."""

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel


def general_weights(model: nn.Module, seed: int = 0) -> dict[str, Tensor]:
    """Weights away from zeros: matrices N(0, 0.5²), vectors ±(0.5 + 0.3·|N(0, 1)|), in float64; buffers as they are."""
    generator = torch.Generator().manual_seed(seed)
    params = {}
    for name, tensor in model.named_parameters():
        noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
        params[name] = 0.5 * noise if tensor.ndim > 1 else noise.sign() * (0.5 + 0.3 * noise.abs())
    return params


def singular_values(model: nn.Module, inputs: Tensor, seed: int = 0) -> Tensor:
    """Singular values of ∂f(θ, x)/∂θ over all inputs (N, …) and outputs, over the largest, one for each parameter.

    Enough inputs are those with which no more of them become positive; there have to be more outputs than parameters.
    """
    params = general_weights(model, seed)

    def outputs(point: dict[str, Tensor], x: Tensor) -> Tensor:
        result: Tensor = torch.func.functional_call(model, point, (x[None],)).reshape(-1)
        return result

    rows = []
    with sdpa_kernel(SDPBackend.MATH):
        for x in inputs:
            jacobian = torch.func.jacrev(outputs)(params, x)
            rows.append(torch.cat([jacobian[name].reshape(-1, params[name].numel()) for name in params], 1))
    whole = torch.cat(rows)
    if len(whole) < whole.shape[1]:
        raise ValueError(f"{len(whole)} outputs for {whole.shape[1]} parameters: the null space would be too large")
    triangle = torch.linalg.qr(whole, mode="r").R
    values = torch.linalg.svdvals(triangle)
    return values / values[0]


def null_dimension(model: nn.Module, inputs: Tensor, *, tolerance: float = 1e-12, seed: int = 0) -> int:
    """dim {δ : ∂f(θ, x)/∂θ·δ = 0 for all x} at random weights."""
    return int((singular_values(model, inputs, seed) < tolerance).sum())
