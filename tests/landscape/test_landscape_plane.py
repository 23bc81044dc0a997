"""Planes: against evaluation point by point, a closed form, and coordinates that give the networks back."""

import csv
import io
import json
import math

import pytest
import torch
from torch import nn
from torch.func import functional_call

from coset.distribution import Delta, Samples
from coset.errors import InputError
from coset.landscape import linear, plane
from coset.models import MLP
from coset.posterior import FanIn, GaussianNoise


def networks(model, count=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        {n: torch.randn(t.shape, generator=generator, dtype=t.dtype) for n, t in model.named_parameters()}
        for _ in range(count)
    ]


def classified(count=23, inputs=3, classes=2, dtype=torch.float64):
    generator = torch.Generator().manual_seed(9)
    x = torch.randn(count, inputs, generator=generator, dtype=dtype)
    return x, torch.randint(classes, (count,), generator=generator)


def flat(params):
    return torch.cat([tensor.reshape(-1) for tensor in params.values()])


@pytest.fixture(scope="module")
def small():
    model = MLP(3, [4], 2).double()
    three = networks(model)
    return model, three, plane(model, three, classified(), prior=0.7, points=(5, 4), batch_size=10, show=False)


def test_every_value_is_that_of_the_network_there(small):
    model, _, found = small
    x, y = classified()
    assert found.log_likelihood.shape == found.log_prior.shape == found.log_posterior.shape == (4, 5)
    for row, t in enumerate(found.t.tolist()):
        for column, s in enumerate(found.s.tolist()):
            params = found.params(s, t)
            log_probabilities = functional_call(model, params, (x,)).log_softmax(-1)
            likelihood = sum(float(log_probabilities[i, label]) for i, label in enumerate(y.tolist())) / 23
            weights = flat(params)
            prior = float(-0.5 * (weights / 0.7).square().sum()) - len(weights) * math.log(0.7 * math.sqrt(2 * math.pi))
            assert float(found.log_likelihood[row, column]) == pytest.approx(likelihood, rel=1e-12)
            assert float(found.log_prior[row, column]) == pytest.approx(prior / 23, rel=1e-12)
            assert float(found.log_posterior[row, column]) == pytest.approx(likelihood + prior / 23, rel=1e-12)


def test_coordinates_give_the_networks_back(small):
    _, three, found = small
    torch.testing.assert_close(found.basis @ found.basis.mT, torch.eye(2, dtype=torch.float64), rtol=0, atol=1e-15)
    assert found.coordinates[0].tolist() == [0.0, 0.0]
    assert found.coordinates[1, 1] == 0
    assert float(found.coordinates[1, 0]) == pytest.approx(float((flat(three[1]) - flat(three[0])).norm()), rel=1e-14)
    for network, (s, t) in zip(three, found.coordinates.tolist(), strict=True):
        back = found.params(s, t)
        for name, tensor in network.items():
            torch.testing.assert_close(back[name], tensor, rtol=0, atol=1e-14)
    low, high = found.coordinates.min(0).values, found.coordinates.max(0).values
    for axis, at in ((found.s, 0), (found.t, 1)):
        assert float(axis[0]) == pytest.approx(float(low[at] - 0.25 * (high[at] - low[at])), rel=1e-14)
        assert float(axis[-1]) == pytest.approx(float(high[at] + 0.25 * (high[at] - low[at])), rel=1e-14)


