"""How far GELU is from ReLU's positive homogeneity (Godfrey et al. 2022, fig. 17, eq. E.22)."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import brentq

from coset.study import Context, Findings, Table, study
from coset.symmetry import activation_function, homogeneity_defect, homogeneity_slope

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = NDArray[np.float64]
PUBLISHED_SLOPE = 0.127
ACTIVATIONS = {"GELU": "gelu", "Mish": "mish", "SiLU": "silu", "ELU": "elu", "softplus": "softplus"}
TABLE_SCALES = (0.1, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 100.0)


@dataclass(frozen=True)
class Config:
    """``points`` scales evenly spaced up to ``largest``, and ``samples`` of X for the paper's Monte Carlo estimate."""

    points: int
    samples: int
    largest: float = 10.0


@dataclass(frozen=True)
class Curves:
    """ξ of GELU on a grid of scales: exact, and by Monte Carlo with its standard error; each of shape (points,)."""

    scales: Array
    exact: Array
    estimate: Array
    error: Array


@study(
    name="godfrey-gelu-defect",
    title="How far GELU is from positive homogeneity",
    reference="Godfrey et al. 2022, On the symmetries of deep learning models and their internal representations, "
    "supplement E.2.1, fig. 17, eq. E.22-E.23",
    paper="""
    GELU looks like ReLU from afar, yet its intertwiner group holds permutations only: no scaling λ ≠ 1 passes through
    it. How badly it fails is measured by ξ(λ) = √E[|GELU(λX) − λ GELU(X)|²] with X ~ N(0, 1). The paper estimates ξ
    from 10⁵ samples and finds that it becomes linear as λ → ∞, with a slope of about 0.127. It finds no easy analytic
    form of ξ.
    """,
    presets={
        "quick": Config(points=20, samples=10_000),
        "small": Config(points=40, samples=100_000),
        "paper": Config(points=100, samples=100_000),
    },
)
def run(config: Config, context: Context) -> Findings:
    """Compare quadrature, closed form and the paper's Monte Carlo for GELU; then measure other activations."""
    scales = np.linspace(config.largest / config.points, config.largest, config.points)
    normal = torch.randn(config.samples, generator=context.generator("X"), dtype=torch.float64).to(context.device)
    estimate, error = _monte_carlo(normal, scales, context)
    curves = Curves(scales, np.array([homogeneity_defect("gelu", scale) for scale in scales]), estimate, error)
    beyond = {name: (homogeneity_slope(key), _second_moment(key)) for name, key in ACTIVATIONS.items()}
    slope = beyond["GELU"][0]
    numbers = {
        "slope": slope,
        "slope_closed_form": math.sqrt(1 / 12 - (1 - 1 / math.sqrt(3)) / (2 * math.pi)),
        "slope_published": PUBLISHED_SLOPE,
        "slope_at_zero": math.sqrt(_moment(0, 0) - 2 * _moment(0, 1) + _moment(1, 1)),
        "closed_form_gap": max(
            abs(gelu_defect(scale) - value) for scale, value in zip(scales, curves.exact, strict=True)
        ),
        "defect_at_one": homogeneity_defect("gelu", 1.0),
        "within_one_percent": brentq(lambda scale: gelu_defect(scale) / scale - 0.99 * slope, 2.0, 100.0),
        "largest_scale": config.largest,
        "samples": config.samples,
        "exact_ratio": curves.exact[-1] / config.largest,
        "sampled_ratio": curves.estimate[-1] / config.largest,
        "sampled_ratio_error": curves.error[-1] / config.largest,
        "largest_deviation": max(abs(_deviation(curves, index) or 0.0) for index in range(config.points)),
        **{f"slope_{key}": beyond[name][0] for name, key in ACTIVATIONS.items()},
    }
    return Findings(
        numbers=numbers,
        tables={"slopes": _slopes(normal, slope, context), "beyond-the-paper": _beyond(beyond)},
        outcome=_OUTCOME,
        figure=lambda: _figure(curves, {name: value for name, (value, _) in beyond.items()}),
        caption=f"(a) ReLU and GELU. (b) ξ(λ) of GELU: exact, from {config.samples:,} samples, and its asymptote; "
        "below, the relative error of the samples with bars of two standard errors. "
        "(c) Beyond the paper: ξ(λ)/λ of GELU and other relatives of ReLU, and its limits for λ → ∞ (dashed).",
    )


