"""The symmetrized ELBO as an objective: its gradients against the literal definition, and its value on data."""

import math
from functools import lru_cache

import numpy as np
import pytest
import torch
from torch import nn

import coset
from architectures import randomized
from coset.distribution import MeanField
from coset.distribution.density import pieces
from coset.errors import InputError
from coset.models import MLP
from coset.posterior import GaussianNoise
from coset.posterior.inference.negative_elbo import elbo
from coset.posterior.problem import pose
from coset.posterior.symmetrized import (
    PROPOSALS,
    SymmetrizedELBO,
    all_permutations,
    information_bounds,
    log_prob_symmetrized,
    mutual_information,
)
from coset.posterior.symmetrized.orbit import Drawn, orbit
from coset.posterior.symmetrized.units import unknowns

DOUBLE = {"dtype": torch.float64}
ERRORS = 4.5


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@lru_cache
def network(*hidden):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = MLP(1, list(hidden), 1, activation="tanh").double().eval()
    return model, coset.discover(model, torch.zeros(2, 1, **DOUBLE)).restrict(scales=False, signs=False)


def values_of(model, seed=0, std=0.6):
    """Means and deviations in general position, as leaves."""
    draws = generator(seed)
    mean = randomized(model, draws)
    spread = {name: std * (0.5 + torch.rand(t.shape, generator=draws, **DOUBLE)) for name, t in mean.items()}
    return tuple({name: tensor.requires_grad_() for name, tensor in part.items()} for part in (mean, spread))


def posterior(model, seed=0, std=0.6):
    return MeanField(*({name: t.detach() for name, t in part.items()} for part in values_of(model, seed, std)))


def literal(sym, q, omega, moves):
    """−log[(1/K)(q(ω) + Σ_j q(g_j⁻¹·ω))] + log q(ω) of one ω, for the permutations given, (K − 1, n) a class."""
    count = len(next(iter(moves.values())))
    elements = [sym.element({name: order[j] for name, order in moves.items()}) for j in range(count)]
    logs = [q.log_prob(omega), *(q.log_prob(sym.act(sym.inverse(g), omega)) for g in elements)]
    return math.log(count + 1) - torch.logsumexp(torch.stack(logs), 0) + logs[0]


@pytest.mark.parametrize("hidden", [(4,), (3, 2)])
def test_the_gain_and_its_gradient_are_those_of_the_definition(hidden):
    model, sym = network(*hidden)
    K = 6
    noise = {name: torch.randn(t.shape, generator=generator(3), **DOUBLE) for name, t in model.state_dict().items()}
    found, expected = [], []
    for target in (found, expected):
        mean, std = values_of(model)
        q = MeanField(mean, std)
        omega = {name: mean[name] + std[name] * noise[name] for name in mean}
        if target is found:
            value = SymmetrizedELBO(sym, K=K).gain(q, omega, generator(5))
        else:
            over = unknowns(q)
            moves = orbit(sym, over.names, over.like).uniform((K,), generator(5))
            # The last of K draws is not used: the identity takes its place.
            value = literal(sym, q, omega, {name: order[:-1] for name, order in moves.items()})
        target.append(value.detach())
        target.extend(torch.autograd.grad(value, [*mean.values(), *std.values()]))
    assert float(expected[1].abs().max()) > 1e-3
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("proposal", ["exact", "permanent"])
def test_the_exact_gain_has_the_gradient_of_the_density(proposal):
    model, sym = network(4)
    found, expected = [], []
    for target in (found, expected):
        mean, std = values_of(model)
        q = MeanField(mean, std)
        omega = q.sample(1, generator(2))
        if target is found:
            value = SymmetrizedELBO(sym, K=3, proposal=proposal).gain(q, omega, generator(5)).sum()
        else:
            value = (q.log_prob(omega) - log_prob_symmetrized(sym, q, omega, method="enumeration")).sum()
        target.append(value.detach())
        target.extend(torch.autograd.grad(value, [*mean.values(), *std.values()]))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("hidden", [(4,), (3, 3)])
