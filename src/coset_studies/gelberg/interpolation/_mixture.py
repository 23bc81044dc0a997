"""The reverse KL of one Gaussian to a mixture of two, exactly: its minima and where they appear and vanish.

The target is p = ½N(0, σ²I) + ½N(αu, σ²I), ‖u‖ = 1 (Gelberg et al. 2024, §3). Everything here is in units of σ: to
replace x by x/σ leaves the KL as it is, so with the ``distance`` a = α/σ every answer holds for all σ.

Beyond N(0, I), log p depends on t = uᵀx only: log p(x) = log N(x; 0, I) + log ½(1 + exp(a t − a²/2)). Hence only the
mean m and the deviation s of q along u can differ from N(0, I), and what is left to minimise is

    F(m, s) = k(½s² − ½ − log s) + ½m² − E log ½(1 + exp(a t − a²/2)),  t ~ N(m, s²).

With a full covariance k = 1, whatever the dimension. A mean field with u spread evenly over k coordinates has to give
each of them the deviation s that it wants along u, and pays for it k times (``coordinates``). Uneven deviations are no
way out: where ∂F/∂s = 0, the KL has the second derivative 2/s² in every direction that makes them uneven.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.integrate import solve_ivp
from scipy.optimize import brentq, root
from scipy.special import expit

from coset.errors import InputError

Array = NDArray[np.float64]

REACH = 10.0
"""Nodes go that far: what a standard normal has beyond is below 1e-22."""
SETTLED = 1e-9
"""A flow has arrived where its velocity is below this; Newton's method goes the rest of the way."""
LONGEST = 1e8
"""How long a flow may take; just beside a threshold it is slow, and further away it takes tens of units."""
NEARBY = 0.01
"""How far from the end of the flow the stationary point may lie, at which Newton's method arrives."""
AT_MIDPOINT = 1e-6
"""Fits within this of the mid-point, as a share of the distance, are at it."""

LEVEL = 0.25
"""Half of the way to the mid-point, as a share of the distance: descents that came as far count as interpolating."""


class Along(NamedTuple):
    """A Gaussian along u, in units of σ: across u it is N(0, I)."""

    mean: float
    deviation: float


START = Along(0.0, 1.0)
"""Where the paper's descent starts: at one of the two components."""


def nodes(steepness: float) -> tuple[Array, Array]:
    """Nodes and weights of E f(z), z ~ N(0, 1), for an f that is logistic in ``steepness`` · z (here a s).

    The trapezoidal rule on the whole line: f is analytic for |Im z| < π/steepness, so that a step h errs by
    exp(−2π²/(steepness h)), here below 1e-16, where Gauss-Hermite nodes would lie too wide apart.
    """
    # Rounded up, so that neighbouring steepnesses share their nodes.
    return _trapezoid(50 * math.ceil(REACH * max(10.0, 2.0 * steepness) / 50))


@functools.lru_cache(maxsize=64)
def _trapezoid(count: int) -> tuple[Array, Array]:
    """2 ``count`` + 1 nodes over ±``REACH``, and their weights under N(0, 1); shared, hence not to be written to."""
    z = np.linspace(-REACH, REACH, 2 * count + 1)
    weights = np.exp(-(z**2) / 2) * (REACH / count) / math.sqrt(2 * math.pi)
    z.flags.writeable = weights.flags.writeable = False
    return z, weights


def expected_log_ratio(distance: float, mean: float, deviation: float) -> float:
    """E log(p(t)/N(t; 0, 1)) = E log ½(1 + exp(a t − a²/2)) for t ~ N(mean, deviation²)."""
    z, weights = nodes(distance * deviation)
    return float(weights @ np.logaddexp(0.0, _log_odds(distance, mean, deviation, z))) - math.log(2)


