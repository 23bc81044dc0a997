"""Networks of one architecture as one network: every tensor has a leading axis of networks, ``vmap`` does the rest.

Two layouts make that fast on a CPU. Weights of images' filters and images themselves have the channels innermost, with
the networks beside them, so that the grouped convolutions that ``vmap`` makes of many need no copies. Linear maps are
computed as (W xᵀ)ᵀ: the gradient of W is then a product of two matrices along rows of x, and outputs have the examples
innermost, along which the softmax of the loss runs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from coset.running import call_with, copies_of, owners
from coset.train.loss import Loss

Tensors = dict[str, Tensor]


@dataclass
class Stack:
    """The tensors of N networks, each under its first name: (N, …). Training changes them in place."""

    trained: Tensors
    fixed: Tensors
    buffers: Tensors

    @property
    def everything(self) -> Tensors:
        """All tensors by name."""
        return {**self.trained, **self.fixed, **self.buffers}


def stacked(models: Sequence[nn.Module]) -> Stack:
    """The tensors of networks of one architecture, copied."""
    first = models[0]
    parameters = [dict(model.named_parameters()) for model in models]
    buffers = [dict(model.named_buffers()) for model in models]

    def of(parts: Sequence[Mapping[str, Tensor]], name: str) -> Tensor:
        return channels_inside(torch.stack([part[name].detach() for part in parts]))

    trained = {n: of(parameters, n).requires_grad_() for n, p in first.named_parameters() if p.requires_grad}
    fixed = {n: of(parameters, n) for n, p in first.named_parameters() if not p.requires_grad}
    return Stack(trained, fixed, {name: of(buffers, name) for name, _ in first.named_buffers()})


def channels_inside(tensor: Tensor) -> Tensor:
    """Filters (N, out, in, height, width) with ``in`` innermost in memory; anything else as it is."""
    return tensor.movedim(2, -1).contiguous().movedim(-1, 2) if tensor.ndim == 5 else tensor


def images_inside(x: Tensor) -> Tensor:
    """Images (N, B, C, H, W) of N networks, in memory as (B, H, W, N, C); anything else as it is."""
    return x.permute(1, 3, 4, 0, 2).contiguous().permute(3, 0, 4, 1, 2) if x.ndim == 5 else x


def saved(model: nn.Module, tensors: Mapping[str, Tensor]) -> Tensors:
    """What is kept of a stack: names as in ``state_dict()``, with names that share a tensor each having it."""
    owner = owners(model)
    return {name: tensors[owner[name]].detach().contiguous() for name in model.state_dict()}


class _Suited(TorchFunctionMode):
    """Computes linear maps of matrices x (B, in) as (W xᵀ)ᵀ, and attention by products, which have batching rules.

    The cross-entropy of outputs (B, C) is taken as that of one example (1, C, B) with B places: the same mean, and with
    a few classes the only way that fills the processor's vectors.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is functional.linear and not kwargs and args[0].ndim == 2:
            x, weight, *bias = args
            product = torch.matmul(weight, x.mT).mT
            return product + bias[0] if bias and bias[0] is not None else product
        if func is functional.cross_entropy and args[0].ndim == 2 and args[1].ndim == 1:
            return func(args[0].mT[None], args[1][None], *args[2:], **(kwargs or {}))
        if func is functional.scaled_dot_product_attention:
            with sdpa_kernel(SDPBackend.MATH):
                return func(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def outputs_of(model: nn.Module, tensors: Mapping[str, Tensor], x: Tensor, *, shared: bool) -> Tensor:
    """f(x_n; θ_n) for all n: (N, B, …), for x (N, B, …), or (B, …) that all networks share."""

    def one(own: Tensors, inputs: Tensor) -> Tensor:
        result: Tensor = call_with(model, own, inputs)
        return result

    with _Suited():
        result: Tensor = vmap(one, in_dims=(0, None if shared else 0))(dict(tensors), x)
    return result


def each(function: Callable[[Tensor, Tensor], Tensor], outputs: Tensor, targets: Tensor, *, shared: bool) -> Tensor:
    """A loss or a score of every network: (N,), for targets (N, B, …) or, shared, (B, …)."""
    with _Suited():
        result: Tensor = vmap(function, in_dims=(0, None if shared else 0))(outputs, targets)
    return result


def takes_a_stack(models: Sequence[nn.Module], x: Tensor, y: Tensor, loss: Loss) -> bool:
    """Whether ``vmap`` takes a model in training mode, and gives what each of two ``models`` gives on its own.

    It refuses what depends on values, or draws: then a network in a batch would not be the network alone.
    """
    stack = stacked(models)
    try:
        together = outputs_of(models[0], stack.everything, x.expand(2, *x.shape), shared=False)
        losses = each(lambda o, t: loss.mean(o, t, 0.0), together, y.expand(2, *y.shape), shared=False)
        torch.autograd.grad(losses.sum(), list(stack.trained.values()))
    # vmap fails anywhere in a model that it does not take, with exceptions of many kinds.
    except Exception:
        return False
    with torch.no_grad():
        alone = torch.stack([call_with(model, copies_of(model), x) for model in models])
    allowed = 1e3 * torch.finfo(alone.dtype).eps * float(alone.abs().max())
    return bool(torch.allclose(together, alone, rtol=0.0, atol=allowed, equal_nan=True))
