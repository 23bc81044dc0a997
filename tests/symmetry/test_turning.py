"""Half-turns of sin and reflections: what is found, the function, the group law, files, distributions, bad input."""

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coset.distribution import Gaussian, LowRank, MeanField, Samples
from coset.errors import InputError
from coset.symmetry import Element, Symmetry, discover
from turning_networks import FULL, HALF, MIRROR, TURNING, Siren, outputs, setting

NAMES = [name for name, (_, _, kinds) in TURNING.items() if kinds]


def close(one, two, tolerance=1e-12):
    return all(torch.allclose(one[key].double(), two[key].double(), rtol=tolerance, atol=tolerance) for key in two)


@pytest.mark.parametrize("name", TURNING)
def test_units_turn_where_they_should_and_nowhere_else(name):
    sym = setting(name)[1]
    assert [turn.named for turn in sym.turns.values()] == TURNING[name][2]


@pytest.mark.parametrize("name", NAMES)
def test_turns_preserve_the_function(name):
    model, sym, params, x = setting(name)
    before = outputs(model, params, x)
    generator = torch.Generator().manual_seed(0)
    for turns in (1, 2, 3):
        g = sym.random(generator, turns=turns)
        assert all(bool(k.any()) for k in g.turns.values()) or turns == 1
        moved = sym.act(g, params)
        assert torch.allclose(outputs(model, moved, x), before, rtol=1e-12, atol=1e-12)
    alone = sym.act(sym.element(turns=g.turns), params)
    assert not close(alone, params)
    assert torch.allclose(outputs(model, alone, x), before, rtol=1e-12, atol=1e-12)


def test_a_half_turn_is_that_of_the_formula():
    _, sym, params, _ = setting("siren")
    k = torch.tensor([3, 0, -2, 1, 0])
    moved = sym.act(sym.element(turns={"layers.0": k}), params)
    shifted = params["layers.0.bias"] + k.double() * math.pi / 30
    assert torch.allclose(moved["layers.0.bias"], shifted, rtol=0, atol=1e-15)
    flips = torch.tensor([-1.0, 1.0, 1.0, -1.0, 1.0], dtype=torch.float64)
    assert torch.equal(moved["layers.1.weight"], params["layers.1.weight"] * flips)
    others = params.keys() - {"layers.0.bias", "layers.1.weight"}
    assert all(torch.equal(moved[key], params[key]) for key in others)


def test_a_reflection_is_that_of_the_formula():
    _, sym, params, _ = setting("relu6")
    k = torch.tensor([0, 1, 0, 0, 0])
    moved = sym.act(sym.element(turns={"u0": k}), params)
    assert torch.equal(moved["0.weight"][1], -params["0.weight"][1])
    assert torch.equal(moved["0.bias"][1], 6 - params["0.bias"][1])
    assert torch.equal(moved["2.weight"][:, 1], -params["2.weight"][:, 1])
    assert torch.allclose(moved["2.bias"], params["2.bias"] + 6 * params["2.weight"][:, 1], rtol=0, atol=1e-15)


def test_the_dihedral_group_of_a_unit():
    """(k₁, s₁)(k₂, s₂) = (k₁ + s₁k₂, s₁s₂)."""
    sym = discover(Siren((2, 3, 1)).double(), torch.randn(3, 2, dtype=torch.float64))

    def element(k, s):
        return sym.element(signs={"layers.0": torch.tensor([1, s, 1])}, turns={"layers.0": torch.tensor([0, k, 0])})

    for k1, s1, k2, s2 in ((1, 1, 2, 1), (1, -1, 2, 1), (3, -1, 2, -1), (-2, 1, 5, -1)):
        product = sym.compose(element(k1, s1), element(k2, s2))
        assert product.turns["layers.0"].tolist() == [0, k1 + s1 * k2, 0]
        assert product.signs["layers.0"].tolist() == [1, s1 * s2, 1]


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(NAMES), st.integers(0, 2**32 - 1), st.integers(0, 4))
def test_the_group_law(name, seed, turns):
    _, sym, params, _ = setting(name)
    generator = torch.Generator().manual_seed(seed)
    g, h, j = (sym.random(generator, turns=turns) for _ in range(3))
    gh = sym.compose(g, h)
    sym.check(gh)
    assert close(sym.act(gh, params), sym.act(g, sym.act(h, params)), 1e-9)
    left, right = sym.compose(gh, j), sym.compose(g, sym.compose(h, j))
    assert all(torch.equal(left.turns[key], right.turns[key]) for key in sym.turns)
    back = sym.compose(sym.inverse(g), g)
    assert not any(bool(k.any()) for k in back.turns.values())
    assert close(sym.act(sym.inverse(g), sym.act(g, params)), params, 1e-9)
    assert close(sym.act(sym.compose(g, sym.identity()), params), sym.act(g, params))


def test_the_monomial_group_is_what_it_was():
    _, sym, _, _ = setting("siren")
    assert not sym.monomial.turns
    assert "turns" not in json.loads(sym.monomial.to_json())
    assert sym.monomial.fingerprint != sym.fingerprint
    assert (sym.log_order, sym.continuous_dimension) == (sym.monomial.log_order, sym.monomial.continuous_dimension)
    assert not sym.restrict(scales=False).turns
    assert list(sym.restrict(["layers.1"]).turns) == ["layers.1"]
    plain = setting("gelu")[1]
    assert plain.monomial is plain


