"""Static flows of coupling layers: densities against autograd and quadrature, fits against closed forms."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.distributions import MultivariateNormal

import coset
import posterior.test_posterior_contract as fits
from architectures import randomized
from coset.distribution import Gaussian, MeanField, Samples, load_distribution, save_distribution
from coset.distribution.density import monomial
from coset.errors import InputError
from coset.flow import (
    CouplingFlow,
    PosteriorTarget,
    carry,
    evidence,
    fit_coupling_flow,
    fit_coupling_flow_to_draws,
    transport,
)
from coset.flow._coupling_layers import Couplings
from coset.models import MLP
from coset.posterior import GaussianNoise, Isotropic, fit_hmc, fit_mean_field, predictive
from coset.symmetry.action import Action
from distribution.contract import Contract, seeded

DOUBLE = torch.float64


def flow_over(params, names, generator, layers=3, hidden=(5,), strength=0.5):
    """Any flow over ``params``: T is far from linear."""
    size = sum(params[name].numel() for name in names)
    couplings = Couplings(size, layers, hidden, 1.0)
    conditioners = {
        name: strength * torch.randn(shape, generator=generator, dtype=DOUBLE) / math.sqrt(shape[-1])
        for name, shape in couplings.shapes.items()
    }
    scale = 0.1 + torch.rand(size, generator=generator, dtype=DOUBLE)
    signs = 1.0 - 2.0 * torch.randint(0, 2, (size,), generator=generator)
    return CouplingFlow(params, scale * signs, torch.randperm(size, generator=generator), conditioners, names, 1.0)


def plane_flow(seed=0, size=2, **how):
    return flow_over({"x": torch.arange(size, dtype=DOUBLE)}, ("x",), seeded(seed), **how)


class TestCouplingFlow(Contract):
    exact = True

    def make(self, params, names, generator):
        q = flow_over(params, names, generator)
        dtype = params[names[0]].dtype
        conditioners = {name: tensor.to(dtype) for name, tensor in q.conditioners.items()}
        return CouplingFlow(params, q.scale.to(dtype), q.order, conditioners, names, q.bound)

    def check_entropy(self, moved, q, volume):
        torch.testing.assert_close(
            torch.tensor(moved.entropy(16, seeded()), dtype=DOUBLE),
            torch.tensor(q.entropy(16, seeded()), dtype=DOUBLE) + torch.tensor([float(volume), 0.0], dtype=DOUBLE),
        )


# Densities ------------------------------------------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(
    size=st.integers(2, 7),
    layers=st.integers(1, 5),
    hidden=st.sampled_from([(), (4,), (3, 5)]),
    seed=st.integers(0, 2**20),
)
def test_densities_follow_from_the_jacobian(size, layers, hidden, seed):
    """log q(θ) = log N(ε) − log|det ∂θ/∂ε| with autograd's Jacobian, and noise is found again."""
    q = plane_flow(seed, size, layers=layers, hidden=hidden, strength=1.0)
    noise = torch.randn(size, generator=seeded(seed + 1), dtype=DOUBLE)
    jacobian = torch.autograd.functional.jacobian(lambda e: q.from_noise(e)["x"], noise)
    normal = MultivariateNormal(torch.zeros(size, dtype=DOUBLE), torch.eye(size, dtype=DOUBLE))
    expected = normal.log_prob(noise) - torch.linalg.slogdet(jacobian)[1]
    torch.testing.assert_close(q.log_prob(q.from_noise(noise)), expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(q.to_noise(q.from_noise(noise)), noise, rtol=1e-10, atol=1e-10)


def test_each_half_moves_the_other():
    """The Jacobian of one layer is triangular, and of two it is full."""
    noise = torch.randn(5, generator=seeded(), dtype=DOUBLE)
    for layers, empty in ((1, 6 + 2 + 3 * 2), (2, None)):
        q = plane_flow(1, 5, layers=layers)
        jacobian = torch.autograd.functional.jacobian(lambda e, q=q: q.couplings(q.conditioners, e)[0], noise)
        if empty is not None:
            assert bool((jacobian[:3] == torch.eye(5, dtype=DOUBLE)[:3]).all())
            assert bool((jacobian[3:, :3] != 0).all())
        else:
            assert bool((jacobian[:3, 3:] != 0).all())
            assert bool((jacobian[3:, :3] != 0).all())


@settings(max_examples=25, deadline=None)
@given(size=st.integers(2, 70))
def test_every_two_numbers_are_in_different_halves_somewhere(size):
    depths = math.ceil(math.log2(size))
    masks = Couplings(size, 2 * depths, (), 1.0).masks
    apart = torch.zeros(size, size, dtype=torch.bool)
    for fixed, moving, _ in masks:
        assert sorted([*fixed.tolist(), *moving.tolist()]) == list(range(size))
        assert len(fixed) > 0 < len(moving)
        apart[moving[:, None], fixed] = True
    # Each moves the other, in some layer or other.
    assert bool((apart | torch.eye(size, dtype=torch.bool)).all())
    assert abs(len(masks[0][0]) - len(masks[0][1])) <= 1


def test_the_density_is_normalised():
    """∫ q = 1 on a grid in two dimensions, and E_q[p/q] = 1 for a p that is known."""
    q = plane_flow(3, strength=1.0)
    drawn = q.sample(20_000, seeded(1))["x"]
    low, high = drawn.amin(0) - 4 * drawn.std(0), drawn.amax(0) + 4 * drawn.std(0)
    axes = [torch.linspace(float(a), float(b), 801, dtype=DOUBLE) for a, b in zip(low, high, strict=True)]
    cell = math.prod(float(axis[1] - axis[0]) for axis in axes)
    grid = torch.cartesian_prod(*axes)
    assert float(q.log_prob({"x": grid}).exp().sum()) * cell == pytest.approx(1, abs=1e-3)
    # p within q: a Gaussian of half its deviations, so that the weights are bounded.
    p = MultivariateNormal(drawn.mean(0), torch.cov(drawn.T) / 4)
    weights = (p.log_prob(drawn) - q.log_prob({"x": drawn})).exp()
    error = float(weights.std()) / math.sqrt(len(weights))
    assert error < 0.05
    assert abs(float(weights.mean()) - 1) < 4 * error


def test_moments_and_entropy_are_those_of_draws():
    q = plane_flow(3, strength=1.0)
    drawn = q.sample(40_000, seeded(5))["x"]
    spread = drawn.std(0)
    assert bool(((q.mean["x"] - drawn.mean(0)).abs() < 5 * spread * math.sqrt(1 / 4096 + 1 / 40_000)).all())
    torch.testing.assert_close(q.std["x"], spread, rtol=0.05, atol=0)
    values = -q.log_prob({"x": drawn})
    found = q.entropy(20_000, seeded(6))
    assert abs(float(values.mean()) - found.value) < 4 * math.hypot(found.error, float(values.std()) / 200)
    # Only the volume is random: less noise than the mean of −log q has.
    assert found.error * math.sqrt(20_000) < float(values.std())


def test_without_layers_that_do_anything_it_is_the_gaussian():
    """T the identity: density, entropy, mean and deviations of N(m, diag s²), without an error."""
    q = plane_flow(0, 4)
    still = {name: torch.zeros_like(tensor) for name, tensor in q.conditioners.items()}
    q = CouplingFlow(q.location, q.scale, q.order, still, q.names, q.bound)
    normal = MeanField(q.location, {"x": q.scale.abs()})
    points = q.sample(5, seeded())
    torch.testing.assert_close(q.log_prob(points), normal.log_prob(points))
    value, error = q.entropy(10, seeded())
    assert value == pytest.approx(float(normal.entropy()), rel=1e-12)
    assert error < 1e-12
    torch.testing.assert_close(q.mean["x"], normal.mean["x"])
    torch.testing.assert_close(q.std["x"], normal.std["x"])


def test_it_is_moved_with_signs_scales_and_orders(tmp_path):
    """Of a real network: predictions stay, densities change by log|det g|, and the moved flow is kept in files."""
    model = MLP(2, [5], 2, activation="relu").double()
    x = torch.randn(6, 2, generator=seeded(), dtype=DOUBLE)
    sym = coset.discover(model, x)
    params = randomized(model, seeded(1))
    q, g = flow_over(params, tuple(params), seeded(2)), sym.random(seeded(3))
    moved = sym.act(g, q)
    save_distribution(moved, tmp_path / "q", sym=sym)
    again = load_distribution(tmp_path / "q", sym=sym)
    draws = q.sample(4, seeded(4))
    volume = monomial(Action(sym, g), params, q.names)[1].abs().log().sum()
    assert float(volume.abs()) > 0.1
    assert torch.equal(again.log_prob(sym.act(g, draws)), moved.log_prob(sym.act(g, draws)))
    torch.testing.assert_close(again.log_prob(sym.act(g, draws)), q.log_prob(draws) - volume)
    seen = [predictive(model, one, x, samples=8).probabilities for one in (q, again)]
    torch.testing.assert_close(*seen)


# Fits to a posterior --------------------------------------------------------------------------------------------------


@pytest.fixture
def _listed(monkeypatch):
    """The suite of all methods of inference, with this one among them."""
    case = fits.Case(
        "coupling-flow",
        fits.DESCENT | {"epochs": 4, "samples": 2, "layers": 2, "hidden": (4,), "learning_rate": 0.01},
        (("layers", 3, "layers is 2 there and 3 here"), ("gradient", "total", "gradient is 'sticking' there")),
    )
    monkeypatch.setitem(fits.FITS, "coupling-flow", fit_coupling_flow)
    monkeypatch.setitem(fits.CASES, "coupling flow", case)


@pytest.mark.usefixtures("_listed")
class TestItIsAMethodOfInference:
    def test_resumed(self, tmp_path):
        fits.test_an_interrupted_run_goes_on_to_the_same_bits("coupling flow", tmp_path)

    def test_seeded(self):
        fits.test_the_seed_decides_and_a_callback_that_looks_changes_nothing("coupling flow")

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"seed": -1}, "seed is -1; expected a whole number from 0"),
            ({"callback": 3}, "callback is a int; expected a function"),
            ({"temperature": -1.0}, "temperature is -1.0"),
            ({"likelihood": "nope"}, "likelihood is 'nope'; expected one of"),
            ({"prior": -2.0}, "-2.0"),
            ({"layers": 0}, "layers is 0; expected a whole number ≥ 1"),
            ({"hidden": 5}, "hidden is 5; expected a sequence of widths"),
            ({"bound": 0.0}, "bound is 0.0; expected a number > 0"),
            ({"gradient": "no"}, "gradient is 'no'; expected one of sticking, total"),
            ({"start": {"layers.0.weight": 3}}, r"start\['layers.0.weight'\] is a int"),
        ],
    )
    def test_bad_settings_are_named(self, change, message):
        fits.test_bad_settings_are_named("coupling flow", change, message)


