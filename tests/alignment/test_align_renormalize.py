"""Renormalised networks, measured unit by unit with hooks on their modules, against what was asked for."""

import copy
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn
from torch.func import functional_call

from architectures import CASES, made, randomized
from coset.alignment.averages import mean
from coset.alignment.layer_statistics import moments
from coset.alignment.renormalize import RENORMALIZATIONS, renormalize
from coset.errors import InputError
from coset.models import MLP, ResidualMLP, Tiny10
from coset.symmetry import Symmetry, discover
from coset.train import evaluate

WEIGHTS = [0.3, 0.7]


def generator(seed):
    return torch.Generator().manual_seed(seed)


def setting(model, shape, count=40, symmetry=None):
    """A model in float64, its symmetry, two networks, their average and inputs."""
    model = model.double().eval()
    x = torch.randn(count, *shape, generator=generator(9), dtype=torch.float64)
    sym = symmetry or discover(model, x[:2])
    a, b = (randomized(model, generator(seed)) for seed in range(2))
    return model, sym, a, b, mean([a, b], WEIGHTS), x


def outputs(model, params, x, kinds, *, read=False):
    """Module → what it gives (or reads), as (values, channels), seen by hooks."""
    seen = {}

    def hook(name, module, args, output):
        values = args[0] if read else output
        values = values if isinstance(module, nn.Linear) else values.movedim(1, -1)
        seen[name] = values.reshape(-1, values.shape[-1])

    handles = [
        module.register_forward_hook(partial(hook, name))
        for name, module in model.named_modules()
        if isinstance(module, kinds)
    ]
    functional_call(model, dict(params), (x,))
    for handle in handles:
        handle.remove()
    return {name: values.detach() for name, values in seen.items()}


LINEAR = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.ConvTranspose2d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


class Unusual(nn.Module):
    """A grouped transposed convolution, a convolution in one dimension, a linear map over positions."""

    def __init__(self):
        super().__init__()
        self.lift = nn.Conv2d(2, 4, 3)
        self.up = nn.ConvTranspose2d(4, 6, 2, stride=2, groups=2)
        self.line = nn.Conv1d(6, 5, 3, padding=1)
        self.mix = nn.Linear(5, 7)
        self.fc = nn.Linear(7, 3)

    def forward(self, x):
        x = torch.relu(self.up(torch.relu(self.lift(x))))
        x = torch.relu(self.line(x.flatten(2))).mT
        return self.fc(torch.relu(self.mix(x)).mean(1))


MODELS = {
    "mlp": (lambda: MLP(4, [6, 5, 3], 2), (4,)),
    "residual mlp": (lambda: ResidualMLP(4, 2, width=3, inner=5), (4,)),
    "unusual": (Unusual, (2, 5, 5)),
}