@pytest.mark.parametrize("name", ["siren", "relu6", "sin behind norms"])
def test_files(name, tmp_path):
    _, sym, params, _ = setting(name)
    sym.save(tmp_path / "sym.json")
    again = Symmetry.load(tmp_path / "sym.json")
    assert again == sym
    assert again.turns == sym.turns
    g = sym.random(torch.Generator().manual_seed(0))
    g.save(tmp_path / "g.safetensors", sym)
    loaded = Element.load(tmp_path / "g.safetensors", again)
    assert loaded == g
    assert close(again.act(loaded, params), sym.act(g, params), 0)
    # An element of the group without turns, written before there were any.
    old = sym.monomial.random(torch.Generator().manual_seed(0))
    old.save(tmp_path / "old.safetensors", sym.monomial)
    assert Element.load(tmp_path / "old.safetensors", sym) == old


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"order": 3}, "order 3"),
        ({"places": {"layers.0.bias": [[False]]}}, "places cannot be read"),
        ({"places": {"nowhere": [[False, 1.0]]}}, "no parameter"),
        ({"places": {"layers.0.bias": [[False, 1.0], [True, 0.0]]}}, "turns in 2 places"),
        ({"class": "nobody"}, "no known class"),
        ({"taken": [["layers.0.weight", "layers.2.bias", 1.0, 1, 0]]}, "cannot take up"),
    ],
)
def test_damaged_files_are_refused(change, told):
    data = json.loads(setting("siren")[1].to_json())
    data["turns"]["layers.0"] |= change
    with pytest.raises(InputError, match=told):
        Symmetry.from_json(json.dumps(data))


def test_tables_tell_of_turns():
    sym = setting("siren")[1]
    assert "units that turn: 9" in str(sym)
    assert "half-turns of 'layers.0': each shifts its entries by 0.10472" in sym.explain("layers.0.bias")
    mirrored = setting("sigmoid")[1]
    assert "it takes up 1 times what '2.weight' reads of them" in mirrored.explain("2.bias")
    assert "3 of 5 turned" in repr(sym.element(turns={"layers.0": torch.tensor([1, 0, -1, 0, 4])}))


@pytest.mark.parametrize(
    ("name", "turns", "told"),
    [
        ("siren", {"layers.2": torch.ones(1, dtype=torch.long)}, "units that turn: layers.0, layers.1"),
        ("siren", {"layers.0": torch.ones(4, dtype=torch.long)}, "expected \\(5,\\)"),
        ("siren", {"layers.0": torch.ones(5)}, "expected torch.int64"),
        ("sigmoid", {"u0": torch.full((5,), 2)}, "expected each to be 0 or 1"),
    ],
)
def test_bad_turns_are_refused(name, turns, told):
    with pytest.raises(InputError, match=told):
        setting(name)[1].element(turns=turns)


def test_random_needs_a_count():
    with pytest.raises(InputError, match="turns is -1"):
        setting("siren")[1].random(torch.Generator(), turns=-1)


def test_half_turns_act_on_distributions():
    """Draws that are moved have the moments of the distribution that is moved."""
    _, sym, params, _ = setting("siren")
    g = sym.random(torch.Generator().manual_seed(0))
    std = {key: 0.1 + 0.1 * torch.rand_like(value) for key, value in params.items()}
    moved = sym.act(g, MeanField(params, std))
    assert close(moved.mean, sym.act(g, params))
    assert close(moved.std, sym.act(sym.element(g.permutations, signs=None), std))
    names = tuple(params)
    size = sum(value.numel() for value in params.values())
    root = torch.randn(size, size, dtype=torch.float64)
    gaussian = sym.act(g, Gaussian(params, root @ root.mT, names))
    factors = {}
    for part, key in zip(root.split([params[key].numel() for key in names], 0), names, strict=True):
        factors[key] = part.mT.reshape(size, *params[key].shape)
    # A linear map of differences: moved points minus the moved mean.
    columns = sym.act(g, {key: params[key] + factors[key] for key in names})
    flat = torch.cat([(columns[key] - gaussian.mean[key]).reshape(size, -1) for key in names], 1)
    assert torch.allclose(gaussian.covariance, flat.mT @ flat, rtol=1e-9, atol=1e-9)
    low = sym.act(g, LowRank(params, std, factors))
    assert close(low.mean, gaussian.mean)
    assert close(low.factors, {key: columns[key] - gaussian.mean[key] for key in names}, 1e-9)


def test_reflections_act_on_points_and_draws_alone():
    model, sym, params, x = setting("sigmoid")
    g = sym.random(torch.Generator().manual_seed(0))
    with pytest.raises(InputError, match="reflects units"):
        sym.act(g, MeanField(params, {key: torch.ones_like(value) for key, value in params.items()}))
    stacked = {key: torch.stack([value, 2 * value])[None] for key, value in params.items()}
    moved = sym.act(g, Samples(stacked)).params
    for number, factor in enumerate((1, 2)):
        one = {key: value[0, number] for key, value in moved.items()}
        wanted = outputs(model, {key: factor * value for key, value in params.items()}, x)
        assert torch.allclose(outputs(model, one, x), wanted, rtol=1e-12, atol=1e-12)
    with pytest.raises(InputError, match=r"'2\.weight' is not among the parameters given"):
        sym.act(g, {"2.bias": params["2.bias"]}, partial=True)


def test_what_it_would_have_broken():
    """The reflection that padding forbids does change the function: discovery is not merely shy."""
    model, sym, params, x = setting("padding")
    assert list(sym.turns) == ["u2"]
    moved = dict(params)
    moved["0.weight"], moved["0.bias"] = -params["0.weight"], -params["0.bias"]
    moved["2.weight"] = -params["2.weight"]
    moved["2.bias"] = params["2.bias"] + params["2.weight"].sum((1, 2, 3))
    assert not torch.allclose(outputs(model, moved, x), outputs(model, params, x), atol=1e-6)


def test_kinds_have_names():
    assert {HALF, FULL, MIRROR} == {turn.named for name in NAMES for turn in setting(name)[1].turns.values()}
