"""One Gaussian fitted to a mixture of two: the exact functional, its minima and thresholds, stochastic descent."""

import math
from collections.abc import Callable
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm
from torch.distributions import Categorical, MixtureSameFamily, MultivariateNormal

from coset.errors import InputError
from coset.store import Store
from coset.study import Context, StudyRun
from coset_studies.gelberg.interpolation._descent import (
    Descent,
    Gaussians,
    Targets,
    component,
    descend,
    kl_gradients,
    sampled_kl,
)
from coset_studies.gelberg.interpolation._mixture import (
    START,
    Along,
    apparent_threshold,
    at_midpoint,
    basin,
    descent_threshold,
    flow,
    fold,
    global_switch,
    gradient,
    hessian,
    kl,
    midpoint,
    midpoint_threshold,
    settle,
)
from coset_studies.gelberg.interpolation._runs import Case, Fitted, exact_kl, fitted

distances, means, deviations = st.floats(0.0, 12.0), st.floats(-3.0, 12.0), st.floats(0.2, 6.0)


def _kl_as_defined(alpha: float, sigma: float, mean: float, deviation: float) -> float:
    """∫ q log(q/p) in one dimension by adaptive quadrature, from the densities themselves."""

    def integrand(x: float) -> float:
        log_p = np.logaddexp(norm.logpdf(x, 0, sigma), norm.logpdf(x, alpha, sigma)) - math.log(2)
        return float(norm.pdf(x, mean, deviation) * (norm.logpdf(x, mean, deviation) - log_p))

    edges = np.unique([mean + step * deviation for step in range(-12, 13, 3)] + [alpha / 2])
    inside = edges[(edges >= mean - 12 * deviation) & (edges <= mean + 12 * deviation)]
    return math.fsum(quad(integrand, a, b, epsabs=1e-13, epsrel=1e-12)[0] for a, b in pairwise(inside))


def _targets(separations: list[float], dimension: int, sigma: float) -> Targets:
    direction = torch.arange(1.0, dimension + 1, dtype=torch.float64)
    return Targets(torch.tensor(separations, dtype=torch.float64), direction / direction.norm(), sigma)


def _gaussians(targets: Targets, seed: int = 0) -> Gaussians:
    generator = torch.Generator().manual_seed(seed)
    start = component(targets)
    return Gaussians(
        *(t + 0.3 * torch.randn(t.shape, generator=generator, dtype=t.dtype) for t in (start.mean, start.factor))
    )


