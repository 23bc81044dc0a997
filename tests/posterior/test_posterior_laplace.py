"""Laplace against closed forms, dense Hessians and the package it leaves the Kronecker factors to."""

import math
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import hessian

from coset.distribution.gaussian import Gaussian
from coset.distribution.mean_field import MeanField
from coset.distribution.samples import Samples
from coset.errors import InputError
from coset.models import MLP
from coset.posterior.inference import laplace as laplace_module
from coset.posterior.inference.ggn import dense_ggn, diagonal_ggn, output_root
from coset.posterior.inference.laplace import fit_laplace
from coset.posterior.likelihoods import Bernoulli, Categorical, GaussianNoise, LearnedNoise, NoiseParameter
from coset.posterior.priors import FanIn, Named
from coset.posterior.problem import pose

DOUBLE = {"dtype": torch.float64}


def ignore(points):
    """A listener that does not listen."""


def inputs(count=30, size=3, seed=0):
    return torch.randn(count, size, generator=torch.Generator().manual_seed(seed), **DOUBLE)


def problem_of(kind, hidden=(4,)):
    """A small network, data and likelihood of each kind."""
    torch.manual_seed(1)
    x = inputs()
    if kind == "categorical":
        return pose(MLP(3, list(hidden), 4).double(), (x, torch.arange(30) % 4), Categorical(), 1.0)
    if kind == "bernoulli":
        return pose(MLP(3, list(hidden), 1).double(), (x, torch.arange(30) % 2), Bernoulli(), 1.0)
    if kind == "gaussian":
        return pose(MLP(3, list(hidden), 2).double(), (x, inputs(size=2, seed=1)), GaussianNoise(0.3), 1.0)
    if kind == "noise parameter":
        model = NoiseParameter(MLP(3, list(hidden), 2).double(), outputs=2, start=0.4)
        return pose(model, (x, inputs(size=2, seed=1)), LearnedNoise(), 1.0)
    return pose(MLP(3, list(hidden), 4).double(), (x, inputs(size=2, seed=1)), LearnedNoise(), 1.0)


KINDS = ["categorical", "bernoulli", "gaussian", "noise parameter", "noise of the input"]


@pytest.mark.parametrize("kind", KINDS[:3])
def test_output_curvature_is_the_hessian_in_the_outputs(kind):
    problem = problem_of(kind)
    outputs = problem.outputs(problem.start, problem.x).detach()
    root = output_root(problem.likelihood, outputs)

    def loss(out, y):
        return -problem.likelihood.log_prob(out[None], y[None])[0]

    for i in range(5):
        expected = hessian(loss)(outputs[i], problem.y[i])
        torch.testing.assert_close(root[i] @ root[i].mT, expected, rtol=1e-12, atol=1e-14)


