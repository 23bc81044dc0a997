"""The group at a layer, read from the symmetry of the network."""

import pytest
import torch
from torch import nn

from architectures import made, randomized
from coset.errors import InputError
from coset.models import MLP
from coset.represent import (
    Part,
    UnitGroup,
    cka,
    features,
    layer_group,
    layer_groups,
    named_group,
    procrustes,
)
from coset.represent._layer_layout import parts_of
from coset.running import layer_names
from coset.symmetry import discover
from coset.symmetry.axes import Concat, Fixed, Product, Units
from coset.symmetry.structure import UnitClass


def inputs(shape, n=6):
    return torch.randn(n, *shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def called(model, x):
    """The leaf layers that are called once and give examples first."""
    found = []
    for name in layer_names(model):
        if list(model.get_submodule(name).children()):
            continue
        try:
            features(model, x, [name])
        except InputError:
            continue
        found.append(name)
    return found


@pytest.mark.parametrize(
    "case",
    [
        "flatten",
        "batchnorm+depthwise",
        "concatenation",
        "rotary",
        "residual mlp",
        "mlp, batch norm",
        "mlp, layer norm",
        "grouped+groupnorm",
        "tied embeddings",
        "cct",
        "resnet20, batch",
    ],
)
def test_measures_modulo_a_layers_own_group_are_the_same_on_the_whole_orbit(case):
    model, sym, shape = made(case)
    x = inputs(shape)
    names = called(model, x)[:8]
    assert names
    groups = layer_groups(sym, model, names, x)
    generator = torch.Generator().manual_seed(1)
    theta = randomized(model, generator)
    g = sym.random(generator)
    own = dict(model.named_parameters()) | dict(model.named_buffers())
    before, after = (
        features(model, x, names, params={name: params[name] for name in own if name in params})
        for params in (theta, sym.act(g, theta))
    )
    for name in names:
        assert groups[name].size == before[name].shape[1]
        assert procrustes(before[name], after[name], group=groups[name]).distance < 1e-7
        assert cka(before[name], after[name], group=groups[name]) == pytest.approx(1, abs=1e-7)
        assert cka(before[name], after[name], group=named_group(groups[name])) == pytest.approx(1, abs=1e-7)


@pytest.mark.parametrize(
    ("activation", "expected", "name"),
    [
        ("relu", Part(5, permutes=True, scales=True), "permutation"),
        ("tanh", Part(5, permutes=True, signs=True), "rigid-signed-permutation"),
        ("gelu", Part(5, permutes=True), "rigid-permutation"),
        ("cube", Part(5, permutes=True, scales=True, signs=True), "signed-permutation"),
    ],
)
def test_the_activation_decides_what_acts_on_a_layer(activation, expected, name):
    model = MLP(4, [5, 3], 2, activation=activation)
    x = inputs((4,))
    sym = discover(model, x[:2].float())
    linear = [layer for layer, module in model.named_modules() if isinstance(module, nn.Linear)]
    first, last = linear[0], linear[-1]
    group = layer_group(sym, model, first, x)
    assert group == UnitGroup((expected,))
    assert named_group(group) == name
    assert layer_group(sym, model, last, x) == UnitGroup((Part(2),))
    assert named_group(layer_group(sym, model, last, x)) == "trivial"


def test_channels_behind_a_flatten_are_units_with_positions():
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2))
    x = inputs((2, 4, 4))
    sym = discover(model, x[:2].float())
    assert layer_group(sym, model, "2", x) == UnitGroup((Part(3, permutes=True, scales=True, inside=(Part(4),)),))


def test_segments_of_a_concatenation_keep_their_own_groups():
    sizes = {"a": UnitClass("a", 3), "b": UnitClass("b", 5)}
    parts, order = parts_of(Concat((Fixed(4), Units("a"), Units("b"))), sizes, "join")
    assert parts == (Part(4), Part(3, permutes=True), Part(5, permutes=True))
    assert order is None


def test_layouts_become_parts():
    classes = {"g": UnitClass("g", 2), "h": UnitClass("h", 3, "g"), "k": UnitClass("k", 2, "g"), "c": UnitClass("c", 2)}
    nested = Part(2, permutes=True, inside=(Part(3, permutes=True),))
    assert parts_of(Product((Units("g"), Units("h"))), classes, "l") == ((nested,), None)
    # Positions first: they go behind the unit, 0 2 4 | 1 3 5.
    before = parts_of(Product((Fixed(3), Units("c"))), classes, "l")
    assert before == ((Part(2, permutes=True, inside=(Part(3),)),), (0, 2, 4, 1, 3, 5))
    # Nested classes side by side in every block.
    both = parts_of(Product((Units("g"), Concat((Units("h"), Units("k"))))), classes, "l")
    assert both == ((Part(2, permutes=True, inside=(Part(3, permutes=True), Part(2, permutes=True))),), None)
    with pytest.raises(InputError, match="layer 'l' are pairs of units of 'c' and 'g', which permute independently"):
        parts_of(Product((Units("c"), Units("g"))), classes, "l")


def test_the_measure_of_a_layers_group_tells_networks_of_different_orbits_apart():
    model = MLP(4, [6], 2, activation="tanh")
    x = inputs((4,), n=30)
    sym = discover(model, x[:2].float())
    layer = next(n for n, module in model.named_modules() if isinstance(module, nn.Linear))
    group = layer_group(sym, model, layer, x)
    before = features(model, x, [layer])[layer]
    # Scales do not pass through tanh: the exact group sees them, the one with scales does not.
    scaled = before * torch.arange(1.0, 7)
    assert procrustes(before, scaled, group=group).distance > 0.05
    assert procrustes(before, scaled, group="signed-permutation").distance < 1e-6


def test_layers_without_channels_are_refused():
    model, sym, shape = made("flatten")
    with pytest.raises(InputError, match="'conv9' is no layer of FlattenCNN; near it are 'conv', 'conv2'"):
        layer_group(sym, model, "conv9", inputs(shape))
    with pytest.raises(InputError, match="units on axis"):
        layer_group(sym, model, "conv", inputs(shape), channel_axis=2)
    with pytest.raises(InputError, match="the symmetry"):
        layer_group(sym, nn.Linear(2, 2), "", inputs((2,)))