def assert_repaired(model, ends, params, x, done, tolerance):
    before = [outputs(model, end, x, LINEAR) for end in ends]
    after = outputs(model, params, x, LINEAR)
    assert done
    for weight in done:
        name = weight.removesuffix(".weight")
        for measure in (lambda y: y.mean(0), lambda y: y.std(0, correction=0)):
            wanted = sum(share * measure(end[name]) for share, end in zip(WEIGHTS, before, strict=True))
            torch.testing.assert_close(measure(after[name]), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", MODELS)
def test_repair_gives_every_hidden_unit_the_ends_mean_and_deviation(name):
    build, shape = MODELS[name]
    model, sym, a, b, merged, x = setting(build(), shape)
    done = renormalize(sym, model, merged, [a, b], weights=WEIGHTS, data=x)
    hidden = [f"{key}.weight" for key in outputs(model, a, x, LINEAR)]
    assert list(done.corrected) == hidden[:-1]
    assert done.skipped.keys() == {hidden[-1]}
    assert_repaired(model, [a, b], done.params, x, done.corrected, 1e-12)
    assert torch.equal(done.params[hidden[-1]], merged[hidden[-1]])


def test_the_output_is_corrected_on_request():
    model, sym, a, b, merged, x = setting(MLP(4, [5], 2), (4,))
    done = renormalize(sym, model, merged, [a, b], weights=WEIGHTS, data=x, hidden_only=False)
    assert done.corrected == ("layers.0.weight", "layers.1.weight")
    assert_repaired(model, [a, b], done.params, x, done.corrected, 1e-12)


def test_batch_by_batch_the_first_layers_are_exact_and_more_passes_make_all_so():
    model, sym, a, b, merged, x = setting(MLP(4, [6, 6, 6], 2), (4,), count=60)
    loader = [(x[:25], None), (x[25:55], None), (x[55:], None)]
    layers = [f"layers.{index}.weight" for index in range(3)]
    one = renormalize(sym, model, merged, [a, b], weights=WEIGHTS, data=loader)
    assert_repaired(model, [a, b], one.params, x, layers[:1], 1e-12)
    # Behind it a batch of five was corrected by the statistics of five.
    with pytest.raises(AssertionError):
        assert_repaired(model, [a, b], one.params, x, layers, 1e-3)
    two = renormalize(sym, model, merged, [a, b], weights=WEIGHTS, data=x, batch_size=25, passes=2)
    assert_repaired(model, [a, b], two.params, x, layers[:2], 1e-12)
    three = renormalize(sym, model, merged, [a, b], weights=WEIGHTS, data=loader, passes=3)
    assert_repaired(model, [a, b], three.params, x, layers, 1e-12)


def test_rescale_multiplies_outputs_and_shifts_nothing():
    model, sym, a, b, merged, x = setting(MLP(4, [6, 5], 2), (4,))
    done = renormalize(sym, model, merged, [a, b], method="rescale", weights=WEIGHTS, data=x)
    assert done.rescaled == ("layers.0.weight", "layers.1.weight")
    assert done.corrected == ()
    before, after = ([outputs(model, p, x, LINEAR) for p in pair] for pair in ((a, b), (merged, done.params)))
    for layer in ("layers.0", "layers.1"):
        wanted = sum(share * end[layer].std(0) for share, end in zip(WEIGHTS, before, strict=True))
        torch.testing.assert_close(after[1][layer].std(0), wanted)
        factor = done.factors[f"{layer}.bias"]
        torch.testing.assert_close(done.params[f"{layer}.bias"], merged[f"{layer}.bias"] * factor)
        torch.testing.assert_close(done.params[f"{layer}.weight"], merged[f"{layer}.weight"] * factor[:, None])
    torch.testing.assert_close(after[1]["layers.0"], after[0]["layers.0"] * done.factors["layers.0.bias"])


def test_layers_without_a_bias_are_only_rescaled():
    model = nn.Sequential(nn.Linear(3, 5, bias=False), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))
    model, sym, a, b, merged, x = setting(model, (3,))
    done = renormalize(sym, model, merged, [a, b], weights=WEIGHTS, data=x + 1)
    assert done.rescaled == ("0.weight",)
    assert done.corrected == ("2.weight",)
    before = [outputs(model, end, x + 1, LINEAR)["0"] for end in (a, b)]
    after = outputs(model, done.params, x + 1, LINEAR)["0"]
    torch.testing.assert_close(after.std(0), 0.3 * before[0].std(0) + 0.7 * before[1].std(0))
    assert_repaired(model, [a, b], done.params, x + 1, done.corrected, 1e-12)


