"""Solvers: orders of convergence on known flows, flat and on spheres; errors that are held; what is refused."""

import math
from itertools import combinations_with_replacement

import pytest
import torch
from flow_spaces import SPACES, climbing, generator, normal, plane, points, smooth, sphere, turned, turning
from hypothesis import given, settings
from hypothesis import strategies as st

from coset.errors import InputError
from coset.flow import SOLVERS, Solver, integrate, trajectory

ORDERS = {"euler": 1, "midpoint": 2, "rk4": 4}


def growing():
    """x' = (cos 2t)x + e₁ in each coordinate of its own pace, from a quadrature of the exact solution's formula."""
    pace = torch.tensor([0.5, 1.0, -1.5], dtype=torch.float64)

    def velocity(t, x):
        return pace * torch.cos(2 * t) * x + pace

    def end(x):
        # x(1) = e^{G(1)}(x₀ + ∫ pace·e^{−G}), G = pace·sin(2t)/2, by 40 Gauss points.
        import numpy as np

        nodes, weights = (torch.tensor(part) for part in np.polynomial.legendre.leggauss(40))
        t = (nodes + 1) / 2
        inner = (torch.exp(-pace * torch.sin(2 * t)[:, None] / 2) * weights[:, None] / 2).sum(0) * pace
        return torch.exp(pace * math.sin(2) / 2) * (x + inner)

    return velocity, end


def cases():
    velocity, end = growing()
    yield "plane, time-dependent", plane(3), velocity, end
    yield "sphere, turning", sphere(2.0), turning().velocity, turning().end
    yield "sphere, climbing", sphere(0.8), climbing(0.8).velocity, climbing(0.8).end


CASES = {name: rest for name, *rest in cases()}


def errors(case, solvers, retraction="projection"):
    space, velocity, end = CASES[case]
    x = points(space, 5)
    return [float((integrate(space, velocity, x, solver=solver) - end(x)).norm()) for solver in solvers]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("method", ORDERS)
def test_fixed_steps_have_the_order_of_their_method(method, case):
    coarse, fine = errors(case, [Solver(method, steps) for steps in (32, 64)])
    assert math.log2(coarse / fine) == pytest.approx(ORDERS[method], abs=0.15)


@pytest.mark.parametrize("case", [name for name in CASES if "sphere" in name])
def test_exponential_euler_has_order_one(case):
    coarse, fine = errors(case, [Solver("euler", steps, retraction="exponential") for steps in (64, 128)])
    assert math.log2(coarse / fine) == pytest.approx(1, abs=0.15)


@pytest.mark.parametrize("method", SOLVERS)
def test_velocities_are_asked_on_the_spheres_only(method):
    space, asked = SPACES["product"], []

    def velocity(t, x):
        asked.append(x)
        return smooth(space)(t, x)

    integrate(space, velocity, points(space, 3), solver=Solver(method, steps=2))
    assert all(space.manifold.check(space.coordinates(x)) for x in asked)


def test_exponential_euler_follows_great_circles_exactly():
    space = sphere(2.0)
    x = space.project(torch.tensor([[1.0, 2.0, 0.0]], dtype=torch.float64))
    found = integrate(space, lambda t, x: turning().velocity(0 * t, x), x, solver=Solver("euler", 3))
    exact = integrate(
        space, lambda t, x: turning().velocity(0 * t, x), x, solver=Solver("euler", 3, retraction="exponential")
    )
    torch.testing.assert_close(exact, turned(x, 1.0), rtol=0, atol=1e-14)
    assert float((found - exact).norm()) > 0.01