def kl(distance: float, mean: float, deviation: float, coordinates: float = 1.0) -> float:
    """F(m, s): the KL to the mixture of the Gaussian that is N(m, s²) along u; of a mean field if k > 1."""
    if not deviation > 0:
        raise InputError(f"deviation is {deviation}; expected a number above 0")
    gaussian = coordinates * (deviation**2 / 2 - 0.5 - math.log(deviation)) + mean**2 / 2
    return gaussian - expected_log_ratio(distance, mean, deviation)


def gradient(distance: float, mean: float, deviation: float, coordinates: float = 1.0) -> Array:
    """(∂F/∂m, ∂F/∂s), of shape (2,)."""
    z, weights = nodes(distance * deviation)
    second = weights * expit(_log_odds(distance, mean, deviation, z))
    by_deviation = coordinates * (deviation - 1 / deviation) - distance * (second @ z)
    return np.array([mean - distance * second.sum(), by_deviation])


def hessian(distance: float, mean: float, deviation: float, coordinates: float = 1.0) -> Array:
    """The second derivatives of F by m and s, of shape (2, 2).

    Where ∂F/∂s = 0 and k = 1, ∂²F/∂m² = 1/s² (Price's theorem): shifts alone never lead down from there.
    """
    z, weights = nodes(distance * deviation)
    odds = _log_odds(distance, mean, deviation, z)
    curvature = distance**2 * weights * expit(odds) * expit(-odds)
    mixed = -float(curvature @ z)
    by_deviation = coordinates * (1 + deviation**-2) - float(curvature @ z**2)
    return np.array([[1 - curvature.sum(), mixed], [mixed, by_deviation]])


def midpoint(distance: float, coordinates: float = 1.0) -> Along:
    """The stationary point halfway between the components: m = a/2 and the only s with ∂F/∂s = 0.

    With k = 1 it is a minimum for every distance: in s since E[z² sech²(a s z/2)] ≤ E[sech²(a s z/2)], so that
    ∂²F/∂s² ≥ 2/s², in m by Price's theorem (see ``hessian``), and by symmetry ∂²F/∂m∂s = 0.
    """

    def slope(deviation: float) -> float:
        return float(gradient(distance, distance / 2, deviation, coordinates)[1])

    # ∂F/∂s = 0 says s − 1/s = ¼a² s E[sech²(½a s z)]/k, at most a/√(2π).
    widest = 1.0 + distance / math.sqrt(2 * math.pi)
    return Along(distance / 2, float(brentq(slope, 1.0, widest, xtol=1e-14, rtol=1e-14)))


def flow(distance: float, time: float, start: Along = START, coordinates: float = 1.0) -> Along:
    """Where gradient descent from ``start`` is after ``time``, in steps times their rate over σ², or has come to rest.

    The flow dμ = −∂KL/∂μ, dA = −∂KL/∂A for Σ = AAᵀ (A diagonal for a mean field) keeps to the family of ``Along``: it
    is dm = −∂F/∂m, ds = −(∂F/∂s)/k.
    """
    scales = np.array([1.0, 1.0 / coordinates])

    def velocity(_: float, point: Array) -> Array:
        return np.asarray(-scales * gradient(distance, point[0], point[1], coordinates))

    def moving(now: float, point: Array) -> float:
        return float(np.abs(velocity(now, point)).max()) - SETTLED

    moving.terminal = True  # type: ignore[attr-defined]
    if moving(0.0, np.array(start)) <= 0:
        return start
    path = solve_ivp(velocity, (0.0, time), np.array(start), method="LSODA", rtol=1e-6, atol=1e-9, events=moving)
    if not path.success:
        raise ArithmeticError(f"the flow at the distance {distance} stopped: {path.message}")
    return Along(float(path.y[0, -1]), float(path.y[1, -1]))


def settle(distance: float, start: Along = START, coordinates: float = 1.0) -> Along:
    """Where gradient descent with small steps from ``start`` ends: the end of its flow, by Newton's method."""

    def slopes(point: Array) -> Array:
        return gradient(distance, point[0], point[1], coordinates)

    def curvatures(point: Array) -> Array:
        return hessian(distance, point[0], point[1], coordinates)

    near = flow(distance, LONGEST, start, coordinates)
    end = root(slopes, np.array(near), jac=curvatures, tol=1e-13).x
    found = Along(float(end[0]), float(end[1]))
    if np.abs(end - np.array(near)).max() > NEARBY:
        raise ArithmeticError(f"Newton's method left the end of the flow at the distance {distance}: {near}, {found}")
    return found


