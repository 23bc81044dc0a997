"""Estimates at equal time: values and gradients against exact ones, and what is compared with what."""

import math

import pytest
import torch

from coset.distribution import MeanField
from coset.models import MLP
from coset.posterior.symmetrized import mutual_information
from coset.symmetry import discover
from coset_studies.gelberg.estimators._estimates import Errors, best, errors, estimate, problem_of
from coset_studies.gelberg.estimators.study import ratios

SEED = 3


@pytest.fixture(scope="module")
def problem():
    torch.manual_seed(0)
    model = MLP(1, [4], 1, activation="tanh").double().eval()
    mean = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    q = MeanField(mean, {name: torch.full_like(tensor, 0.4) for name, tensor in mean.items()})
    sym = discover(model, torch.zeros(2, 1, dtype=torch.float64))
    return problem_of(sym, q), sym, q


def test_exact_estimate_is_the_mutual_information(problem):
    vectors, sym, q = problem
    found = estimate(vectors, "exact", 1, 4000, torch.Generator().manual_seed(SEED))
    truth = mutual_information(sym, q, samples=4000, seed=7, show=False)
    assert abs(found.information - truth.value) < 4 * math.hypot(truth.error, math.sqrt(found.spread))
    assert math.isclose(vectors.log_order, math.log(24))


def test_gradient_is_that_of_the_estimate(problem):
    vectors, _, _ = problem
    found = estimate(vectors, "exact", 1, 20, torch.Generator().manual_seed(SEED))
    direction = torch.randn(vectors.values.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    step = 1e-5

    def along(size):
        moved = type(vectors)(vectors.sym, vectors.orbit, vectors.values + size * direction)
        return estimate(moved, "exact", 1, 20, torch.Generator().manual_seed(SEED)).information

    slope = (along(step) - along(-step)) / (2 * step)
    assert slope == pytest.approx(float((found.gradient * direction).sum()), rel=1e-7)


def test_errors_of_a_saturated_bound_are_its_gap(problem):
    vectors, _, _ = problem
    generator = torch.Generator().manual_seed(SEED)
    truth = estimate(vectors, "exact", 1, 2000, generator)
    # With one permutation but the identity at most log 2.
    found = errors(vectors, truth, "uniform", 2, 0.01, 5, generator)
    assert found.bias <= math.log(2) - truth.information + 5 * found.deviation
    assert found.information == pytest.approx(found.bias**2 + 0.8 * found.deviation**2, rel=1e-9)
    assert found.draws >= 2


def test_the_best_number_of_permutations_counts():
    def made(K, information, gradient):
        return Errors("uniform", K, 10, 0.1, 0.0, 0.0, information, gradient)

    found = {"uniform": [made(1, 4.0, 1.0), made(2, 2.0, 3.0)], "sequential": [made(1, 0.5, 0.5), made(2, 0.1, 2.0)]}
    assert best(found["uniform"], "information").K == 2
    assert ratios(found, "information") == {"sequential": pytest.approx(20.0)}
    assert ratios(found, "gradient") == {"sequential": pytest.approx(2.0)}
    # Uniform permutations with the better of their gradients.
    found["uniform-path"] = [made(2, 2.0, 0.25)]
    assert ratios(found, "gradient") == {"sequential": pytest.approx(0.5)}


def test_path_gradients_agree_with_those_of_the_bound_and_have_less_noise(problem):
    vectors, _, _ = problem
    bound = estimate(vectors, "exact", 1, 4000, torch.Generator().manual_seed(SEED))
    path = estimate(vectors, "exact-path", 1, 4000, torch.Generator().manual_seed(SEED))
    assert path.information == bound.information
    off = float((path.gradient - bound.gradient).square().sum())
    assert off < 4 * (path.gradient_spread + bound.gradient_spread)
    assert path.gradient_spread < bound.gradient_spread
