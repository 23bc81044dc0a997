"""Batch norms of renormalised networks: refreshed as in training, behind corrected layers, and from noise."""

import copy

import numpy as np
import pytest
import torch
from measured_networks import NORMS, WEIGHTS, Normed, assert_repaired, generator, outputs, setting
from safetensors.torch import load_file
from torch import nn

from coset.alignment.averages import mean
from coset.alignment.merging._renormalize import renormalize
from coset.errors import InputError
from coset.models import MLP, Tiny10
from coset.symmetry import discover
from coset.train import evaluate


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
    done = renormalize(sym, model, merged, [a, b], weights=WEIGHTS, data=x, passes=4)
    assert "batch norm reads" in done.skipped["conv.weight"]
    assert done.corrected == ("inner.weight",)
    for name in ("conv.weight", "conv.bias", "bn.weight", "bn.bias"):
        assert torch.equal(done.params[name], merged[name])
    assert_repaired(model, [a, b], done.params, x, done.corrected, 1e-12)
    # What a norm reads goes past it, too, on the stream, which no norm puts right.
    assert done.rescaled == ("fc.weight",)
    found, *wanted = (outputs(model, params, x, nn.Linear)["fc"].std(0) for params in (done.params, a, b))
    torch.testing.assert_close(found, 0.3 * wanted[0] + 0.7 * wanted[1], rtol=1e-12, atol=1e-12)
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


def test_without_data_the_change_of_the_statistics_is_that_on_noise():
    model, sym, a, b, merged, x = setting(Normed(), (2, 5, 5))
    done = renormalize(
        sym, model, merged, [a, b], method="data-free", weights=WEIGHTS, example=x[:1], count=300, seed=7
    )
    noise = torch.randn(300, 2, 5, 5, generator=generator(7), dtype=torch.float64)
    seen_a, seen_b, seen = (big_batch(model, params, noise) for params in (a, b, merged))
    for norm in ("bn", "stream"):
        m, v = f"{norm}.running_mean", f"{norm}.running_var"
        bar, noise_bar = (0.3 * p[v].sqrt() + 0.7 * q[v].sqrt() for p, q in ((a, b), (seen_a, seen_b)))
        # On noise the deviation is that of all n values, not over n − 1.
        count = 300 * {"bn": 9, "stream": 1}[norm]
        noise_bar = noise_bar * ((count - 1) / count) ** 0.5
        own = (seen[v] * (count - 1) / count).sqrt()
        # The layer before the stream has no bias and is read by a skip connection, too: its deviation is set right.
        factor = noise_bar / own if norm == "stream" else 1
        wanted = 0.3 * a[m] + 0.7 * b[m] + (factor * seen[m] - 0.3 * seen_a[m] - 0.7 * seen_b[m]) * bar / noise_bar
        wide = bar * factor * own / noise_bar
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


def test_a_batch_of_one_value_has_no_statistics():
    model, sym, a, b, merged, x = setting(MLP(4, [5], 2, norm="batch"), (4,))
    with pytest.raises(InputError, match=r"batch 3 of data gives the batch norm of '.*running_var' one value"):
        renormalize(sym, model, merged, [a, b], data=x, batch_size=13)


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
