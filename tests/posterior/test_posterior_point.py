"""The maximum of the posterior and ensembles of them."""

import pytest
import torch
from torch import nn
from torch.func import functional_call

from coset.distribution.samples import Samples
from coset.errors import InputError
from coset.models import MLP
from coset.posterior.inference.ensemble import fit_ensemble, member_seed
from coset.posterior.inference.point import NegativeLogJoint, fit_map
from coset.posterior.inference.starting import fresh_weights, initial_weights
from coset.posterior.likelihoods import GaussianNoise, LearnedNoise, NoiseParameter
from coset.posterior.priors import FanIn
from coset.posterior.problem import pose
from coset.train import DivergenceError

DOUBLE = {"dtype": torch.float64}


def linear_problem(noise=0.5, prior=0.7, count=40):
    """A linear-Gaussian model, its data, and the closed form of its posterior mean (d,)."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(count, 3, generator=generator, **DOUBLE)
    y = x @ torch.tensor([[1.0], [-2.0], [0.5]], **DOUBLE) + noise * torch.randn(
        count, 1, generator=generator, **DOUBLE
    )
    model = nn.Linear(3, 1, bias=False).double()
    precision = x.T @ x / noise**2 + torch.eye(3, **DOUBLE) / prior**2
    return model, (x, y), torch.linalg.solve(precision, x.T @ y / noise**2).reshape(-1), precision


def blobs(count=60, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % 3
    centres = 2 * torch.randn(3, 4, generator=generator, dtype=dtype)
    return centres[y] + torch.randn(count, 4, generator=generator, dtype=dtype), y


def network(dtype=torch.float64, seed=0):
    torch.manual_seed(seed)
    return MLP(4, [6], 3).to(dtype)


@pytest.mark.parametrize("prior", [0.7, FanIn(), lambda params: -sum(p.abs().sum() for p in params.values())])
def test_gradient_is_that_of_the_log_joint(prior):
    problem = pose(network(), blobs(), "categorical", prior)
    objective, gradient = NegativeLogJoint(problem), torch.empty_like(problem.start)
    x, y = problem.x[:20], problem.y[:20]
    nll = objective.write_gradient(problem.start, x, y, gradient)
    expected, value = torch.func.grad_and_value(lambda flat: -problem.log_joint(flat, x, y) / 60)(problem.start)
    torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-14)
    assert float(nll) - objective.log_prior(problem.start) == pytest.approx(float(value), rel=1e-12)
    many, summed = problem.start.expand(2, -1), torch.zeros(2, len(gradient), **DOUBLE)
    objective.add_prior_gradient(many, summed)
    alone = torch.zeros_like(gradient)
    objective.add_prior_gradient(problem.start, alone)
    torch.testing.assert_close(summed, alone.expand(2, -1), rtol=0, atol=0)


def test_map_of_a_linear_model_is_the_closed_form_at_any_temperature():
    model, data, expected, _ = linear_problem()
    settings = {"epochs": 300, "batch_size": 40, "learning_rate": 0.05, "optimizer": "sgd", "momentum": 0.8}
    fits = [
        fit_map(model, data, likelihood=GaussianNoise(0.5), prior=0.7, temperature=t, **settings) for t in (1.0, 0.1)
    ]
    for fit in fits:
        torch.testing.assert_close(fit.posterior.params["weight"].reshape(-1), expected, rtol=1e-10, atol=1e-12)
    problem = pose(model, data, GaussianNoise(0.5), 0.7)
    loss = -float(problem.log_joint(expected, *data)) / 40
    assert fits[0].trace[-1]["loss"] == pytest.approx(loss, rel=1e-12)


def test_without_a_prior_it_is_maximum_likelihood():
    model, (x, y), _, _ = linear_problem()
    settings = {"epochs": 300, "batch_size": 40, "learning_rate": 0.05, "optimizer": "sgd", "momentum": 0.8}
    fit = fit_map(model, (x, y), likelihood=GaussianNoise(0.5), prior=None, **settings)
    expected = torch.linalg.lstsq(x, y).solution.reshape(-1)
    torch.testing.assert_close(fit.posterior.params["weight"].reshape(-1), expected, rtol=1e-10, atol=1e-12)
    assert fit.trace[-1]["log_prior"] == 0


def test_learned_noise_is_the_deviation_of_the_residuals():
    model, (x, y), _, _ = linear_problem()
    noisy = NoiseParameter(model, start=1.0)
    settings = {"epochs": 800, "batch_size": 40, "learning_rate": 0.1, "optimizer": "sgd", "momentum": 0.8}
    fit = fit_map(noisy, (x, y), likelihood=LearnedNoise(), prior=None, schedule="linear", **settings)
    residual = y - x @ torch.linalg.lstsq(x, y).solution
    assert float(fit.posterior.params["log_noise"].exp()) == pytest.approx(
        float(residual.square().mean().sqrt()), rel=1e-8
    )


def test_a_checkpoint_of_another_start_is_refused(tmp_path):
    path, data = tmp_path / "run.safetensors", blobs()
    settings = {"epochs": 2, "batch_size": 16, "learning_rate": 0.02, "checkpoint": path}
    flipped = {name: -tensor for name, tensor in network().state_dict().items()}
    fit_map(network(), data, **settings)
    with pytest.raises(InputError, match="another run: start"):
        fit_map(network(), data, start=flipped, **settings)


def test_starts_come_from_weights_distributions_and_fits():
    data = blobs()
    fit = fit_map(network(), data, epochs=1, batch_size=60, learning_rate=0.1)
    problem = pose(network(), data, "categorical", 1.0)
    for start in (fit, fit.posterior, dict(fit.posterior.params)):
        assert torch.equal(initial_weights(problem, start), problem.layout.flatten(fit.posterior.params))
    with pytest.raises(InputError, match="start is a int"):
        fit_map(network(), data, epochs=1, batch_size=60, learning_rate=0.1, start=3)
    several = fit_ensemble(network(), data, members=2, epochs=1, batch_size=60, learning_rate=0.1)
    with pytest.raises(InputError, match="start is a Samples; expected one network"):
        fit_map(network(), data, epochs=1, batch_size=60, learning_rate=0.1, start=several)
    broken = {name: tensor * float("nan") for name, tensor in fit.posterior.params.items()}
    with pytest.raises(InputError, match="NaN or infinite"):
        fit_map(network(), data, epochs=1, batch_size=60, learning_rate=0.1, start=broken)


def test_divergence_says_step_value_and_what_may_help():
    model, data, _, _ = linear_problem()
    settings = {"epochs": 50, "batch_size": 10, "learning_rate": 1e3, "optimizer": "sgd"}
    with pytest.raises(DivergenceError, match=r"epoch \d+, step \d of 4; .*last finite value.*learning_rate"):
        fit_map(model, data, likelihood=GaussianNoise(0.5), **settings)


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("prior", [1.0, None])
def test_a_member_is_the_map_from_its_start(batched, prior):
    data = blobs()
    settings = {"epochs": 5, "batch_size": 16, "learning_rate": 0.05, "prior": prior}
    fit = fit_ensemble(network(), data, members=3, seed=5, batched=batched, **settings)
    assert isinstance(fit.posterior, Samples)
    assert (fit.posterior.chains, fit.posterior.draws) == (3, 1)
    starts = fit_ensemble(network(), data, members=3, seed=5, **{**settings, "learning_rate": 1e-30, "epochs": 1})
    for k, (begun, found) in enumerate(zip(starts.posterior, fit.posterior, strict=True)):
        alone = fit_map(network(), data, start=begun, seed=member_seed(5, k), **settings)
        for name, tensor in alone.posterior.params.items():
            torch.testing.assert_close(found[name], tensor, rtol=1e-9, atol=1e-11)
        assert fit.trace[-1][f"loss {k}"] == pytest.approx(alone.trace[-1]["loss"], rel=1e-9)
    assert fit.trace[-1]["loss"] == pytest.approx(sum(fit.trace[-1][f"loss {k}"] for k in range(3)) / 3, rel=1e-12)


def test_members_begin_where_their_layers_would_and_leave_global_state_alone():
    model, data = network(), blobs()
    before = torch.get_rng_state()
    fit = fit_ensemble(model, data, members=200, epochs=1, batch_size=60, learning_rate=1e-30, batched=True)
    assert torch.equal(torch.get_rng_state(), before)
    weights = fit.posterior.params["layers.0.weight"].flatten()
    # Linear layers draw from U(−1/√fan-in, 1/√fan-in).
    assert float(weights.abs().max()) <= 0.5
    assert float(weights.square().mean()) == pytest.approx(0.25 / 3, rel=0.05)
    again = fit_ensemble(model, data, members=200, epochs=1, batch_size=60, learning_rate=1e-30, batched=True)
    assert torch.equal(weights, again.posterior.params["layers.0.weight"].flatten())
    assert len(weights.unique()) > 0.99 * weights.numel()


class Scaled(nn.Module):
    """A parameter that nobody can draw anew."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 3)
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.scale * self.inner(x)