def trees(order):
    """Rooted trees with so many nodes, as sorted tuples of their branches."""
    if order == 1:
        return [()]

    def forests(nodes, largest):
        if nodes == 0:
            yield ()
        for size in range(min(nodes, largest), 0, -1):
            for repeats in range(nodes // size, 0, -1):
                for rest in forests(nodes - size * repeats, size - 1):
                    for chosen in combinations_with_replacement(trees(size), repeats):
                        yield (*chosen, *rest)

    return list(forests(order - 1, order - 1))


def nodes(tree):
    return 1 + sum(map(nodes, tree))


def density(tree):
    return nodes(tree) * math.prod(map(density, tree))


@pytest.mark.parametrize("method", SOLVERS)
def test_tableaus_fulfil_the_order_conditions(method):
    """Butcher: order p if and only if Σᵢ bᵢΦᵢ(τ) = 1/γ(τ) for all rooted trees τ of at most p nodes."""
    tableau = SOLVERS[method]
    size = len(tableau.nodes)
    a = torch.zeros(size, size, dtype=torch.float64)
    for row, shares in enumerate(tableau.stages):
        a[row, : len(shares)] = torch.tensor(shares, dtype=torch.float64)
    b = torch.tensor(tableau.weights, dtype=torch.float64)
    torch.testing.assert_close(a.sum(1), torch.tensor(tableau.nodes, dtype=torch.float64), rtol=0, atol=1e-14)

    def weight(tree):
        return math.prod((a @ weight(branch) for branch in tree), start=torch.ones(size, dtype=torch.float64))

    def defects(weights, order):
        return [abs(float(weights @ weight(tree)) - 1 / density(tree)) for tree in trees(order)]

    assert [len(trees(order)) for order in range(1, 6)] == [1, 1, 2, 4, 9]
    assert max(max(defects(b, order)) for order in range(1, tableau.order + 1)) < 1e-14
    assert max(defects(b, tableau.order + 1)) > 1e-4
    if tableau.error is not None:
        embedded = b - torch.tensor(tableau.error, dtype=torch.float64)
        assert max(max(defects(embedded, order)) for order in range(1, tableau.order)) < 1e-14
        assert max(defects(embedded, tableau.order)) > 1e-4


# Chosen steps ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_dopri5_is_as_near_as_its_tolerance_says(case):
    tolerances = (1e-4, 1e-7, 1e-10)
    found = errors(case, [Solver("dopri5", tolerance=tolerance) for tolerance in tolerances])
    for error, tolerance in zip(found, tolerances, strict=True):
        assert error < 20 * tolerance


def test_dopri5_uses_the_last_stage_again_and_counts():
    space, velocity, _ = CASES["sphere, turning"]
    calls = []

    def counted(t, x):
        calls.append(float(t))
        return velocity(t, x)

    way = trajectory(space, counted, points(space, 4), (0, 1), Solver("dopri5", tolerance=1e-8))
    assert way.evaluations == len(calls) == 2 + 6 * (way.steps + way.refused)
    assert 5 < way.steps < 60
    way = trajectory(space, counted, points(space, 4), (0, 0.5, 1), Solver("rk4", steps=10))
    assert (way.evaluations, way.steps, way.refused) == (40, 10, 0)


def test_times_close_together_do_not_shorten_later_steps():
    space, velocity, _ = CASES["sphere, turning"]
    solver = Solver("dopri5", tolerance=1e-8)
    plain = trajectory(space, velocity, points(space, 4), (0, 0.5, 1), solver)
    cut = trajectory(space, velocity, points(space, 4), (0, 0.5, 0.5 + 1e-9, 1), solver)
    assert cut.steps == plain.steps + 1


def test_every_row_meets_the_tolerance_beside_easy_ones():
    """A row that turns fast beside a thousand that stand still: a mean over rows would lose its error."""
    space = plane(3)

    def velocity(t, x):
        return x[:, 2:] * torch.stack([-x[:, 1], x[:, 0], 0 * x[:, 0]], 1)

    x = torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64).repeat(1000, 1)
    x[7, 2] = 20
    together = trajectory(space, velocity, x, (0, 1), Solver("dopri5", tolerance=1e-6))
    alone = trajectory(space, velocity, x[7:8], (0, 1), Solver("dopri5", tolerance=1e-6))
    exact = torch.tensor([math.cos(20), math.sin(20), 20], dtype=torch.float64)
    assert float((together.rows[-1, 7] - exact).norm()) < 1e-3
    assert together.steps == alone.steps


def test_dopri5_finds_its_way_around_a_kink():
    space = plane(1)
    way = trajectory(
        space, lambda t, x: 0 * x + (0.0 if t < 0.4 else 50.0), normal(2, 1), (0, 1), Solver("dopri5", tolerance=1e-6)
    )
    assert way.refused > 0
    torch.testing.assert_close(way.rows[-1], way.rows[0] + 30.0, rtol=0, atol=1e-3)