@pytest.mark.parametrize("proposal", ["uniform", "sequential", "permanent", "distance", "transpositions"])
def test_gradients_are_those_of_the_exact_gain_when_k_is_large(proposal, hidden):
    """All of them estimate −∇log z: the draws and their probabilities count as given."""
    if proposal == "distance" and len(hidden) > 1:
        pytest.skip("distance is for one class")
    model, sym = network(*hidden)
    over = unknowns(posterior(model, std=1.2))
    moved = orbit(sym, over.names, over.like)
    noise = torch.randn(len(over.mean), generator=generator(4), **DOUBLE)

    def gradient(name, K):
        leaf = torch.stack([over.mean, over.std.log()]).requires_grad_()
        mean, std = leaf[0], leaf[1].exp()
        value = SymmetrizedELBO(sym, K=K, proposal=name).added(
            Drawn(moved, mean + std * noise, mean, std), generator(6)
        )
        return torch.autograd.grad(value, leaf)[0]

    expected = gradient("exact", 1)
    assert float(expected.norm()) > 0.1
    error = float((gradient(proposal, 20_000) - expected).norm() / expected.norm())
    assert error < 0.05


def log_joint_of(model, x, y, noise=0.4):
    def log_joint(params):
        outputs = torch.func.functional_call(model, params, (x,))
        fit = torch.distributions.Normal(outputs, noise).log_prob(y).sum()
        return fit + sum(torch.distributions.Normal(0.0, 1.0).log_prob(tensor).sum() for tensor in params.values())

    return log_joint


def curve(count=9):
    x = torch.linspace(-2, 2, count, **DOUBLE)[:, None]
    return x, torch.sin(2 * x)


@pytest.mark.parametrize("proposal", ["uniform", "exact"])
def test_the_objective_is_differentiable_against_finite_differences(proposal):
    model, sym = network(3)
    objective = SymmetrizedELBO(sym, K=5, samples=2, proposal=proposal)
    log_joint = log_joint_of(model, *curve())
    names = list(model.state_dict())

    def value(*leaves):
        mean, std = leaves[: len(names)], leaves[len(names) :]
        q = MeanField(*(dict(zip(names, part, strict=True)) for part in (mean, std)))
        return objective(q, log_joint, generator(1))

    mean, std = values_of(model)
    assert torch.autograd.gradcheck(value, [*mean.values(), *std.values()], fast_mode=True)


def test_the_objective_is_the_elbo_and_the_gain():
    """With the same draws: E_q[log p(Y, ω)] + H(q) and what ``gain`` says."""
    model, sym = network(3)
    q, log_joint = posterior(model), log_joint_of(model, *curve())
    objective = SymmetrizedELBO(sym, K=5, samples=3)
    found = objective(q, log_joint, generator(1))
    stream, over = generator(1), unknowns(q)
    x = over.mean + over.std * torch.randn(3, len(over.mean), generator=stream, **DOUBLE)
    draws = [pieces(row, over.names, over.like) for row in x]
    gain = objective.gain(q, pieces(x, over.names, over.like), stream)
    assert gain.shape == (3,)
    expected = torch.stack([log_joint(draw) for draw in draws]).mean() + q.entropy() + gain.mean()
    assert float(found) == pytest.approx(float(expected), abs=1e-10)
    alone = SymmetrizedELBO(sym, K=1, samples=3)(q, log_joint, generator(1))
    assert float(alone) == pytest.approx(float(expected - gain.mean()), abs=1e-10)


