"""Optimizers of stacks: rates, decays and momenta are vectors, one number per network.

Where all networks of a stack have the same ones, torch's own fused kernels update it, since every rule is elementwise.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from coset.train import Recipe
from coset.train.optimizer import make_optimizer

EPSILON = 1e-8
"""Of Adam and AdamW, as torch has it."""


class StackOptimizer(Protocol):
    """Updates stacked parameters in place; ``state`` are all tensors that it remembers."""

    state: dict[str, Tensor]

    def step(self, gradients: Sequence[Tensor], rates: Tensor) -> None:
        """One step with rates (N,)."""
        ...


def stack_optimizer(parameters: Sequence[Tensor], recipes: Sequence[Recipe]) -> StackOptimizer:
    """The optimizer of networks whose recipes name the same one."""
    rules = {(r.momentum, r.betas, r.weight_decay, r.learning_rate) for r in recipes}
    schedules = {(r.schedule, r.warmup_epochs, r.drops, r.drop_factor, r.peak) for r in recipes}
    if len(rules) == len(schedules) == 1:
        return _Uniform(parameters, recipes[0])
    if recipes[0].optimizer == "sgd":
        return _Descent(parameters, recipes)
    return _Adam(parameters, recipes)


class _Uniform:
    """torch's own, fused where it can be."""

    def __init__(self, parameters: Sequence[Tensor], recipe: Recipe) -> None:
        self.parameters = parameters
        self.optimizer = make_optimizer(parameters, recipe)
        self.state: dict[str, Tensor] = {}
        # With gradients of 0, weights and decay of 0 a first step would only make the state: it is made here instead,
        # so that it can be read from a checkpoint.
        for index, parameter in enumerate(parameters):
            entries = self._fresh(recipe, parameter)
            self.optimizer.state[parameter] = entries
            self.state |= {f"{index}.{name}": tensor for name, tensor in entries.items()}

    @staticmethod
    def _fresh(recipe: Recipe, parameter: Tensor) -> dict[str, Tensor]:
        if recipe.optimizer != "sgd":
            names = ("exp_avg", "exp_avg_sq")
            moments = {name: torch.zeros_like(parameter, requires_grad=False) for name in names}
            return {"step": torch.zeros((), dtype=torch.float32, device=parameter.device), **moments}
        # A buffer of 0 gives momentum·0 + g, which is what torch puts there in the first step.
        return {"momentum_buffer": torch.zeros_like(parameter, requires_grad=False)} if recipe.momentum else {}

    def step(self, gradients: Sequence[Tensor], rates: Tensor) -> None:
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = _like(gradient, parameter)
        for group in self.optimizer.param_groups:
            group["lr"] = float(rates[0])
        self.optimizer.step()


class _Descent:
    """Stochastic gradient descent: g + λθ, v ← μv + g, θ ← θ − η(v, or g + μv with Nesterov)."""

    def __init__(self, parameters: Sequence[Tensor], recipes: Sequence[Recipe]) -> None:
        self.parameters, self.nesterov = parameters, recipes[0].nesterov
        self.decay = _vectors([r.weight_decay for r in recipes], parameters)
        self.momentum = _vectors([r.momentum for r in recipes], parameters)
        moving = recipes[0].momentum > 0
        self.state = {f"{i}.velocity": torch.zeros_like(p) for i, p in enumerate(parameters)} if moving else {}

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor], rates: Tensor) -> None:
        for index, (parameter, found) in enumerate(zip(self.parameters, gradients, strict=True)):
            gradient = torch.addcmul(found, parameter, self.decay[index])
            if self.state:
                velocity, momentum = self.state[f"{index}.velocity"], self.momentum[index]
                velocity.mul_(momentum).add_(gradient)
                gradient = torch.addcmul(gradient, velocity, momentum) if self.nesterov else velocity
            parameter.addcmul_(gradient, _shaped(rates, parameter), value=-1)


class _Adam:
    """Adam: m ← m + (1 − β₁)(g − m), v ← β₂v + (1 − β₂)g², θ ← θ − η/(1 − β₁ᵗ) · m / (√(v/(1 − β₂ᵗ)) + ε).

    The decay is added to the gradient, g + λθ; AdamW multiplies the weights by 1 − ηλ instead.
    """

    def __init__(self, parameters: Sequence[Tensor], recipes: Sequence[Recipe]) -> None:
        self.parameters, self.decoupled = parameters, recipes[0].optimizer == "adamw"
        self.decay = _vectors([r.weight_decay for r in recipes], parameters)
        self.decays = any(r.weight_decay for r in recipes)
        self.first = torch.tensor([r.betas[0] for r in recipes], dtype=torch.float64)
        self.second = torch.tensor([r.betas[1] for r in recipes], dtype=torch.float64)
        self.state = {"step": torch.zeros((), dtype=torch.int64)}
        for index, parameter in enumerate(parameters):
            self.state |= {f"{index}.mean": torch.zeros_like(parameter), f"{index}.square": torch.zeros_like(parameter)}

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor], rates: Tensor) -> None:
        self.state["step"] += 1
        count = int(self.state["step"])
        # η/(1 − β₁ᵗ) · m / (√v/c + ε) = (ηc/(1 − β₁ᵗ)) · m / (√v + cε) with c = √(1 − β₂ᵗ)
        correction = (1 - self.second**count).sqrt()
        factor = rates.double().cpu() * correction / (1 - self.first**count)
        for index, (parameter, found) in enumerate(zip(self.parameters, gradients, strict=True)):
            mean, square = self.state[f"{index}.mean"], self.state[f"{index}.square"]
            gradient = found
            if self.decays and self.decoupled:
                parameter.mul_(1 - _shaped(rates, parameter) * self.decay[index])
            elif self.decays:
                gradient = torch.addcmul(found, parameter, self.decay[index])
            mean.lerp_(gradient, _shaped(1 - self.first, parameter))
            square.lerp_(gradient.square(), _shaped(1 - self.second, parameter))
            spread = square.sqrt().add_(_shaped(EPSILON * correction, parameter))
            parameter.sub_(torch.div(mean, spread).mul_(_shaped(factor, parameter)))


def clip_each(gradients: Sequence[Tensor], largest: Tensor) -> list[Tensor]:
    """Gradients with, for each network, a norm over all its parameters of at most its own ``largest`` (N,).

    As ``torch.nn.utils.clip_grad_norm_`` does it, which divides by the norm plus 1e-6.
    """
    squares = torch.stack([gradient.reshape(len(gradient), -1).square().sum(1) for gradient in gradients])
    factor = (largest / (squares.sum(0).sqrt() + 1e-6)).clamp(max=1.0)
    return [gradient * _shaped(factor, gradient) for gradient in gradients]


def _vectors(values: Sequence[float], parameters: Sequence[Tensor]) -> list[Tensor]:
    return [_shaped(torch.tensor(values, dtype=torch.float64), parameter) for parameter in parameters]


def _shaped(vector: Tensor, like: Tensor) -> Tensor:
    """(N,) so that it multiplies a stack (N, …)."""
    return vector.to(like.device, like.dtype).view(-1, *(1,) * (like.ndim - 1))


def _like(gradient: Tensor, parameter: Tensor) -> Tensor:
    """With the strides of its parameter: fused kernels walk through memory."""
    if gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter, requires_grad=False).copy_(gradient)