def linear_gaussian(size=4, noise=0.5):
    """A linear model, its data, the exact posterior and the log evidence per point, prior N(0, 1)."""
    generator = seeded(0)
    x = torch.randn(30, size, generator=generator, dtype=DOUBLE)
    x[:, 1] = x[:, 0] + 0.3 * x[:, 1]
    x[:, 3] = 0.8 * x[:, 2] + 0.5 * x[:, 3]
    y = x @ torch.randn(size, 1, generator=generator, dtype=DOUBLE)
    y = y + noise * torch.randn(30, 1, generator=generator, dtype=DOUBLE)
    model = nn.Linear(size, 1, bias=False).double()
    with torch.no_grad():
        model.weight.zero_()
    covariance = torch.linalg.inv(x.T @ x / noise**2 + torch.eye(size, dtype=DOUBLE))
    covariance = (covariance + covariance.T) / 2
    posterior = Gaussian({"weight": (covariance @ x.T @ y / noise**2).T}, covariance, ("weight",))
    marginal = MultivariateNormal(
        torch.zeros(30, dtype=DOUBLE), x @ x.T + noise**2 * torch.eye(30, dtype=DOUBLE)
    ).log_prob(y[:, 0])
    return model, (x, y), posterior, float(marginal) / 30, {"likelihood": GaussianNoise(noise)}


