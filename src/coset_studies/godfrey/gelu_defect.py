"""How far GELU is from ReLU's positive homogeneity (Godfrey et al. 2022, fig. 17, eq. E.22)."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import brentq

from coset.study import Claim, Context, Estimate, Findings, Results, Table, study
from coset.study.estimates import cell
from coset.symmetry import activation_function, homogeneity_defect, homogeneity_slope
from coset_studies.godfrey._claims import number_in

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = NDArray[np.float64]
PUBLISHED_SLOPE = 0.127
LAST_DIGIT = 0.0005
"""Half a unit of the last digit of the published slope."""
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


def _slope(results: Results) -> Estimate | None:
    """By quadrature, with the closed form at the other end."""
    one, other = (results.numbers.get(name) for name in ("slope", "slope_closed_form"))
    if not isinstance(one, float) or not isinstance(other, float):
        return None
    return Estimate(one, min(one, other), max(one, other))


def _sampled(results: Results) -> Estimate | None:
    """ξ(100)/100 from samples, ± two standard errors."""
    found = cell(results, "slopes", "sampled ξ(λ)", {"λ": 100.0}, error="standard error")
    return found and Estimate(found.value / 100, found.low / 100, found.high / 100)


_ROUNDED = "The paper prints three digits: 0.127 stands for 0.1265 to 0.1275."
CLAIMS = (
    Claim(
        paper="ξ becomes linear as λ → ∞, with a slope of about 0.127.",
        source="E.2.1, eq. E.23",
        statistic="slope of ξ for λ → ∞, by quadrature",
        direction="equal within",
        published=PUBLISHED_SLOPE,
        threshold=LAST_DIGIT,
        reason=_ROUNDED,
        interval="The slope's interval reaches from the quadrature to the closed form.",
        estimate=_slope,
        possible=(0.0, math.inf),
    ),
    Claim(
        paper="ξ, estimated from 10⁵ samples, becomes linear with that slope.",
        source="E.2.1, fig. 17 (b)",
        statistic="ξ(100)/100, by as many samples",
        direction="equal within",
        published=PUBLISHED_SLOPE,
        threshold=LAST_DIGIT,
        reason=_ROUNDED,
        interval="That of the samples is two standard errors to both sides.",
        estimate=_sampled,
        possible=(0.0, math.inf),
    ),
)
TEXT = """
By quadrature the slope is {slope:.6f}, which the paper's {slope_published} rounds. From {samples:,} samples, the
paper's own method, the last of its three digits cannot be told: the interval of ξ(100)/100 begins below 0.1265.

It becomes linear early: ξ(λ)/λ is within one percent of its limit from λ = {within_one_percent:.2f} on. Shrinking is
worse than stretching. For λ → 0, where GELU(λx) is close to λx/2, ξ(λ)/λ tends to {slope_at_zero:.4f}.

Beyond the paper, which finds no easy analytic form: by Stein's identity
ξ(λ)² = λ²(M(λ, λ) − 2M(λ, 1) + M(1, 1)), where M(a, b) = E[X²Φ(aX)Φ(bX)] =
1/4 + arcsin(ab/√((1 + a²)(1 + b²)))/(2π) + ab(1/(1 + a²) + 1/(1 + b²))/(2π√(1 + a² + b²)).
It agrees with the quadrature to {closed_form_gap:.0e}, and the slope is √(1/12 − (1 − 1/√3)/(2π)).

