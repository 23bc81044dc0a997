"""Studies of flows to known distributions: their measures and oracles on cases that are known otherwise."""

import itertools
import math

import pytest
import torch
from scipy.integrate import quad

from coset.distribution import Samples
from coset.flow import Solver, euclidean, integrate
from coset.posterior import RealPredictive, TargetLikelihood
from coset_studies.flows import plane, posterior, two_gaussians
from coset_studies.flows._sphere import VonMisesFisher, four_modes, quadrature, sphere


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_the_mixture_on_the_sphere_is_a_density_of_its_draws():
    nodes, weights = quadrature(40)
    mixture = four_modes()
    assert float((weights * mixture.log_density(nodes).exp()).sum()) == pytest.approx(1, abs=1e-9)
    axis = torch.tensor([[0.6, 0.0, 0.8]], dtype=torch.float64)
    one = VonMisesFisher(axis, torch.tensor([5.0]).double(), torch.ones(1).double())
    x = one.draw(20_000, generator())
    torch.testing.assert_close(x.norm(dim=1), torch.ones(20_000, dtype=torch.float64))
    # E⟨μ, x⟩ = coth κ − 1/κ, and nothing across.
    mean, spread = x.mean(0), 1 / math.sqrt(20_000)
    assert float((mean - axis[0] * (1 / math.tanh(5) - 1 / 5)).abs().max()) < 4 * spread
    drawn = mixture.draw(20_000, generator(1)).mean(0)
    exact = (weights[:, None] * mixture.log_density(nodes).exp()[:, None] * nodes).sum(0)
    assert float((drawn - exact).abs().max()) < 4 * spread


@pytest.mark.parametrize("space", [euclidean({"x": torch.zeros(3)}), sphere()], ids=["plane", "sphere"])
def test_transport_costs_are_those_of_the_best_pairing(space):
    x, y = (space.project(torch.randn(5, 3, generator=generator(seed)).double()) for seed in (0, 1))
    costs = torch.stack(
        [space.distance(x, y[list(order)]).square().mean() for order in itertools.permutations(range(5))]
    )
    assert plane.transport_cost(space, x, y) == pytest.approx(float(costs.min()))


def test_moons_and_gaussians_are_where_they_should_be():
    drawn = plane.eight_gaussians().sample(4000, generator())["x"]
    assert float(drawn.norm(dim=1).mean()) == pytest.approx(5, abs=0.05)
    moons = plane.two_moons(4000, generator())
    # Means of half circles are (0, 2/π) and (1, 1/2 − 2/π), of both (1/2, 1/4).
    torch.testing.assert_close(moons.mean(0), torch.tensor([0.5, -0.25]), atol=0.2, rtol=0)