def test_dopri5_shrinks_steps_that_leave_where_the_velocity_is_defined():
    """x' = −1/(2√x) from x = 1: x = √… ends at t = 1 in 0; up to 0.99 it is x² = 1 − t, beyond there is nothing."""
    space, one = plane(1), torch.ones(1, 1, dtype=torch.float64)

    def velocity(t, x):
        return -0.5 / torch.where(x > 0, x, math.nan)

    way = trajectory(space, velocity, one, (0, 0.9999), Solver("dopri5", tolerance=1e-7))
    assert float(way.rows[-1]) == pytest.approx(0.01, abs=1e-4)
    with pytest.raises(InputError, match=r"not finite at t = 1.*, row 0, in a step of size .*smaller steps"):
        integrate(space, velocity, one, 0, 1.1, Solver("dopri5", tolerance=1e-7, most=5000))


# Ways and grids -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", SOLVERS)
@pytest.mark.parametrize("name", SPACES)
def test_there_and_back(name, method):
    space, solver = SPACES[name], Solver(method, steps=100, tolerance=1e-9)
    x = points(space, 3)
    there = integrate(space, smooth(space), x, 0.1, 0.9, solver)
    back = integrate(space, smooth(space), there, 0.9, 0.1, solver)
    bound = 1e-7 if method == "dopri5" else 10 * 100.0 ** -ORDERS[method]
    assert float((there - x).norm(dim=1).min()) > 0.05
    torch.testing.assert_close(back, x, rtol=0, atol=bound)
    torch.testing.assert_close(space.project(there), there, rtol=0, atol=1e-13)


@given(cut=st.integers(1, 7), method=st.sampled_from(sorted(ORDERS)), name=st.sampled_from(sorted(SPACES)))
@settings(max_examples=15, deadline=None)
def test_steps_compose(cut, method, name):
    """Through a time of the grid, in two calls or in one, and recorded there."""
    space, x = SPACES[name], points(SPACES[name], 2)
    middle = (cut / 8) ** 2
    grid = tuple((step / 8) ** 2 for step in range(9))
    solver = Solver(method, grid=grid)
    whole = integrate(space, smooth(space), x, solver=solver)
    first = integrate(space, smooth(space), x, 0, middle, solver)
    torch.testing.assert_close(integrate(space, smooth(space), first, middle, 1, solver), whole, rtol=0, atol=1e-13)
    way = trajectory(space, smooth(space), x, (0, middle, 1), solver)
    assert way.steps == 8
    torch.testing.assert_close(way.rows, torch.stack([x, first, whole]), rtol=0, atol=1e-13)


def test_grids_are_used_in_either_direction():
    seen = []

    def velocity(t, x):
        seen.append(float(t))
        return 0 * x

    x = normal(2, 3)
    integrate(plane(3), velocity, x, 1, 0, Solver("euler", grid=(0, 0.2, 0.7, 1)))
    integrate(plane(3), velocity, x, 0.1, 0.7, Solver("euler", grid=(0, 0.2, 0.7, 1)))
    integrate(plane(3), velocity, x, 0, 1, Solver("euler", steps=4))
    assert seen == [1, 0.7, 0.2, 0.1, 0.2, 0, 0.25, 0.5, 0.75]


@pytest.mark.parametrize("method", ["rk4", "dopri5"])
def test_points_and_energy_on_the_way(method):
    space, x = sphere(2.0), points(sphere(2.0), 4)
    times = torch.linspace(0, 1, 6, dtype=torch.float64)
    solver = Solver(method, steps=100, tolerance=1e-9)
    way = trajectory(space, turning().velocity, x, times, solver)
    for t, rows, energy in zip(times.tolist(), way.rows, way.energy, strict=True):
        torch.testing.assert_close(rows, turned(x, t + t * t), rtol=0, atol=1e-6)
        # ∫(1 + 2t)²dt times the squared distance to the axis.
        torch.testing.assert_close(energy, ((1 + 2 * t) ** 3 - 1) / 6 * x[:, :2].square().sum(1), rtol=1e-6, atol=1e-9)
    back = trajectory(space, turning().velocity, way.rows[-1], times.flip(0), solver)
    torch.testing.assert_close(back.energy[-1], way.energy[-1], rtol=1e-6, atol=0)


def test_types_stay():
    x = points(sphere(), 2).float()
    assert integrate(sphere(), smooth_single, x, solver=Solver("dopri5")).dtype == torch.float32


def smooth_single(t, x):
    assert t.dtype == x.dtype
    assert t.ndim == 0
    return torch.sin(x.flip(1) + t)


