"""Layers whose channels matrices may mix: their groups, and measures that do not notice them."""

import copy

import pytest
import torch

from coset.errors import InputError
from coset.represent import (
    Part,
    StitchTraining,
    UnitGroup,
    advice,
    cka,
    cka_interval,
    cka_of_batches,
    compare_layers,
    compare_networks,
    features,
    layer_groups,
    procrustes,
    procrustes_interval,
    random_element,
    stitch,
)
from mixing_networks import setting

HEADS = UnitGroup((Part(2, permutes=True, inside=(Part(3, mixes="general"),)), Part(2, permutes=True, scales=True)))
TURNING = UnitGroup((Part(4, mixes="centred"), Part(2, mixes="orthogonal")), order=(5, 0, 3, 1, 2, 4))


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def rows(n, channels, seed=0, positions=3):
    return torch.randn(n, channels, positions, generator=generator(seed), dtype=torch.float64)


def moved(group, x, seed=1):
    return torch.einsum("dc,ncp->ndp", random_element(group, generator(seed)), x)


def correlations(x, y):
    """Canonical correlations by their definition: the spectrum of Sxx⁻¹·Sxy·Syy⁻¹·Syx is that of their squares."""
    x, y = (part - part.mean(0) for part in (x, y))
    product = torch.linalg.solve(x.T @ x, x.T @ y) @ torch.linalg.solve(y.T @ y, y.T @ x)
    return torch.linalg.eigvals(product).real.clamp(min=0).sqrt().sort(descending=True).values


@pytest.mark.parametrize(
    ("network", "expected"),
    [
        ("deep linear", {"0": "GL(4)", "1": "GL(3)", "2": "fixed(2)"}),
        ("bottleneck", {"1": "SR(7)", "2": "GL(3)"}),
        ("rms norm", {"words": "O(8)", "blocks.0": "O(8)", "blocks.0.norm1": "GL(8)", "blocks.0.v": "S(2)[GL(4)]"}),
        (
            "layer norm",
            {
                "words": "O(7), one sign for all",
                "blocks.0.o": "O(7), one sign for all",
                "norm": "GL(8)",
                "blocks.0.q": "S(2)[GL(4)]",
            },
        ),
        ("grouped queries", {"blocks.0.k": "GL(4)", "words": "O(8)"}),
        ("cosine head", {"features": "O(6)"}),
    ],
)
def test_a_layer_has_the_matrices_of_its_classes(network, expected):
    model, sym, _, x = setting(network)
    groups = layer_groups(sym, model, list(expected), x)
    assert {name: str(group) for name, group in groups.items()} == expected


@pytest.mark.parametrize("network", ["bottleneck", "rms norm", "layer norm", "grouped queries", "norms behind"])
def test_measures_modulo_a_layers_group_are_the_same_on_the_whole_orbit(network):
    model, sym, theta, x = setting(network)
    # Many examples, or all features are the same modulo GL.
    draw = generator(3)
    x = (
        torch.randint(12, (40, 6), generator=draw)
        if x.dtype == torch.long
        else torch.randn(40, 5, generator=draw).double()
    )
    names = [name for name, module in model.named_modules() if not list(module.children()) and name != "places"]
    groups = layer_groups(sym, model, names, x)
    after = sym.act(sym.random(draw), theta)
    one, two = (features(model, x, names, params=params) for params in (theta, after))
    for name in names:
        assert procrustes(one[name], two[name], group=groups[name]).distance < 1e-6, name
        assert cka(one[name], two[name], group=groups[name]) == pytest.approx(1, abs=1e-7), name
    tables = [
        compare_layers(model, model, x, names[:3], group=groups, params_x=theta, params_y=after).similarity.diagonal(),
        torch.tensor([pair.cka["own"].value for pair in _pairs(model, x, groups, theta, after)]),
        torch.tensor([pair.procrustes["own"].value for pair in _pairs(model, x, groups, theta, after)]),
    ]
    for table in tables:
        assert float(table.min()) > 1 - 1e-6


def _pairs(model, x, groups, theta, after):
    chosen = dict(list(groups.items())[:3])
    return compare_networks(model, model, x, chosen, params_x=theta, params_y=after, seed=0, draws=5).pairs