class Normed(nn.Module):
    """Batch norms behind a convolution, a linear map and on a residual stream."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3)
        self.bn = nn.BatchNorm2d(4)
        self.fc = nn.Linear(4, 6, bias=False)
        self.stream = nn.BatchNorm1d(6)
        self.inner = nn.Linear(6, 6)
        self.out = nn.Linear(6, 3)

    def forward(self, x):
        h = self.fc(torch.relu(self.bn(self.conv(x))).mean((-2, -1)))
        h = h + self.inner(torch.relu(self.stream(h)))
        return self.out(torch.relu(h))


def big_batch(model, params, x):
    """The running statistics that torch itself takes from one batch in training mode."""
    trained = copy.deepcopy(model).train()
    trained.load_state_dict(params)
    for module in trained.modules():
        if isinstance(module, NORMS):
            module.momentum = 1.0
    trained(x)
    return {name: tensor for name, tensor in trained.state_dict().items() if "running" in name}


def test_refresh_is_one_large_batch_of_training():
    model, sym, a, b, merged, x = setting(Normed(), (2, 5, 5))
    done = renormalize(sym, model, merged, [a, b], method="refresh", weights=WEIGHTS, data=x)
    expected = big_batch(model, merged, x)
    assert set(done.refreshed) == expected.keys()
    for name, tensor in done.params.items():
        torch.testing.assert_close(tensor, expected.get(name, merged[name]), rtol=1e-12, atol=1e-12)
    assert done.corrected == done.rescaled == ()
    assert done.skipped == {}


def test_refresh_pools_all_values_while_norms_use_their_batch():
    model, sym, a, b, merged, x = setting(Normed(), (2, 5, 5))
    done = renormalize(sym, model, merged, [a, b], method="refresh", data=x, batch_size=15)
    trained = copy.deepcopy(model).train()
    read = [outputs(trained, copy.deepcopy(merged), x[at : at + 15], NORMS, read=True) for at in (0, 15, 30)]
    for name in ("bn", "stream"):
        values = torch.cat([batch[name] for batch in read])
        torch.testing.assert_close(done.params[f"{name}.running_mean"], values.mean(0), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(done.params[f"{name}.running_var"], values.var(0), rtol=1e-12, atol=1e-12)


def test_more_passes_refresh_until_the_statistics_are_the_networks_own():
    model, sym, a, b, merged, x = setting(Normed(), (2, 5, 5))
    done = renormalize(sym, model, merged, [a, b], method="refresh", data=x, batch_size=15, passes=2)
    read = outputs(model, done.params, x, NORMS, read=True)
    for name in ("bn", "stream"):
        torch.testing.assert_close(done.params[f"{name}.running_mean"], read[name].mean(0), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(done.params[f"{name}.running_var"], read[name].var(0), rtol=1e-12, atol=1e-12)


def test_repair_leaves_what_a_norm_reads_and_corrects_the_rest():
    model, sym, a, b, merged, x = setting(Normed(), (2, 5, 5))
    done = renormalize(sym, model, merged, [a, b], weights=WEIGHTS, data=x, passes=3)
    assert "batch norm reads" in done.skipped["conv.weight"]
    assert "batch norm reads" in done.skipped["fc.weight"]
    assert done.corrected == ("inner.weight",)
    for name in ("conv.weight", "conv.bias", "fc.weight", "bn.weight", "bn.bias"):
        assert torch.equal(done.params[name], merged[name])
    assert_repaired(model, [a, b], done.params, x, done.corrected, 1e-12)
    # A norm's output has the mean β and the deviation |γ| (its variance is over n − 1 and has ε).
    behind = outputs(model, done.params, x, NORMS)["bn"]
    torch.testing.assert_close(behind.mean(0), merged["bn.bias"])
    torch.testing.assert_close(behind.std(0), merged["bn.weight"].abs(), rtol=1e-3, atol=0)


def test_a_norm_on_a_stream_is_refreshed_behind_corrected_writers():
    class PreNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.lift = nn.Linear(3, 6)
            self.norm = nn.BatchNorm1d(6)
            self.write = nn.Linear(6, 6)
            self.norm2 = nn.BatchNorm1d(6)
            self.out = nn.Linear(6, 2)

        def forward(self, x):
            h = torch.relu(self.lift(x))
            h = h + self.write(torch.relu(self.norm(h)))
            return self.out(torch.relu(self.norm2(h)))

    model, sym, a, b, merged, x = setting(PreNorm(), (3,))
    done = renormalize(sym, model, merged, [a, b], weights=WEIGHTS, data=x, passes=3)
    assert done.corrected == ("lift.weight", "write.weight")
    assert_repaired(model, [a, b], done.params, x, done.corrected, 1e-12)
    read = outputs(model, done.params, x, NORMS, read=True)
    for name in ("norm", "norm2"):
        torch.testing.assert_close(done.params[f"{name}.running_mean"], read[name].mean(0))
        torch.testing.assert_close(done.params[f"{name}.running_var"], read[name].var(0))


@pytest.mark.parametrize("method", RENORMALIZATIONS)
@pytest.mark.parametrize("name", CASES)
def test_names_shapes_and_types_stay_for_every_architecture(name, method):
    model, sym, shape = made(name)
    a, b = (randomized(model, generator(seed)) for seed in range(2))
    merged = mean([a, b])
    kept = {key: tensor.clone() for key, tensor in merged.items()}
    x = torch.randn(8, *shape, generator=generator(3), dtype=torch.float64)
    options = {"none": {}, "data-free": {"example": x, "count": 8}}.get(method, {"data": x})
    done = renormalize(sym, model, merged, [a, b], method=method, **options)
    assert list(done.params) == list(merged)
    for key, tensor in done.params.items():
        assert tensor.shape == merged[key].shape
        assert tensor.dtype == merged[key].dtype
        assert torch.isfinite(tensor).all()
        assert torch.equal(merged[key], kept[key])
    touched = {*done.corrected, *done.rescaled, *done.refreshed}
    assert touched.isdisjoint(done.skipped)
    weights = {key for key in merged if key.endswith("weight") and sym.parameters[key].moves and merged[key].ndim > 1}
    if method in ("repair", "rescale", "data-free"):
        assert weights <= touched | done.skipped.keys()


@pytest.mark.parametrize(
    ("name", "method"),
    [("mlp", "repair"), ("unusual", "repair"), ("mlp", "rescale"), ("mlp", "data-free"), ("normed", "data-free")],
)
def test_copies_need_no_correction(name, method):
    build, shape = {**MODELS, "normed": (Normed, (2, 5, 5))}[name]
    model, sym, a, _, _, x = setting(build(), shape)
    options = {"example": x} if method == "data-free" else {"data": x}
    done = renormalize(sym, model, a, [a, a], method=method, **options)
    for key, tensor in a.items():
        torch.testing.assert_close(done.params[key], tensor, rtol=1e-11, atol=1e-11)


def test_without_data_the_change_of_the_statistics_is_that_on_noise():
    model, sym, a, b, merged, x = setting(Normed(), (2, 5, 5))
    done = renormalize(
        sym, model, merged, [a, b], method="data-free", weights=WEIGHTS, example=x[:1], count=300, seed=7
    )
    noise = torch.randn(300, 2, 5, 5, generator=generator(7), dtype=torch.float64)
    seen_a, seen_b, seen = (big_batch(model, params, noise) for params in (a, b, merged))
    # The norm on the stream reads a layer without correction, too: both are as in one batch of training.
    for norm in ("bn", "stream"):
        m, v = f"{norm}.running_mean", f"{norm}.running_var"
        bar, noise_bar = (0.3 * p[v].sqrt() + 0.7 * q[v].sqrt() for p, q in ((a, b), (seen_a, seen_b)))
        # On noise the deviation is that of all n values, not over n − 1.
        count = 300 * {"bn": 9, "stream": 1}[norm]
        noise_bar = noise_bar * ((count - 1) / count) ** 0.5
        wanted = 0.3 * a[m] + 0.7 * b[m] + (seen[m] - 0.3 * seen_a[m] - 0.7 * seen_b[m]) * bar / noise_bar
        wide = bar * (seen[v] * (count - 1) / count).sqrt() / noise_bar
        torch.testing.assert_close(done.params[m], wanted, rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(done.params[v].sqrt(), wide, rtol=1e-11, atol=1e-11)
    assert done.corrected == ("inner.weight",)
    again = renormalize(sym, model, merged, [a, b], method="data-free", weights=WEIGHTS, example=x, count=300, seed=7)
    assert all(torch.equal(again.params[key], tensor) for key, tensor in done.params.items())


def test_without_norms_and_data_it_is_repair_on_noise():
    model, sym, a, b, merged, _ = setting(MLP(4, [6, 5], 2), (4,))
    done = renormalize(sym, model, merged, [a, b], method="data-free", weights=WEIGHTS, count=200, seed=1)
    noise = torch.randn(200, 4, generator=generator(1), dtype=torch.float64)
    assert_repaired(model, [a, b], done.params, noise, done.corrected, 1e-12)


class Odd(nn.Module):
    """A map applied twice, one whose weight is read elsewhere, one with a computed bias, and one of plain products."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.twice = nn.Linear(4, 4)
        self.seen = nn.Linear(4, 4)
        self.computed = nn.Linear(4, 4)
        self.bare = nn.Parameter(torch.randn(4, 4))
        self.out = nn.Linear(4, 2)

    def forward(self, x):
        x = torch.relu(self.first(x))
        x = torch.tanh(self.twice(torch.tanh(self.twice(x))))
        x = torch.relu(self.seen(x)) + self.seen.weight.sum(1)
        x = torch.relu(F.linear(x, self.computed.weight, 2 * self.computed.bias))
        return self.out(torch.relu(x @ self.bare))


