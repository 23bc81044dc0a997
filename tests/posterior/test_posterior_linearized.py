"""Linearised networks: against Jacobians, and as the model whose posterior Laplace is."""

import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call

from architectures import made, randomized
from coset.distribution.delta import Delta
from coset.errors import InputError
from coset.models import MLP
from coset.posterior.inference.laplace import fit_laplace, linearized
from coset.posterior.likelihoods import GaussianNoise
from coset.posterior.prediction._predictive import predictive

DOUBLE = {"dtype": torch.float64}


@pytest.mark.parametrize("name", ["batchnorm+depthwise", "tied embeddings", "grouped-query attention", "cct"])
def test_it_is_the_first_order_expansion(name):
    model, _, shape = made(name)
    generator = torch.Generator().manual_seed(0)
    center = randomized(model, generator)
    whole = name == "tied embeddings"
    x = torch.randint(0, 3, (2, *shape), generator=generator) if whole else torch.randn(2, *shape, **DOUBLE)
    linear = linearized(model, Delta(center))
    assert list(linear.state_dict()) == list(model.state_dict())
    at_center = functional_call(model, center, (x,))
    torch.testing.assert_close(linear(x), at_center, rtol=1e-12, atol=1e-12)
    names = [key for key, _ in model.named_parameters()]
    away = {key: 1e-3 * torch.randn(center[key].shape, generator=generator, **DOUBLE) for key in names}

    def moved(t):
        # Under the first of tied names; functional_call sees to the others.
        buffers = {key: center[key] for key, _ in model.named_buffers()}
        return buffers | {key: center[key] + t * away[key] for key in names}

    # Central differences with h: an error of the order h² against the linear part.
    h = 1e-3
    slope = (functional_call(model, moved(h), (x,)) - functional_call(model, moved(-h), (x,))) / (2 * h)
    for t in (1.0, -3.0):
        found = functional_call(linear, moved(t), (x,))
        torch.testing.assert_close(found - at_center, t * slope, rtol=1e-6, atol=1e-9)


def test_a_model_linear_in_its_weights_is_itself_and_is_left_alone():
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    before = copy.deepcopy(model.state_dict())
    linear = linearized(model, {name: tensor + 1 for name, tensor in before.items()})
    other = {name: torch.randn_like(tensor) for name, tensor in before.items()}
    x = torch.randn(5, 3, **DOUBLE)
    expected = functional_call(model, other, (x,))
    torch.testing.assert_close(functional_call(linear, other, (x,)), expected, rtol=1e-12, atol=1e-12)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    with pytest.raises(InputError, match="at is a int"):
        linearized(model, 3)


def test_predictions_have_the_variance_of_the_linear_model():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    x = torch.linspace(-2, 2, 30, **DOUBLE).reshape(-1, 1)
    y = torch.sin(2 * x) + 0.1 * torch.randn(30, 1, generator=generator, **DOUBLE)
    model = MLP(1, [8], 1, activation="tanh").double()
    settings = {"epochs": 300, "batch_size": 30, "learning_rate": 0.02, "likelihood": GaussianNoise(0.1)}
    fit = fit_laplace(model, (x, y), structure="full", **settings)
    found = predictive(linearized(model, fit), fit, x, likelihood=GaussianNoise(0.1), samples=2000)
    mean = dict(fit.posterior.mean)
    jacobian = torch.func.jacrev(lambda params: functional_call(model, params, (x,)).squeeze(1))(mean)
    rows = torch.cat([jacobian[name].reshape(30, -1) for name in fit.posterior.names], 1)
    variance = (rows @ fit.posterior.covariance * rows).sum(1)
    # Five standard errors, √(2/n), of a variance.
    torch.testing.assert_close(found.model_std.square().squeeze(1), variance, rtol=5 * (2 / 2000) ** 0.5, atol=0)
