"""How far an activation is from being positive homogeneous (Godfrey et al. 2022, eq. E.22, fig. 17)."""

import math
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coset._magnitudes import equivariant
from coset.errors import InputError
from coset.symmetry.intertwiners._intertwiner import Elementwise
from coset.symmetry.intertwiners.activations import activation_function

# Beyond |x| = 12 the Gaussian weight is below 1e-31 of its maximum; the innermost panel starts at the smallest scale
# on which a function of λx with λ ≤ 1e6 can still vary.
_REACH = 12.0
_FINEST = 1e-8
_PANELS_PER_DECADE = 12
_NODES = 24


@cache
def _quadrature() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Nodes and weights of E[f(X)], X ~ N(0, 1): Gauss-Legendre on panels that shrink geometrically towards 0.

    f(λx) varies on the scale 1/λ around 0 and on the scale 1 elsewhere; geometric panels resolve all scales between.
    """
    decades = math.log10(_REACH / _FINEST)
    edges = np.geomspace(_FINEST, _REACH, round(decades * _PANELS_PER_DECADE) + 1)
    edges = np.concatenate([[0.0], edges])
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    half = np.diff(edges)[:, None] / 2
    x = ((edges[:-1] + edges[1:])[:, None] / 2 + half * nodes).ravel()
    w = (half * weights).ravel() * np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    return np.concatenate([-x[::-1], x]), np.concatenate([w[::-1], w])


def homogeneity_defect(activation: str | torch.nn.Module | Elementwise, scale: float) -> float:
    """ξ(λ) = sqrt(E[|σ(λX) − λσ(X)|²]), X ~ N(0, 1), by quadrature (eq. E.22).

    It vanishes for every λ > 0 exactly when σ is positive homogeneous. The rule is exact to 1e-10 for functions that
    are smooth away from 0; jumps and kinks elsewhere (hardshrink, ReLU6) cost digits, up to one percent for a jump.
    """
    if not (math.isfinite(scale) and 0 < scale <= 1e6):
        raise InputError(f"scale is {scale}; expected a number in (0, 1e6]")
    function = activation_function(activation)
    nodes, weights = _quadrature()
    x = torch.from_numpy(nodes)
    residual = function(scale * x) - scale * function(x.clone())
    return _root_mean_square(residual, weights)


def homogeneity_slope(activation: str | torch.nn.Module | Elementwise) -> float:
    """lim ξ(λ)/λ as λ → ∞ for an activation with linear asymptotes: sqrt(E[|s_± X − σ(X)|²]), s_± = lim σ(x)/x at ±∞.

    For GELU sqrt(E[x²(1_{x≥0} − Φ(x))²]) = 0.12675.
    """
    function = activation_function(activation)
    far = torch.tensor([-1e12, -1e10, 1e10, 1e12], dtype=torch.float64)
    slopes = function(far.clone()) / far
    if not bool(torch.isfinite(slopes).all()) or not torch.allclose(slopes[[0, 3]], slopes[[1, 2]], rtol=0, atol=1e-8):
        raise InputError(f"the activation has no linear asymptotes: σ(x)/x is {slopes.tolist()} at {far.tolist()}")
    nodes, weights = _quadrature()
    x = torch.from_numpy(nodes)
    limit = torch.where(x > 0, slopes[3], slopes[0]) * x
    return _root_mean_square(limit - function(x.clone()), weights)


def _root_mean_square(residual: Tensor, weights: NDArray[np.float64]) -> float:
    def root(values: Tensor) -> Tensor:
        return (torch.from_numpy(weights) @ values**2).sqrt()

    return float(equivariant(root, residual.detach()))