def test_what_cannot_be_folded_is_left_and_told():
    model = Odd().double().eval()
    axes = {
        "first.weight": "a", "first.bias": "a", "twice.weight": "a a^-1", "twice.bias": "a", "seen.weight": "b a^-1",
        "computed.weight": "c b^-1", "bare": "c^-1 d", "out.weight": "- d^-1",
    }  # fmt: skip
    sym = Symmetry.from_axes(axes, model)
    model, sym, a, b, merged, x = setting(model, (3,), symmetry=sym)
    done = renormalize(sym, model, merged, [a, b], data=x)
    assert done.corrected == ("first.weight",)
    assert done.skipped["twice.weight"] == "'twice.bias' is read more than once: by linear, linear"
    assert done.skipped["seen.weight"] == "'seen.weight' is read more than once: by linear, sum"
    assert done.skipped["computed.weight"] == "its bias is computed and no parameter"
    assert done.skipped["bare"] == "no linear map or convolution reads it, but matmul"
    for name, tensor in merged.items():
        assert torch.equal(done.params[name], tensor) or name.startswith("first")


def test_tied_weights_are_left_and_stay_tied():
    model, sym, _ = made("tied embeddings")
    a, b = (randomized(model, generator(seed)) for seed in range(2))
    x = torch.randn(8, 6, generator=generator(3), dtype=torch.float64)
    done = renormalize(sym, model, mean([a, b]), [a, b], data=x)
    assert done.params["embed.weight"] is done.params["head.weight"]
    assert done.skipped["embed.weight"] == "'embed.weight' and 'head.weight' are one tensor"
    apart = {name: tensor.clone() for name, tensor in mean([a, b]).items()}
    with pytest.raises(InputError, match="multiple values for keys"):
        renormalize(sym, model, apart, [a, b], data=x)