@pytest.fixture(scope="module")
def linear_fit():
    model, data, _, _, how = linear_gaussian()
    settings = {"epochs": 900, "batch_size": 30, "learning_rate": 0.05, "schedule": "cosine", "show": False} | how
    return fit_coupling_flow(model, data, hidden=(), layers=4, std=0.3, **settings)


def test_a_linear_model_is_inferred_with_its_correlations(linear_fit):
    """Means, variances and correlations of the closed form; the bound is the log evidence."""
    model, data, exact, log_evidence, how = linear_gaussian()
    q = linear_fit.posterior
    drawn = q.sample(40_000, seeded(1))["weight"][:, 0]
    spread = exact.std["weight"][0]
    correlation = exact.covariance / torch.outer(spread, spread)
    assert float((correlation - torch.eye(4, dtype=DOUBLE)).abs().max()) > 0.8
    assert float(((drawn.mean(0) - exact.mean["weight"][0]) / spread).abs().max()) < 0.05
    torch.testing.assert_close(torch.corrcoef(drawn.T), correlation, rtol=0, atol=0.03)
    torch.testing.assert_close(drawn.std(0), spread, rtol=0.05, atol=0)
    # KL[q‖p] by draws of q, which no fit to one number can make small.
    points = {"weight": drawn[:, None]}
    assert float((q.log_prob(points) - exact.log_prob(points)).mean()) < 0.03
    found = evidence(model, q, data, **how)
    assert found.elbo.value - log_evidence < 4 * found.elbo.error
    assert abs(found.elbo.value - log_evidence) < 1e-3
    assert abs(found.importance - log_evidence) < 1e-3
    assert found.effective > 100
    assert abs(linear_fit.trace["elbo"][-1] - log_evidence) < 3e-3


