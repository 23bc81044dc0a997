"""The table of intertwiner groups: torch functions, nn modules and names (Godfrey et al. 2022, table 1, extended)."""

import math
import re
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coset.errors import InputError
from coset.symmetry.intertwiners._intertwiner import Elementwise, Intertwiner
from coset.symmetry.intertwiners.inferring import infer_intertwiner

_SIGMOID = "σ(−x) = 1 − σ(x): an affine relation, absorbed by the next bias; a reflection where all readers have one"
_CAPPED = "σ(6 − x) = 6 − σ(x): an affine relation, absorbed by the next bias; a reflection where all readers have one"
_PHASE = "σ(x + π) = −σ(x): an affine relation, absorbed by the bias before; a half-turn"


def rbf(x: Tensor) -> Tensor:
    """Gaussian radial basis function exp(−x²/2)."""
    return torch.exp(-x * x / 2)


def _identity(x: Tensor) -> Tensor:
    return x


# name -> (function, group). Everything else (functions, modules, parametrised names) is resolved to one of these.
_TABLE: dict[str, tuple[Elementwise, Intertwiner]] = {}


def _enter(
    names: str, function: Elementwise, diagonal: Any, scale: float = 1.0, sign: int = 1, remark: str = ""
) -> None:
    first, *others = names.split()
    group = Intertwiner(first, diagonal, scale, sign, remark)
    for name in (first, *others):
        _TABLE[name] = (function, group)


_enter("identity linear none", _identity, "general")
_enter("relu", F.relu, "positive")
_enter("leaky_relu leakyrelu", F.leaky_relu, "positive")
_enter("prelu", partial(F.leaky_relu, negative_slope=0.25), "positive", remark="per-channel slopes move with P")
_enter("abs", torch.abs, "nonzero", 1.0, 0)
_enter("square", torch.square, "nonzero", 2.0, 0)
_enter("cube", lambda x: x**3, "nonzero", 3.0, 1)
_enter("sign", torch.sign, "nonzero", 0.0, 1)
_enter("relu_squared", lambda x: F.relu(x) ** 2, "positive", 2.0)
_enter("tanh", torch.tanh, "sign")
_enter("sin", torch.sin, "sign", remark=_PHASE)
_enter("erf", torch.erf, "sign")
_enter("arctan atan", torch.atan, "sign")
_enter("arcsinh asinh", torch.asinh, "sign")
_enter("softsign", F.softsign, "sign")
_enter("hardtanh", F.hardtanh, "sign")
_enter("tanhshrink", F.tanhshrink, "sign")
_enter("softshrink", F.softshrink, "sign")
_enter("hardshrink", F.hardshrink, "sign")
_enter("rbf gaussian gaussian_rbf", rbf, "sign", 1.0, 0)
_enter("cos", torch.cos, "sign", 1.0, 0, _PHASE)
_enter("sigmoid", torch.sigmoid, "one", remark=_SIGMOID)
_enter("hardsigmoid", F.hardsigmoid, "one", remark=_SIGMOID)
_enter("relu6", F.relu6, "one", remark=_CAPPED)
_enter("gelu", F.gelu, "one")
_enter("gelu_tanh", partial(F.gelu, approximate="tanh"), "one")
_enter("quick_gelu", lambda x: x * torch.sigmoid(1.702 * x), "one")
_enter("silu swish", F.silu, "one")
_enter("mish", F.mish, "one")
_enter("softplus", F.softplus, "one")
_enter("logsigmoid", F.logsigmoid, "one")
_enter("elu", F.elu, "one")
_enter("selu", F.selu, "one")
_enter("celu", F.celu, "one")
_enter("hardswish", F.hardswish, "one")
_enter("exp", torch.exp, "one", remark="exp(x + c) = e^c·exp(x): an affine relation; not acted on")

# Functions that mean a row of the table whatever their further arguments' defaults are.
_FUNCTIONS: dict[Any, str] = {
    F.relu: "relu", torch.relu: "relu", F.relu_: "relu", torch.relu_: "relu", Tensor.relu: "relu",
    F.leaky_relu: "leaky_relu", F.relu6: "relu6", F.elu: "elu", F.selu: "selu", torch.selu: "selu", F.celu: "celu",
    torch.celu: "celu", F.gelu: "gelu", F.silu: "silu", F.mish: "mish", F.softplus: "softplus",
    F.sigmoid: "sigmoid", torch.sigmoid: "sigmoid", Tensor.sigmoid: "sigmoid", torch.special.expit: "sigmoid",
    F.tanh: "tanh", torch.tanh: "tanh", Tensor.tanh: "tanh", F.hardsigmoid: "hardsigmoid",
    F.hardswish: "hardswish", F.hardtanh: "hardtanh", F.tanhshrink: "tanhshrink", F.softshrink: "softshrink",
    F.hardshrink: "hardshrink", torch.hardshrink: "hardshrink", F.softsign: "softsign", F.logsigmoid: "logsigmoid",
    torch.sin: "sin", torch.cos: "cos", torch.erf: "erf", torch.special.erf: "erf", torch.atan: "arctan",
    torch.arctan: "arctan", torch.asinh: "arcsinh", torch.arcsinh: "arcsinh", torch.abs: "abs", torch.absolute: "abs",
    Tensor.abs: "abs", torch.square: "square", torch.sign: "sign", torch.exp: "exp", rbf: "rbf",
}  # fmt: skip

_POWER = re.compile(r"(?P<base>x|relu|\|x\||abs)\s*(?:\^|\*\*)\s*(?P<power>\d+(?:\.\d+)?)")
_SLOPE = re.compile(r"leaky_?relu(?:\(|:)(?P<slope>[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)\)?")


