"""Decide numerically which scales and signs pass through an elementwise function."""

import copy
import math

import torch
from torch import Tensor, nn

from coset.errors import InputError
from coset.symmetry.intertwiners._intertwiner import Diagonal, Elementwise, Intertwiner

# Relative agreement asked of σ(λx) = cσ(x). Float64 functions of the kind met as activations are good to 1e-13;
# a real failure of homogeneity shows at some of the probed magnitudes as an error of order one.
_TOLERANCE = 1e-10
_TOLERANCE_FLOAT32 = 1e-5
_MAGNITUDES = tuple(10.0**k for k in range(-12, 13))
_SCALES = (0.25, 0.5, 0.8, 1.1, 1.5, 2.0, 3.0, 7.0, 31.0)
_POINTS = 63


def _probe(generator: torch.Generator) -> Tensor:
    """Points of both signs at every magnitude, 0 included; shape (25·63,), float64."""
    spread = torch.linspace(-2.0, 2.0, 33, dtype=torch.float64)
    base = torch.cat([spread, torch.randn(_POINTS - len(spread), generator=generator, dtype=torch.float64)])
    return torch.cat([base * magnitude for magnitude in _MAGNITUDES])


def _evaluate(function: Elementwise, x: Tensor, name: str) -> Tensor:
    try:
        with torch.no_grad():
            y = function(x.clone())
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise InputError(f"{name} cannot be applied to a float64 tensor of shape {tuple(x.shape)}: {error}") from error
    if not isinstance(y, Tensor) or y.shape != x.shape:
        found = f"shape {tuple(y.shape)}" if isinstance(y, Tensor) else type(y).__name__
        raise InputError(f"{name} is not elementwise: an input of shape {tuple(x.shape)} gave {found}")
    if y.is_complex():
        raise InputError(f"{name} gives complex numbers; activations are real")
    return y.double()


def _same(a: Tensor, b: Tensor) -> bool:
    """Equal up to rounding, with NaN and infinities at the same places."""
    return torch.allclose(a, b, rtol=_tolerance(b), atol=1e-300, equal_nan=True)


def _tolerance(y: Tensor) -> float:
    """Looser for functions that compute in float32 inside: all their values are float32 numbers."""
    finite = y[torch.isfinite(y)]
    return _TOLERANCE_FLOAT32 if len(finite) and torch.equal(finite.float().double(), finite) else _TOLERANCE


def _check_elementwise(function: Elementwise, x: Tensor, y: Tensor, name: str) -> None:
    """An elementwise function treats every entry alike, whatever stands beside it, before it, or how it is shaped."""
    if not _same(_evaluate(function, x, name), y):
        raise InputError(f"{name} is not a function: two calls on the same input differ")
    order = torch.arange(len(x) - 1, -1, -1)
    trials = {
        "its entries are reversed": (x[order], y[order]),
        "half of its entries are left out": (x[::2].contiguous(), y[::2]),
        "it is reshaped": (x.reshape(-1, 9), y.reshape(-1, 9)),
        "it is reshaped to four dimensions": (x.reshape(1, 9, -1, 7), y.reshape(1, 9, -1, 7)),
    }
    for change, (moved, expected) in trials.items():
        if not _same(_evaluate(function, moved, name), expected):
            raise InputError(f"{name} is not elementwise: the value at a point changes when {change}")
    for index in range(0, len(x), max(1, len(x) // 16)):
        if not _same(_evaluate(function, x[index : index + 1], name), y[index : index + 1]):
            raise InputError(
                f"{name} is not elementwise: the value at {float(x[index]):g} depends on the other entries"
            )


def _factor(function: Elementwise, x: Tensor, y: Tensor, scale: float, name: str) -> float | None:
    """The c with σ(scale·x) = c·σ(x) at every point where both are finite, or None.

    Most points must be of that kind: outside the domain of a root, say, there is nothing to compare.
    """
    moved = _evaluate(function, scale * x, name)
    shared = torch.isfinite(y) & torch.isfinite(moved)
    if 4 * int(shared.sum()) < 3 * int(torch.isfinite(y).sum()):
        return None
    group = torch.arange(len(x)) // _POINTS
    strongest = int(torch.where(shared, y.abs(), -1.0).argmax())
    if float(y[strongest]) == 0.0:
        return None
    c = float(moved[strongest] / y[strongest])
    if not math.isfinite(c) or c == 0.0:
        return None
    size = torch.where(shared, torch.maximum(moved.abs(), (c * y).abs()), 0.0)
    # Rounding is measured by the largest value at the same magnitude: near a zero of σ digits are lost.
    around = torch.zeros(len(_MAGNITUDES), dtype=torch.float64).scatter_reduce(0, group, size, "amax")[group]
    tolerance = _tolerance(y)
    bound = tolerance * size + 1e-4 * tolerance * around
    # Below 1e-290 numbers lose their digits one by one; nothing can be told there.
    telling = (size >= 1e-290) & (size >= 1e-290 * abs(c))
    wrong = shared & telling & ~((moved - c * y).abs() <= bound)
    return None if bool(wrong.any()) else c


def infer_intertwiner(function: Elementwise | nn.Module, *, seed: int = 0) -> Intertwiner:
    """Decide in float64, at many points and scales, which D pass: σ(dx) = φ(d)σ(x) for all x, and with which power.

    A function that is not elementwise, not deterministic, or constant (σ(I) is not invertible, lemma E.7) is an error.
    """
    name = getattr(function, "__name__", None) or type(function).__name__
    if isinstance(function, nn.Module):
        # A copy in eval mode: the user's module keeps its dtype and mode, and dropout is what it is at test time.
        function = copy.deepcopy(function).double().eval()
    x = _probe(torch.Generator().manual_seed(seed))
    y = _evaluate(function, x, name)
    _check_elementwise(function, x, y, name)
    finite = y[torch.isfinite(y)]
    if len(finite) == 0 or bool((finite == finite[0]).all()):
        raise InputError(f"{name} is constant: it has no intertwiner group (σ(I) is not invertible)")
    power = _scale_power(function, x, y, name)
    flip = _factor(function, x, y, -1.0, name)
    sign = None if flip is None else (1 if flip < 0 else 0)
    if power is None:
        diagonal: Diagonal = "one" if sign is None else "sign"
        return Intertwiner(name, diagonal, 1.0, 1 if sign is None else sign)
    if sign is None:
        return Intertwiner(name, "positive", power, 1)
    linear = power == 1.0 and sign == 1
    return Intertwiner(name, "general" if linear else "nonzero", power, sign)


def _scale_power(function: Elementwise, x: Tensor, y: Tensor, name: str) -> float | None:
    """The p with σ(λx) = λ^p σ(x) for every probed λ > 0, or None; integers and simple fractions come out exactly."""
    powers = []
    for scale in _SCALES:
        c = _factor(function, x, y, scale, name)
        if c is None or c < 0:
            return None
        powers.append(math.log(c) / math.log(scale))
    close = 1e-8 if _tolerance(y) == _TOLERANCE else 1e-4
    if max(powers) - min(powers) > close:
        return None
    mean = sum(powers) / len(powers)
    nearest = round(mean * 12) / 12
    return nearest if abs(nearest - mean) < close else mean
