"""Layer × layer matrices between two models."""

import pytest
import torch
from torch import nn

from coset.errors import InputError
from coset.represent import cka, cka_of_batches, compare_layers, features, layer_groups, procrustes
from coset.symmetry import Symmetry

X = torch.randn(20, 2, 5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def network(seed):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 4, 3, padding=1),
        nn.Flatten(),
        nn.Linear(100, 3),
    ).double()


LAYERS = ["0", "1", "2"]


@pytest.mark.parametrize("group", ["orthogonal", "permutation", "rigid-permutation"])
@pytest.mark.parametrize("kernel", [None, "sum"])
def test_cka_of_layers_is_cka_of_their_features(group, kernel):
    a, b = network(0), network(1)
    fa, fb = features(a, X, LAYERS), features(b, X, [*LAYERS, "4"])
    found = compare_layers(a, b, X, LAYERS, [*LAYERS, "4"], group=group, kernel=kernel)
    assert found.similarity.shape == (3, 4)
    batches = compare_layers(a, b, X, LAYERS, [*LAYERS, "4"], group=group, kernel=kernel, batch_size=7)
    for i, x in enumerate(found.layers_x):
        for j, y in enumerate(found.layers_y):
            expected = cka(fa[x], fb[y], group=group, kernel=kernel)
            assert float(found.similarity[i, j]) == pytest.approx(expected, abs=1e-12)
            pairs = list(zip(fa[x].split(7), fb[y].split(7), strict=True))
            expected = cka_of_batches(pairs, group=group, kernel=kernel)
            assert float(batches.similarity[i, j]) == pytest.approx(expected, abs=1e-12)


def test_procrustes_of_layers_is_that_of_their_features():
    a, b = network(0), network(1)
    fa, fb = features(a, X, LAYERS), features(b, X, LAYERS)
    found = compare_layers(a, b, X, LAYERS, measure="procrustes", group="permutation", batch_size=6)
    for i, x in enumerate(LAYERS):
        for j, y in enumerate(LAYERS):
            assert float(found.similarity[i, j]) == pytest.approx(procrustes(fa[x], fb[y]).similarity, abs=1e-9)


def test_a_shuffling_loader_shows_both_models_the_same_examples():
    model = network(0)
    data = torch.utils.data.TensorDataset(X, torch.zeros(20))
    torch.manual_seed(3)
    loader = torch.utils.data.DataLoader(data, batch_size=5, shuffle=True)
    found = compare_layers(model, model, loader, LAYERS, group="permutation").similarity
    torch.testing.assert_close(found.diagonal(), torch.ones(3, dtype=torch.float64))


def test_networks_of_one_orbit_are_alike_at_every_layer_modulo_their_own_groups():
    model = network(0)
    axes = {"0.weight": "a -", "0.bias": "a", "2.weight": "b /a", "2.bias": "b", "4.weight": "- /b*25"}
    sym = Symmetry.from_axes(axes, model, scales="positive")
    theta = dict(model.state_dict())
    moved = sym.act(sym.random(torch.Generator().manual_seed(0)), theta)
    layers = [*LAYERS, "3", "4"]
    groups = layer_groups(sym, model, layers, X)
    found = compare_layers(model, model, X, layers, params_y=moved, group=groups)
    torch.testing.assert_close(found.similarity.diagonal(), torch.ones(5, dtype=torch.float64))
    orthogonal = compare_layers(model, model, X, layers, params_y=moved)
    assert float(orthogonal.similarity.diagonal()[:4].max()) < 0.999


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"measure": "cca"}, "measure is 'cca'; expected one of 'cka', 'procrustes'"),
        ({"group": {"0": "permutation"}}, "group says nothing of layer '1'"),
        ({"batch_size": 17}, "batch 1 has 3 examples; the unbiased HSIC needs at least 4"),
        ({"layers_y": ["9"]}, "'9' is no layer"),
        ({"measure": "procrustes", "layers_y": ["3"]}, "layer '0' of x has 25 positions and layer '3' of y 1"),
        (
            {"measure": "procrustes", "group": {"0": "orthogonal", "1": "permutation", "2": "permutation"}},
            "one that acts",
        ),
    ],
)
def test_bad_input_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        compare_layers(network(0), network(1), X, LAYERS, **options)


def test_data_that_can_be_gone_through_once_is_refused():
    with pytest.raises(InputError, match="data is an iterator"):
        compare_layers(network(0), network(1), iter([X]), LAYERS)


def test_a_layer_without_variation_is_named():
    model = network(0)
    nn.init.zeros_(model[2].weight)
    with pytest.raises(InputError, match="layer '2' of y has features that do not tell the examples apart"):
        compare_layers(network(1), model, X, ["0"], ["2"])