def _noise(samples: int, dimension: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(samples, dimension, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_at_no_distance_the_component_is_the_mixture() -> None:
    assert kl(0.0, *START) == pytest.approx(0, abs=1e-15)
    assert settle(0.0) == START == midpoint(0.0)
    assert hessian(0.0, *START) == pytest.approx(np.diag([1.0, 2.0]), abs=1e-14)
    # And elsewhere the KL is that of two Gaussians.
    assert kl(0.0, 0.7, 1.3) == pytest.approx((1.3**2 + 0.7**2 - 1) / 2 - math.log(1.3), abs=1e-14)


@settings(max_examples=10, deadline=None)
@given(st.floats(0.0, 8.0), st.floats(-2.0, 8.0), st.floats(0.3, 4.0), st.sampled_from([0.25, 0.5, 1.0, 2.0]))
def test_the_functional_is_the_kl_for_every_sigma(distance: float, mean: float, deviation: float, sigma: float) -> None:
    # KL(q; α, σ) = KL(q/σ; α/σ, 1): hence every threshold is a number times σ.
    direct = _kl_as_defined(sigma * distance, sigma, sigma * mean, sigma * deviation)
    assert kl(distance, mean, deviation) == pytest.approx(direct, rel=1e-9, abs=1e-10)


def test_quadrature_against_samples_with_error_bars() -> None:
    targets = _targets([0.3, 1.0, 2.5, 4.0], 3, 0.8)
    q = _gaussians(targets)
    draws = sampled_kl(q, targets, _noise(200_000, 3))
    errors = draws.std(1) / draws.shape[1] ** 0.5
    off = (draws.mean(1) - torch.from_numpy(exact_kl(q, targets))) / errors
    assert off.abs().max() < 4
    assert errors.max() < 0.01  # sharp enough to tell


@given(distances, means, deviations, st.floats(1.0, 20.0))
def test_derivatives_are_those_of_the_functional(distance: float, mean: float, deviation: float, k: float) -> None:
    step = 1e-4
    shifts = [np.array([step, 0.0]), np.array([0.0, step])]
    at = np.array([mean, deviation])

    def central(function, shift):  # type: ignore[no-untyped-def]
        return (function(distance, *(at + shift), k) - function(distance, *(at - shift), k)) / (2 * step)

    # Central differences err by step²/6 times a third derivative, at most about a³(1 + 2k/s³): 1e-8 × 1728.
    scale = 1 + distance**3 + 2 * k / deviation**3
    slopes = gradient(distance, mean, deviation, k)
    assert slopes == pytest.approx([central(kl, shift) for shift in shifts], abs=1e-8 * scale)
    curvatures = hessian(distance, mean, deviation, k)
    scale = 1 + distance**4 + 6 * k / deviation**4
    assert curvatures == pytest.approx(np.array([central(gradient, shift) for shift in shifts]), abs=1e-8 * scale)


def test_the_three_thresholds() -> None:
    assert round(descent_threshold(), 2) == 4.82
    assert round(global_switch(), 2) == 5.60
    distance, place = fold()
    assert distance == pytest.approx(descent_threshold(), abs=1e-5)
    assert gradient(distance, *place) == pytest.approx([0, 0], abs=1e-10)
    lowest, other = np.linalg.eigvalsh(hessian(distance, *place))
    assert lowest == pytest.approx(0, abs=1e-9)
    assert other > 0.1
    # Just beyond it there is a minimum beside the component, but halfway is better until the optimum switches.
    for at, better_halfway in ((4.9, True), (5.55, True), (5.65, False)):
        beside = settle(at)
        assert beside.mean < 0.05 * at
        assert np.linalg.eigvalsh(hessian(at, *beside))[0] > 0
        assert (kl(at, *midpoint(at)) < kl(at, *beside)) == better_halfway


def test_the_best_fit_is_one_of_the_two_minima() -> None:
    """No start on a grid leads anywhere else, up to the mirror image."""
    for distance in (3.0, 5.2, 6.5):
        expected = {round(kl(distance, *fit), 8) for fit in (settle(distance), midpoint(distance))}
        starts = product(np.linspace(0, distance, 5), (0.5, 1.0, 2.0, 4.0))
        ends = {round(kl(distance, *settle(distance, Along(*start))), 8) for start in starts}
        assert ends == expected


@pytest.mark.parametrize("distance", [0.5, 2.0, 4.8, 5.6, 10.0, 40.0, 200.0])
def test_halfway_is_always_a_minimum(distance: float) -> None:
    fit = midpoint(distance)
    assert gradient(distance, *fit) == pytest.approx([0, 0], abs=1e-10 * distance)
    curvature = hessian(distance, *fit)
    assert curvature[0, 0] == pytest.approx(fit.deviation**-2, rel=1e-9)  # Price's theorem
    assert curvature[0, 1] == pytest.approx(0, abs=1e-10)
    assert curvature[1, 1] >= 2 * fit.deviation**-2
    if distance <= 40:
        assert at_midpoint(distance, settle(distance, Along(distance / 2 - 0.2, fit.deviation)))


def test_the_basin_of_the_midpoint_ends_between_the_modes() -> None:
    edge = basin(10.0, tolerance=0.01)
    middle = midpoint(10.0)
    assert 1.5 < edge < 2.5
    assert at_midpoint(10.0, settle(10.0, Along(5 - edge + 0.02, middle.deviation)))
    assert settle(10.0, Along(5 - edge - 0.02, middle.deviation)).mean == pytest.approx(0, abs=1e-4)


def test_far_apart_the_fit_halfway_is_as_wide_as_known() -> None:
    # For a → ∞ sech² becomes a delta: s − 1/s = a/√(2π), up to a share of about 1/(a s)² = 6e-8 here.
    widest = 100 / math.sqrt(2 * math.pi)
    assert midpoint(100.0).deviation == pytest.approx(widest / 2 + math.sqrt(widest**2 / 4 + 1), rel=1e-6)


@pytest.mark.parametrize(("coordinates", "published"), [(2, 3.74), (10, 3.02), (math.inf, 2.92)])
def test_mean_fields_leave_the_midpoint_earlier(coordinates: float, published: float) -> None:
    at = midpoint_threshold(coordinates)
    assert round(at, 2) == published
    if coordinates == math.inf:
        assert at == pytest.approx(midpoint_threshold(1e9), abs=1e-6)
        return
    assert descent_threshold(coordinates, tolerance=1e-3) == pytest.approx(at, abs=1e-3)
    # Before it every start ends halfway; beyond it the fit leaves continuously, as a square root.
    for start in (Along(0.0, 1.0), Along(0.5, 0.6), Along(0.2, 2.5), Along(at, 1.0)):
        assert at_midpoint(at - 0.02, settle(at - 0.02, start, coordinates))
    shifts = [0.5 - settle(at + beyond, START, coordinates).mean / (at + beyond) for beyond in (0.0025, 0.01)]
    assert 0 < shifts[0] < shifts[1] < 0.2
    assert shifts[1] / shifts[0] == pytest.approx(2, rel=0.15)


def test_a_mean_field_is_reduced_to_two_numbers() -> None:
    def diagonal(mean: float, first: float, second: float) -> float:
        factor = torch.diag(torch.tensor([first, second], dtype=torch.float64))[None]
        return float(exact_kl(Gaussians(mean * even.direction[None], factor), even)[0])

    even = Targets(torch.tensor([3.0]).double(), torch.full((2,), 0.5**0.5, dtype=torch.float64), 1.0)
    assert diagonal(0.9, 1.2, 1.2) == pytest.approx(kl(3.0, 0.9, 1.2, 2), abs=1e-13)
    fit, step = midpoint(3.0, 2), 1e-3
    # Along (1, −1), of squared length 2, the second derivative is 2 · 2/s².
    uneven = diagonal(fit.mean, fit.deviation + step, fit.deviation - step) - kl(3.0, *fit, 2)
    assert 2 * uneven / step**2 == pytest.approx(4 / fit.deviation**2, rel=1e-4)


def test_one_coordinate_has_no_such_threshold() -> None:
    with pytest.raises(InputError, match="coordinates is 1; expected more than 1"):
        midpoint_threshold(1)
    with pytest.raises(InputError, match="deviation is 0"):
        kl(1.0, 0.0, 0.0)


def test_a_flow_that_is_cut_off_seems_to_change_over_earlier() -> None:
    thresholds = [apparent_threshold(time) for time in (7.5, 30.0, 3000.0)]
    assert thresholds == sorted(thresholds)
    assert thresholds[0] < 4.3
    assert thresholds[-1] == pytest.approx(descent_threshold(), abs=1e-3)
    below = flow(4.7, 30.0)
    assert 0.25 < below.mean / 4.7 < 0.49
    assert at_midpoint(4.7, settle(4.7))


@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.0])
def test_the_sampled_kl_is_the_papers(sigma: float) -> None:
    targets = _targets([0.7, 3.0], 3, sigma)
    q, noise = _gaussians(targets), _noise(50, 3)
    x = q.mean[:, None] + torch.einsum("tij,sj->tsi", q.factor, noise)
    for index, alpha in enumerate(targets.separations):
        centres = torch.stack([torch.zeros(3, dtype=torch.float64), alpha * targets.direction])
        parts = MultivariateNormal(centres, sigma**2 * torch.eye(3, dtype=torch.float64))
        mixture = MixtureSameFamily(Categorical(torch.ones(2, dtype=torch.float64)), parts)
        gaussian = MultivariateNormal(q.mean[index], q.factor[index] @ q.factor[index].T)
        expected = gaussian.log_prob(x[index]) - mixture.log_prob(x[index])
        assert torch.allclose(sampled_kl(q, targets, noise)[index], expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("sigma", [0.25, 1.0])
def test_gradients_are_those_of_the_sampled_kl(sigma: float) -> None:
    targets = _targets([0.4, 1.0, 3.0], 4, sigma)
    q, noise = _gaussians(targets), _noise(30, 4)
    mean, factor = q.mean.requires_grad_(), q.factor.requires_grad_()
    # log q at its own samples, differentiated in its parameters and its samples, as the paper does it.
    x = mean[:, None] + noise @ factor.mT
    gaussian = MultivariateNormal(mean[:, None], (factor @ factor.mT)[:, None])
    expected = torch.autograd.grad((gaussian.log_prob(x) - targets.log_prob(x)).mean(1).sum(), (mean, factor))
    found = kl_gradients(Gaussians(mean.detach(), factor.detach()), targets, noise)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-10, atol=1e-10)


