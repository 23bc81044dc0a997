"""The two-weight network: closed forms against integrals, the grid against others, runs against the library's."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.optimize import minimize
from scipy.special import erf, ndtr
from torch import Tensor

import coset
from coset.distribution import MeanField
from coset.posterior.fit import device_stream
from coset.posterior.symmetrized import SymmetrizedELBO, mutual_information, permutation_count
from coset.study import StudyRun
from coset_studies.gelberg.two_weights._fits import FITS, Task, measured, pose, posterior_on_grid, sampled
from coset_studies.gelberg.two_weights._grid import grid_posterior, log_normal, log_symmetrized, sufficient_reach
from coset_studies.gelberg.two_weights._network import (
    Moments,
    TwoWeights,
    Variances,
    elbo,
    expected_slopes,
    expected_squared_error,
    information,
    log_ratio,
    prediction_error,
    squared_error,
)
from coset_studies.gelberg.two_weights._scan import (
    ALPHAS,
    PUBLISHED_ERROR,
    PUBLISHED_PLAIN,
    PUBLISHED_TOTAL,
    Values,
    _clear,
    distance_to_bounds,
    distance_to_errors,
    largest_divisor,
    optimum,
    orders,
)
from coset_studies.gelberg.two_weights._training import METHODS, Chance, Protocol, chance, train

NOISE, PRIOR, ALPHA = 10.0, 0.1, 0.15
means = st.tuples(st.floats(-0.4, 0.4), st.floats(-0.4, 0.4))
stds = st.tuples(st.floats(0.03, 0.3), st.floats(0.03, 0.3))


def _double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _inputs(seed: int = 0, count: int = 100) -> Tensor:
    return 20 * torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 10


@pytest.fixture(scope="module")
def task() -> Task:
    return pose(_inputs(0), _inputs(1), NOISE, PRIOR)


def _q(task: Task, mean: Tensor, std: Tensor) -> MeanField:
    return MeanField({**task.model.state_dict(), "hidden.weight": mean[:, None]}, {"hidden.weight": std[:, None]})


def test_the_network_is_the_papers_and_its_symmetry_is_found(task: Task) -> None:
    model, x = TwoWeights().double(), _inputs()[:, None]
    first, second = model.hidden.weight.detach()[:, 0]
    assert torch.allclose(model(x), torch.relu(first * x) + torch.relu(second * x))
    assert [name for name, parameter in model.named_parameters() if parameter.requires_grad] == ["hidden.weight"]
    assert permutation_count(task.sym) == 2
    swapped = task.sym.act(task.sym.element({task.sym.permuting[0]: torch.tensor([1, 0])}), dict(model.state_dict()))
    assert torch.equal(swapped["hidden.weight"], model.hidden.weight.detach().flip(0))
    assert torch.equal(swapped["output.weight"], torch.ones(1, 2, dtype=torch.float64))


def test_squared_error_is_that_of_the_networks_outputs(task: Task) -> None:
    weights = torch.randn(50, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    outputs = torch.relu(weights[:, :1] * task.train) + torch.relu(weights[:, 1:] * task.train)
    direct = (outputs - ALPHA * task.train.abs()).square().sum(-1)
    assert torch.allclose(squared_error(weights, _double(ALPHA), Moments.of(task.train)), direct, rtol=1e-12)


@given(means, stds)
def test_expectations_agree_with_integrals(mean: tuple[float, float], std: tuple[float, float]) -> None:
    nodes, weights = np.polynomial.legendre.leggauss(60)

    def pieces(m: float, s: float) -> tuple[Tensor, Tensor]:
        edges = sorted({m - 9 * s, m + 9 * s, *([0.0] if abs(m) < 9 * s else [])})
        w = np.concatenate([(b - a) / 2 * nodes + (a + b) / 2 for a, b in pairwise(edges)])
        mass = np.concatenate([(b - a) / 2 * weights for a, b in pairwise(edges)])
        density = mass * np.exp(-(((w - m) / s) ** 2) / 2) / (s * math.sqrt(2 * math.pi))
        return torch.from_numpy(w), torch.from_numpy(density)

    (w1, p1), (w2, p2) = pieces(mean[0], std[0]), pieces(mean[1], std[1])
    points, mass = torch.stack(torch.meshgrid(w1, w2, indexing="ij"), -1), p1[:, None] * p2
    data, alpha = Moments.of(_inputs()), _double(ALPHA)[0]
    by_integral = (mass * squared_error(points, alpha, data)).sum()
    found = expected_squared_error(_double(*mean), _double(*std), alpha, data)
    assert float(found) == pytest.approx(float(by_integral), rel=1e-9)
    up, down = expected_slopes(_double(*mean), _double(*std))
    assert float(up) == pytest.approx(float((mass * torch.relu(points).sum(-1)).sum()), abs=1e-10)
    assert float(down) == pytest.approx(float((mass * torch.relu(-points).sum(-1)).sum()), abs=1e-10)


def test_where_the_network_is_linear_everything_is_gaussian(task: Task) -> None:
    """Far from 0 with opposite signs a = w₁ and b = −w₂."""
    mean, std, data = _double(3.0, -2.0), _double(0.1, 0.2), Moments.of(task.train)
    up, down = expected_slopes(mean, std)
    assert (float(up), float(down)) == pytest.approx((3.0, 2.0), abs=1e-14)
    expected = data.positive * ((3.0 - ALPHA) ** 2 + 0.01) + data.negative * ((2.0 - ALPHA) ** 2 + 0.04)
    assert float(expected_squared_error(mean, std, _double(ALPHA)[0], data)) == pytest.approx(
        float(expected), rel=1e-13
    )
    test = Moments.of(task.test)
    error = (test.positive * (3.0 - ALPHA) ** 2 + test.negative * (2.0 - ALPHA) ** 2) / 100
    assert float(prediction_error(mean, std, _double(ALPHA)[0], test)) == pytest.approx(float(error), rel=1e-13)


def test_log_ratio_is_that_of_the_densities() -> None:
    generator = torch.Generator().manual_seed(3)
    points, mean = torch.randn(20, 2, generator=generator, dtype=torch.float64), _double(0.3, -0.1)
    std = _double(0.5, 0.9)
    direct = log_normal(points.flip(-1), mean, std) - log_normal(points, mean, std)
    assert torch.allclose(log_ratio(points, mean, std), direct, atol=1e-13)


@pytest.mark.parametrize("distance", [0.0, 0.5, 1.0, 3.0, 20.0])
def test_information_of_equal_deviations(distance: float) -> None:
    """Then log q(gw)/q(w) ~ N(−t², 2t²) with t = |m₁ − m₂|/s, and the integral has one dimension."""

    def integrand(z: float) -> float:
        ratio = -(distance**2) + math.sqrt(2) * distance * z
        return float((math.log(2) - np.logaddexp(0, ratio)) * math.exp(-z * z / 2) / math.sqrt(2 * math.pi))

    expected = quad(integrand, -10, 10, epsabs=1e-13, limit=200)[0]
    found = information(0.1 + 0.2 * _double(distance, 0.0), _double(0.2, 0.2))
    assert float(found) == pytest.approx(expected, abs=1e-9)
    assert -1e-12 <= float(found) <= math.log(2) + 1e-12


def test_information_is_the_librarys_and_k_of_two_has_half_of_it(task: Task) -> None:
    mean, std = _double(0.12, -0.1), _double(0.1, 0.15)
    exact, q = float(information(mean, std)), _q(task, mean, std)
    estimate = mutual_information(task.sym, q, samples=20_000, seed=0, show=False)
    assert abs(estimate.value - exact) < 4 * estimate.error
    generator = torch.Generator().manual_seed(0)
    gains = SymmetrizedELBO(task.sym, K=2).gain(q, q.sample(40_000, generator), generator)
    assert abs(float(gains.mean()) - exact / 2) < 4 * float(gains.std()) / 200
    assert exact > 0.1


def test_information_has_gradients() -> None:
    assert torch.autograd.gradcheck(
        information, (_double(0.1, -0.2).requires_grad_(), _double(0.1, 0.3).requires_grad_())
    )


def _log_evidence(alpha: float, data: Moments, noise: float, prior: float) -> float:
    """By quadrants: two with one weight each side, and two where only the sum of both weights counts."""
    p, m = float(data.positive) / noise, float(data.negative) / noise
    spread = math.sqrt(prior)

    def half(strength: float) -> float:
        """∫₀^∞ N(w; 0, prior) exp(−½ strength (w − α)²) dw."""
        total = strength + 1 / prior
        centre = strength * alpha / total
        logs = -0.5 * strength * alpha**2 + 0.5 * total * centre**2
        return math.exp(logs) * float(ndtr(centre * math.sqrt(total))) / math.sqrt(total * prior)

    def both(strength: float, other: float) -> float:
        """u = w₁ + w₂ ~ N(0, 2 prior), and both are positive if |w₁ − w₂| < u."""

        def integrand(u: float) -> float:
            density = math.exp(-(u**2) / (4 * prior)) / math.sqrt(4 * math.pi * prior)
            return density * float(erf(u / (2 * spread))) * math.exp(-0.5 * strength * (u - alpha) ** 2)

        return math.exp(-0.5 * other * alpha**2) * quad(integrand, 0, alpha + 20 / math.sqrt(strength), epsabs=1e-14)[0]

    return math.log(2 * half(p) * half(m) + both(p, m) + both(m, p))


@pytest.mark.parametrize(("noise", "prior"), [(1.0, 1.0), (10.0, 0.01), (30.0, 0.1), (100.0, 1.0)])
@pytest.mark.parametrize("alpha", [0.05, 0.2])
def test_the_grid_holds_the_posterior(noise: float, prior: float, alpha: float) -> None:
    data = Moments.of(_inputs())
    grid = grid_posterior(alpha, data, noise, prior, 401, sufficient_reach(alpha, data, noise, prior))
    assert grid.log_evidence == pytest.approx(_log_evidence(alpha, data, noise, prior), abs=1e-6)
    assert grid.integral(grid.log_density.exp()) == pytest.approx(1, abs=1e-12)
    assert torch.allclose(grid.log_density, grid.log_density.T, rtol=0, atol=1e-10)
    assert grid.axis[200] == 0
    # The modes are (α, −α) and (−α, α), drawn to 0 by the prior.
    place = np.unravel_index(int(grid.log_density.argmax()), (401, 401))
    one, two = sorted(float(grid.axis[index]) for index in place)
    step = float(grid.axis[1] - grid.axis[0])
    assert -alpha - step <= one < 0 < two <= alpha + step


def test_the_posteriors_own_prediction() -> None:
    """Much data and hardly any noise: the average is α|x| itself."""
    data = Moments.of(_inputs())
    grid = grid_posterior(0.2, data, 1e-3, 1.0, 801, 0.3)
    assert grid.slopes() == pytest.approx((0.2, 0.2), abs=1e-4)


@settings(max_examples=15)
@given(means, st.tuples(st.floats(0.1, 0.25), st.floats(0.1, 0.25)), st.sampled_from(ALPHAS))
def test_bounds_and_divergences_make_up_the_evidence(
    mean: tuple[float, float], std: tuple[float, float], alpha: float
) -> None:
    """L = log p(Y) − KL for q and for q^G: a closed form or quadrature around q, and two integrals on the grid.

    Simpson's error is of order (step/deviation)⁴, here below 10⁻⁵.
    """
    data, variances = Moments.of(_inputs()), Variances(*_double(NOISE, PRIOR))
    m, s = _double(*mean), _double(*std)
    grid = grid_posterior(alpha, data, NOISE, PRIOR, 481, 2.4)
    plain = float(elbo(m, s, _double(alpha)[0], data, variances))
    total = plain + float(information(m, s))
    assert plain == pytest.approx(grid.log_evidence - grid.divergence(log_normal(grid.points, m, s)), abs=1e-5)
    assert total == pytest.approx(grid.log_evidence - grid.divergence(log_symmetrized(grid.points, m, s)), abs=1e-5)
    assert plain <= total + 1e-12
    assert total <= grid.log_evidence + 1e-9


def test_measures_agree_with_the_librarys(task: Task) -> None:
    mean, std = _double(0.2, -0.15)[None], _double(0.1, 0.2)[None]
    exact, drawn = measured(ALPHA, task, mean, std, 401), sampled(ALPHA, task, mean, std, 4000, 200, 0)
    assert exact.gap < 1e-6
    # Squared errors have a deviation of some nats a draw: here 3.0 and 2.7, hence 0.05 for 4,000 draws.
    assert float(drawn.plain - exact.plain) == pytest.approx(0, abs=0.2)
    assert float(drawn.total - drawn.plain) == pytest.approx(float(exact.total - exact.plain), abs=0.03)
    assert float(drawn.error) == pytest.approx(float(exact.error), rel=0.1)
    grid = posterior_on_grid(ALPHA, task, 401, mean, std)
    assert float(exact.plain + exact.divergence) == pytest.approx(grid.log_evidence, abs=1e-6)


@pytest.mark.parametrize("method", ["MFVI", "SGM (exact)"])
def test_runs_at_once_are_the_librarys_runs(task: Task, method: str) -> None:
    """The same weights are drawn: then every step is the same. Batches hold all data, in whatever order."""
    epochs, start, like = 12, _double(0.06, -0.02), torch.empty(0, dtype=torch.float64)
    noise = torch.stack(
        [_double(0, 0).normal_(generator=device_stream("noise", 5, epoch, like)) for epoch in range(epochs)]
    )
    data = Moments.of(task.train)
    batches = Moments(data.positive.expand(epochs, 1), data.negative.expand(epochs, 1), 100)
    run = Chance(start[None], batches, noise[:, None], torch.ones(epochs, 1, dtype=torch.bool))
    share, alpha = _double(METHODS[method]), _double(ALPHA)
    mean, std = train(start[None], _double(0.07, 0.07)[None], share, alpha, task.variances, 100, run, 5e-3)
    fit = FITS[method](
        task.model, task.pair(ALPHA), sym=task.sym, epochs=epochs, batch_size=100, learning_rate=5e-3, std=0.07,
        start={**task.model.state_dict(), "hidden.weight": start[:, None]}, seed=5, show=False, **task.model_settings,
    ).posterior  # fmt: skip
    assert torch.allclose(mean[0], fit.mean["hidden.weight"][:, 0], rtol=0, atol=1e-12)
    assert torch.allclose(std[0], fit.std["hidden.weight"][:, 0], rtol=0, atol=1e-12)
    assert float((mean[0] - start).abs().max()) > 0.03


def test_one_permutation_a_step_counts_half_the_time(task: Task) -> None:
    """K = 2 with the exchange at every step is the exact objective; with the identity it is MFVI."""
    run = chance(task.train, 3, Protocol(2), torch.Generator().manual_seed(0))
    begin, std = 0.1 * run.start, torch.full((3, 2), 0.1, dtype=torch.float64)

    def end(share: float, exchanged: bool | None) -> Tensor:
        taken = run.exchanged if exchanged is None else torch.full_like(run.exchanged, exchanged)
        chosen = Chance(run.start, run.batches, run.noise, taken)
        return train(begin, std, _double(share), _double(ALPHA), task.variances, 100, chosen, 5e-3)[0]

    assert torch.equal(end(0.5, True), end(1.0, None))
    assert torch.equal(end(0.5, False), end(0.0, None))
    assert not torch.equal(end(0.5, None), end(1.0, None))
    assert 0.2 < float(run.exchanged.double().mean()) < 0.8


def test_mini_batches_hold_every_point_once(task: Task) -> None:
    run = chance(task.train, 4, Protocol(3), torch.Generator().manual_seed(0))
    data = Moments.of(task.train)
    assert run.batches.positive.shape == (30, 4)
    for batch, whole in ((run.batches.positive, data.positive), (run.batches.negative, data.negative)):
        assert torch.allclose(batch.reshape(3, 10, 4).sum(1), whole.expand(3, 4))


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_optima_are_those_of_another_search(task: Task, share: float) -> None:
    data = Moments.of(task.train)

    def objective(mean: Tensor, std: Tensor) -> float:
        value = elbo(mean, std, _double(0.2)[0], data, task.variances) + share * information(mean, std)
        return float(value)

    mean, std = optimum(_double(0.2), _double(share), data, task.variances, 400)
    found = objective(mean[0], std[0])
    # From the other side: on a mode.
    begin = np.array([0.2, -0.2, math.log(0.05), math.log(0.05)])
    other = minimize(
        lambda v: -objective(_double(*v[:2]), _double(*v[2:]).exp()), begin, method="Nelder-Mead",
        options={"xatol": 1e-7, "fatol": 1e-11, "maxfev": 800},
    )  # fmt: skip
    assert found == pytest.approx(-other.fun, abs=2e-6)


def test_at_optima_the_bounds_are_in_order(task: Task) -> None:
    """More of the information in the objective: less of L_VI, more of L^G."""
    data, alphas = Moments.of(task.train), _double(*ALPHAS)[:, None].expand(4, 3)
    shares = _double(*METHODS.values()).expand(4, 3)
    mean, std = optimum(alphas, shares, data, task.variances, 300)
    plain = elbo(mean, std, alphas, data, task.variances)
    total = plain + information(mean, std)
    assert bool((plain[:, :-1] - plain[:, 1:] > -1e-5).all())
    assert bool((total[:, 1:] - total[:, :-1] > -1e-5).all())


def _planted(scale: float) -> Values:
    def table(published: dict[str, tuple[float, ...]]) -> Tensor:
        return torch.tensor(list(published.values()), dtype=torch.float64).T

    plain, total = table(dict(PUBLISHED_PLAIN)), table(dict(PUBLISHED_TOTAL))  # type: ignore[arg-type]
    error = table(dict(PUBLISHED_ERROR))  # type: ignore[arg-type]
    return Values(error, scale * plain, scale * total, torch.zeros(4, 1, dtype=torch.float64))


def test_the_published_tables_are_in_the_published_order() -> None:
    planted = _planted(1.0)
    assert bool(orders(planted).all)
    assert float(distance_to_errors(planted)) == 0
    doubled = Values(2 * planted.error, planted.plain, planted.total, planted.log_evidence)
    assert float(distance_to_errors(doubled)) == pytest.approx(math.log(2))
    swapped = Values(*(part.flip(-1) for part in (planted.error, planted.plain, planted.total)), planted.log_evidence)
    found = orders(swapped)
    assert not bool((found.error | found.total | found.plain).any())
    assert not bool(
        orders(Values(planted.error[:, :1].expand(4, 2), planted.plain, planted.total, planted.log_evidence)).all
    )


def test_orders_beyond_chance() -> None:
    """Differences of 1 ± 0.1 are clear, differences of 0 ± 1 are not, and of the wrong sign they never are."""
    generator = torch.Generator().manual_seed(0)
    base = 5 * torch.randn(4, 1, 100, generator=generator, dtype=torch.float64)
    small, wide = (s * torch.randn(4, 1, 100, generator=generator, dtype=torch.float64) for s in (0.1, 1.0))
    wide = wide - wide.mean(-1, keepdim=True)
    found = {"error": [base, base - 1 + small], "total": [base, base + wide], "plain": [base, base + 1 + small]}
    clear = _clear({name: torch.cat(pair, 1) for name, pair in found.items()})
    assert clear.tolist() == [[1.0, 0.0, 0.0]] * 4


def test_the_best_divisor_is_found() -> None:
    planted = _planted(28.0)
    distance, divisor = distance_to_bounds(planted, evidence=False)
    assert float(distance) == pytest.approx(0, abs=1e-12)
    assert float(divisor) == pytest.approx(28.0)
    evidence = _double(-3, -2, -1, 0)[:, None]
    moved = Values(planted.error, planted.plain + evidence, planted.total + evidence, evidence)
    assert float(distance_to_bounds(moved, evidence=True)[0]) == pytest.approx(0, abs=1e-12)
    assert float(distance_to_bounds(moved, evidence=False)[0]) > 0.1
    # The printed 0.024 is at least 0.023, and log 2 / 0.023 = 30.1.
    assert largest_divisor() == pytest.approx(30.14, abs=0.01)


@pytest.fixture
def run(quick_run: Callable[[str], Any]) -> StudyRun:
    made: StudyRun = quick_run("gelberg-two-weights").run
    return made


def test_the_study_measures_what_it_says(run: StudyRun) -> None:
    assert run.numbers["gap"] < 1e-4  # type: ignore[operator]
    rows = {(row[0], row[1]): row for row in run.tables["bounds"].rows}
    assert len(rows) == 12
    for (method, alpha), row in rows.items():
        plain, total = row[2], row[3]
        assert 0 <= total - plain <= math.log(2) + 1e-12  # type: ignore[operator]
        divergences = next(r for r in run.tables["divergences"].rows if (r[0], r[1]) == (method, alpha))
        assert divergences[2] == pytest.approx(divergences[8] - plain, abs=1e-4)  # type: ignore[operator]
        assert divergences[4] == pytest.approx(divergences[8] - total, abs=1e-4)  # type: ignore[operator]


def test_discovery_needs_no_more_than_the_network() -> None:
    found = coset.discover(TwoWeights().double(), torch.zeros(2, 1, dtype=torch.float64))
    assert found.log_permutations == pytest.approx(math.log(2))