def test_units_that_are_constant_stay_as_they_are():
    model, sym, a, b, _, x = setting(MLP(3, [4, 4], 2), (3,))
    # Opposite units average to none; one unit is dead in both ends.
    b["layers.0.weight"][0] = -a["layers.0.weight"][0]
    b["layers.0.bias"][0] = -a["layers.0.bias"][0]
    for end in (a, b):
        end["layers.0.weight"][1] = 0
    merged = mean([a, b])
    for method in ("repair", "rescale"):
        done = renormalize(sym, model, merged, [a, b], method=method, data=x)
        assert all(torch.isfinite(tensor).all() for tensor in done.params.values())
        for name in ("layers.0.weight", "layers.0.bias"):
            assert torch.equal(done.params[name][:2], merged[name][:2])
            assert not torch.equal(done.params[name][2:], merged[name][2:])


def test_half_types_are_kept_and_measured_in_single_precision():
    model = MLP(3, [4], 2).half().eval()
    a, b = ({key: t.half() for key, t in randomized(model, generator(seed)).items()} for seed in range(2))
    sym = discover(MLP(3, [4], 2).eval(), torch.randn(2, 3))
    x = torch.randn(50, 3, generator=generator(0)).half()
    merged = mean([a, b])
    done = renormalize(sym, model, merged, [a, b], data=x)
    wide = [{key: tensor.float() for key, tensor in params.items()} for params in (a, b, merged)]
    exact = renormalize(sym, model.float(), wide[2], wide[:2], data=x.float())
    for key, tensor in done.params.items():
        assert tensor.dtype == torch.float16
        torch.testing.assert_close(tensor.float(), exact.params[key], rtol=5e-3, atol=5e-3)