def test_descent_scales_with_sigma() -> None:
    """With the rate scaled by σ² and the same noise, descent to mixtures of deviation σ is that of deviation 1."""
    unit, found = (
        descend(
            _targets([sigma * distance for distance in (1.0, 3.0, 6.0)], 2, sigma),
            Descent(samples=40, steps=50, rate=0.05 * sigma**2),
            torch.Generator().manual_seed(3),
        )
        for sigma in (1.0, 0.25)
    )
    assert torch.allclose(found.mean, 0.25 * unit.mean, rtol=0, atol=1e-13)
    assert torch.allclose(found.factor, 0.25 * unit.factor, rtol=0, atol=1e-13)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("dimension", [1, 3])
def test_descent_ends_where_the_exact_one_does(optimizer: str, dimension: int) -> None:
    targets = _targets([2.0, 4.0, 5.5], dimension, 1.0)
    found = descend(targets, Descent(2000, 400, 0.1, optimizer), torch.Generator().manual_seed(0))
    limits = [settle(distance) for distance in (2.0, 4.0, 5.5)]
    means, deviations = found.along(targets)
    # Steps of a tenth with 2,000 samples leave noise of about √(0.1/2 · a²/2000) in the mean, for Adam of its rate.
    assert means.tolist() == pytest.approx([fit.mean for fit in limits], abs=0.15)
    assert deviations.tolist() == pytest.approx([fit.deviation for fit in limits], abs=0.15)
    interpolation = found.interpolation(targets)
    assert interpolation[:2].tolist() == pytest.approx([0.5, 0.5], abs=0.05)
    assert interpolation[2] < 0.06


