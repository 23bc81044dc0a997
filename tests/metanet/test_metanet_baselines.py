"""Baselines of readers: what they take of weights, what they find, and what the group does to them."""

import numpy as np
import pytest
import torch
from torch import nn

import coset
from coset.errors import InputError
from coset.metanet._baselines import STATISTICS, FlatReader, fit_statistics, weight_statistics
from coset.metanet._training import fit_reader
from coset.symmetry.stacks import act_stack, random_stack
from coset.train import Recipe


def networks_of(model, count, seed=0, example=(4,)):
    sym = coset.discover(model.double().eval(), torch.randn(2, *example, dtype=torch.float64))
    generator = torch.Generator().manual_seed(seed)
    stack = {
        name: torch.rand(count, *t.shape, generator=generator, dtype=t.dtype) + 0.1
        if t.is_floating_point()
        else t.expand(count)
        for name, t in model.state_dict().items()
    }
    return sym, stack


def mlp(width=5):
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 3))


def normed():
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))


def test_statistics_are_those_of_numpy():
    sym, stack = networks_of(mlp(), 6)
    found = weight_statistics(sym, stack)
    assert list(found) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    for name, values in found.items():
        for number, row in enumerate(values):
            own = stack[name][number].numpy()
            shares = np.quantile(own, [0, 0.1, 0.25, 0.5, 0.75, 0.9, 1])
            norms = [np.abs(own).mean(), np.linalg.norm(own.ravel()) / np.sqrt(own.size)]
            expected = [own.mean(), own.std(), *shares, *norms]
            assert row.tolist() == pytest.approx(expected)
            assert len(row) == len(STATISTICS)


@pytest.mark.parametrize("make", [mlp, normed])
def test_statistics_do_not_see_permutations_and_do_see_scales(make):
    sym, stack = networks_of(make(), 6)
    first = weight_statistics(sym, stack)
    permutations = sym.restrict(scales=False, signs=False, continuous=False)
    for group, invariant in ((permutations, True), (sym, False)):
        moved = act_stack(group, random_stack(group, 6, torch.Generator().manual_seed(0)), stack)
        assert not torch.equal(moved["0.weight"], stack["0.weight"])
        found = weight_statistics(sym, moved)
        change = max(float((found[name] - values).abs().max()) for name, values in first.items())
        assert change < 1e-12 if invariant else change > 1e-3


def test_boosting_finds_a_function_of_statistics_in_networks_of_any_width():
    groups = []
    for width, seed in ((5, 0), (7, 1)):
        sym, stack = networks_of(mlp(width), 150, seed)
        groups.append((sym, stack, stack["0.weight"].mean((1, 2)) + stack["2.weight"].amax((1, 2))))
    fitted = fit_statistics(groups)
    sym, stack = networks_of(mlp(6), 100, 2)
    truth = stack["0.weight"].mean((1, 2)) + stack["2.weight"].amax((1, 2))
    predicted = fitted.predict(sym, stack)
    assert predicted.shape == (100,)
    assert float(torch.corrcoef(torch.stack([predicted, truth]))[0, 1]) > 0.8
    assert torch.equal(fit_statistics(groups).predict(sym, stack), predicted)
    one = {name: tensor[3] for name, tensor in stack.items()}
    torch.testing.assert_close(fitted.predict(sym, one), predicted[3])
    other = networks_of(normed(), 4)
    assert fitted.predict(*other).isfinite().all()
    alien, weights = networks_of(nn.Sequential(nn.Identity(), nn.Linear(4, 3)), 4)
    with pytest.raises(InputError, match="none of the parameters"):
        fitted.predict(alien, weights)


def test_statistics_of_canonical_forms_do_not_see_scales():
    sym, stack = networks_of(mlp(), 150)
    moved = act_stack(sym, random_stack(sym, 150, torch.Generator().manual_seed(0)), stack)
    own, elsewhere = (weight_statistics(sym, given, canonical=True) for given in (stack, moved))
    for name, found in own.items():
        torch.testing.assert_close(elsewhere[name], found, rtol=1e-9, atol=1e-12)
    assert own["0.weight"].std(0).max() > 1e-3
    assert (weight_statistics(sym, moved)["0.weight"] - weight_statistics(sym, stack)["0.weight"]).abs().max() > 1e-3
    means = own["2.weight"][:, 0]
    for loss, targets in (("mse", means), ("cross-entropy", (means > means.median()).long())):
        fitted = fit_statistics((sym, stack, targets), canonical=True, loss=loss, rounds=20)
        torch.testing.assert_close(fitted.predict(sym, moved), fitted.predict(sym, stack), rtol=1e-9, atol=1e-12)