def test_parameters_that_cannot_be_drawn_anew_need_starts():
    data = blobs(dtype=torch.float32)
    settings = {"members": 2, "epochs": 1, "batch_size": 60, "learning_rate": 0.1}
    with pytest.raises(InputError, match=r"'scale' belongs to a Scaled .* expected such a method, or starts"):
        fit_ensemble(Scaled(), data, **settings)
    starts = [Scaled().state_dict(), Scaled().state_dict()]
    assert len(fit_ensemble(Scaled(), data, starts=starts, **settings).posterior) == 2
    with pytest.raises(InputError, match="starts has 2 networks and members is 3"):
        fit_ensemble(Scaled(), data, starts=starts, **{**settings, "members": 3})


def test_tied_and_attention_weights_are_drawn_and_buffers_are_not():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.read = nn.Linear(4, 4)
            self.again = self.read
            self.norm = nn.BatchNorm1d(4)
            self.attend = nn.MultiheadAttention(4, 2, batch_first=True)
            self.out = nn.Linear(4, 3)

        def forward(self, x):
            h = self.norm(self.again(self.read(x))).unsqueeze(1)
            return self.out(self.attend(h, h, h, need_weights=False)[0].squeeze(1))

    torch.manual_seed(0)
    model = Attention()
    model.norm.running_mean.fill_(0.3)
    settings = {"members": 2, "epochs": 2, "batch_size": 16, "learning_rate": 0.01, "batched": False}
    fit = fit_ensemble(model, blobs(dtype=torch.float32), **settings)
    params = fit.posterior.params
    assert set(params) == set(model.state_dict())
    assert torch.equal(params["norm.running_mean"], torch.full((2, 1, 4), 0.3))
    assert params["again.weight"] is params["read.weight"]
    problem = pose(model, blobs(dtype=torch.float32), "categorical", 1.0)
    assert not torch.equal(fresh_weights(problem, 0, "starts"), fresh_weights(problem, 1, "starts"))
    outputs = functional_call(model.eval(), fit.posterior.draw(1, 0), (problem.x,))
    assert bool(outputs.isfinite().all())


def test_a_network_that_cannot_be_batched_is_trained_one_after_the_other():
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.read = nn.Linear(4, 3)

        def forward(self, x):
            out = self.read(x)
            return out if float(self.read.weight.detach().sum()) > 0 else 2 * out

    settings = {"members": 2, "epochs": 1, "batch_size": 60, "learning_rate": 0.1}
    data = blobs(dtype=torch.float32)
    chosen, asked = (fit_ensemble(Branching(), data, batched=b, **settings) for b in (None, False))
    assert torch.equal(chosen.posterior.params["read.weight"], asked.posterior.params["read.weight"])
    with pytest.raises(InputError, match="cannot be run with the weights of many chains at once"):
        fit_ensemble(Branching(), data, batched=True, **settings)
