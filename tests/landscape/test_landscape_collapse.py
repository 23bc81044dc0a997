"""Variance collapse: a planted halving, brute force in double precision, posteriors marginalised before they vary."""

import csv
import io
import json

import pytest
import torch
from torch import nn
from torch.func import functional_call

from coset.distribution import MeanField, Samples
from coset.errors import InputError
from coset.landscape import VarianceProfile, activation_variances, geodesic, linear
from coset.models import MLP

POINTS = {"points": 3, "show": False}


def randoms(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def network(model, seed):
    generator = torch.Generator().manual_seed(seed)
    return {n: torch.randn(t.shape, generator=generator, dtype=torch.float64) for n, t in model.state_dict().items()}


class Images(nn.Module):
    """A convolution, an activation that works in place, and a linear map of the channels' means."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 2)
        self.relu = nn.ReLU(inplace=True)
        self.read = nn.Linear(3, 2)

    def forward(self, x):
        return self.read(self.relu(self.conv(x)).mean((-2, -1)))


def test_orthogonal_units_lose_half_of_their_variance_halfway():
    model = nn.Sequential(nn.Linear(6, 3), nn.Linear(3, 2)).double()
    a, b = network(model, 0), network(model, 1)
    # Inputs with unit covariance, and rows of the ends orthogonal to each other: variances add up.
    x = randoms(50, 6)
    x = torch.linalg.qr(x - x.mean(0)).Q * 50**0.5
    a["0.weight"], b["0.weight"] = torch.eye(6, dtype=torch.float64)[:3], 2 * torch.eye(6, dtype=torch.float64)[3:]
    found = activation_variances(model, linear(a, b), x, layers=["0"], taus=[0.25, 0.5], show=False)
    assert found.taus == (0.0, 0.25, 0.5, 1.0)
    variances = torch.tensor([1.0, 0.75**2 + 0.25**2 * 4, 0.25 + 0.25 * 4, 4.0], dtype=torch.float64)
    torch.testing.assert_close(found.variances["0"], variances[:, None].expand(4, 3), rtol=1e-12, atol=0)
    assert found.ratios["0"] == pytest.approx([0.4, 0.325, 0.5, 1.6], rel=1e-12)
    assert found.lowest["0"] == pytest.approx(0.325, rel=1e-12)


def test_a_path_that_stays_keeps_all_variance():
    model = MLP(4, [5, 3], 2).double()
    a = network(model, 0)
    found = activation_variances(model, linear(a, a), randoms(9, 4), **POINTS)
    # By default the outputs of everything with a weight matrix.
    assert found.layers == tuple(name for name, module in model.named_modules() if isinstance(module, nn.Linear))
    for layer in found.layers:
        assert found.ratios[layer] == (1.0, 1.0, 1.0)


@pytest.mark.parametrize("batch_size", [4, 100])
def test_images_against_brute_force(batch_size):
    model, x = Images().double(), randoms(11, 2, 4, 4)
    a, b = network(model, 0), network(model, 1)
    layers = ["conv", "relu"]
    found = activation_variances(model, linear(a, b), x, layers=layers, batch_size=batch_size, **POINTS)
    path = linear(a, b)
    for at, tau in enumerate((0.0, 0.5, 1.0)):
        point = path(tau)
        before = nn.functional.conv2d(x, point["conv.weight"], point["conv.bias"])
        for layer, activations in (("conv", before), ("relu", before.relu())):
            expected = activations.movedim(1, 0).flatten(1).var(1, correction=0)
            torch.testing.assert_close(found.variances[layer][at], expected, rtol=1e-12, atol=0)
    # The model itself is left as it was.
    assert not model.conv._forward_hooks
    assert model.training


def test_dead_units_are_left_out():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)).double()
    a, b = network(model, 0), network(model, 1)
    for end in (a, b):
        end["0.weight"][0] = 0.0
        end["0.bias"][0] = 1.7  # constant, not 0
    x = randoms(20, 3)
    found = activation_variances(model, linear(a, b), x, layers=["1"], **POINTS)
    assert found.variances["1"][:, 0].tolist() == [0.0, 0.0, 0.0]
    assert found.unit_ratios("1")[:, 0].isnan().all()
    live = found.variances["1"][:, 1:]
    expected = live.mean(1) / ((live[0] + live[2]) / 2).mean()
    assert found.ratios["1"] == pytest.approx(expected.tolist(), rel=1e-14)
    torch.testing.assert_close(found.unit_ratios("1")[:, 1:], live / ((live[0] + live[2]) / 2))
    with pytest.raises(InputError, match="no unit of layer 'h' varies"):
        VarianceProfile((0.0, 1.0), {"h": torch.zeros(2, 3)})


def test_posteriors_are_marginalised_before_they_vary():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    ends = []
    for seed in (0, 1):
        mean = network(model, seed)
        ends.append(MeanField(mean, {name: torch.full_like(tensor, 0.5) for name, tensor in mean.items()}))
    x, path = randoms(13, 3), geodesic(*ends)
    settings = {"layers": ["0", "1"], "samples": 6, "seed": 3}
    found = activation_variances(model, path, x, **settings, **POINTS)
    again = activation_variances(model, [path(0), path(0.5), path(1)], x, **settings, show=False)
    for layer in ("0", "1"):
        assert torch.equal(found.variances[layer], again.variances[layer])
    # Draws as such: the mean over them, then the variance over the data.
    draws = [network(model, seed) for seed in range(4)]
    q = Samples.stack(draws)
    drawn = activation_variances(model, [q, q], x, layers=["1"], samples=4, show=False)
    hidden = torch.stack([functional_call(model[:2], {n: d[n] for n in ("0.weight", "0.bias")}, (x,)) for d in draws])
    torch.testing.assert_close(drawn.variances["1"][0], hidden.mean(0).var(0, correction=0), rtol=1e-12, atol=0)
    # Common random numbers: the linear layer's marginal moves on the line, as each of its draws does.
    middle = activation_variances(model, lambda tau: path(0.5), x, **settings, **POINTS)
    assert torch.equal(middle.variances["0"][0], found.variances["0"][1])


def test_sequences_must_say_where_their_units_are():
    model = nn.Sequential(nn.Linear(3, 4)).double()
    a, b, x = network(model, 0), network(model, 1), randoms(7, 5, 3)
    with pytest.raises(InputError, match=r"layer '0' has shape \(7, 5, 4\).*unit_axis"):
        activation_variances(model, linear(a, b), x, **POINTS)
    for axis in (-1, 2, {"0": -1}):
        found = activation_variances(model, linear(a, b), x, unit_axis=axis, **POINTS)
        expected = functional_call(model, a, (x,)).flatten(0, 1).var(0, correction=0)
        torch.testing.assert_close(found.variances["0"][0], expected, rtol=1e-12, atol=0)
    with pytest.raises(InputError, match="unit_axis of layer '0' is 0"):
        activation_variances(model, linear(a, b), x, unit_axis=0, **POINTS)


def test_numbers_as_json_and_csv():
    found = VarianceProfile((0.0, 0.5, 1.0), {"h": torch.tensor([[1.0, 3.0], [0.5, 0.5], [2.0, 2.0]])})
    numbers = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert numbers["ratios"] == {"h": [1.0, 0.25, 1.0]}
    assert numbers["lowest"] == {"h": 0.25}
    assert list(csv.reader(io.StringIO(found.to_csv())))[:3] == [["tau", "h"], ["0.0", "1.0"], ["0.5", "0.25"]]


def test_bad_input_is_refused():
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2)).double()
    a, x = network(model, 0), randoms(5, 3)
    path = linear(a, a)
    with pytest.raises(InputError, match=r"'fc' is no layer of Sequential; its layers are '0', '1', '2'"):
        activation_variances(model, path, x, layers=["fc"])
    with pytest.raises(InputError, match="layers is '0'"):
        activation_variances(model, path, x, layers="0")
    with pytest.raises(InputError, match="path is a list; expected a function"):
        activation_variances(model, [a], x)
    with pytest.raises(InputError, match="taus is given"):
        activation_variances(model, [a, a], x, taus=[0.5])
    with pytest.raises(InputError, match="x is a list_iterator, which can be read only once"):
        activation_variances(model, path, iter([x]))
    with pytest.raises(InputError, match="layer 'h' was not measured"):
        activation_variances(model, path, x, points=2).unit_ratios("h")
    with pytest.raises(InputError, match="at τ = 0 are not finite"):
        activation_variances(model, path, x * 1e300 * 1e8, points=2)

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.idle, self.last = nn.Linear(3, 3), nn.Linear(3, 3), nn.LSTM(3, 2)

        def forward(self, x):
            return self.last(self.layer(self.layer(x)))[0]

    twice = Twice().double()
    held = dict(twice.state_dict())
    for layer, message in (("layer", "is called 2 times"), ("idle", "is not called"), ("layer#2", "names a call")):
        with pytest.raises(InputError, match=f"'{layer}' {message}"):
            activation_variances(twice, [held, held], x, layers=[layer])


def test_one_call_of_a_layer_and_the_first_part_of_what_it_gives():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.last = nn.Linear(3, 3), nn.LSTM(3, 2)

        def forward(self, x):
            return self.last(self.layer(self.layer(x)))[0]

    twice, x = Twice().double(), randoms(5, 3)
    held = dict(twice.state_dict())
    found = activation_variances(twice, [held, held], x, layers=["layer#1", "last", "last"], show=False)
    assert found.layers == ("layer#1", "last")
    with torch.no_grad():
        for layer, outputs in (("layer#1", twice.layer(twice.layer(x))), ("last", twice(x))):
            expected = outputs.var(0, correction=0)
            torch.testing.assert_close(found.variances[layer][0], expected, rtol=1e-12, atol=0)