def test_boosting_reads_further_features():
    sym, stack = networks_of(mlp(), 150)
    place = stack["0.weight"][:, 1, 2]  # which no statistic knows
    fits = [
        fit_statistics((sym, stack, place), further=more)
        for more in (None, lambda _, s: {"place": s["0.weight"][:, 1, 2:3]})
    ]
    rest = networks_of(mlp(), 100, 1)[1]
    errors = [(fit.predict(sym, rest) - rest["0.weight"][:, 1, 2]).square().mean() for fit in fits]
    assert errors[1] < 0.1 * errors[0]


def test_boosting_of_labels_shares_and_rows():
    sym, stack = networks_of(mlp(), 120)
    sizes = stack["0.weight"].mean((1, 2))
    labels = torch.where(sizes > sizes.median(), 3, 1)
    scores = fit_statistics((sym, stack, labels), loss="cross-entropy").predict(sym, stack)
    assert scores.shape == (120, 4)
    assert (scores.argmax(1) == labels).double().mean() > 0.9
    torch.testing.assert_close(scores.sum(1), torch.ones(120, dtype=torch.float64))
    rows = torch.stack([sizes, 1 - sizes], 1).clamp(0, 1)
    assert fit_statistics((sym, stack, rows), loss="shares").predict(sym, stack).shape == (120, 2)
    with pytest.raises(InputError, match="no shares"):
        fit_statistics((sym, stack, sizes + 1), loss="shares")
    with pytest.raises(InputError, match="expected labels"):
        fit_statistics((sym, stack, sizes), loss="cross-entropy")
    with pytest.raises(InputError, match="targets are all 1; expected labels of two classes or more"):
        fit_statistics((sym, stack, torch.ones_like(labels)), loss="cross-entropy")
    with pytest.raises(InputError, match="loss is 'mae'; expected one of mse, shares, cross-entropy"):
        fit_statistics((sym, stack, sizes), loss="mae")


@pytest.mark.parametrize("make", [mlp, normed])
def test_a_flat_reader_of_canonical_weights_is_invariant_and_one_of_weights_is_not(make):
    sym, stack = networks_of(make(), 12)
    targets = stack["0.weight"].mean((1, 2))
    moved = act_stack(sym, random_stack(sym, 12, torch.Generator().manual_seed(0)), stack)
    recipe = Recipe(epochs=1, batch_size=6, learning_rate=1e-2, optimizer="adamw", loss="mse")
    for canonical in (True, False):
        reader = FlatReader(sym, hidden=(8,), canonical=canonical).double()
        fitted = fit_reader(reader, (sym, stack, targets), recipe, seed=0, show=False)
        change = float((fitted.predict(sym, moved) - fitted.predict(sym, stack)).abs().max())
        assert change < 1e-9 if canonical else change > 1e-3
        one = {name: tensor[3] for name, tensor in stack.items()}
        torch.testing.assert_close(fitted.predict(sym, one), fitted.predict(sym, stack)[3])


def test_a_flat_reader_scales_what_it_reads():
    sym, stack = networks_of(mlp(), 30)
    reader = FlatReader(sym).double()
    reader.calibrate(stack)
    flat = reader.read(stack)
    low, middle, high = np.quantile(flat.numpy(), [0.25, 0.5, 0.75], axis=0)
    assert reader.middle.tolist() == pytest.approx(middle)
    assert reader.size.tolist() == pytest.approx(high - low)
    expected = reader.layers(torch.asinh((flat - reader.middle) / reader.size))
    torch.testing.assert_close(reader(stack), expected)
    constant = {name: tensor[:1].expand(30, *tensor.shape[1:]) for name, tensor in stack.items()}
    reader.calibrate({**stack, "0.bias": constant["0.bias"]})
    assert reader(stack).isfinite().all()
    assert torch.equal(FlatReader(sym, seed=4).layers[0].weight, FlatReader(sym, seed=4).layers[0].weight)
    other, weights = networks_of(mlp(6), 3)
    with pytest.raises(InputError, match="another architecture"):
        reader(weights, sym=other)