def test_curvature_of_learned_noise_is_the_expected_hessian():
    outputs = torch.tensor([[0.7, -0.4]], **DOUBLE)
    # E over y ~ N(m, e^{2ℓ}) by Gauss-Hermite quadrature, exact for polynomials.
    nodes, weights = (torch.tensor(part) for part in np.polynomial.hermite_e.hermegauss(8))

    def loss(out, y):
        return -LearnedNoise().log_prob(out[None], y.reshape(1, 1))[0]

    total = torch.zeros(2, 2, **DOUBLE)
    for node, weight in zip(nodes, weights / math.sqrt(2 * math.pi), strict=True):
        total += weight * hessian(loss)(outputs[0], outputs[0, 0] + node * outputs[0, 1].exp())
    root = output_root(LearnedNoise(), outputs)[0]
    torch.testing.assert_close(root @ root.mT, total, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_in_chunks_sum_to_the_matrix_of_the_definition(kind):
    problem = problem_of(kind)
    jacobian = torch.func.jacrev(lambda flat: problem.outputs(flat, problem.x))(problem.start)
    root = output_root(problem.likelihood, problem.outputs(problem.start, problem.x))
    expected = torch.einsum("nod,nop,nqp,nqe->de", jacobian, root, root, jacobian)
    seen = []
    # Chunks of one, of some and of all data points.
    for chunk_bytes in (1, 8 * problem.start.numel() * 8 * 7, 2**30):
        dense = dense_ggn(problem, problem.start, seen.append, chunk_bytes)
        torch.testing.assert_close(dense, expected.detach(), rtol=1e-11, atol=1e-12)
        diagonal = diagonal_ggn(problem, problem.start, ignore, chunk_bytes)
        torch.testing.assert_close(diagonal, dense.diagonal(), rtol=1e-11, atol=1e-12)
    assert sum(seen) == 3 * 30
    assert seen.count(1) >= 30
    assert 30 in seen


@pytest.mark.parametrize("kind", ["categorical", "bernoulli", "gaussian"])
def test_it_is_the_hessian_of_a_model_linear_in_its_weights(kind):
    problem = problem_of(kind, hidden=())
    expected = hessian(lambda flat: -problem.log_likelihood(flat, problem.x, problem.y))(problem.start)
    torch.testing.assert_close(dense_ggn(problem, problem.start, ignore), expected, rtol=1e-10, atol=1e-11)


def linear_posterior(noise=0.5, prior=0.7, count=40):
    x = inputs(count)
    y = x @ torch.tensor([[1.0], [-2.0], [0.5]], **DOUBLE) + noise * inputs(count, 1, seed=5)
    precision = x.T @ x / noise**2 + torch.eye(3, **DOUBLE) / prior**2
    return nn.Linear(3, 1, bias=False).double(), (x, y), precision, torch.linalg.solve(precision, x.T @ y / noise**2)


@pytest.mark.parametrize("temperature", [1.0, 0.2])
def test_linear_gaussian_model_is_exact(temperature):
    model, (x, y), precision, mean = linear_posterior()
    settings = {"likelihood": GaussianNoise(0.5), "prior": 0.7, "temperature": temperature}
    start = {"weight": mean.T}
    full = fit_laplace(model, (x, y), structure="full", start=start, **settings)
    assert isinstance(full.posterior, Gaussian)
    covariance = temperature * torch.linalg.inv(precision)
    torch.testing.assert_close(full.posterior.covariance, covariance, rtol=1e-11, atol=1e-14)
    diagonal = fit_laplace(model, (x, y), start=start, **settings)
    assert isinstance(diagonal.posterior, MeanField)
    expected = (temperature / precision.diagonal()).sqrt().reshape(1, 3)
    torch.testing.assert_close(diagonal.posterior.std["weight"], expected, rtol=1e-12, atol=0)
    # p(y) = N(0, σ² I + s² XXᵀ).
    marginal = torch.distributions.MultivariateNormal(
        torch.zeros(40, **DOUBLE), 0.25 * torch.eye(40, **DOUBLE) + 0.49 * x @ x.T
    )
    evidence = float(marginal.log_prob(y[:, 0]))
    assert 40 * full.trace[-1]["log_marginal_likelihood"] == pytest.approx(evidence, rel=1e-11)
    # A diagonal precision has a larger determinant (Hadamard), so its evidence is lower.
    assert 40 * diagonal.trace[-1]["log_marginal_likelihood"] < evidence


def test_without_a_start_the_maximum_is_found_first():
    model, data, precision, mean = linear_posterior()
    settings = {"epochs": 300, "batch_size": 40, "learning_rate": 0.05, "optimizer": "sgd", "momentum": 0.8}
    fit = fit_laplace(model, data, structure="full", likelihood=GaussianNoise(0.5), prior=0.7, **settings)
    torch.testing.assert_close(fit.posterior.mean["weight"], mean.T, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(fit.posterior.covariance, torch.linalg.inv(precision), rtol=1e-10, atol=1e-13)
    assert len(fit.trace) == 301
    assert fit.trace[-2]["loss"] == pytest.approx(-fit.trace[-1]["log_joint"], rel=1e-12)


@pytest.mark.parametrize("prior", [FanIn(1.3, 0.4), Named({"layers.1.bias": (1.0, 0.1)})])
def test_any_gaussian_prior_gives_its_precision(prior):
    problem = problem_of("categorical")
    model, data = problem.model, (problem.x, problem.y)
    fit = fit_laplace(model, data, structure="full", start=model.state_dict(), prior=prior)
    believed = pose(model, data, Categorical(), prior)
    curvature = hessian(lambda flat: -believed.log_prior(flat))(problem.start)
    expected = dense_ggn(problem, problem.start, ignore) + curvature
    identity = torch.eye(len(expected), **DOUBLE)
    torch.testing.assert_close(fit.posterior.covariance @ expected, identity, rtol=0, atol=1e-10)


def test_single_precision_and_tied_weights():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.read = nn.Linear(3, 3)
            self.again = self.read

        def forward(self, x):
            return self.again(torch.tanh(self.read(x)))

    torch.manual_seed(0)
    model, data = Tied(), (inputs().float(), torch.arange(30) % 3)
    for structure in ("diagonal", "full"):
        posterior = fit_laplace(model, data, structure=structure, start=model.state_dict()).posterior
        assert posterior.std["again.weight"].equal(posterior.std["read.weight"])
        draws = posterior.sample(3, torch.Generator().manual_seed(0))
        assert draws["again.weight"] is draws["read.weight"]
        assert draws["read.weight"].dtype == torch.float32


def test_what_it_cannot_do_is_said(monkeypatch):
    model, data, _, mean = linear_posterior()
    at = {"start": {"weight": mean.T}, "likelihood": GaussianNoise(0.5)}
    with pytest.raises(InputError, match="structure is 'block'; expected one of diagonal, full, kron"):
        fit_laplace(model, data, structure="block", **at)
    with pytest.raises(InputError, match="prior is a Density; Laplace expects a Gaussian one"):
        fit_laplace(model, data, prior=lambda params: -params["weight"].abs().sum(), **at)
    with pytest.raises(InputError, match="epochs is None and start is not given"):
        fit_laplace(model, data, likelihood=GaussianNoise(0.5))
    with pytest.raises(InputError, match="epochs is 3 and start is given"):
        fit_laplace(model, data, epochs=3, **at)
    monkeypatch.setattr(laplace_module, "DENSE_WEIGHTS", 2)
    with pytest.raises(InputError, match="structure is 'full' and the model has 3 weights; expected at most 2"):
        fit_laplace(model, data, structure="full", **at)


def test_kron_without_the_package_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "laplace", None)
    model, data, _, mean = linear_posterior()
    with pytest.raises(InputError, match=r"pip install coset\[laplace\]"):
        fit_laplace(model, data, structure="kron", start={"weight": mean.T}, likelihood=GaussianNoise(0.5))


class DenseApproximation:
    """What the package offers, with a dense precision in place of Kronecker factors."""

    def __init__(self, model, likelihood, subset_of_weights, hessian_structure, prior_precision, sigma_noise=1.0):
        assert (subset_of_weights, hessian_structure) == ("all", "kron")
        assert (likelihood == "regression") == (sigma_noise != 1.0)
        self.model, self.noise, self.classes = model, sigma_noise, likelihood == "classification"
        self.trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        assert len(prior_precision) == len(self.trained)
        each = [
            torch.full((p.numel(),), float(c), **DOUBLE) for p, c in zip(self.trained, prior_precision, strict=True)
        ]
        self.prior = torch.cat(each)

    def fit(self, loader):
        self.mean = torch.cat([parameter.detach().reshape(-1) for parameter in self.trained])
        x, y = (torch.cat(part) for part in zip(*loader, strict=True))
        names = [name for name, parameter in self.model.named_parameters() if parameter.requires_grad]

        def loss(flat):
            parts = flat.split([parameter.numel() for parameter in self.trained])
            shaped = {n: f.view(p.shape) for n, f, p in zip(names, parts, self.trained, strict=True)}
            outputs = torch.func.functional_call(self.model, shaped, (x,))
            if self.classes:
                return nn.functional.cross_entropy(outputs, y, reduction="sum")
            return 0.5 * ((outputs - y) / self.noise).square().sum()

        self.precision = hessian(loss)(self.mean) + self.prior.diag()
        self.log_det_posterior_precision = torch.linalg.slogdet(self.precision)[1]

    def sample(self, n, generator):
        root = torch.linalg.cholesky(torch.linalg.inv(self.precision))
        return self.mean + torch.randn(n, len(root), generator=generator, **DOUBLE) @ root.mT


@pytest.mark.parametrize("kind", ["gaussian", "categorical", "bernoulli"])
def test_kron_hands_the_package_our_problem(monkeypatch, kind):
    # With dense curvature in its place, and a model linear in its weights, the result must be that of "full".
    problem = problem_of(kind, hidden=())
    monkeypatch.setitem(sys.modules, "laplace", type(sys)("laplace"))
    sys.modules["laplace"].Laplace = DenseApproximation
    common = {"likelihood": problem.likelihood, "prior": FanIn(0.9, 0.5), "start": problem.model.state_dict()}
    data = (problem.x, problem.y)
    kron = fit_laplace(problem.model, data, structure="kron", draws=20_000, temperature=0.5, **common)
    full = fit_laplace(problem.model, data, structure="full", temperature=0.5, **common)
    assert isinstance(kron.posterior, Samples)
    assert (kron.posterior.chains, kron.posterior.draws) == (1, 20_000)
    name = "log_marginal_likelihood"
    assert kron.trace[-1][name] == pytest.approx(full.trace[-1][name], rel=1e-10)
    for key, std in full.posterior.std.items():
        # Five standard errors, 1/√(2n), of a deviation.
        torch.testing.assert_close(kron.posterior.std[key], std, rtol=5 / math.sqrt(2 * 20_000), atol=0)


def test_kron_refuses_learned_noise(monkeypatch):
    monkeypatch.setitem(sys.modules, "laplace", type(sys)("laplace"))
    problem = problem_of("noise parameter")
    with pytest.raises(InputError, match="the likelihood a LearnedNoise; laplace-torch expects"):
        fit_laplace(
            problem.model,
            (problem.x, problem.y),
            structure="kron",
            likelihood="learned-noise",
            start=problem.model.state_dict(),
        )


@pytest.mark.parametrize("count", [40, 600])
def test_kron_of_the_real_package_is_exact_where_factors_are(count):
    pytest.importorskip("laplace", reason="the extra coset[laplace] is not installed")
    # One output without bias: the factor of the inputs is all there is.
    model, data, _, mean = linear_posterior(count=count)
    common = {"start": {"weight": mean.T}, "likelihood": GaussianNoise(0.5), "prior": 0.7, "temperature": 0.5}
    kron = fit_laplace(model, data, structure="kron", draws=5000, **common)
    full = fit_laplace(model, data, structure="full", **common)
    name = "log_marginal_likelihood"
    assert kron.trace[-1][name] == pytest.approx(full.trace[-1][name], rel=1e-11)
    # Five standard errors, 1/√(2n), of a deviation.
    expected = full.posterior.std["weight"]
    torch.testing.assert_close(kron.posterior.std["weight"], expected, rtol=5 / math.sqrt(2 * 5000), atol=0)


def test_kron_of_the_real_package_keeps_tensors_and_their_priors_apart():
    pytest.importorskip("laplace", reason="the extra coset[laplace] is not installed")
    _, (x, y), _, _ = linear_posterior()
    torch.manual_seed(0)
    model, prior = nn.Linear(3, 1).double(), FanIn(0.9, 0.05)
    common = {"start": model.state_dict(), "likelihood": GaussianNoise(0.5), "prior": prior}
    kron = fit_laplace(model, (x, y), structure="kron", draws=5000, **common)
    # Of one output the block of each tensor is exact: XᵀX/σ² for the weight, N/σ² for the bias.
    blocks = {
        "weight": x.T @ x / 0.25 + torch.eye(3, **DOUBLE) * 3 / 0.81,
        "bias": torch.tensor([[40 / 0.25 + 1 / 0.05**2]], **DOUBLE),
    }
    for name, precision in blocks.items():
        expected = torch.linalg.inv(precision).diagonal().sqrt()
        found = kron.posterior.std[name].reshape(-1)
        torch.testing.assert_close(found, expected, rtol=5 / math.sqrt(2 * 5000), atol=0)
    log_det = sum(float(torch.logdet(precision)) for precision in blocks.values())
    expected = 40 * kron.trace[-1]["log_joint"] + 2 * math.log(2 * math.pi) - 0.5 * log_det
    assert 40 * kron.trace[-1]["log_marginal_likelihood"] == pytest.approx(expected, rel=1e-11)