def test_the_other_sampler_has_half_the_spread():
    """With λ = 1: z(1) = e^{F(1)}(1 − ∫e^{−F}), F(s) = log(a(s))/4 + (arctan(2s − 1) + π/4)/2; and by its velocity."""

    def exponent(s):
        return math.log((1 - s) ** 2 + s * s) / 4 + (math.atan(2 * s - 1) + math.pi / 4) / 2

    exact = math.exp(exponent(1)) * (1 - quad(lambda s: math.exp(-exponent(s)), 0, 1)[0])
    assert two_gaussians.released_ratio(1.0) == pytest.approx(exact, rel=1e-6)
    assert 0.45 < exact < 0.55
    start = torch.tensor([[-1.0], [2.0]], dtype=torch.float64)

    def velocity(t, x):
        return (2 * t - 1) / ((1 - t) ** 2 + t * t) * x

    space, solver = euclidean({"x": torch.zeros(1)}), Solver("rk4", 50)
    torch.testing.assert_close(integrate(space, velocity, start, solver=solver), start, rtol=1e-6, atol=1e-6)
    found = integrate(space, two_gaussians.released(velocity, start), start, solver=solver)
    torch.testing.assert_close(found, exact * start, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", [two_gaussians.DIAGONAL, two_gaussians.CORRELATED])
def test_draws_of_targets_have_their_covariance(kind):
    target = two_gaussians.make_target(kind, (2,), 2, generator())
    drawn = target.draw(40_000, generator(1))
    rows = torch.cat([tensor.flatten(1) for tensor in drawn.values()], 1)
    assert {name: t.shape[1:] for name, t in drawn.items()} == {n: t.shape for n, t in target.source.mean.items()}
    found = torch.cov((rows / target.scale).double().mT)
    sizes = target.deviations / target.scale
    assert float(((found - target.covariance) / torch.outer(sizes, sizes)).abs().max()) < 5 * math.sqrt(2 / 40_000)
    assert float(((rows.mean(0) - target.mean) / target.deviations).abs().max()) < 5 / math.sqrt(40_000)


def predicted(values, density):
    members = torch.as_tensor(values, dtype=torch.float64)[:, None, None].expand(-1, 3, 1)
    mean, std = members.mean(0), members.std(0, correction=0)
    targets = TargetLikelihood(mean, torch.full((3,), density), torch.zeros(3), 0.0)
    return RealPredictive(len(members), targets, mean, torch.ones_like(std), std, members, torch.ones_like(members))


def test_errors_of_predictions_are_in_deviations_of_the_posterior():
    values = torch.linspace(-2, 2, 101, dtype=torch.float64)
    exact = predicted(values, -1.0)
    assert posterior.errors(exact, exact) == dict.fromkeys((posterior.MEAN, posterior.INTERVAL, posterior.DENSITY), 0)
    sd = float(values.std(correction=0))
    moved = posterior.errors(predicted(values + sd, -1.5), exact)
    assert moved == pytest.approx({posterior.MEAN: 1, posterior.INTERVAL: 1, posterior.DENSITY: 0.5})
    # Twice as wide: the ends at ±1.8 are at ±3.6.
    wide = posterior.errors(predicted(2 * values, -1.0), exact)
    assert wide == pytest.approx({posterior.MEAN: 0, posterior.INTERVAL: 1.8 / sd, posterior.DENSITY: 0}, abs=1e-9)


def test_some_draws_are_at_equal_distances():
    samples = Samples({"w": torch.arange(12.0).reshape(2, 6, 1)})
    assert posterior.some_of(samples, 4, 0).params["w"].flatten().tolist() == [0, 3, 6, 9]
    assert posterior.some_of(samples, 4, 1).params["w"].flatten().tolist() == [1, 4, 7, 10]
    assert posterior.some_of(samples, 12, 2).params["w"].flatten().sort().values.tolist() == list(range(12))


def test_what_a_flow_is_worth_in_draws():
    """Errors fall as 1/√n here: half of that of 100 draws is that of 400; chance that rises counts as level."""
    sizes = (25, 50, 100, 200)
    curve = [1 / math.sqrt(size) for size in sizes]
    assert posterior.worth(0.12, sizes, curve) == (pytest.approx(1 / 0.12**2), "")
    assert posterior.worth(0.21, sizes, curve) == (None, "fewer than 25")
    assert posterior.worth(0.05, sizes, curve) == (None, "more than 200")
    assert posterior.worth(0.2, sizes, [0.2, 0.3, 0.1, 0.1])[0] == pytest.approx(25)


def test_the_gaussian_has_the_covariance_of_the_draws():
    drawn = Samples({"a": torch.randn(1, 50, 2, generator=generator()).double(), "b": torch.randn(1, 50, 1).double()})
    made = posterior.MAKERS[posterior.FULL](posterior.QUICK, drawn, 0).sample(20_000, generator(1))
    rows = torch.cat([made["a"], made["b"]], 1)
    torch.testing.assert_close(torch.cov(rows.T), torch.cov(posterior.vectors(drawn).T), atol=0.06, rtol=0)
