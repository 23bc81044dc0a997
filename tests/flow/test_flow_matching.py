"""Paths, couplings, baselines: that conditional flow matching learns the marginal field, on cases where it is known."""

import itertools
import math
from types import SimpleNamespace

import pytest
import torch
from flow_spaces import generator, normal, points, sphere
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from architectures import made, randomized
from coset.distribution import MeanField
from coset.errors import InputError
from coset.flow import FlowRecipe, Path, Solver, Space, euclidean, fit_flow, integrate
from coset.flow._baseline import Baseline, entry_orbits, make_baseline
from coset.flow._couplings import independent, optimal_transport, orbit, squared_distances
from coset.flow._paths import draw_times, remaining
from coset.flow._sources import make_source
from coset.flow._training import _Matching
from coset.geometry import Manifold, laid_out, manifold
from coset.symmetry.stacks import act_stack, random_stack

SEEDS = st.integers(0, 2**20)


def mixed():
    """A sphere of radius 2, and two Euclidean coordinates."""
    labels = {"x": torch.zeros(4, dtype=torch.long)}
    like = {"x": 2 * torch.eye(4, dtype=torch.float64)[0], "y": torch.zeros(2, dtype=torch.float64)}
    return Space(Manifold((laid_out("x", labels, 2.0),), {"x": (4,), "y": (2,)}, {}), like)


LINE = euclidean({"x": torch.zeros(1, dtype=torch.float64)})
SPACES = {"line": LINE, "sphere": sphere(), "sphere and plane": mixed()}