def test_tied_weights_and_points_reach_the_network():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(3, 3, bias=False)
            self.again = nn.Linear(3, 3, bias=False)
            self.again.weight = self.inner.weight
            self.out = nn.Linear(3, 1)
            self.register_buffer("shift", torch.ones(1))

    model = Tied().double()
    state = model.state_dict()
    mean = dict(state)
    assert mean["inner.weight"].data_ptr() == mean["again.weight"].data_ptr()
    std = {name: torch.full_like(mean[name], 0.2) for name in mean if name != "shift"}
    sym = coset.Symmetry.from_axes({"out.weight": "- a", "inner.weight": "- -"}, model, sizes={"a": 3})
    seen = []

    def log_joint(params):
        seen.append(params)
        return sum(tensor.sum() for tensor in params.values())

    SymmetrizedELBO(sym, K=2, samples=2)(MeanField(mean, std), log_joint, generator())
    for params in seen:
        assert set(params) == set(state)
        assert params["inner.weight"] is params["again.weight"]
        assert torch.equal(params["shift"], state["shift"])
        assert not torch.equal(params["inner.weight"], state["inner.weight"])
    assert not torch.equal(seen[0]["out.weight"], seen[1]["out.weight"])


def test_the_literal_estimator_carries_the_noise_of_log_q():
    """−log q^K(ω) − H(q), the latter in closed form, is the gain and ½(‖ε‖² − D) more: its variance is D/2 larger."""
    model, sym = network(4)
    q = posterior(model)
    over = unknowns(q)
    size, count = len(over.mean), 20_000
    noise = torch.randn(count, size, generator=generator(2), **DOUBLE)
    drawn = Drawn(orbit(sym, over.names, over.like), over.mean + over.std * noise, over.mean, over.std)
    gain = SymmetrizedELBO(sym, K=5).added(drawn, generator(3))
    log_q = q.log_prob(pieces(drawn.x, over.names, over.like))
    mixed = gain - log_q - float(q.entropy())
    torch.testing.assert_close(mixed - gain, 0.5 * (noise.square().sum(-1) - size), rtol=0, atol=1e-9)
    # The two parts are nearly independent; a variance of D/2 is known to about √(2/count) of itself.
    extra = float(mixed.var() - gain.var()) - 2 * float(torch.cov(torch.stack([gain, mixed - gain]))[0, 1])
    assert extra == pytest.approx(size / 2, rel=ERRORS * math.sqrt((2 + 12 / size) / count))
    assert float(mixed.var()) > 5 * float(gain.var())
    assert float(mixed.mean()) == pytest.approx(float(gain.mean()), abs=ERRORS * math.sqrt(size / 2 / count))


def test_an_invariant_posterior_has_the_elbo_of_its_average():
    model, sym = network(4)
    x, y = curve()
    mean = {name: torch.full_like(tensor, 0.3) for name, tensor in model.state_dict().items()}
    q = MeanField(mean, {name: torch.full_like(tensor, 0.4) for name, tensor in mean.items()})
    found = SymmetrizedELBO(sym, K=7).evaluate(model, q, (x, y), likelihood=GaussianNoise(0.4), draws=20)
    assert abs(found.gain.value) < 1e-12
    assert found.total.value == pytest.approx(found.plain.value, abs=1e-12)


@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_the_value_on_data_is_the_elbo_and_the_information(temperature):
    model, sym = network(4)
    q, data = posterior(model, std=0.3), curve()
    settings = {"likelihood": GaussianNoise(0.4), "prior": 0.9, "temperature": temperature}
    plain = elbo(model, q, data, samples=60, seed=3, **settings)
    information = mutual_information(sym, q, samples=1000, seed=9)
    for proposal in PROPOSALS:
        objective = SymmetrizedELBO(sym, K=4, proposal=proposal)
        found = objective.evaluate(model, q, data, draws=60, seed=3, **settings)
        assert found.plain == plain
        assert found.total.value == found.plain.value + found.gain.value
        assert found.total.error == pytest.approx(math.hypot(found.plain.error, found.gain.error))
        # Per data point, and as much as the temperature makes of an entropy.
        bounds = information_bounds(sym, q, 4, 500, 5, proposal=proposal, show=False)
        side = bounds.upper if objective.bound == "upper" else bounds.lower
        scale = temperature / len(data[0])
        assert abs(found.gain.value - scale * side.value) < ERRORS * math.hypot(found.gain.error, scale * side.error)
        if proposal in ("exact", "permanent"):
            error = math.hypot(found.gain.error, scale * information.error)
            assert abs(found.gain.value - scale * information.value) < ERRORS * error