def test_moments_of_parts_add_up():
    y = 1e3 + torch.randn(50, 3, 4, generator=generator(0), dtype=torch.float64)
    both = moments(y[:13], 1) + moments(y[13:], -2)
    assert both.count == 200
    torch.testing.assert_close(both.mean, y.mean((0, 2)), rtol=1e-14, atol=0)
    torch.testing.assert_close(both.deviation, y.std((0, 2), correction=0), rtol=1e-12, atol=0)


def test_the_model_keeps_its_mode_and_drops_nothing_out():
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Dropout(0.5), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))
    model, sym, a, b, merged, x = setting(model, (3,))
    calm = renormalize(sym, model, merged, [a, b], data=x)
    model.train()
    model[2].eval()
    own = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    done = renormalize(sym, model, merged, [a, b], data=x)
    assert [module.training for module in model] == [True, True, False, True, True, True]
    assert all(torch.equal(done.params[name], tensor) for name, tensor in calm.params.items())
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in own.items())


def test_data_that_come_once_suffice_for_one_pass():
    model, sym, a, b, merged, x = setting(MLP(4, [5], 2), (4,))
    once = renormalize(sym, model, merged, [a, b], data=(batch for batch in (x[:20], x[20:])))
    twice = renormalize(sym, model, merged, [a, b], data=[x[:20], x[20:]])
    assert all(torch.equal(once.params[name], tensor) for name, tensor in twice.params.items())
    with pytest.raises(InputError, match="can be gone through once, and passes is 2"):
        renormalize(sym, model, merged, [a, b], data=iter([x]), passes=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data": []}, "data holds no batches"),
        ({"data": torch.zeros(0, 4)}, "expected at least one input"),
        (
            {"data": torch.zeros(5, 7, dtype=torch.float64)},
            r"does not run .* on data of shape \(5, 7\)",
        ),
        ({"data": torch.zeros(5, 4, dtype=torch.float16)}, "type torch.float16"),
        ({"data": torch.zeros(5, 4), "passes": 0}, "passes is 0"),
        ({"data": torch.zeros(5, 4), "batch_size": 0}, "batch_size is 0"),
        ({"data": None}, "data is None; renormalize='repair' measures"),
        ({"method": "data-free", "data": []}, "renormalize='data-free' has no option 'data'; it has example, count"),
        ({"method": "data-free", "count": 1}, "count is 1"),
        ({"method": "data-free", "example": torch.zeros(2, 4, dtype=torch.long)}, "expects a batch of real numbers"),
        ({"method": "pray"}, "renormalize is 'pray'"),
    ],
)
def test_bad_input_is_refused(options, message):
    model, sym, a, b, merged, _ = setting(MLP(4, [5], 2), (4,))
    with pytest.raises(InputError, match=message):
        renormalize(sym, model, merged, [a, b], **options)


