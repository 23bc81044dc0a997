"""Variational inference with the symmetrized ELBO: gradient, special cases, what it refuses and what it reaches."""

import math

import pytest
import torch
from torch import nn

import coset
from architectures import CASES, made
from coset.distribution import MeanField
from coset.errors import InputError
from coset.models import MLP
from coset.posterior import (
    Density,
    FanIn,
    GaussianNoise,
    Isotropic,
    LearnedNoise,
    Named,
    NoiseParameter,
    fit_mean_field,
)
from coset.posterior.inference.negative_elbo import NegativeELBO
from coset.posterior.problem import pose
from coset.posterior.symmetrized import SymmetrizedELBO, fit_symmetrized, log_prob_symmetrized, mutual_information
from coset.posterior.symmetrized.fitting import Gain, _identity_less
from coset.posterior.symmetrized.orbit import Drawn, orbit

DOUBLE = {"dtype": torch.float64}
SETTINGS = {"epochs": 2, "batch_size": 5, "learning_rate": 0.05, "std": 0.3, "show": False}


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()


@pytest.fixture
def points():
    draws = generator(1)
    return torch.randn(12, 3, generator=draws, **DOUBLE), torch.randint(0, 3, (12,), generator=draws)


class TwoBranches(nn.Module):
    """Two hidden layers side by side: two classes that have no weight in common."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 2)
        self.c, self.d = nn.Linear(3, 3), nn.Linear(2, 3)

    def forward(self, x):
        return self.c(torch.tanh(self.a(x))) + self.d(torch.tanh(self.b(x)))


def same(first, second):
    return all(
        torch.equal(tensor, getattr(second.posterior, kind)[name])
        for kind in ("mean", "std")
        for name, tensor in getattr(first.posterior, kind).items()
    )


# The gradient ---------------------------------------------------------------------------------------------------------


def gains(model, points, proposal, K=5, gradient="bound"):
    """A term, values (μ, ρ) in general position, and noise."""
    problem = pose(model, points, "categorical", 1.0)
    sym = coset.discover(problem.model, problem.x[:2])
    term = Gain(SymmetrizedELBO(sym, K=K, proposal=proposal, gradient=gradient), problem)
    size = problem.layout.size
    values = torch.stack([problem.start, 0.3 + 0.3 * torch.randn(size, generator=generator(2), **DOUBLE)])
    return problem, sym, term, values, torch.randn(size, generator=generator(3), **DOUBLE)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("proposal", ["uniform", "sequential", "permanent", "distance", "transpositions", "exact"])
@pytest.mark.parametrize("branches", [False, True])
@pytest.mark.parametrize("kind", ["bound", "path"])
def test_gradients_by_matrices_are_those_of_the_graph(network, points, proposal, sign, branches, kind):
    if branches and proposal == "distance":
        pytest.skip("distance is for one class")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = TwoBranches().double() if branches else network
    problem, sym, term, values, noise = gains(model, points, proposal, K=20, gradient=kind)
    by_hand = term._by_matrices if term._compared else term._by_graph
    assert bool(term._compared) == (not branches or proposal in ("uniform", "sequential"))
    term.begin(0, 0)
    value, gradient = by_hand(values, noise, sign)
    gradient = torch.zeros_like(values) if gradient is None else gradient
    term.begin(0, 0)
    expected_value, expected = term._by_graph(values, noise, sign)
    torch.testing.assert_close(value, expected_value, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-10)
    assert float(expected.abs().max()) > 1e-3
    # And that of the objective itself, with autograd along ω = μ ± e^ρ·ε, for the path with q given.
    views = problem.layout.views(problem.start)
    leaf = values.clone().requires_grad_()
    mean, std = leaf[0], leaf[1].exp()
    in_density = (mean, std) if kind == "bound" else (values[0], values[1].exp())
    drawn = Drawn(orbit(sym, tuple(views), views), mean + sign * std * noise, *in_density)
    term.begin(0, 0)
    again = SymmetrizedELBO(sym, K=20, proposal=proposal).added(drawn, term._generator)
    torch.testing.assert_close(gradient, torch.autograd.grad(again, leaf)[0], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("times", range(1, 9))
def test_draws_of_the_identity_leave_no_gradient_behind(times):
    order = torch.arange(5).expand(19, 5).clone()
    order[times:] = torch.arange(5).roll(1)
    logs = torch.cat([torch.zeros(1 + times, **DOUBLE), torch.full((19 - times,), -2000.0, **DOUBLE)])
    found = _identity_less(torch.softmax(logs, 0)[1:], order)
    assert not bool(found.any())


@pytest.mark.parametrize("proposal", ["uniform", "exact"])
def test_the_gradient_is_that_of_finite_differences(network, points, proposal):
    _, _, term, values, noise = gains(network, points, proposal)

    def value(at):
        term.begin(0, 0)
        return float(term._by_matrices(at, noise, 1)[0])

    term.begin(0, 0)
    gradient = term.gradient(values, noise, 1).clone()
    for row, place in [(0, 0), (0, 13), (1, 5), (1, 20), (0, 28)]:
        step = torch.zeros_like(values)
        step[row, place] = 1e-5
        found = (value(values + step) - value(values - step)) / 2e-5
        assert found == pytest.approx(float(gradient[row, place]), rel=1e-5, abs=1e-7)
    # Biases of the outputs belong to no unit.
    assert torch.equal(gradient[:, -3:], torch.zeros(2, 3, **DOUBLE))


@pytest.mark.parametrize("kl", ["closed", "monte-carlo", "sticking"])
@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("antithetic", [True, False])
def test_the_term_counts_in_a_step_as_the_entropy_does(network, points, kl, samples, antithetic):
    """ℓ = −(1/N){… + T(H + gain)}: the gradient is that of plain inference less wT/N times the mean of the term's."""
    problem, _, term, values, _ = gains(network, points, "uniform")
    problem = pose(network, points, "categorical", 0.7, 0.4)
    x, y = problem.x[:5], problem.y[:5]

    class Kept:
        """The term, with the gradients it gave."""

        def __init__(self):
            self.given = []

        def gradient(self, *arguments):
            found = term.gradient(*arguments)
            self.given.append(found.clone())
            return found

    found, plain, kept = torch.empty_like(values), torch.empty_like(values), Kept()
    term.begin(0, 0)
    with_term = NegativeELBO(problem, samples, kl, antithetic=antithetic, term=kept)
    without = NegativeELBO(problem, samples, kl, antithetic=antithetic)
    loss = with_term.write_gradient(values, x, y, generator(4), found, weight=0.6)
    assert torch.equal(loss, without.write_gradient(values, x, y, generator(4), plain, weight=0.6))
    assert len(kept.given) == samples
    expected = plain - 0.6 * 0.4 / 12 * torch.stack(kept.given).mean(0)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)