_OUTCOME = """
The slope is {slope:.6f} by quadrature; the published {slope_published} is its rounding. By the paper's own method, with
{samples:,} samples, ξ({largest_scale:g})/{largest_scale:g} comes out as {sampled_ratio:.4f} ± {sampled_ratio_error:.4f}
({exact_ratio:.4f} by quadrature), and over the whole curve the samples stay within {largest_deviation:.1f} standard
errors of the exact value. ξ(1) = {defect_at_one:g}, and ξ(λ)/λ is within one percent of its limit from
λ = {within_one_percent:.2f} on.

Beyond the paper: ξ has a closed form. By Stein's identity ξ(λ)² = λ²(M(λ, λ) − 2M(λ, 1) + M(1, 1)), where
M(a, b) = E[X²Φ(aX)Φ(bX)] =
1/4 + arcsin(ab/√((1 + a²)(1 + b²)))/(2π) + ab(1/(1 + a²) + 1/(1 + b²))/(2π√(1 + a² + b²)).
It agrees with the quadrature to {closed_form_gap:.0e}. The slope is therefore √(1/12 − (1 − 1/√3)/(2π)) =
{slope_closed_form:.6f}. Shrinking is worse than stretching: for λ → 0, where GELU(λx) is close to λx/2, ξ(λ)/λ tends to
{slope_at_zero:.4f}.

Of the five activations measured GELU has the least slope for λ → ∞, before Mish ({slope_mish:.3f}),
SiLU ({slope_silu:.3f}), ELU ({slope_elu:.3f}) and softplus ({slope_softplus:.3f}).
"""


def gelu_defect(scale: float) -> float:
    """ξ(λ) of GELU in closed form; eq. E.23 expanded, each term by ``_moment``."""
    square = _moment(scale, scale) - 2 * _moment(scale, 1) + _moment(1, 1)
    # Near λ = 1 the terms cancel, and rounding may leave less than nothing.
    return scale * math.sqrt(max(square, 0.0))


def _moment(a: float, b: float) -> float:
    """M(a, b) = E[X²Φ(aX)Φ(bX)], X ~ N(0, 1).

    E[X²g] = E[g] + E[g″] (Stein) with g = Φ(aX)Φ(bX); E[g] = 1/4 + arcsin(ρ)/2π, the rest are Gaussian integrals.
    """
    one, two = 1 + a * a, 1 + b * b
    correlation = a * b / math.sqrt(one * two)
    curvature = a * b * (1 / one + 1 / two) / math.sqrt(1 + a * a + b * b)
    return 1 / 4 + (math.asin(correlation) + curvature) / (2 * math.pi)


def _monte_carlo(normal: torch.Tensor, scales: Array, context: Context) -> tuple[Array, Array]:
    """The paper's estimate of ξ from samples of X (one set for all scales) and its standard error (delta method)."""
    gelu = activation_function("gelu")
    base, estimates, errors = gelu(normal), [], []
    with context.progress("sampling", len(scales)) as bar:
        for scale in scales.tolist():
            squares = (gelu(scale * normal) - scale * base) ** 2
            estimate = math.sqrt(squares.mean())
            spread = float(squares.std()) / math.sqrt(len(normal))
            estimates.append(estimate)
            errors.append(spread / (2 * estimate) if estimate else 0.0)
            bar.advance()
    return np.array(estimates), np.array(errors)


def _deviation(curves: Curves, index: int) -> float | None:
    """How many standard errors the samples are off; None at λ = 1, where both are zero."""
    if curves.error[index] == 0:
        return None
    return float((curves.estimate[index] - curves.exact[index]) / curves.error[index])


def _second_moment(activation: str) -> float:
    """E[σ(X)²], by Gauss-Legendre quadrature on either side of 0, where some activations have a kink."""
    nodes, weights = np.polynomial.legendre.leggauss(200)
    half = 6 * (nodes + 1)
    x, w = np.concatenate([-half, half]), np.concatenate([weights, weights]) * 6
    values = activation_function(activation)(torch.from_numpy(x)).numpy()
    return float(np.sum(w * values**2 * np.exp(-(x**2) / 2)) / math.sqrt(2 * math.pi))


def _slopes(normal: torch.Tensor, slope: float, context: Context) -> Table:
    scales = np.array(TABLE_SCALES)
    estimate, error = _monte_carlo(normal, scales, context)
    curves = Curves(scales, np.array([homogeneity_defect("gelu", scale) for scale in scales]), estimate, error)
    rows = [
        (scale, exact, exact / scale, exact / scale / slope, estimate[index], error[index], _deviation(curves, index))
        for index, (scale, exact) in enumerate(zip(TABLE_SCALES, curves.exact, strict=True))
    ]
    columns = ("λ", "ξ(λ)", "ξ(λ)/λ", "ξ(λ)/λ / slope", "sampled ξ(λ)", "standard error", "deviation / error")
    return Table(columns, rows, f"ξ of GELU by quadrature and by {len(normal):,} samples.")