def test_what_is_missing_is_named():
    model, sym, a, b, merged, x = setting(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), (3,))
    with pytest.raises(InputError, match="Sequential has no attribute input_shape, and example is None"):
        renormalize(sym, model, merged, [a, b], method="data-free")
    with pytest.raises(InputError, match="model is None"):
        renormalize(sym, None, merged, [a, b], data=x)
    with pytest.raises(InputError, match="ends is empty"):
        renormalize(sym, model, merged, [], data=x)
    with pytest.raises(InputError, match="end 1 lacks"):
        renormalize(sym, model, merged, [a, {}], data=x)


def test_a_batch_of_one_value_has_no_statistics():
    model, sym, a, b, merged, x = setting(MLP(4, [5], 2, norm="batch"), (4,))
    with pytest.raises(InputError, match=r"batch 3 of data gives the batch norm of '.*running_var' one value"):
        renormalize(sym, model, merged, [a, b], data=x, batch_size=13)


def test_weights_that_overflow_are_an_error():
    model, sym, a, b, merged, x = setting(MLP(3, [4, 4], 2), (3,))
    huge = {name: tensor * 1e160 for name, tensor in a.items()}
    with pytest.raises(InputError, match="not finite"):
        renormalize(sym, model, merged, [huge, b], data=x)


@pytest.fixture(scope="module")
def tiny10(checkpoint_folder, data_folder):
    """A trained network, inputs to measure on, and its accuracy with given parameters on others."""
    params = load_file(checkpoint_folder / "tiny10-seed0.safetensors")
    pictures = np.load(data_folder / "cifar10-slice.npz")
    center, spread = (torch.tensor(row).reshape(3, 1, 1) for row in ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.201)))

    def inputs(x):
        return (torch.tensor(x) / 255 - center) / spread

    model = Tiny10().eval()
    sym = discover(model, torch.randn(2, 3, 32, 32))
    x, y = inputs(pictures["x_test"][:500]), torch.tensor(pictures["y_test"][:500]).long()
    return model, sym, params, inputs(pictures["x_train"][:500]), lambda p: evaluate(model, x, y, params=p).accuracy


def test_refresh_brings_a_trained_network_without_statistics_back(tiny10):
    model, sym, params, x, accuracy = tiny10
    bare = {**params, **{name: torch.ones_like(params[name]) for name in params if "running" in name}}
    assert accuracy(bare) < 0.2
    done = renormalize(sym, model, bare, [bare], method="refresh", data=x)
    # One of 500 pictures is 0.2 points; the published statistics are of all 50,000, moving.
    assert accuracy(dict(done.params)) > accuracy(params) - 0.02


def test_noise_tells_of_trained_networks_what_data_do(tiny10, checkpoint_folder):
    model, sym, params, x, _ = tiny10
    ends = [params, load_file(checkpoint_folder / "tiny10-seed1.safetensors")]
    merged = mean(ends)
    real = renormalize(sym, model, merged, ends, method="refresh", data=x).params
    free = renormalize(sym, model, merged, ends, method="data-free", count=200).params
    for layer in range(1, 9):
        center, variance = f"bn{layer}.running_mean", f"bn{layer}.running_var"
        shifts = [((p[center] - real[center]) / real[variance].sqrt()).abs().mean() for p in (merged, free)]
        ratios = [(p[variance] / real[variance]).log().abs().mean() for p in (merged, free)]
        # The first layer reads the data themselves, whose mean no average changes.
        assert layer == 1 or shifts[1] < shifts[0]
        assert ratios[1] < ratios[0] / 2
