"""Activation functions by name: a registry of factories that also takes the user's own."""

import copy
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from coset.errors import InputError

ActivationSpec = str | nn.Module | Callable[[], nn.Module]
"""A name, a name with its number (``"leaky_relu:0.1"``), a module (copied at every place) or a factory of modules."""


class Elementwise(nn.Module):
    """An elementwise function as a module without parameters; any shape to the same shape."""

    def __init__(self, function: Callable[[Tensor], Tensor], name: str | None = None) -> None:
        super().__init__()
        self.function = function
        self.name: str = getattr(function, "__name__", "function") if name is None else name

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)

    def extra_repr(self) -> str:
        return self.name


def _rbf(x: Tensor) -> Tensor:
    return torch.exp(-(x**2) / 2)


def _square(x: Tensor) -> Tensor:
    return x**2


def _cube(x: Tensor) -> Tensor:
    return x**3


def _relu_squared(x: Tensor) -> Tensor:
    return torch.relu(x) ** 2


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "identity": nn.Identity,
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "prelu": nn.PReLU,  # one learnable slope, shared by all channels
    "relu6": nn.ReLU6,
    "relu_squared": lambda: Elementwise(_relu_squared, "relu(x)^2"),
    "elu": nn.ELU,
    "selu": nn.SELU,
    "celu": nn.CELU,
    "gelu": nn.GELU,
    "gelu_tanh": lambda: nn.GELU(approximate="tanh"),
    "silu": nn.SiLU,
    "mish": nn.Mish,
    "hardswish": nn.Hardswish,
    "sigmoid": nn.Sigmoid,
    "hardsigmoid": nn.Hardsigmoid,
    "logsigmoid": nn.LogSigmoid,
    "softplus": nn.Softplus,
    "tanh": nn.Tanh,
    "hardtanh": nn.Hardtanh,
    "tanhshrink": nn.Tanhshrink,
    "softshrink": nn.Softshrink,
    "hardshrink": nn.Hardshrink,
    "softsign": nn.Softsign,
    "erf": lambda: Elementwise(torch.erf, "erf"),
    "sin": lambda: Elementwise(torch.sin, "sin"),
    "cos": lambda: Elementwise(torch.cos, "cos"),
    "rbf": lambda: Elementwise(_rbf, "exp(-x^2/2)"),
    "abs": lambda: Elementwise(torch.abs, "abs"),
    "square": lambda: Elementwise(_square, "x^2"),
    "cube": lambda: Elementwise(_cube, "x^3"),
}

SLOPED: dict[str, Callable[[float], nn.Module]] = {
    "leaky_relu": nn.LeakyReLU,
    "prelu": lambda slope: nn.PReLU(init=slope),
}
"""Activations that take any slope of the negative part, as in ``"leaky_relu:0.1"``."""

SHAPED: dict[str, Callable[[float], nn.Module]] = {
    "elu": nn.ELU,
    "celu": nn.CELU,
    "softplus": nn.Softplus,
    "softshrink": nn.Softshrink,
    "hardshrink": nn.Hardshrink,
}
"""Activations that take one positive number, as in ``"elu:0.5"`` (α, α, β, λ, λ)."""


def make_activation(spec: ActivationSpec) -> nn.Module:
    """Return a new module for ``spec``; two calls never share parameters."""
    if isinstance(spec, str):
        return _named(spec)
    if isinstance(spec, nn.Module):
        return copy.deepcopy(spec)
    if not callable(spec):
        raise InputError(f"activation must be a name, a module or a factory of modules, found {spec!r}")
    hint = "wrap a function of tensors as Elementwise(function)"
    try:
        module = spec()
    except TypeError as error:
        raise InputError(f"activation {spec!r} cannot be called without arguments ({error}); {hint}") from error
    if not isinstance(module, nn.Module):
        raise InputError(f"activation {spec!r} returned {type(module).__name__}, expected a torch.nn.Module; {hint}")
    return module


def _named(spec: str) -> nn.Module:
    name, colon, number = spec.partition(":")
    if name not in ACTIVATIONS:
        raise InputError(f"activation must be one of {', '.join(ACTIVATIONS)}; found {spec!r}")
    if not colon:
        return ACTIVATIONS[name]()
    if name in SLOPED:
        return SLOPED[name](_number(spec, number))
    if name in SHAPED:
        value = _number(spec, number)
        if value <= 0:
            raise InputError(f"activation {spec!r} needs a positive number after the colon")
        return SHAPED[name](value)
    raise InputError(f"activation {name!r} takes no number; those that do: {', '.join([*SLOPED, *SHAPED])}")


def _number(spec: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError as error:
        raise InputError(f"activation {spec!r} needs a number after the colon, found {text!r}") from error
    if not math.isfinite(value):
        raise InputError(f"activation {spec!r} needs a finite number after the colon")
    return value