def _beyond(beyond: dict[str, tuple[float, float]]) -> Table:
    rows = [
        (
            name,
            homogeneity_defect(ACTIVATIONS[name], 0.5),
            homogeneity_defect(ACTIVATIONS[name], 2.0),
            slope,
            slope / math.sqrt(moment),
        )
        for name, (slope, moment) in beyond.items()
    ]
    columns = ("activation", "ξ(1/2)", "ξ(2)", "slope for λ → ∞", "slope / √E[σ(X)²]")
    return Table(columns, rows, "Beyond the paper: other activations, by quadrature.")


def _figure(curves: Curves, slopes: dict[str, float]) -> "Figure":
    from coset.figures import new_figure

    figure = new_figure(10.0, 3.3)
    grid = figure.add_gridspec(4, 3, width_ratios=(0.85, 1.0, 1.1))
    _draw_functions(figure.add_subplot(grid[:, 0]))
    upper = figure.add_subplot(grid[:3, 1])
    _draw_defect(upper, figure.add_subplot(grid[3, 1], sharex=upper), curves, slopes["GELU"])
    _draw_beyond(figure.add_subplot(grid[:, 2]), slopes)
    return figure


def _draw_functions(axes: "Axes") -> None:
    from coset.figures import BLUE, GREY, label_panel

    x = torch.linspace(-4, 4, 401, dtype=torch.float64)
    for name, key, style in (("ReLU", "relu", {"color": GREY, "ls": (0, (4, 2))}), ("GELU", "gelu", {"color": BLUE})):
        axes.plot(x, activation_function(key)(x), label=name, **style)
    axes.set_xlabel("x")
    axes.legend(loc="upper left")
    label_panel(axes, "a", "ReLU and GELU")


def _draw_defect(axes: "Axes", below: "Axes", curves: Curves, slope: float) -> None:
    from coset.figures import BLUE, GREY, VERMILION, label_panel

    fine = np.linspace(0.01, curves.scales[-1], 500)
    axes.plot(fine, slope * fine, color=GREY, ls=(0, (4, 2)), lw=1.2, label=f"asymptote, slope {slope:.5f}")
    axes.plot(fine, [gelu_defect(scale) for scale in fine], color=BLUE, label="exact")
    shown = slice(None, None, max(1, len(curves.scales) // 25))  # more would hide the line behind them
    scales, exact, estimate, twice = (
        values[shown] for values in (curves.scales, curves.exact, curves.estimate, 2 * curves.error)
    )
    marks: dict[str, Any] = {"fmt": "o", "ms": 2.4, "lw": 1.0, "color": VERMILION}
    axes.errorbar(scales, estimate, twice, label="sampled, ± 2 s.e.", **marks)
    axes.set_ylabel("ξ(λ)")
    axes.legend(loc="upper left")
    axes.tick_params(labelbottom=False)
    label_panel(axes, "b", "Distance of GELU from homogeneity")

    kept = exact > 0  # at λ = 1 both are zero
    residual, bars = 100 * (estimate[kept] / exact[kept] - 1), 100 * twice[kept] / exact[kept]
    below.axhline(0, color=BLUE, lw=1.2)
    below.errorbar(scales[kept], residual, bars, **marks)
    reach = 1.1 * float(np.max(np.abs(residual) + bars))
    below.set_ylim(-reach, reach)
    below.set_xlabel("λ")
    below.set_ylabel("error (%)")


def _draw_beyond(axes: "Axes", slopes: dict[str, float]) -> None:
    from coset.figures import PALETTE, label_panel

    scales = np.geomspace(0.1, 1000, 161)
    for (name, slope), colour in zip(slopes.items(), PALETTE, strict=False):
        ratio = [homogeneity_defect(ACTIVATIONS[name], float(scale)) / scale for scale in scales]
        axes.plot(scales, ratio, color=colour)
        axes.plot(scales[[40, -1]], [slope, slope], color=colour, lw=0.9, ls=(0, (4, 2)))
        # Mish and SiLU end close together.
        shift = {"Mish": -2, "SiLU": 2}.get(name, 0)
        axes.annotate(name, (scales[-1], slope), (5, shift), textcoords="offset points", va="center")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlim(scales[0], scales[-1])
    axes.set_ylim(0, 0.6)
    axes.set_xlabel("λ")
    axes.set_ylabel("ξ(λ)/λ")
    label_panel(axes, "c", "GELU and other relatives of ReLU")