Of the five activations measured GELU has the least slope.
"""


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
    claims=CLAIMS,
    text={"paper": TEXT},
    tables={
        "slopes": "ξ of GELU by quadrature and by samples, which are off by so many standard errors.",
        "beyond-the-paper": "Other activations, by quadrature.",
    },
    figure=lambda results: _figure(results),
    caption="""
    (a) ReLU and GELU. (b) ξ(λ) of GELU, its asymptote, and samples with bars of two standard errors; below, their
    relative error. (c) Beyond the paper: ξ(λ)/λ of GELU and other relatives of ReLU, and its limits for λ → ∞
    (dashed).
    """,
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
        numbers=numbers, tables={"slopes": _slopes(normal, slope, context), "beyond-the-paper": _beyond(beyond)}
    )


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


def _figure(results: Results) -> "Figure":
    from coset.figures import new_figure

    figure = new_figure(10.0, 3.3)
    grid = figure.add_gridspec(4, 3, width_ratios=(0.85, 1.0, 1.1))
    _draw_functions(figure.add_subplot(grid[:, 0]))
    upper = figure.add_subplot(grid[:3, 1])
    _draw_defect(upper, figure.add_subplot(grid[3, 1], sharex=upper), results)
    _draw_beyond(figure.add_subplot(grid[:, 2]), results.tables["beyond-the-paper"])
    return figure


def _draw_functions(axes: "Axes") -> None:
    from coset.figures import BLUE, GREY, label_panel

    x = torch.linspace(-4, 4, 401, dtype=torch.float64)
    for name, key, style in (("ReLU", "relu", {"color": GREY, "ls": (0, (4, 2))}), ("GELU", "gelu", {"color": BLUE})):
        axes.plot(x, activation_function(key)(x), label=name, **style)
    axes.set_xlabel("x")
    axes.legend(loc="upper left")
    label_panel(axes, "a", "ReLU and GELU")


def _draw_defect(axes: "Axes", below: "Axes", results: Results) -> None:
    from coset.figures import BLUE, GREY, VERMILION, label_panel

    largest, slope = (number_in(results.numbers[name]) for name in ("largest_scale", "slope"))
    fine = np.linspace(0.01, largest, 500)
    axes.plot(fine, slope * fine, color=GREY, ls=(0, (4, 2)), lw=1.2, label=f"asymptote, slope {slope:.5f}")
    axes.plot(fine, [gelu_defect(scale) for scale in fine], color=BLUE, label="exact")
    table = results.tables["slopes"]
    names = ("λ", "ξ(λ)", "sampled ξ(λ)", "standard error")
    rows = np.array([[row[table.columns.index(name)] for name in names] for row in table.rows], dtype=np.float64)
    # At λ = 1 both are zero.
    scales, exact, sampled, error = rows[(rows[:, 0] <= largest) & (rows[:, 1] > 0)].T
    marks: dict[str, Any] = {"fmt": "o", "ms": 3.0, "lw": 1.0, "color": VERMILION}
    axes.errorbar(scales, sampled, 2 * error, label="sampled, ± 2 s.e.", **marks)
    axes.set_ylabel("ξ(λ)")
    axes.legend(loc="upper left")
    axes.tick_params(labelbottom=False)
    label_panel(axes, "b", "Distance of GELU from homogeneity")

    residual, bars = 100 * (sampled / exact - 1), 200 * error / exact
    below.axhline(0, color=BLUE, lw=1.2)
    below.errorbar(scales, residual, bars, **marks)
    reach = 1.1 * float(np.max(np.abs(residual) + bars))
    below.set_ylim(-reach, reach)
    below.set_xlabel("λ")
    below.set_ylabel("error (%)")


def _draw_beyond(axes: "Axes", table: Table) -> None:
    from coset.figures import PALETTE, label_panel

    slopes = {name: table.cell("slope for λ → ∞", {"activation": name}) for name in ACTIVATIONS}
    scales = np.geomspace(0.1, 1000, 81)
    for (name, limit), colour in zip(slopes.items(), PALETTE, strict=False):
        slope = number_in(limit)
        axes.plot(
            scales, [homogeneity_defect(ACTIVATIONS[name], float(scale)) / scale for scale in scales], color=colour
        )
        axes.plot(scales[[20, -1]], [slope, slope], color=colour, lw=0.9, ls=(0, (4, 2)))
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
