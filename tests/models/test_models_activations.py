"""Every named activation against its formula, and the user's own."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coset.errors import InputError
from coset.models import ACTIVATIONS, MLP, Elementwise, make_activation

SELU_SCALE, SELU_ALPHA = 1.0507009873554805, 1.6732632423543772


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def _softplus(x: float) -> float:
    return math.log1p(math.exp(x))


def _clamp(x: float, low: float, high: float) -> float:
    return min(max(x, low), high)


FORMULAS: dict[str, Callable[[float], float]] = {
    "identity": lambda x: x,
    "relu": lambda x: max(x, 0),
    "leaky_relu": lambda x: x if x > 0 else 0.01 * x,
    "prelu": lambda x: x if x > 0 else 0.25 * x,
    "relu6": lambda x: _clamp(x, 0, 6),
    "relu_squared": lambda x: max(x, 0) ** 2,
    "elu": lambda x: x if x > 0 else math.expm1(x),
    "selu": lambda x: SELU_SCALE * (x if x > 0 else SELU_ALPHA * math.expm1(x)),
    "celu": lambda x: x if x > 0 else math.expm1(x),
    "gelu": lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x * _sigmoid(x),
    "mish": lambda x: x * math.tanh(_softplus(x)),
    "hardswish": lambda x: x * _clamp(x + 3, 0, 6) / 6,
    "sigmoid": _sigmoid,
    "hardsigmoid": lambda x: _clamp(x + 3, 0, 6) / 6,
    "logsigmoid": lambda x: -_softplus(-x),
    "softplus": _softplus,
    "tanh": math.tanh,
    "hardtanh": lambda x: _clamp(x, -1, 1),
    "tanhshrink": lambda x: x - math.tanh(x),
    "softshrink": lambda x: math.copysign(max(abs(x) - 0.5, 0), x),
    "hardshrink": lambda x: x if abs(x) > 0.5 else 0,
    "softsign": lambda x: x / (1 + abs(x)),
    "erf": math.erf,
    "sin": math.sin,
    "cos": math.cos,
    "rbf": lambda x: math.exp(-(x**2) / 2),
    "abs": abs,
    "square": lambda x: x**2,
    "cube": lambda x: x**3,
}

POINTS = [-7.3, -3.0, -1.2, -0.4, 0.0, 0.3, 0.9, 2.5, 6.5]


def _values(module: nn.Module) -> Tensor:
    return module.double()(torch.tensor(POINTS, dtype=torch.float64)).detach()


def test_every_name_has_a_formula_here() -> None:
    assert FORMULAS.keys() == ACTIVATIONS.keys()


@pytest.mark.parametrize("name", FORMULAS)
def test_named_activation_is_its_formula(name: str) -> None:
    expected = torch.tensor([float(FORMULAS[name](x)) for x in POINTS], dtype=torch.float64)
    torch.testing.assert_close(_values(make_activation(name)), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("spec", "formula"),
    [
        ("leaky_relu:0.3", lambda x: x if x > 0 else 0.3 * x),
        ("leaky_relu:-1", abs),
        ("prelu:0.5", lambda x: x if x > 0 else 0.5 * x),
        ("elu:0.5", lambda x: x if x > 0 else 0.5 * math.expm1(x)),
        ("celu:2", lambda x: x if x > 0 else 2 * math.expm1(x / 2)),
        ("softplus:2", lambda x: _softplus(2 * x) / 2),
        ("softshrink:1", lambda x: math.copysign(max(abs(x) - 1, 0), x)),
        ("hardshrink:1", lambda x: x if abs(x) > 1 else 0),
    ],
)
def test_number_after_the_colon(spec: str, formula: Callable[[float], float]) -> None:
    expected = torch.tensor([float(formula(x)) for x in POINTS], dtype=torch.float64)
    torch.testing.assert_close(_values(make_activation(spec)), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("spec", [nn.Softplus, lambda: nn.Softplus(), nn.Softplus(), Elementwise(F.softplus)])
def test_own_module_factory_or_function(spec: object) -> None:
    torch.testing.assert_close(_values(make_activation(spec)), _values(nn.Softplus()))


def test_a_given_module_is_copied_for_every_place() -> None:
    own = nn.PReLU()
    model = MLP(2, (3, 3), 1, activation=own)
    names = [name for name, _ in model.named_parameters() if name.startswith("activations")]
    assert names == ["activations.0.weight", "activations.1.weight"]
    assert all(parameter is not own.weight for parameter in model.parameters())


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("rleu", r"activation must be one of identity, relu, .*; found 'rleu'"),
        ("relu:0.1", r"activation 'relu' takes no number; those that do: leaky_relu, prelu, elu"),
        ("leaky_relu:steep", r"activation 'leaky_relu:steep' needs a number after the colon, found 'steep'"),
        ("leaky_relu:nan", r"activation 'leaky_relu:nan' needs a finite number"),
        ("elu:0", r"activation 'elu:0' needs a positive number"),
        (3, r"activation must be a name, a module or a factory of modules, found 3"),
        (torch.sin, r"cannot be called without arguments .*; wrap a function of tensors as Elementwise"),
        (dict, r"returned dict, expected a torch.nn.Module"),
    ],
)
def test_bad_activations_are_named(spec: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_activation(spec)