def test_samples_are_projected(small):
    model, three, known = small
    inside = known.params(0.4, -1.2)
    direction = torch.randn(known.origin.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    direction -= (direction @ known.basis.mT) @ known.basis
    beside = known.layout.whole(flat(inside) + 3 * direction / direction.norm())
    for samples in ([inside, Delta(beside)], Samples.stack([inside, beside])):
        found = plane(model, three, classified(), samples=samples, points=(2, 2), show=False)
        expected = torch.tensor([[0.4, -1.2]] * 2, dtype=torch.float64)
        torch.testing.assert_close(found.samples, expected, rtol=0, atol=1e-13)
        torch.testing.assert_close(found.distances, torch.tensor([0.0, 3.0], dtype=torch.float64), rtol=0, atol=1e-13)
        # The grid reaches beyond samples, too.
        assert found.t[0] < -1.2


def test_a_linear_model_has_a_quadratic_log_likelihood():
    model = nn.Linear(4, 1).double()
    x = classified(count=31, inputs=4)[0]
    y = x.sum(1, keepdim=True).sin()
    noise = 0.6
    found = plane(
        model, networks(model), (x, y), likelihood=GaussianNoise(noise), prior=FanIn(), points=(6, 3), show=False
    )
    design = torch.cat([x, torch.ones(31, 1, dtype=torch.float64)], 1)
    # ‖y − A(θ₀ + sB₀ + tB₁)‖² multiplied out.
    residual, slopes = y[:, 0] - design @ found.origin, design @ found.basis.mT
    gram, linear_part = slopes.mT @ slopes, slopes.mT @ residual
    t, s = torch.meshgrid(found.t, found.s, indexing="ij")
    at = torch.stack([s, t], -1)
    squares = residual @ residual - 2 * at @ linear_part + ((at @ gram) * at).sum(-1)
    expected = -0.5 * squares / noise**2 / 31 - math.log(noise * math.sqrt(2 * math.pi))
    torch.testing.assert_close(found.log_likelihood, expected, rtol=1e-12, atol=0)


def test_large_networks_are_run_one_by_one_to_the_same_values(small, monkeypatch):
    model, three, together = small
    monkeypatch.setattr("coset.posterior.prediction.chunks.OVERHEAD_WORK", 0)
    alone = plane(model, three, classified(), prior=0.7, points=(5, 4), show=False)
    torch.testing.assert_close(alone.log_likelihood, together.log_likelihood, rtol=1e-13, atol=0)
    assert torch.equal(alone.log_prior, together.log_prior)


def test_numbers_as_json_and_csv(small):
    _, _, found = small
    numbers = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert numbers["count"] == 23
    assert numbers["log_posterior"] == found.log_posterior.tolist()
    rows = list(csv.DictReader(io.StringIO(found.to_csv())))
    assert len(rows) == 20
    # Row by row of t: the seventh line is t[1], s[1].
    assert float(rows[6]["s"]) == float(found.s[1])
    assert float(rows[6]["t"]) == float(found.t[1])
    assert float(rows[6]["log-prior"]) == float(found.log_prior[1, 1])


def test_buffers_are_those_of_the_networks_and_do_not_move():
    model = MLP(3, [4], 2, norm="batch").double().eval()
    three = networks(model)
    running = {n: 1.5 * t + 0.1 if "running" in n else t for n, t in model.named_buffers()}
    three = [network | running for network in three]
    found = plane(model, three, classified(), points=(3, 2), show=False)
    s, t = float(found.s[2]), float(found.t[0])
    params = found.params(s, t)
    assert all(torch.equal(params[name], tensor) for name, tensor in running.items())
    x, y = classified()
    expected = -nn.functional.cross_entropy(functional_call(model, params, (x,)), y)
    assert float(found.log_likelihood[0, 2]) == pytest.approx(float(expected), rel=1e-12)
    odd = next(name for name in running if name.endswith("running_mean"))
    with pytest.raises(InputError, match=f"'{odd}' is not inferred and differs"):
        plane(model, [three[0], three[1], three[2] | {odd: running[odd] + 1}], classified())


def test_single_precision_is_near_double():
    model = MLP(3, [4], 2)
    three = networks(model)
    x, y = classified(dtype=torch.float32)
    single = plane(model, three, (x, y), points=(3, 3), show=False)
    wide = [{n: t.double() for n, t in network.items()} for network in three]
    double = plane(MLP(3, [4], 2).double(), wide, (x.double(), y), points=(3, 3), show=False)
    torch.testing.assert_close(single.log_posterior, double.log_posterior, rtol=1e-5, atol=0)
    torch.testing.assert_close(single.coordinates, double.coordinates, rtol=1e-14, atol=1e-14)


def test_bad_input_is_refused():
    model = MLP(3, [4], 2)
    three, data = networks(model), classified(dtype=torch.float32)
    path = linear(three[0], three[1])
    with pytest.raises(InputError, match=r"lie on one line.*independent noise"):
        plane(model, [path(0), path(1), path(0.3)], data)
    with pytest.raises(InputError, match="networks 0 and 1 are the same"):
        plane(model, [three[0], three[0], three[2]], data)
    with pytest.raises(InputError, match="networks has 2; expected three"):
        plane(model, three[:2], data)
    with pytest.raises(InputError, match="points is 41"):
        plane(model, three, data, points=41)
    with pytest.raises(InputError, match="points is 1; expected a whole number ≥ 2"):
        plane(model, three, data, points=(5, 1))
    with pytest.raises(InputError, match="margin is -1"):
        plane(model, three, data, margin=-1)
    name = next(iter(three[2]))
    with pytest.raises(InputError, match="network 2 has weights that are NaN"):
        plane(model, [*three[:2], three[2] | {name: three[2][name] / 0}], data)
    with pytest.raises(InputError, match=r"log-likelihood at s = .* a smaller margin"):
        plane(model, three, data, points=(2, 2), margin=1e30)