# Special cases --------------------------------------------------------------------------------------------------------


def test_one_permutation_is_plain_inference_to_the_bit(network, points):
    plain = fit_mean_field(network, points, **SETTINGS)
    found = fit_symmetrized(network, points, K=1, **SETTINGS)
    assert same(plain, found)
    assert plain.trace["elbo"] == found.trace["elbo"]
    assert not same(plain, fit_symmetrized(network, points, K=2, **SETTINGS))


def test_the_noise_of_the_weights_is_that_of_plain_inference(network, points):
    """So wide apart that no other permutation weighs anything: the gain is log K, its gradient nothing."""
    with torch.no_grad():
        network[0].weight += 100 * torch.arange(4)[:, None]
    settings = SETTINGS | {"std": 1e-3, "learning_rate": 1e-4}
    plain = fit_mean_field(network, points, **settings)
    found = fit_symmetrized(network, points, K=2, seed=0, **settings)
    for name, tensor in plain.posterior.mean.items():
        torch.testing.assert_close(found.posterior.mean[name], tensor, rtol=0, atol=1e-15)
    # Where the one permutation is the identity itself, once in 24, the gain is 0.
    assert 0 < found.trace["gain"][0] * 12 <= math.log(2)


def test_the_trace_has_the_gain_per_data_point(network, points):
    found = fit_symmetrized(network, points, K=6, temperature=0.5, **SETTINGS)
    for record in found.trace:
        assert record["symmetrized_elbo"] == pytest.approx(record["elbo"] + record["gain"])
        assert record["gain"] <= 0.5 * math.log(6) / 12
    assert found.method == "symmetrized VI"


# Any architecture -----------------------------------------------------------------------------------------------------


class _Quadratic:
    """A likelihood of one's own: log p = −½‖outputs‖², whatever their shape."""

    task = "regression"

    def fit_targets(self, targets, outputs, name="y"):
        return targets

    def log_prob(self, outputs, targets):
        return -0.5 * outputs.flatten(1).square().sum(1)