def _power(base: str, power: float) -> tuple[Elementwise, Intertwiner]:
    """x^d, ReLU^d and |x|^p for any positive power."""
    if power <= 0:
        raise InputError(f"the power of '{base}^{power:g}' is not positive")
    if base == "relu":
        return (lambda x: F.relu(x) ** power), Intertwiner(f"relu^{power:g}", "positive", power, 1)
    if base in ("|x|", "abs"):
        return (lambda x: x.abs() ** power), Intertwiner(f"|x|^{power:g}", "nonzero", power, 0)
    if power != int(power):
        raise InputError(f"x^{power:g} is not defined for negative x; use |x|^{power:g} or an integer power")
    if power == 1:
        return _TABLE["identity"]
    return (lambda x: x ** int(power)), Intertwiner(f"x^{power:g}", "nonzero", power, int(power) % 2)


def _leaky(slope: float) -> tuple[Elementwise, Intertwiner]:
    """LeakyReLU: slope 1 is the identity, slope −1 the absolute value; all other slopes let positive scales pass."""
    if slope in (1.0, -1.0):
        return _TABLE["identity" if slope == 1 else "abs"]
    if not math.isfinite(slope):
        raise InputError(f"the negative slope of LeakyReLU is {slope}; expected a finite number")
    return partial(F.leaky_relu, negative_slope=slope), Intertwiner(f"leaky_relu({slope:g})", "positive")


def _named(name: str) -> tuple[Elementwise, Intertwiner]:
    text = re.sub(r"[\s-]+", "_", name.strip().lower())
    if text in _TABLE:
        return _TABLE[text]
    if match := _POWER.fullmatch(text):
        return _power(match["base"], float(match["power"]))
    if match := _SLOPE.fullmatch(text):
        return _leaky(float(match["slope"]))
    # A number behind a colon is a setting that changes the function and not its group, as in elu:0.5.
    plain, _, setting = text.partition(":")
    if setting and plain in ("prelu", "elu", "celu", "softplus", "softshrink", "hardshrink"):
        return _TABLE[plain]
    raise InputError(
        f"unknown activation '{name}'; known: {', '.join(sorted(_TABLE))}, x^d, relu^d, |x|^p, leaky_relu(slope)"
    )


def _prelu(module: nn.PReLU) -> tuple[Elementwise, Intertwiner]:
    slopes = module.weight.detach().double().flatten()
    if not bool(torch.isfinite(slopes).all()):
        raise InputError(f"a PReLU has slopes that are not finite: {slopes.tolist()[:4]}")
    if bool((slopes.abs() == 1).any()):
        if bool((slopes == slopes[0]).all()):
            return _leaky(float(slopes[0]))
        raise InputError("a PReLU with some slopes of exactly 1 or −1 is not one activation: its units differ in group")
    return partial(F.leaky_relu, negative_slope=float(slopes[0])), _TABLE["prelu"][1]


def _clipped(module: nn.Hardtanh) -> tuple[Elementwise, Intertwiner]:
    low, high = float(module.min_val), float(module.max_val)
    odd = low == -high
    name = "hardtanh" if odd else f"hardtanh({low:g}, {high:g})"
    return module.forward, Intertwiner(name, "sign" if odd else "one")


# Modules whose settings change the function but not the group, which is that of their name in the table.
_NAMED = (
    nn.Identity, nn.ReLU, nn.ReLU6, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Softplus, nn.Sigmoid, nn.LogSigmoid,
    nn.Hardsigmoid, nn.Hardswish, nn.Tanh, nn.Tanhshrink, nn.Softshrink, nn.Hardshrink, nn.Softsign,
)  # fmt: skip

# Those whose settings change the group.
_MODULES: dict[type[nn.Module], Callable[[Any], tuple[Elementwise, Intertwiner]]] = {
    nn.LeakyReLU: lambda module: _leaky(float(module.negative_slope)),
    nn.RReLU: lambda module: _leaky((module.lower + module.upper) / 2),
    nn.PReLU: _prelu,
    nn.Hardtanh: _clipped,
}


def _resolve(activation: str | nn.Module | Elementwise) -> tuple[Elementwise, Intertwiner | None]:
    if isinstance(activation, str):
        return _named(activation)
    if isinstance(activation, nn.Module):
        # Exact types: a subclass may compute anything. It, ELU(alpha=0) and user modules are judged by their values.
        if type(activation) in _NAMED:
            return activation.forward, _TABLE[type(activation).__name__.lower()][1]
        entry = _MODULES.get(type(activation))
        return entry(activation) if entry else (activation, None)
    if not callable(activation):
        raise InputError(f"expected an activation (name, nn.Module or function), found {type(activation).__name__}")
    name = _FUNCTIONS.get(activation) if isinstance(activation, Hashable) else None
    return activation, _TABLE[name][1] if name is not None else None


def activation_function(activation: str | nn.Module | Elementwise) -> Elementwise:
    """The function behind a name, module or function."""
    return _resolve(activation)[0]


def intertwiner(activation: str | nn.Module | Elementwise) -> Intertwiner:
    """The intertwiner group of an activation given by name, ``nn`` module or function.

    Names and torch's own functions and modules come from the table; anything else is decided by ``infer_intertwiner``.
    """
    function, group = _resolve(activation)
    return group if group is not None else infer_intertwiner(function)


def activation_names() -> tuple[str, ...]:
    """The names of the table, one a row; powers (x^d, relu^d, abs(x)^p) and slopes come beside them."""
    return tuple(sorted({group.name for _, group in _TABLE.values()}))