def test_a_mean_field_misses_what_couplings_find(linear_fit):
    model, data, exact, _, how = linear_gaussian()
    settings = {"epochs": 300, "batch_size": 30, "learning_rate": 0.02, "schedule": "cosine", "show": False} | how
    field = fit_mean_field(model, data, samples=4, **settings).posterior
    bounds = [evidence(model, q, data, **how).elbo for q in (field, linear_fit.posterior)]
    assert bounds[0].value + 4 * bounds[0].error < bounds[1].value
    # The best of all mean fields has 1/(S⁻¹)_ii for variances.
    best = torch.linalg.inv(exact.covariance).diagonal().rsqrt()
    torch.testing.assert_close(field.std["weight"][0], best, rtol=0.1, atol=0)


def test_evidence_of_the_exact_posterior_has_no_error():
    """p(Y, θ)/p(θ | Y) is p(Y), whatever θ; tempered the same with the tempered posterior."""
    model, data, exact, log_evidence, how = linear_gaussian()
    found = evidence(model, exact, data, samples=5, **how)
    assert found.elbo.value == pytest.approx(log_evidence, rel=1e-9)
    assert found.elbo.error < 1e-9
    assert found.importance == pytest.approx(log_evidence, rel=1e-9)
    assert found.effective == pytest.approx(5)
    cold = Gaussian(exact.mean, 0.3 * exact.covariance, exact.names)
    assert evidence(model, cold, data, samples=5, temperature=0.3, **how).elbo.error < 1e-9