ARCHITECTURES = [
    "flatten", "batchnorm+depthwise", "grouped+groupnorm", "grouped-query attention", "tied embeddings",
    "concatenation", "residual mlp", "residual mlp, one stream", "mlp, batch norm", "mlp, layer norm", "myrtle",
    "resnet20, frn",
]  # fmt: skip


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_any_discovered_model_is_inferred(name):
    assert name in CASES
    model, sym, shape = made(name)
    x = torch.randn(4, *shape, generator=generator(), **DOUBLE)
    settings = {"epochs": 1, "batch_size": 4, "learning_rate": 1e-3, "likelihood": _Quadratic(), "show": False}
    for proposal in ("uniform", "sequential"):
        fit = fit_symmetrized(model, (x, torch.zeros(4)), sym=sym, K=3, proposal=proposal, **settings)
        assert set(fit.posterior.mean) == set(model.state_dict())
        assert math.isfinite(fit.trace["gain"][0])
        # At deviations of 0.01 permuted modes are far from each other.
        assert fit.trace["gain"][0] * 4 > 0.3


def test_points_that_tell_units_apart_are_refused():
    """The posterior given fixed positions, statistics or frozen weights is not that given permuted ones."""
    model, sym, shape = made("cct")
    x = torch.randn(4, *shape, generator=generator(), **DOUBLE)
    settings = {"epochs": 1, "batch_size": 4, "learning_rate": 1e-3, "likelihood": _Quadratic(), "show": False}
    with pytest.raises(InputError, match="'positions', which is not inferred, differs between its units"):
        fit_symmetrized(model, (x, torch.zeros(4)), sym=sym, K=3, **settings)
    others = sym.restrict([name for name in sym.permuting if "positions" not in sym.carriers(name)])
    assert fit_symmetrized(model, (x, torch.zeros(4)), sym=others, K=3, **settings).trace["gain"][0] > 0


def test_an_average_over_points_would_not_be_a_bound_of_the_evidence():
    """Linear regression on frozen orthogonal features: q is the posterior, and its ELBO the evidence already."""
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.ReLU(), nn.Linear(3, 1, bias=False)).double()
    model[0].weight.requires_grad_(False).copy_(torch.eye(3))
    x = torch.linalg.qr(torch.randn(6, 3, generator=generator(), **DOUBLE)).Q.abs().round()
    x[:3], x[3:] = 2 * torch.eye(3), 0.0
    y = x.sum(-1, keepdim=True) * torch.tensor([1.0, -1, 2, 0, 0, 0], **DOUBLE)[:, None]
    noise, precision = 0.5, x.T @ x / 0.25 + torch.eye(3, **DOUBLE)
    mean = torch.linalg.solve(precision, x.T @ y / 0.25)
    q = MeanField(model.state_dict() | {"2.weight": mean.T}, {"2.weight": precision.diagonal().rsqrt()[None]})
    covariance = x @ x.T + 0.25 * torch.eye(6, **DOUBLE)
    evidence = torch.distributions.MultivariateNormal(torch.zeros(6, **DOUBLE), covariance).log_prob(y[:, 0])
    sym = coset.discover(model, x[:2])
    plain = coset.posterior.elbo(model, q, (x, y), likelihood=GaussianNoise(noise), samples=300)
    assert abs(plain.value - float(evidence) / 6) < 4.5 * plain.error
    assert mutual_information(sym, q, samples=100).value / 6 > 4.5 * plain.error
    with pytest.raises(InputError, match=r"'0\.weight', which is not inferred, differs between its units"):
        SymmetrizedELBO(sym).evaluate(model, q, (x, y), likelihood=GaussianNoise(noise))


def test_learned_noise_belongs_to_no_unit():
    torch.manual_seed(0)
    model = NoiseParameter(MLP(1, [3], 1).double(), start=1.0)
    x = torch.linspace(-1, 1, 8, **DOUBLE)[:, None]
    fit = fit_symmetrized(
        model, (x, x.square()), K=3, likelihood=LearnedNoise(), prior=Named({"log_noise": (0.0, 3.0)}, Isotropic(0.8)),
        **SETTINGS,
    )  # fmt: skip
    assert "log_noise" in fit.posterior.std


def test_single_precision_is_kept(network, points):
    x, y = points
    fit = fit_symmetrized(network.float(), (x.float(), y), K=3, **SETTINGS)
    assert fit.posterior.mean["0.weight"].dtype == torch.float32
    assert math.isfinite(fit.trace["symmetrized_elbo"][-1])