def test_a_mean_field_stays_diagonal() -> None:
    targets = _targets([3.0], 3, 1.0)
    found = descend(targets, Descent(100, 50, 0.1, covariance="diagonal"), torch.Generator().manual_seed(0))
    assert torch.equal(found.factor, torch.diag_embed(found.factor.diagonal(dim1=1, dim2=2)))
    assert not torch.equal(found.factor, component(targets).factor)


def test_wrong_settings_are_told() -> None:
    with pytest.raises(InputError, match="optimizer is 'lbfgs'; expected one of sgd, adam"):
        Descent(10, 10, 0.1, "lbfgs")
    with pytest.raises(InputError, match="covariance is 'low rank'; expected one of full, diagonal"):
        Descent(10, 10, 0.1, covariance="low rank")


def test_the_threshold_of_fits_lies_between_distances() -> None:
    at = np.array([1.0, 2.0, 3.0, 4.0])

    def threshold(*interpolation: float) -> float | None:
        return Fitted(at, np.array(interpolation), at, at, at).threshold()

    assert threshold(0.5, 0.5, 0.1, 0.0) == 2.5
    assert threshold(0.5, 0.5, 0.5, 0.5) is None
    assert threshold(0.0, 0.0, 0.0, 0.0) is None


@pytest.fixture
def run(quick_run: Callable[[str], Any]) -> StudyRun:
    made: StudyRun = quick_run("gelberg-interpolation").run
    return made


def test_the_study_tells_what_it_found(run: StudyRun) -> None:
    assert [run.numbers[name] for name in ("descent", "switch", "mean_field_2")] == pytest.approx(
        [4.8245, 5.6002, 3.7417], abs=1e-4
    )
    assert run.numbers["midpoint_stiffness"] > 0  # type: ignore[operator]
    for sigma, published, descent, switch, cut_off, *found in run.tables["thresholds"].rows:
        assert published == 5 * sigma  # type: ignore[operator]
        assert (descent, switch) == pytest.approx((4.8245 * sigma, 5.6002 * sigma), abs=1e-4)  # type: ignore[operator]
        assert 4.5 * sigma < cut_off < descent + 1e-4  # type: ignore[operator]
        assert all(4.25 * sigma <= at <= 5.25 * sigma for at in found)  # type: ignore[operator]
    for alpha, interpolation, *_ in run.tables["curves"].rows:
        assert (interpolation == pytest.approx(0.5)) == (alpha < 4.8245)  # type: ignore[operator]


def test_descents_are_stored_and_follow_from_the_seed(tmp_path: Path) -> None:
    case = Case(2, 0.5, Descent(samples=20, steps=5, rate=0.01))
    contexts = [
        Context(seed, torch.device("cpu"), Store(tmp_path / name), False)
        for seed, name in ((0, "a"), (0, "b"), (1, "a"))
    ]
    one, again, other = (fitted(context, case, np.array([1.0, 3.0])) for context in contexts)
    assert one.interpolation.tolist() == again.interpolation.tolist() != other.interpolation.tolist()
    assert one.estimate.tolist() == again.estimate.tolist() != other.estimate.tolist()
    assert len(contexts[0].store.entries()) == 2
    stored = fitted(contexts[0], case, np.array([1.0, 3.0]))
    assert stored.kl.tolist() == one.kl.tolist()