@pytest.mark.parametrize("gradient", ["sticking", "total"])
@pytest.mark.parametrize("samples", [1, 3])
def test_gradients_are_those_of_the_bound(gradient, samples):
    """E over noise of either gradient is autograd's of the Monte Carlo bound, with one set of draws for "total"."""
    from coset.flow._coupling_fits import _ascent
    from coset.flow._coupling_layers import Packed, log_normal, push, random_order
    from coset.posterior.problem import pose

    model, data, _, _, how = linear_gaussian()
    problem = pose(model, data, how["likelihood"], 1.0, 0.7)
    packed = Packed(Couplings(4, 2, (3,), 2.0), random_order(4, 0, problem.start.device))
    start = packed.initial(problem.start, torch.full_like(problem.start, -1.0), 0)
    values = start + 0.1 * torch.randn(start.shape, generator=seeded(2), dtype=DOUBLE)
    noise = torch.randn(samples, 4, generator=seeded(3), dtype=DOUBLE)

    def bound(flat, eps):
        theta, volume = push(packed.couplings, packed.parts(flat), eps)
        joints = torch.stack([problem.log_joint(one, *data) for one in theta])
        return -(joints - 0.7 * (log_normal(eps) - volume)).mean() / problem.count

    terms, found = _ascent(problem, packed, values, noise, *data, gradient == "sticking")
    assert float(terms.sum()) == pytest.approx(float(bound(values, noise)), rel=1e-9)
    if gradient == "total":
        torch.testing.assert_close(found, torch.func.grad(bound)(values, noise), rtol=1e-9, atol=1e-9)
        return
    # The two differ by a score, whose mean is zero: within the error of many draws.
    many = torch.randn(100, 1, 4, generator=seeded(4), dtype=DOUBLE)
    pairs = [[_ascent(problem, packed, values, one, *data, how)[1] for one in many] for how in (True, False)]
    apart = torch.stack(pairs[0]) - torch.stack(pairs[1])
    errors = apart.std(0) / math.sqrt(len(many))
    assert bool((apart.mean(0).abs() < 5 * errors + 1e-12).all())
    assert float(errors.max()) > 0


def test_frozen_tied_and_counted_tensors_are_points():
    """Batch-norm statistics, a frozen bias and a tied matrix: what is trained varies, once."""

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm, self.last = nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3)
            self.last.weight = self.first.weight
            self.last.bias.requires_grad_(False)

        def forward(self, x):
            return self.last(self.norm(self.first(x)).tanh())

    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Tied()
    x, y = torch.randn(20, 3, generator=seeded()), torch.arange(20) % 3
    fit = fit_coupling_flow(model, (x, y), epochs=2, batch_size=20, learning_rate=1e-2, samples=1, show=False)
    q = fit.posterior
    assert q.names == ("first.weight", "first.bias", "norm.weight", "norm.bias")
    drawn = q.sample(3, seeded())
    assert drawn.keys() == model.state_dict().keys()
    assert drawn["last.weight"] is drawn["first.weight"]
    assert bool((drawn["last.bias"] == model.last.bias).all())
    assert predictive(model, q, x, samples=4).probabilities.shape == (20, 3)


# Fits to draws --------------------------------------------------------------------------------------------------------


def banana(n, seed):
    """x = 2z₁, y = z₁² + z₂/2, of determinant 1: entropy 1 + log 2π."""
    z = torch.randn(n, 2, generator=seeded(seed), dtype=DOUBLE)
    return Samples({"x": torch.stack([2 * z[:, 0], z[:, 0].square() + z[:, 1] / 2], -1)[None]})


def banana_log_prob(points):
    z = points[..., 0] / 2
    rest = 2 * (points[..., 1] - z.square())
    return -0.5 * (z.square() + rest.square()) - math.log(2 * math.pi)


BANANA = {"epochs": 25, "batch_size": 200, "learning_rate": 1e-2, "schedule": "cosine", "show": False}


def test_a_banana_is_learned_from_draws():
    """Held-out −log q is near the entropy, where a Gaussian is far from it."""
    held = banana(4000, 1)
    fit = fit_coupling_flow_to_draws(banana(2000, 0), held_out=held, **BANANA)
    q, points = fit.posterior, held.flat["x"]
    entropy = 1 + math.log(2 * math.pi)
    assert float(-banana_log_prob(points).mean()) == pytest.approx(entropy, abs=0.05)
    gaps = banana_log_prob(points) - q.log_prob({"x": points})
    error = float(gaps.std()) / math.sqrt(len(gaps))
    assert -4 * error < float(gaps.mean()) < 0.05
    assert fit.trace["held_out"][-1] == pytest.approx(float(-q.log_prob({"x": points}).mean()), abs=1e-9)
    normal = MultivariateNormal(points.mean(0), torch.cov(points.T))
    assert float(-normal.log_prob(points).mean()) > fit.trace["held_out"][-1] + 0.3
    # And the other way round: its own draws lie where the banana does.
    drawn = q.sample(4000, seeded(2))["x"]
    gaps = q.log_prob({"x": drawn}) - banana_log_prob(drawn)
    assert float(gaps.mean()) < 0.1
    assert not fit.notes