# What is refused ------------------------------------------------------------------------------------------------------


def _first_unit_is_special(params):
    return -0.5 * sum(tensor.square().sum() for tensor in params.values()) - params["0.weight"][0].square().sum()


def _last_unit_is_special(params):
    return -0.5 * sum(tensor.square().sum() for tensor in params.values()) - params["0.bias"][-1].square()


def _smooth(params):
    return -sum((1 + tensor.square()).log().sum() for tensor in params.values())


@pytest.mark.parametrize("prior", [_first_unit_is_special, _last_unit_is_special])
@pytest.mark.parametrize("units", [2, 3, 8])
def test_a_prior_that_tells_units_apart_is_refused(points, prior, units):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, units), nn.Tanh(), nn.Linear(units, 3)).double()
    (name,) = coset.discover(model, points[0][:2]).permuting
    with pytest.raises(InputError, match=f"prior: .* when units of the class '{name}' change places; expected a prior"):
        fit_symmetrized(model, points, prior=Density(prior), **SETTINGS)


@pytest.mark.parametrize(
    "prior", [0.5, FanIn(), Named({"0.weight": (0.1, 0.5)}, Isotropic(0.7)), Density(_smooth), _smooth]
)
def test_a_prior_that_does_not_is_taken(network, points, prior):
    fit = fit_symmetrized(network, points, prior=prior, K=3, **(SETTINGS | {"epochs": 1}))
    assert math.isfinite(fit.trace["symmetrized_elbo"][0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"K": 0}, "K is 0; expected a whole number ≥ 1"),
        ({"K": True}, "K is True; expected a whole number ≥ 1"),
        ({"proposal": "gibbs"}, "proposal is 'gibbs'; expected one of uniform, sequential"),
        ({"samples": 0}, "samples is 0; expected a whole number ≥ 1"),
        ({"sym": {"u0": 4}}, "sym is a dict; expected a Symmetry"),
        ({"std": -1.0}, "std is -1.0; expected a number > 0"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_bad_settings_are_refused_by_name(network, points, change, message):
    with pytest.raises(InputError, match=message):
        fit_symmetrized(network, points, **(SETTINGS | change))


@pytest.mark.parametrize("width", [5, None])
def test_the_symmetry_of_another_model_is_refused(network, points, width):
    other = MLP(3, [4], 3) if width is None else nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 3))
    sym = coset.discover(other.double(), points[0][:2])
    with pytest.raises(InputError, match=r"'0\.weight'"):
        fit_symmetrized(network, points, sym=sym, **SETTINGS)


def test_a_model_without_permutations_is_refused(points):
    model = nn.Linear(3, 3).double()
    with pytest.raises(InputError, match="sym permutes no class of two or more units"):
        fit_symmetrized(model, points, **SETTINGS)


# What it reaches ------------------------------------------------------------------------------------------------------


def test_training_on_the_average_reaches_a_higher_bound_than_plain_inference():
    """Two units and few data: plain inference lets both be alike, on average it is better to keep them apart."""
    torch.manual_seed(0)
    model = MLP(1, [2], 1, activation="tanh").double()
    x = torch.linspace(-1, 1, 3, **DOUBLE)[:, None]
    sym = coset.discover(model, x[:2])
    training = SETTINGS | {"epochs": 200, "schedule": "cosine", "samples": 2, "likelihood": GaussianNoise(1.0)}
    plain = fit_mean_field(model, (x, x), **training).posterior
    average = fit_symmetrized(model, (x, x), sym=sym, proposal="exact", start=plain, **training).posterior
    problem = pose(model, (x, x), GaussianNoise(1.0), 1.0)
    noise = torch.randn(8000, problem.layout.size, generator=generator(3), **DOUBLE)
    elbos, gains = [], []
    for q in (plain, average):
        flats = problem.layout.flatten(q.mean) + problem.layout.flatten(q.std) * noise
        omega = problem.layout.views(flats)
        with torch.no_grad():
            elbos.append(torch.vmap(lambda flat: problem.log_joint(flat, x, x))(flats) + q.entropy())
        gains.append(q.log_prob(omega) - log_prob_symmetrized(sym, q, omega))
    # The same noise for both: their difference has less of it than either.
    total, own = elbos[1] + gains[1] - elbos[0] - gains[0], elbos[0] - elbos[1]
    for difference in (total, own, gains[1] - gains[0]):
        assert float(difference.mean()) > 4.5 * float(difference.std()) / math.sqrt(len(noise))