def test_the_gradient_of_conditional_flow_matching_is_that_of_flow_matching():
    """(3.9) and (3.6): from N(0, 1) to two points, for every feature φ of a field v = Σ w φ, at w = 0, by quadrature.

    E[φ(t, x_t)·u_t(x_t | z)] over pairs against ∫ φ(t, x)·u_t(x)·p_t(x) dx with u_t(x) = E[x₁ − x | x_t = x]/(1 − t).
    """
    ends = torch.tensor([-1.0, 2.0], dtype=torch.float64)
    grid = torch.linspace(-12, 12, 6001, dtype=torch.float64)
    weights = torch.exp(-0.5 * grid.square()) / math.sqrt(2 * math.pi) * (grid[1] - grid[0])
    for time in (0.1, 0.5, 0.8):
        features = [lambda x: x.sin(), lambda x: x, lambda x: torch.exp(-x.square())]
        conditional = torch.zeros(3, dtype=torch.float64)
        for end in ends:
            place, target = Path(LINE).between(
                grid[:, None], end.expand(len(grid), 1), torch.full_like(grid, time), generator()
            )
            conditional += torch.stack([(f(place) * target)[:, 0] @ weights for f in features]) / 2
        densities = torch.stack([torch.exp(-0.5 * ((grid - time * end) / (1 - time)).square()) for end in ends]) / (
            2 * math.sqrt(2 * math.pi) * (1 - time)
        )
        field = ((ends[:, None] - grid) / (1 - time) * densities).sum(0)
        marginal = torch.stack([(f(grid) * field).sum() * (grid[1] - grid[0]) for f in features])
        torch.testing.assert_close(conditional, marginal, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", SPACES)
@settings(max_examples=5)
@given(seed=SEEDS)
def test_targets_are_the_derivatives_of_paths(name, seed):
    """Central differences; (3.16) and the derivative of the arc are the same; ends are met; targets are tangent."""
    space, path = SPACES[name], Path(SPACES[name])
    x0, x1 = points(space, 6, seed), points(space, 6, seed + 1)
    t = torch.rand(6, generator=generator(seed), dtype=torch.float64) * 0.98 + 0.01
    place, target = path.between(x0, x1, t, generator())
    ahead, behind = (path.between(x0, x1, t + step, generator())[0] for step in (1e-5, -1e-5))
    torch.testing.assert_close(target, (ahead - behind) / 2e-5, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(target, path.towards(place, x1, t), rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(space.tangent(place, target), target, rtol=1e-9, atol=1e-9)
    for end, known in ((0.0, x0), (1.0, x1)):
        torch.testing.assert_close(path.between(x0, x1, torch.full_like(t, end), generator())[0], known)


def test_units_that_are_opposite_have_a_path():
    """Any great half circle will do: it is met by a little push."""
    space = sphere()
    x0 = points(space, 5, 0)
    t = torch.full((5,), 0.5, dtype=torch.float64)
    place, target = Path(space).between(x0, -x0, t, generator(9))
    assert space.manifold.check(space.coordinates(place))
    assert ((target.norm(dim=1) - math.pi).abs() < 0.01).all()
    assert ((place * x0).sum(1).abs() < 0.01).all()


def test_noise_along_paths():
    """On a line x_t is off by σε; on spheres by a tangent of that size, and the target still leads to the end."""
    x0, x1 = torch.zeros(20000, 1, dtype=torch.float64), torch.ones(20000, 1, dtype=torch.float64)
    t = torch.full((20000,), 0.25, dtype=torch.float64)
    place, target = Path(LINE, 0.1).between(x0, x1, t, generator())
    assert abs(float(place.mean()) - 0.25) < 4 * 0.1 / 20000**0.5
    assert abs(float(place.std()) / 0.1 - 1) < 4 / 40000**0.5
    assert bool((target == 1).all())
    space = sphere()
    x0, x1, t = points(space, 50, 0), points(space, 50, 1), torch.full((50,), 0.5, dtype=torch.float64)
    place, target = Path(space, 0.05).between(x0, x1, t, generator())
    exact, _ = Path(space).between(x0, x1, t, generator())
    assert space.manifold.check(space.coordinates(place))
    assert 0.03 < float(space.distance(place, exact).square().mean().sqrt()) < 0.12
    torch.testing.assert_close(space.exp(place, target * 0.5), x1)


class To(nn.Module):
    """The velocity of straight lines to one point: x̂₁ is that point at all times."""

    def __init__(self, end):
        super().__init__()
        self.end = end
        self.clock, self.baseline = None, SimpleNamespace(balanced=lambda missed, balance: missed)

    def forward(self, t, x, condition=None, told=None):
        return (self.end - x) / remaining(t)[:, None]


@pytest.mark.parametrize("name", SPACES)
def test_predictions_of_the_end_lead_there(name):
    """Where all data are one point, the field that says so has no loss, and (3.16) of what it says ends there."""
    space = SPACES[name]
    end = points(space, 1, 3)
    field, recipe = To(end), FlowRecipe(prediction="end", batch_size=6, sigma=0.05)
    source = make_source("gaussian" if not space.curved else "uniform", space, points(space, 9, 0), 1.0)
    matching = _Matching(field, end.expand(6, -1), Path(space, 0.05), source, None, recipe, None, 0)
    assert float(matching.loss(0)) < 1e-24
    x0 = points(space, 6, 1)

    def velocity(t, x):
        times = t.expand(len(x))
        return Path(space).towards(x, x + remaining(times)[:, None] * field(times, x), times)

    found = integrate(space, velocity, x0, solver=Solver("euler", 8, retraction="exponential"))
    torch.testing.assert_close(found, end.expand_as(found), rtol=1e-6, atol=1e-6)
    halfway = integrate(space, velocity, x0, 0.0, 0.5, Solver("rk4", 64))
    torch.testing.assert_close(halfway, space.geodesic(x0, end.expand_as(x0), 0.5), rtol=1e-6, atol=1e-6)


def test_times():
    u = draw_times("beta", 40000, torch.zeros((), dtype=torch.float64), generator())
    assert abs(float(u.mean()) - 1 / 3) < 4 * (1 / 18 / 40000) ** 0.5
    assert abs(float(u.var()) - 1 / 18) < 1e-3
    assert float(remaining(torch.ones(1))) > 0


# Couplings ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sphere", "sphere and plane"])
def test_optimal_transport_is_the_best_of_all_pairings(name):
    space = SPACES[name]
    x0, x1 = points(space, 5, 0), points(space, 5, 1)
    costs = torch.tensor([[float(space.distance(a, b)) ** 2 for b in x1] for a in x0])
    torch.testing.assert_close(squared_distances(space, x0, x1).float(), costs)
    paired = optimal_transport(space, None, x0, x1)
    best = min(sum(float(costs[i, p[i]]) for i in range(5)) for p in itertools.permutations(range(5)))
    found = float(space.distance(x0, paired).square().sum())
    assert found == pytest.approx(best, rel=1e-6)
    assert sorted(map(tuple, paired.tolist())) == sorted(map(tuple, x1.tolist()))
    assert independent(space, None, x0, x1) is x1


def test_orbit_coupling_brings_networks_of_one_orbit_together():
    """x₁ = g·x₀ is brought back to x₀, whatever g; others stay in their orbits and come no farther."""
    model, sym, _ = made("mlp, layer norm")
    params = [randomized(model, generator(seed)) for seed in range(4)]
    stack = {name: torch.stack([one[name] for one in params]) for name in params[0]}
    space = euclidean(params[0])
    x0 = space.rows(stack)
    finite = sym.restrict(scales=False)
    moved = space.rows(act_stack(finite, random_stack(finite, 4, generator(1)), stack))
    torch.testing.assert_close(orbit(space, sym, x0, moved), x0)
    other = moved.roll(1, 0)
    nearer = orbit(space, sym, x0, other)
    assert bool((space.distance(x0, nearer) <= space.distance(x0, other) + 1e-9).all())
    torch.testing.assert_close(nearer.norm(dim=1), other.norm(dim=1))
    with pytest.raises(InputError, match="coupling is 'orbit', and the flow has no symmetry"):
        orbit(space, None, x0, other)


# The baseline ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("projection", ["none", "pca", "random"])
def test_the_baseline_alone_carries_moments_to_moments(projection):
    """With a network that says nothing the flow is the affine map from N(m₀, diag s₀²) to the moments of the data."""
    mixing = normal(4, 4, seed=3)
    data = normal(500, 4, seed=4) @ mixing + torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)
    m0, s0 = normal(4, seed=5), 0.5 + torch.rand(4, generator=generator(6), dtype=torch.float64)
    components = None if projection == "none" else 4
    if components:
        data = torch.cat([data, data.mean(0, keepdim=True)])
    baseline = make_baseline(
        data, m0, s0, orbits=None, projection=projection, components=components, generator=generator()
    )

    def velocity(t, x):
        times = t.expand(len(x))
        read, z, rest = baseline.reads(x, times)
        return baseline.velocity(torch.zeros_like(read), z, rest, times)

    x0 = m0 + s0 * normal(20000, 4, seed=7)
    space = euclidean({"x": torch.zeros(4, dtype=torch.float64)})
    x1 = integrate(space, velocity, x0, solver=Solver("dopri5", tolerance=1e-8))
    y0 = (x0 - m0) / s0
    if projection == "none":
        expected = data.mean(0) + data.std(0, correction=0) * y0
        torch.testing.assert_close(x1, expected, rtol=1e-6, atol=1e-6)
    assert (x1.mean(0) - data.mean(0)).abs().max() < 0.1
    if projection == "pca":
        # Along principal components the whole covariance is met, up to that of the draws themselves.
        factor = torch.linalg.lstsq(y0, x1 - data.mean(0)).solution
        torch.testing.assert_close(factor.T @ factor, data.T.cov(correction=0), rtol=1e-3, atol=1e-3)


def test_what_a_network_reads_and_says_has_size_one():
    """z/√a and (u − c·z)/√(λ/a) have mean 0 and variance 1 at all times where x₀ and x₁ are independent Gaussians."""
    m0, s0, mu, variance = 0.3, 2.0, -1.0, torch.tensor([0.04], dtype=torch.float64)
    one = torch.ones(1, dtype=torch.float64)
    baseline = Baseline(m0 * one, s0 * one, mu * one, variance, torch.ones((), dtype=torch.float64), None)
    x0 = m0 + s0 * normal(40000, 1, seed=0)
    x1 = m0 + s0 * (mu + 0.2 * normal(40000, 1, seed=1))
    for time in (0.0, 0.3, 0.7, 0.95):
        t = torch.full((40000,), time, dtype=torch.float64)
        place, target = Path(LINE).between(x0, x1, t, generator())
        read, z, rest = baseline.reads(place, t)
        nothing = baseline.velocity(torch.zeros_like(read), z, rest, t)
        unit = baseline.velocity(torch.ones_like(read), z, rest, t) - nothing
        left = (target - nothing) / unit
        for values in (read, left):
            assert abs(float(values.mean())) < 4 / 200
            assert abs(float(values.var()) - 1) < 4 * (2 / 40000) ** 0.5
        # What is left cannot be told from what is read.
        assert abs(float((read * left).mean())) < 4 / 200


@pytest.mark.parametrize("name", ["mlp, batch norm", "grouped-query attention", "tied embeddings", "grouped+groupnorm"])
def test_entry_orbits_are_those_of_the_group(name):
    """No element takes an entry out of its orbit, and a thousand elements reach all of it."""
    model, sym, _ = made(name)
    params = randomized(model, generator())
    space = euclidean(params)
    orbits = entry_orbits(space, sym)
    numbers = space.coordinates(torch.arange(space.size, dtype=torch.float64))
    whole = {n: numbers.get(space.manifold.tied.get(n, n), t.double()) for n, t in params.items()}
    finite = sym.restrict(scales=False, signs=False)
    reached = [set() for _ in range(space.size)]
    for seed in range(60):
        moved = space.rows(finite.act(finite.random(generator(seed)), {n: whole[n].clone() for n in whole}))
        for place, number in enumerate(moved.abs().round().long().tolist()):
            assert orbits[place] == orbits[number]
            reached[place].add(number)
    sizes = torch.bincount(orbits)[orbits]
    small = [place for place in range(space.size) if sizes[place] <= 6]
    assert small
    assert all(len(reached[place]) == sizes[place] for place in small)


# Sources --------------------------------------------------------------------------------------------------------------


def test_sources_have_the_moments_and_densities_they_say():
    space = mixed()
    rows = points(space, 300, 0)
    flat = space.flat
    for source in (
        make_source("uniform", space, rows, 1.0),
        make_source("wrapped-normal", space, rows, 0.4),
        make_source("gaussian", flat, rows, 1.5),
        make_source("kaiming", flat, rows, 1.0),
    ):
        drawn = source.sample(20000, generator(1))
        assert drawn.shape == (20000, space.size)
        assert ((drawn.mean(0) - source.mean).abs() < 6 * source.std / 20000**0.5 + 0.06).all()
        assert ((drawn.std(0) / source.std - 1).abs() < 0.1).all()
        if source.space.curved:
            assert space.manifold.check(space.coordinates(drawn))
        assert source.log_density(drawn[:7]).shape == (7,)
    # The density of the uniform source is that of the manifold where the Euclidean part has one deviation.
    uniform = make_source("uniform", space, rows, 1.0)
    std = float(uniform.std[-1])
    known = space.manifold.uniform_log_density(space.coordinates(rows), std=std)
    torch.testing.assert_close(uniform.log_density(rows), known)
    with pytest.raises(InputError, match="source is 'sphere'; expected one of gaussian, kaiming, uniform"):
        make_source("sphere", space, rows, 1.0)
    with pytest.raises(InputError, match="source is 'uniform', and no coordinates are on spheres"):
        make_source("uniform", flat, rows, 1.0)


def test_a_space_keeps_all_that_a_network_has():
    model, sym, _ = made("mlp, batch norm")
    params = randomized(model, generator())
    space = Space(manifold(sym, at=[params]), params)
    again = space.points(space.rows(params))
    assert again.keys() == params.keys()
    assert all(torch.equal(again[name], params[name]) and again[name].dtype == params[name].dtype for name in params)
    with pytest.raises(InputError, match="rows have 3 numbers; expected"):
        space.points(torch.zeros(2, 3))


def test_gates_give_every_number_a_factor_of_its_own():
    """From N(0, 1) to deviations of the data that the baseline does not know, by a perceptron of two hidden units.

    Without gates what it says lies in two directions of eight, and the deviations of six stay those of the source.
    """
    target = torch.tensor([0.3, 0.5, 0.7, 1.0, 1.3, 1.6, 2.0, 2.5], dtype=torch.float64)
    data = {"x": target * normal(1000, 8)}
    recipe = FlowRecipe(steps=300, every=300, batch_size=128, learning_rate=2e-2)
    off = {}
    for gates in (False, True):
        fit = fit_flow(
            data, recipe, source=MeanField({"x": 0 * target}, {"x": 1 + 0 * target}), baseline=False, show=False,
            field_options={"hidden": 2, "layers": 1, "gates": gates}, solver=Solver(steps=16),
        )  # fmt: skip
        drawn = fit.posterior.sample(2000, generator(1))["x"]
        off[gates] = (drawn.std(0) / data["x"].std(0)).log().abs()
    assert float(off[True].max()) < 0.15
    assert float(off[False].median()) > 2 * float(off[True].max())