def test_a_fit_to_draws_resumes_to_the_same_bits(tmp_path):
    draws, how = banana(300, 0), BANANA | {"epochs": 4}
    whole = fit_coupling_flow_to_draws(draws, **how)
    fit_coupling_flow_to_draws(draws, checkpoint=tmp_path / "run", callback=lambda told: told.number == 1, **how)
    resumed = fit_coupling_flow_to_draws(draws, checkpoint=tmp_path / "run", **how)
    assert fits.same(whole, resumed)
    assert fits.records(whole) == fits.records(resumed)
    assert not fits.same(whole, fit_coupling_flow_to_draws(draws, seed=1, **how))
    for other in ({"bound": 1.0}, {"held_out": draws}):
        with pytest.raises(InputError, match="belongs to another run"):
            fit_coupling_flow_to_draws(draws, checkpoint=tmp_path / "run", **how | other)


def test_draws_that_cannot_be_fitted_are_named():
    how = BANANA | {"epochs": 1}
    stuck = banana(50, 0).params["x"].clone()
    stuck[..., 1] = 3.0
    with pytest.raises(InputError, match="'x' has 1 of 2 entries that are the same in all draws"):
        fit_coupling_flow_to_draws(Samples({"x": stuck}), **how)
    with pytest.raises(InputError, match="draws has 50 draws that are all the same"):
        fit_coupling_flow_to_draws(Samples({"x": stuck[..., 1:]}), **how)
    with pytest.raises(InputError, match="1 number varies; expected two or more"):
        fit_coupling_flow_to_draws(Samples({"x": stuck[..., :1]}), **how)
    with pytest.raises(InputError, match="draws is a MeanField; expected a Samples"):
        fit_coupling_flow_to_draws(MeanField({"x": stuck}, {}), **how)
    (note,) = fit_coupling_flow_to_draws(banana(15, 0), **how).notes
    assert note.startswith("15 draws of 2 numbers")


# Transport ------------------------------------------------------------------------------------------------------------


def test_a_source_that_is_the_target_stays_where_it_is():
    """Before any step the map is the identity, and after any it carries the source to the flow's draws."""
    model, data, _, _, how = linear_gaussian()
    source = MeanField({"weight": model.weight.detach() + 0.3}, {"weight": torch.full((1, 4), 0.7, dtype=DOUBLE)})
    target = PosteriorTarget(model, data, **how)
    settings = {"batch_size": 30, "learning_rate": 1e-12, "epochs": 1, "show": False}
    still = transport(source, target, **settings)
    points = source.sample(5, seeded(1))
    torch.testing.assert_close(carry(source, still, points)["weight"], points["weight"], rtol=0, atol=1e-9)
    moved = transport(source, target, **settings | {"learning_rate": 0.05, "epochs": 20}).posterior
    # The density of what arrives is that of where it came from, less the volume.
    jacobian = torch.autograd.functional.jacobian(
        lambda flat: carry(source, moved, {"weight": flat[None]})["weight"][0], points["weight"][0, 0]
    )
    arrived = {"weight": carry(source, moved, points)["weight"][0]}
    expected = source.log_prob(points)[0] - torch.linalg.slogdet(jacobian)[1]
    torch.testing.assert_close(moved.log_prob(arrived), expected)