def at_midpoint(distance: float, fit: Along) -> bool:
    """Whether ``fit`` lies halfway between the components."""
    return abs(fit.mean / distance - 0.5) < AT_MIDPOINT


def descent_threshold(coordinates: float = 1.0, tolerance: float = 1e-5) -> float:
    """The distance below which descent from ``START`` ends at the mid-point, by bisection."""
    return _bisect(lambda distance: at_midpoint(distance, settle(distance, START, coordinates)), 2.0, 7.0, tolerance)


def apparent_threshold(time: float, level: float = LEVEL, tolerance: float = 1e-4) -> float:
    """The largest distance at which the flow from ``START`` has come ``level`` of the way after ``time`` (k = 1).

    Below the threshold of descent the flow lingers where the minimum is about to appear, so this lies lower.
    """
    return _bisect(lambda distance: flow(distance, time).mean / distance >= level, 2.0, 7.0, tolerance)


def basin(distance: float, tolerance: float = 0.01) -> float:
    """From how far beside the mid-point, with its deviation, descent still returns to it (k = 1)."""
    middle = midpoint(distance)

    def returns(shift: float) -> bool:
        return at_midpoint(distance, settle(distance, Along(middle.mean - shift, middle.deviation)))

    return _bisect(returns, 0.0, middle.mean, tolerance)


def fold() -> tuple[float, Along]:
    """The distance at which a minimum beside a component appears (k = 1), and where: ∇F = 0 with a singular Hessian."""

    def conditions(unknown: Array) -> list[float]:
        distance, mean, deviation = (float(value) for value in unknown)
        slopes = gradient(distance, mean, deviation)
        return [*slopes.tolist(), float(np.linalg.det(hessian(distance, mean, deviation)))]

    found = root(conditions, np.array([4.8, 0.3, 1.3]), tol=1e-12)
    if not found.success:
        raise ArithmeticError(f"no fold was found: {found.message}")
    distance, mean, deviation = (float(value) for value in found.x)
    return distance, Along(mean, deviation)


def global_switch() -> float:
    """The distance at which the minimum beside a component becomes as good as the mid-point (k = 1)."""

    def lead(distance: float) -> float:
        return kl(distance, *settle(distance)) - kl(distance, *midpoint(distance))

    return float(brentq(lead, fold()[0] + 0.05, 8.0, xtol=1e-10))


def midpoint_threshold(coordinates: float) -> float:
    """The distance at which the mid-point of a mean field stops being a minimum, k > 1 (``math.inf`` allowed).

    c = ¼a² E sech²(½a s z) reaches 1 there, while ∂F/∂s = 0 says 1/s² = 1 − c/k; c grows with the distance.
    """
    if not coordinates > 1:
        raise InputError(f"coordinates is {coordinates}; expected more than 1, for with 1 the mid-point is a minimum")
    deviation = 1 / math.sqrt(1 - 1 / coordinates)

    def stiffness(distance: float) -> float:
        return float(hessian(distance, distance / 2, deviation)[0, 0])

    return float(brentq(stiffness, 0.1, 100.0, xtol=1e-12))


def _log_odds(distance: float, mean: float, deviation: float, z: Array) -> Array:
    """a t − a²/2 at t = m + s z: how much likelier t is under the second component than under the first."""
    return distance * (mean + deviation * z - distance / 2)


def _bisect(holds: Callable[[float], bool], low: float, high: float, tolerance: float) -> float:
    """Where ``holds`` changes from true (at ``low``) to false (at ``high``)."""
    if not holds(low) or holds(high):
        raise InputError(f"the threshold is not between {low} and {high}")
    while high - low > tolerance:
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return (low + high) / 2
