"""Translations: null spaces of Jacobians, what breaks them, the function, the gauge without them, files, bad input."""

import json
from functools import lru_cache

import pytest
import torch
from torch import nn

from coset.alignment import align
from coset.errors import InputError
from coset.symmetry import Symmetry, discover
from coset.symmetry.discovery import beyond_monomial
from coset.symmetry.translations import Move, Take, Through, Translation
from jacobian_null_space import general_weights, null_dimension
from mixing_networks import NETWORKS
from rotary_networks import RotaryModel
from translated_networks import Attending, Batched, Bert, Placed, Vision, WrittenOut, gpt2, tokens


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# Models, inputs, and their translations counted by hand (math of the project; d = 8, hidden 6, 12 words, 6 places).
MODELS = {
    "gpt2": (lambda: gpt2(1), lambda n: tokens(n), 6 + (8 * 8 + 2 * 6 + 2)),
    "gpt2, two layers": (lambda: gpt2(2), lambda n: tokens(n), 6 + 2 * (8 * 8 + 2 * 6 + 2)),
    "gpt2, untied": (lambda: gpt2(1, tied=False), lambda n: tokens(n), 6 + (8 * 8 + 2 * 6 + 2) + 12 + 2 * 8 - 1),
    "bert": (
        lambda: Bert(1),
        lambda n: tokens(n, 24),
        4 * 8 + 6 + 2 + (8 + 6 + 2) + 7 + (3 * 8 + 6) + 8 + 2 * 8 + 1,
    ),
    # Places take up a shift of all patches and one of the first token, constants of the stream apart; the product with
    # the offset is the bias of queries, keys and values; readers behind the last norm, multiples of 1.
    "vision": (Vision, lambda n: normal(n, 2, 4, 4), 5 + 5 + 6 + (3 + 3) + 6 + 3 + (1 + 5 + 8 + 1) + (3 + 1)),
    "attention": (lambda: Attending(), lambda n: normal(n, 5, 4), 4 + 4),
    "fused attention": (lambda: Attending("fused"), lambda n: normal(n, 5, 4), 4 + 4),
    "no bias behind values": (lambda: Attending("fused", out_bias=False), lambda n: normal(n, 5, 4), 4),
    "capped scores": (lambda: Attending("capped"), lambda n: normal(n, 5, 4), 4),
    "norms of queries and keys": (lambda: Attending("normed"), lambda n: normal(n, 5, 4), 4),
    # A constant for each group.
    "group norm": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 6, 2), nn.GroupNorm(2, 6, eps=1e-2), nn.GELU(), nn.Flatten(), nn.Linear(24, 3)
        ),
        lambda n: normal(n, 2, 3, 3),
        2,
    ),
    "linear autoencoder": (NETWORKS["linear autoencoder"][0], lambda n: normal(n, 5), 2),
}

# What has more null directions than this part of the group and its translations: counted by hand alone.
FURTHER = {
    "deep linear": (NETWORKS["deep linear"][0], lambda n: normal(n, 5), 4 + 3),
    "convolutions": (NETWORKS["convolutions"][0], lambda n: normal(n, 2, 6, 6), 4),
    "rotary": (lambda: Attending("rotary"), lambda n: normal(n, 5, 4), 4),
    "partly rotary": (lambda: Attending("partly rotary"), lambda n: normal(n, 5, 4), 4 + 2),
    "a key of zeros": (lambda: Attending("zero key"), lambda n: normal(n, 5, 4), 0),
    "batch norms": (lambda: Batched(), lambda n: normal(n, 2, 6, 6), 3 + 3),
    "batch norms, padded": (lambda: Batched(padding=1), lambda n: normal(n, 2, 6, 6), 3),
    # Rows of which the example says nothing would have to follow what is added to the others.
    "places": (lambda: Placed(5), lambda n: normal(n, 5, 4), (4 + 1 + 5) + 4 + 5 + 3),
    "places for longer inputs": (lambda: Placed(9), lambda n: normal(n, 5, 4), (4 + 1 + 9) + 5 + 3),
    "a norm written out": (WrittenOut, lambda n: normal(n, 4), 4 + 1),
    "bert, two layers": (
        lambda: Bert(2),
        lambda n: tokens(n, 24),
        6 * 8 + 6 + 2 + 2 * (8 + 6 + 2) + 7 + 2 * (3 * 8 + 6) + 8 + 4 * 8 + 1,
    ),
    "norms behind": (NETWORKS["norms behind"][0], lambda n: tokens(n), None),
    "heads": (NETWORKS["heads"][0], lambda n: normal(n, 4, 8), 16),
    "padded convolutions": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.Conv2d(3, 2, 3, padding=1)), lambda n: normal(n, 2, 6, 6), 0,
    ),
    "an unbiased reader": (
        lambda: nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 4, bias=False), nn.ReLU(), nn.Linear(4, 2)),
        lambda n: normal(n, 4), 0,
    ),
    "an unbiased reader between": (
        lambda: nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 4, bias=False), nn.Linear(4, 2)),
        lambda n: normal(n, 4), 3,
    ),
}  # fmt: skip
ALL = MODELS | FURTHER