def test_the_average_is_a_lower_bound_of_the_evidence_that_q_alone_does_not_reach():
    """One data point, two units: the evidence by importance sampling with q^G itself as the proposal."""
    model, sym = network(2)
    x, y = curve(3)
    q = posterior(model, std=0.5)
    found = SymmetrizedELBO(sym, proposal="exact").evaluate(
        model, q, (x, y), likelihood=GaussianNoise(0.4), draws=200, seed=1
    )
    omega = q.sample(5000, generator(2))
    problem = pose(model, (x, y), GaussianNoise(0.4), 1.0)
    flats = problem.layout.flatten(omega)
    with torch.no_grad():
        joint = torch.vmap(lambda flat: problem.log_joint(flat, x, y))(flats)
    # The integrand and q^G are invariant: weights drawn from q are as good as any from q^G.
    weights = joint - log_prob_symmetrized(sym, q, omega)
    evidence = float(torch.logsumexp(weights, 0) - math.log(len(weights))) / 3
    assert float(weights.mean()) / 3 == pytest.approx(found.total.value, abs=ERRORS * found.total.error * 1.1)
    assert found.plain.value < found.total.value < evidence


@pytest.mark.parametrize(
    ("proposal", "bound"),
    [
        ("uniform", "lower"), ("sequential", "lower"), ("permanent", "lower"), ("exact", "exact"),
        ("distance", "upper"), ("transpositions", "upper"),
    ],
)  # fmt: skip
def test_a_bound_is_said_to_be_what_it_is(proposal, bound):
    _, sym = network(3)
    assert SymmetrizedELBO(sym, proposal=proposal).bound == bound


def test_scales_and_signs_play_no_part():
    model, _ = network(4)
    whole = coset.discover(model, torch.zeros(2, 1, **DOUBLE))
    assert whole.flipping
    q = posterior(model)
    omega = q.sample(3, generator())
    found = SymmetrizedELBO(whole, K=6).gain(q, omega, generator(1))
    assert torch.equal(found, SymmetrizedELBO(network(4)[1], K=6).gain(q, omega, generator(1)))
    assert len(list(all_permutations(network(4)[1]))) == 24


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"K": 0}, "K is 0; expected a whole number ≥ 1"),
        ({"K": 2.0}, "K is 2.0; expected a whole number ≥ 1"),
        ({"samples": 0}, "samples is 0; expected a whole number ≥ 1"),
        ({"proposal": "gibbs"}, "proposal is 'gibbs'; expected one of uniform"),
        ({"sym": "all"}, "sym is a str; expected a Symmetry"),
    ],
)
def test_bad_settings_are_refused_by_name(change, message):
    _, sym = network(3)
    with pytest.raises(InputError, match=message):
        SymmetrizedELBO(**({"sym": sym} | change))


def test_bad_arguments_are_refused_by_name():
    model, sym = network(3)
    objective, q = SymmetrizedELBO(sym), posterior(model)
    data = curve()
    with pytest.raises(InputError, match="draws is 1; expected a whole number ≥ 2"):
        objective.evaluate(model, q, data, likelihood=GaussianNoise(0.4), draws=1)
    with pytest.raises(InputError, match="q is a dict; expected a MeanField"):
        objective.evaluate(model, dict(q.mean), data, likelihood=GaussianNoise(0.4))
    with pytest.raises(InputError, match=r"generator is a int; expected a torch\.Generator"):
        objective.gain(q, q.sample(1, generator()), 0)
    with pytest.raises(InputError, match=r"'0\.weight'|has shape"):
        SymmetrizedELBO(network(4)[1]).gain(q, q.sample(1, generator()), generator())


# The path gradient ----------------------------------------------------------------------------------------------------


def two_units():
    """Two units of two weights each, nothing else; means and deviations in general position, modes that overlap."""
    model = nn.Sequential(nn.Linear(1, 2, bias=False), nn.Tanh(), nn.Linear(2, 1, bias=False)).double().eval()
    sym = coset.discover(model, torch.zeros(2, 1, **DOUBLE)).restrict(scales=False, signs=False)
    values = torch.tensor([[0.3, -0.4, 0.1, 0.6], [0.15, 0.225, 0.275, 0.1]], **DOUBLE)
    like = dict(model.state_dict())
    return sym, orbit(sym, tuple(like), like), values