def test_from_the_prior_to_the_posterior_by_its_evidence():
    """The source is the prior unless another is given; the flow says how likely the data were."""
    model, data, _, log_evidence, how = linear_gaussian()
    one = {"weight": torch.ones(1, 4, dtype=DOUBLE)}
    prior = MeanField({"weight": torch.zeros(1, 4, dtype=DOUBLE)}, one)
    settings = {"batch_size": 30, "learning_rate": 0.03, "epochs": 30, "hidden": (), "show": False}
    found = transport(prior, PosteriorTarget(model, data, **how), **settings)
    given = fit_coupling_flow(model, data, start=prior, prior=Isotropic(1.0), **how, **settings)
    points = prior.sample(3, seeded())
    torch.testing.assert_close(found.posterior.log_prob(points), given.posterior.log_prob(points), rtol=1e-6, atol=1e-6)
    assert found.trace["elbo"][0] < found.trace["elbo"][-1] < log_evidence + 0.05


def test_draws_of_a_sampler_become_a_density():
    """HMC on a linear model: as likely as the Gaussian of maximum likelihood, and as near to the exact posterior."""
    model, data, exact, _, how = linear_gaussian()
    chains = {"draws": 100, "warmup": 40, "leapfrog_steps": 5, "chains": 8, "show": False}
    drawn = fit_hmc(model, data, **how, **chains).posterior
    prior = MeanField({"weight": torch.zeros(1, 4, dtype=DOUBLE)}, {"weight": torch.ones(1, 4, dtype=DOUBLE)})
    settings = {"epochs": 25, "batch_size": 200, "learning_rate": 0.03, "schedule": "cosine", "show": False}
    q = transport(prior, drawn, hidden=(), **settings).posterior
    rows, points = drawn.flat["weight"][:, 0], exact.sample(2000, seeded(1))
    normal = MultivariateNormal(rows.mean(0), torch.cov(rows.T))
    # Gaussians are among these flows, so the best flow is no worse on the draws it is fitted to.
    assert float(q.log_prob(drawn.flat).mean()) > float(normal.log_prob(rows).mean()) - 0.01
    assert float((normal.log_prob(points["weight"][:, 0]) - q.log_prob(points)).mean()) < 0.03
    assert float((exact.log_prob(points) - q.log_prob(points)).mean()) < 0.05
    assert carry(prior, q, prior.sample(3, seeded()))["weight"].shape == (3, 1, 4)


def test_transport_refuses_by_name():
    model, data, exact, _, how = linear_gaussian()
    target, draws = (
        PosteriorTarget(model, data, **how),
        Samples.stack(list(Samples({"weight": torch.randn(1, 3, 1, 4)}))),
    )
    field = MeanField({"weight": model.weight.detach()}, {"weight": torch.ones(1, 4, dtype=DOUBLE)})
    with pytest.raises(InputError, match="way is 'straight'; expected one of couplings"):
        transport(field, target, way="straight")
    with pytest.raises(InputError, match="source is a Gaussian; expected a MeanField"):
        transport(exact, target)
    with pytest.raises(InputError, match="target is a MeanField; expected draws as a Samples, or a PosteriorTarget"):
        transport(field, field)
    with pytest.raises(InputError, match="source does not vary 'weight', which the target does"):
        transport(MeanField(field.mean, {}), draws)


def test_a_flow_is_what_it_is_made_of():
    q = plane_flow(0, 3)
    parts = {name: getattr(q, name) for name in ("location", "scale", "order", "conditioners", "names", "bound")}
    for change, message in (
        ({"scale": q.scale[:2]}, r"scale has shape \(2,\); expected \(3,\)"),
        ({"scale": 0 * q.scale}, "scale has values that are 0 or not finite"),
        ({"order": torch.zeros(3, dtype=torch.long)}, "order is no permutation of 0…2"),
        ({"names": ("y",)}, "names has 'y', which location has not"),
        ({"names": ("x", "x")}, "names has one tensor twice"),
        ({"bound": -1.0}, "bound is -1.0"),
        ({"conditioners": {**q.conditioners, "0.0.weight": torch.zeros(5, 3)}}, r"conditioners\['0.0.weight'\] has"),
        ({"conditioners": {}}, "layers is 0; expected a whole number ≥ 1"),
    ):
        with pytest.raises(InputError, match=message):
            CouplingFlow(**parts | change)
    with pytest.raises(InputError, match=r"noise has shape \(2,\); expected \(…, 3\)"):
        q.from_noise(torch.zeros(2))