@lru_cache
def setting(name):
    build, inputs, _ = ALL[name]
    torch.manual_seed(0)
    model = build().double().eval()
    sym = discover(model, inputs(2))
    with torch.no_grad():
        for key, tensor in general_weights(model).items():
            model.get_parameter(key).copy_(tensor)
    return model, sym, dict(model.state_dict()), inputs(4)


def outputs(model, params, x):
    owners = {name: params[name] for name, _ in (*model.named_parameters(), *model.named_buffers())}
    with torch.no_grad():
        return torch.func.functional_call(model, owners, (x,))


def apart(one, two):
    return max(float((one[name] - two[name]).abs().max()) for name in one)


@pytest.mark.parametrize("name", [name for name, item in ALL.items() if item[2] is not None])
def test_translations_are_those_counted_by_hand(name):
    assert setting(name)[1].translation_dimension == ALL[name][2]


@pytest.mark.parametrize("name", MODELS)
def test_group_and_translations_are_the_null_space_of_the_jacobian(name):
    model, sym, _, _ = setting(name)
    count = sum(tensor.numel() for tensor in model.parameters())
    many = -(-count // outputs(model, dict(model.state_dict()), ALL[name][1](1)).numel()) + 8
    found = null_dimension(model, ALL[name][1](many))
    assert sym.continuous_dimension + sym.translation_dimension == found


@pytest.mark.parametrize(
    ("build", "inputs", "dimension"),
    [
        (lambda: gpt2(3), ALL["gpt2, two layers"][1], 480),
        (lambda: Bert(3), ALL["bert, two layers"][1], 474),
        (lambda: RotaryModel(layers=3), ALL["gpt2, two layers"][1], 222),
    ],
    ids=["gpt2", "bert", "llama"],
)
def test_three_layers_have_the_null_space_counted_by_hand(build, inputs, dimension):
    torch.manual_seed(0)
    model = build().double().eval()
    sym = discover(model, inputs(1))
    assert sym.continuous_dimension + sym.translation_dimension == dimension
    count = sum(tensor.numel() for tensor in model.parameters())
    assert null_dimension(model, inputs(2 * (-(-count // model(inputs(1)).numel())))) == dimension


@pytest.mark.parametrize("name", ALL)
def test_translations_preserve_the_function_and_are_independent(name):
    model, sym, params, x = setting(name)
    before = outputs(model, params, x)
    moved = sym.translate(sym.random_translation(params, torch.Generator().manual_seed(1)), params)
    assert (apart(moved, params) > 0.1) == bool(sym.translations)
    assert torch.allclose(outputs(model, moved, x), before, rtol=1e-9, atol=1e-10)
    rows = []
    for item in sym.translations:
        for unit in torch.eye(torch.Size(item.shape).numel(), dtype=torch.float64):
            ends = [sym.translate({item.name: t * unit.reshape(item.shape)}, params) for t in (1e-5, -1e-5)]
            rows.append(torch.cat([(ends[0][key] - ends[1][key]).flatten() / 2e-5 for key in params]))
    rank = int(torch.linalg.matrix_rank(torch.stack(rows), rtol=1e-8)) if rows else 0
    assert rank == sym.translation_dimension


@pytest.mark.parametrize("name", ALL)
def test_networks_without_translations_are_the_same_for_all_translates(name):
    model, sym, params, x = setting(name)
    generator = torch.Generator().manual_seed(2)
    plain = sym.without_translations(params)
    assert torch.allclose(outputs(model, plain, x), outputs(model, params, x), rtol=1e-9, atol=1e-10)
    assert apart(sym.without_translations(plain), plain) < 1e-10
    moved = sym.translate(sym.random_translation(params, generator), params)
    assert apart(sym.without_translations(moved), plain) < 1e-10
    assert apart(sym.without_translations(moved, like=params), params) < 1e-9


def test_what_is_free_is_removed():
    _, sym, params, _ = setting("gpt2, two layers")
    plain = sym.without_translations(params)
    for name in ("blocks.0.k.bias", "blocks.0.v.bias", "blocks.1.norm1.bias", "blocks.1.norm2.bias"):
        assert float(plain[name].abs().max()) < 1e-14
    for name in ("places.weight", "blocks.0.o.bias"):
        assert float(plain[name].mean(-1).abs().max()) < 1e-14
    assert float(plain["blocks.1.down.weight"].mean(0).abs().max()) < 1e-14
    assert float((plain["blocks.0.q.weight"] @ params["blocks.0.norm1.weight"]).abs().max()) < 1e-13
    # A tied table is left alone.
    assert torch.equal(plain["words.weight"], params["words.weight"])
    assert plain["head.weight"] is not None


def test_alignment_does_not_see_translations():
    model, sym, params, x = setting("vision")
    generator = torch.Generator().manual_seed(3)
    other = sym.translate(sym.random_translation(params, generator), sym.act(sym.random(generator), params))
    found = align(sym, params, other, gauge="normalized")
    assert torch.allclose(outputs(model, found.params, x), outputs(model, params, x), rtol=1e-8, atol=1e-9)
    plain = sym.without_translations(params)
    assert apart(sym.without_translations(found.params), plain) < 1e-5
    # Its translations stay its own, and may be brought to those of the reference.
    assert apart(found.params, params) > 0.1
    assert apart(sym.without_translations(found.params, like=params), params) < 1e-5


def test_files_and_tables_hold_translations(tmp_path):
    for name in ("bert", "gpt2, untied", "vision", "batch norms"):
        sym = setting(name)[1]
        sym.save(tmp_path / "sym.json")
        again = Symmetry.load(tmp_path / "sym.json")
        assert again.translations == sym.translations
        assert f"translations, apart from the group: {sym.translation_dimension}" in str(again)
    sym = setting("gpt2")[1]
    assert "'constant:blocks.0.k.bias': 8 free numbers are added, which nothing sees" in sym.explain("blocks.0.k.bias")
    assert "which blocks.0.o.bias take back" in sym.explain("blocks.0.v.bias")
    # They are no part of the group: neither of its fingerprint nor of its monomial part.
    assert sym.monomial.translations == ()
    with_none = Symmetry.from_json(_without(sym.to_json(), "translations"))
    assert with_none.translations == ()
    assert with_none.fingerprint == sym.fingerprint
    odd = sym.to_json().replace('["through", "blocks.0.up.weight"', '["through", "nobody"')
    with pytest.raises(InputError, match=r"the translation 'shift:blocks\.0\.norm2\.bias' names 'nobody'"):
        Symmetry.from_json(odd)
    with pytest.raises(InputError, match="damaged"):
        Symmetry.from_json(sym.to_json().replace('"kind": "reader"', '"kind": "writer"'))


def _without(text, part):
    return json.dumps({key: value for key, value in json.loads(text).items() if key != part})


def test_bad_input_is_refused():
    _, sym, params, _ = setting("gpt2")
    with pytest.raises(InputError, match="no translation is called 'nobody'"):
        sym.translate({"nobody": torch.zeros(1)}, params)
    with pytest.raises(InputError, match=r"'shift:blocks.0.v.bias' have shape \(3,\); expected \(8,\)"):
        sym.translate({"shift:blocks.0.v.bias": torch.zeros(3)}, params)
    with pytest.raises(InputError, match="translations act on single networks"):
        sym.without_translations({name: tensor[None] for name, tensor in params.items()})
    with pytest.raises(InputError, match="is not among the parameters given"):
        sym.without_translations({name: tensor for name, tensor in params.items() if name != "blocks.0.q.bias"})
    dead = dict(params) | {"blocks.0.norm1.weight": torch.zeros(8, dtype=torch.float64)}
    with pytest.raises(InputError, match=r"'blocks.0.norm1.weight' has entries that are 0"):
        sym.without_translations(dead)


def test_gains_with_zeros_translate_nothing():
    model = gpt2(1).double().eval()
    with torch.no_grad():
        model.blocks[0].norm1.weight[0] = 0.0
    sym = discover(model, tokens(2))
    assert sym.translation_dimension == ALL["gpt2"][2] - 3 * 8
    assert any("nothing is translated along its inverse" in note for note in sym.notes)


def test_wrong_translations_are_left_out_with_a_note(monkeypatch):
    wrong = Translation("shift", (4,), (Move(("0.bias",)), Move(("1.bias",), 1.0, (Through("1.weight"),))))
    found = beyond_monomial.translations
    monkeypatch.setattr(beyond_monomial, "translations", lambda *args: (wrong, *found(*args)[1:]))
    sym = discover(NETWORKS["deep linear"][0]().double().eval(), normal(2, 5))
    assert [item.name for item in sym.translations] == ["shift:1.bias"]
    assert any("outputs change with the translations shift:0.bias" in note for note in sym.notes)


@pytest.mark.parametrize("numbers", [[0], [3, 4, 5, 6], [0, 0, 1, 1], [-1, -1, 0, 1, 0, 1], [5, 2, 9, 9, 0], [2, 2, 2]])
def test_numbers_in_short_are_the_same_numbers(numbers):
    index = torch.tensor(numbers)
    take = Take.of(index)
    assert torch.equal(take.index, index)
    assert take.size == len(index)
    vector = normal(10)
    expected = torch.tensor([0.0 if i < 0 else float(vector[i]) for i in numbers], dtype=torch.float64)
    assert torch.equal(take(vector, {}), expected)