def gradient_at(sym, moved, values, noise, weights, kind):
    leaf = values.clone().requires_grad_()
    mean, std = leaf[0], leaf[1].exp()
    gain = SymmetrizedELBO(sym, K=1, proposal="exact", gradient=kind)
    found = gain.added(Drawn(moved, mean + std * noise, mean, std), generator())
    return torch.autograd.grad((found * weights).sum(), leaf)[0], (found * weights).sum().detach()


def quadrature(nodes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Nodes of four standard normal variables, and their weights."""
    places, weights = (torch.from_numpy(part) for part in np.polynomial.hermite_e.hermegauss(nodes))
    return torch.cartesian_prod(*[places] * 4), torch.cartesian_prod(*[weights / weights.sum()] * 4).prod(-1)


def test_the_gradient_of_the_bound_is_that_of_its_values():
    """With few nodes as well as with many: both are those of one sum."""
    sym, moved, values = two_units()
    grid, product = quadrature(8)
    bound, _ = gradient_at(sym, moved, values, grid, product, "bound")
    differences = torch.zeros_like(values)
    for row in range(2):
        for place in range(4):
            step = torch.zeros_like(values)
            step[row, place] = 1e-4
            up, down = (gradient_at(sym, moved, at, grid, product, "bound")[1] for at in (values + step, values - step))
            differences[row, place] = (up - down) / 2e-4
    torch.testing.assert_close(bound, differences, rtol=1e-6, atol=1e-8)


def test_what_the_path_gradient_leaves_out_is_nothing_in_expectation():
    sym, moved, values = two_units()
    grid, product = quadrature(20)
    path, value = gradient_at(sym, moved, values, grid, product, "path")
    bound, _ = gradient_at(sym, moved, values, grid, product, "bound")
    assert 0.1 < float(value) < 0.9 * math.log(2)
    # By 16 nodes a weight they differ by 1e-8, by 20 by 1e-9, by 24 by 1e-11: what is left is that of the quadrature.
    torch.testing.assert_close(path, bound, rtol=0, atol=1e-8)
    assert float(path.abs().min()) > 1e-3


def test_the_path_gradient_has_less_noise_where_modes_overlap():
    sym, moved, values = two_units()
    wide = torch.stack([0.1 * values[0], torch.zeros(4, **DOUBLE)])
    noise = torch.randn(200, 4, generator=generator(1), **DOUBLE)
    spread = {}
    for kind in ("bound", "path"):
        rows = [gradient_at(sym, moved, wide, row[None], torch.ones(1, **DOUBLE), kind)[0] for row in noise]
        spread[kind] = float(torch.stack(rows).var(0).sum())
    assert spread["path"] < 0.02 * spread["bound"]


def test_the_gain_along_the_path_has_gradients_in_the_weights_alone():
    model, sym = network(4)
    mean, std = values_of(model)
    omega = {name: (mean[name] + 0.5 * std[name]).detach().requires_grad_() for name in mean}
    gains = {
        kind: SymmetrizedELBO(sym, K=6, gradient=kind).gain(MeanField(mean, std), omega, generator(5))
        for kind in ("bound", "path")
    }
    assert torch.equal(gains["path"], gains["bound"])
    along = [torch.autograd.grad(gain, list(omega.values()), retain_graph=True) for gain in gains.values()]
    assert all(torch.equal(*pair) for pair in zip(*along, strict=True))
    densities = [*mean.values(), *std.values()]
    held = torch.autograd.grad(gains["path"], densities, allow_unused=True)
    assert all(part is None for part in held)


def test_an_unknown_gradient_is_refused():
    _, sym = network(4)
    with pytest.raises(InputError, match="gradient is 'score'; expected one of bound, path"):
        SymmetrizedELBO(sym, gradient="score")