def test_modulo_all_linear_maps_measures_are_those_of_canonical_correlations():
    x, y = rows(50, 4, positions=1)[..., 0], rows(50, 3, seed=1, positions=1)[..., 0]
    y = y + x[:, :3]
    rho = correlations(x, y)[:3]
    squares = float(rho.square().sum() / (4 * 3) ** 0.5)
    assert cka(x, y, group="general", estimator="biased") == pytest.approx(squares, abs=1e-10)
    centred = procrustes(x - x.mean(0), y - y.mean(0), group="general")
    assert centred.distance == pytest.approx(((2 - 2 * float(rho.sum()) / 12**0.5) / 4) ** 0.5, abs=1e-10)
    batches = [(x[:25], y[:25]), (x[25:], y[25:])]
    assert cka_of_batches(batches, group="general") == pytest.approx(cka(x, y, group="general"), abs=0.1)


@pytest.mark.parametrize("group", [HEADS, TURNING])
def test_measures_do_not_notice_blocks_that_are_mixed(group):
    x, y = rows(30, group.size), rows(30, group.size, seed=2)
    y = x + 0.5 * y
    # LayerNorm reads no mean of the channels.
    z = moved(group, y)
    assert procrustes(x, z, group=group).distance == pytest.approx(procrustes(x, y, group=group).distance, abs=1e-9)
    assert cka(x, z, group=group) == pytest.approx(cka(x, y, group=group), abs=1e-9)
    assert procrustes(y, z, group=group).distance < 1e-7
    before, after = (procrustes_interval(x, part, group=group, seed=0, draws=20) for part in (y, z))
    torch.testing.assert_close(before.draws, after.draws)
    assert before.low <= before.value <= before.high
    assert cka_interval(x, y, group=group, seed=0, draws=20).value == cka(x, y, group=group)


def test_the_best_element_of_mixed_blocks_is_the_best_of_many():
    x, y = rows(30, HEADS.size), rows(30, HEADS.size, seed=2)
    found = procrustes(x, y, group=HEADS)
    swapped = procrustes(x, y[:, [3, 4, 5, 0, 1, 2, 6, 7]], group=HEADS)
    assert swapped.distance == pytest.approx(found.distance, abs=1e-12)
    kept = UnitGroup((Part(3, mixes="general"), Part(3, mixes="general"), Part(1, scales=True), Part(1, scales=True)))
    orders = ([0, 1, 2, 3, 4, 5], [3, 4, 5, 0, 1, 2])
    by_hand = [
        procrustes(x, y[:, [*order, *last]], group=kept).distance for order in orders for last in ([6, 7], [7, 6])
    ]
    assert found.distance == pytest.approx(min(by_hand), abs=1e-12)


def test_directions_of_rounding_are_left_out():
    x, draw = rows(60, 4), generator(5)
    flat = x.clone()
    flat[:, 3] = x[:, 0] + x[:, 1]
    single = (flat + 1e-9 * rows(60, 4, seed=7)).float()
    other = torch.einsum("dc,ncp->ndp", torch.randn(4, 4, generator=draw, dtype=torch.float64), flat).float()
    assert procrustes(single, other, group="general").distance < 1e-3


def test_the_advice_follows_the_kind():
    assert advice(TURNING).invariant == "rotations"
    assert advice(TURNING).named == "orthogonal"
    assert "Procrustes and CKA modulo rotations" in advice(TURNING).sentence
    assert advice(HEADS).invariant == "linear maps"
    assert advice(HEADS).named == "general"
    assert advice(HEADS).cka == advice(HEADS).procrustes == ("general",)
    assert "canonical correlations" in advice(HEADS).sentence


@pytest.mark.parametrize(("network", "layer"), [("bottleneck", "2"), ("cosine head", "features")])
def test_networks_of_one_orbit_are_stitched_by_the_layers_group_without_loss(network, layer):
    model, sym, theta, _ = setting(network)
    x = torch.randn(30, 5, generator=generator(2), dtype=torch.float64)
    other = copy.deepcopy(model)
    other.load_state_dict(sym.act(sym.random(generator(4)), theta))
    (group,) = layer_groups(sym, model, [layer], x).values()
    labels = model(x).argmax(1)
    found = stitch(model, other, layer, (x, labels), family="own", group=group, training=StitchTraining(epochs=0))
    torch.testing.assert_close(found(x), model(x).detach(), rtol=1e-7, atol=1e-9)


def test_too_few_examples_for_linear_maps_are_named():
    with pytest.raises(InputError, match=r"x has 6 examples and positions for 8 channels .* GL\(8\)"):
        procrustes(rows(2, 8), rows(2, 8, seed=1), group="general")