# Gradients ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", [Solver("euler", 3, retraction="exponential"), Solver("rk4", 2), Solver("dopri5")])
def test_steps_can_be_differentiated(solver):
    space = SPACES["product"]

    def end(x, factor):
        return integrate(space, lambda t, x: smooth(space)(t, x) * factor, space.project(x), solver=solver)

    x = normal(1, space.size).requires_grad_()
    factor = normal(space.size, seed=4).requires_grad_()
    if solver.method == "dopri5":
        # Finite differences would see its steps change.
        assert all(part.abs().max() > 0 for part in torch.autograd.grad(end(x, factor).sin().sum(), (x, factor)))
        return
    assert torch.autograd.gradcheck(end, (x, factor))


def test_no_graph_is_kept_unless_wanted():
    x = points(sphere(), 2).requires_grad_()
    assert integrate(sphere(), smooth(sphere()), x).requires_grad
    assert not integrate(sphere(), smooth(sphere()), x, differentiable=False).requires_grad
    with torch.no_grad():
        assert not integrate(sphere(), smooth(sphere()), x).requires_grad


# What is refused ------------------------------------------------------------------------------------------------------


def test_settings_are_checked():
    for options, message in [
        ({"method": "heun"}, "method is 'heun'; expected one of euler, midpoint, rk4, dopri5"),
        ({"steps": 0}, "steps is 0; expected a whole number ≥ 1"),
        ({"tolerance": 0.0}, "tolerance is 0.0; expected a number > 0"),
        ({"most": -1}, "most is -1"),
        ({"retraction": "qr"}, "retraction is 'qr'; expected one of projection, exponential"),
        ({"method": "rk4", "retraction": "exponential"}, "with the method rk4; expected 'projection', .* order 2"),
        ({"grid": (0, 0.5, 0.5)}, "grid is .*; expected times in order"),
        ({"grid": (1, 0)}, "grid begins at 1 and ends at 0; expected increasing"),
        ({"grid": (0,)}, "grid is .*; expected at least two finite numbers"),
        ({"method": "dopri5", "grid": (0, 1)}, "grid is given with the method dopri5"),
    ]:
        with pytest.raises(InputError, match=message):
            Solver(**options)


def test_rows_velocities_and_times_are_checked():
    space, x = plane(3), normal(4, 3)
    bad = x.clone()
    bad[2, 1] = math.inf
    for rows, velocity, start, message in [
        (x[0], smooth(space), 0.0, r"x is torch.float64 of shape \(3,\); expected rows .* \(N, 3\)"),
        (x[:, :2], smooth(space), 0.0, r"of shape \(4, 2\)"),
        (bad, smooth(space), 0.0, "x holds numbers that are not finite, first in row 2"),
        (x, lambda t, x: x[:, :1], 0.0, r"velocity gives shape \(4, 1\) for rows of shape \(4, 3\)"),
        (x, smooth(space), 1.0, r"start, end is \(1.0, 1.0\); expected times in order"),
        (x, smooth(space), math.nan, "start, end is .*; expected at least two finite numbers"),
    ]:
        with pytest.raises(InputError, match=message):
            integrate(space, velocity, rows, start, 1.0)


def test_odes_without_a_solution_are_told():
    """x' = x² from x = 2 is infinite at t = 1/2."""
    space, x = plane(1), torch.tensor([[0.1], [2.0]], dtype=torch.float64)
    with pytest.raises(InputError, match=r"dopri5 is at t = 0\.\d+ of 1 after 30 steps, the next of size .*raise most"):
        integrate(space, lambda t, x: x * x, x, solver=Solver("dopri5", most=30))
    with pytest.raises(InputError, match=r"not finite at t = 0\.\d+, row 1, in a step of size 0\.01"):
        integrate(space, lambda t, x: x * x, x, solver=Solver("rk4", steps=100))
    with pytest.raises(InputError, match=r"velocity is not finite at t = 0\.5, row 0, in a step of size 0\.25"):
        integrate(space, lambda t, x: x / (0.5 - t), x, solver=Solver("euler", steps=4))
    with pytest.raises(InputError, match=r"x is not finite at t = 10, row 0, in a step of size 2.5"):
        integrate(space, lambda t, x: 0 * x + 1.5e308 * (t > 7).double(), x, 0, 10, Solver("euler", steps=4))


def test_a_velocity_that_is_not_smooth_is_told():
    draws = generator(1)
    noisy = lambda t, x: torch.randn(x.shape, generator=draws, dtype=x.dtype)  # noqa: E731
    with pytest.raises(InputError, match=r"dopri5 (needs steps below|is at t)"):
        integrate(plane(2), noisy, normal(3, 2), solver=Solver("dopri5", tolerance=1e-9))
