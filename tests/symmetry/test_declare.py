"""Declaring by hand: the axes language, sizes solved from shapes, contradictions named; storage round trips."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from architectures import CASES, made, randomized
from coset.errors import InputError
from coset.symmetry import Element, Parameter, Symmetry, Variance, intertwiner
from coset.symmetry._grammar import parse_axis, render_axis
from coset.symmetry.axes import Charge, Concat, Fixed, Product, Units
from coset.symmetry.structure import UnitClass

NAMES = st.sampled_from(["h", "layer1.conv", "heads", "_x9"])
POWERS = st.tuples(st.integers(-3, 3), st.integers(0, 1)).filter(any)


@st.composite
def units(draw):
    powers = draw(st.dictionaries(st.sampled_from(["", "pre", "bn.1"]), POWERS, max_size=3))
    return Units(draw(NAMES), tuple(Charge(family, *powers[family]) for family in sorted(powers)))


def several(children):
    # A product directly in a product, or a concatenation in a concatenation, is written as one.
    product = st.lists(children.filter(lambda n: not isinstance(n, Product)), min_size=2, max_size=3)
    concat = st.lists(children.filter(lambda n: not isinstance(n, Concat)), min_size=2, max_size=3)
    return product.map(lambda f: Product(tuple(f))) | concat.map(lambda s: Concat(tuple(s)))


NODES = st.recursive(st.builds(Fixed, st.integers(1, 99)) | units(), several, max_leaves=6)


@given(NODES)
def test_axes_are_read_as_they_are_written(node):
    assert parse_axis(render_axis(node))[0] == node


@pytest.mark.parametrize(
    ("text", "node"),
    [
        ("h", Units("h", (Charge("", 1, 1),))),
        ("/h", Units("h", (Charge("", -1, 1),))),
        ("/h^2", Units("h", (Charge("", -2, 0),))),
        ("h^1~0", Units("h", (Charge("", 1, 0),))),
        ("h^0", Units("h")),
        ("h{pre:2}", Units("h", (Charge("pre", 2, 0),))),
        ("/h{n:1}", Units("h", (Charge("n", -1, 1),))),
        ("/h^1{n:1}", Units("h", (Charge("", -1, 1), Charge("n", -1, 1)))),
        ("c*49", Product((Units("c", (Charge("", 1, 1),)), Fixed(49)))),
        ("4+/a", Concat((Fixed(4), Units("a", (Charge("", -1, 1),))))),
        ("-", Fixed(0)),
    ],
)
def test_the_language_means_what_its_page_says(text, node):
    assert parse_axis(text)[0] == node


def test_brackets_nest():
    node, parents = parse_axis("g^0[h^0*(qk+vo)]")
    assert parents == {"g": None, "h": "g", "qk": "g", "vo": "g"}
    assert parse_axis("a[b[c]]")[1] == {"a": None, "b": "a", "c": "b"}
    assert render_axis(node, parents) == "g[h^0*(qk+vo)]"
    assert parse_axis("g[qk]")[0] == parse_axis("g^0*qk")[0]
    assert render_axis(parse_axis("g^1[qk]")[0], {"qk": "g"}) == "g^1[qk]"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("h]", "']' after its end"),
        ("h[", "it ends where"),
        ("h^", "it ends where"),
        ("0*h", "size 0"),
        ("h?", "unexpected '\\?'"),
        ("h^1~2", "expected 0 or 1"),
        ("h{a:1,a:2}", "charged twice"),
        ("*h", "found '\\*' where a name"),
        ("a[b]+c[b]", "inside both"),
    ],
)
def test_what_cannot_be_read_is_shown(text, problem):
    with pytest.raises(InputError, match=problem):
        parse_axis(text, "'w' axis 0")


def network():
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


GOOD = {"0.weight": "h1", "0.bias": "h1", "2.weight": "h2 /h1", "2.bias": "h2", "4.weight": "- /h2"}


def test_an_mlp_in_five_lines():
    sym = Symmetry.from_axes(GOOD, network(), scales="positive")
    assert {name: item.size for name, item in sym.classes.items()} == {"h1": 6, "h2": 5}
    assert sym.scale_dimension == 11
    assert sym.parameters["4.bias"].axes == (Fixed(3),)
    assert not sym.parameters["4.bias"].moves


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"2.weight": "h2 /h2"}, {}, r"'2.weight' axis 1 has 6 positions .* 'h2' has size 5 by '2.weight' axis 0"),
        ({"0.bias": "h1 h2"}, {}, r"'0.bias': axis 1 \('h2'\) does not exist; its shape is \(6,\)"),
        ({"0.wieght": "h1"}, {}, r"'0.wieght' is not a parameter or buffer of the model; did you mean '0.weight'\?"),
        ({"2.weight": "h2 /h1*2"}, {}, r"'2.weight' axis 1 has 6 positions but its classes make 12"),
        ({"4.weight": "- a*b"}, {}, r"size of class 'a' cannot be told .* sizes=\{'a': 8\}"),
        ({"4.weight": "- /h2+h3*7"}, {}, "no size of class 'h3' fits"),
        ({}, {"scales": {"h9": "positive"}}, "scales names the class 'h9'"),
        ({}, {"scales": {"h1": "huge"}}, r"scales\['h1'\] is 'huge'; expected one of one, sign"),
        ({}, {"scales": {"h1:pre": "positive"}}, "scales frees the scales of 'h1:pre', but no axis carries one"),
        ({}, {"ordered": ["h7"]}, "ordered names the class 'h7'"),
        ({}, {"sizes": {"h1": 7}}, "axis 0 has 6 positions but its classes make 7: 'h1' has size 7 by sizes"),
        ({}, {"inside": {"h1": "h2"}}, r"0.weight: axis 0 carries a class nested in 'h2'.*it stands nowhere"),
        ({}, {"inside": {"h1": "h2", "h2": "h1"}}, "nested in each other"),
        ({}, {"inside": {"h1": "h8"}}, "'h8', in which 'h1' is nested, stands on no axis"),
        ({"0.weight": "g[h1]", "2.weight": "h2 q[h1]"}, {"sizes": {"g": 2, "q": 2}}, "nested in 'q' here and in 'g'"),
        ({"0.weight": "g[h1]"}, {"sizes": {"g": 2}, "inside": {"h1": "h2"}}, "'g' by its axes and in 'h2' by inside"),
        ({}, {"scales": {"h1": intertwiner("square")}}, r"'2.weight' reads 'h1' with scale power -1; behind square"),
        ({}, {"scales": {"h1": intertwiner("|x|^1.5")}}, "charges are whole numbers"),
        (
            {"0.weight": "h1^0~1", "0.bias": "h1^0~1", "2.weight": "h2 h1^0~1"},
            {"scales": {"h1": "positive"}}, "scales frees the scales of 'h1'",
        ),
        (
            {"0.weight": "h1^2", "0.bias": "h1^2", "2.weight": "h2 /h1^2"},
            {"scales": {"h1": "sign"}}, "scales frees the signs of 'h1'",
        ),
        ({"0.weight": ("h1", "-")}, {}, "the axes of '0.weight' are given as tuple"),
        ({}, {"sizes": {"h1": 6.0}}, "expected a whole number"),
        ({"0.bias": Variance("h1", 1e-5, gain="2.bias")}, {}, "its gain '2.bias' does not carry the same classes"),
    ],
)  # fmt: skip
def test_contradictions_name_the_parameter(change, options, message):
    with pytest.raises(InputError, match=message):
        Symmetry.from_axes({**GOOD, **change}, network(), **options)


def test_an_ambiguous_block_is_refused():
    params = {"w": torch.zeros(2, 2, 3), "v": torch.zeros(6)}
    with pytest.raises(InputError, match=r"w: axis 2 carries a class nested in 'g'.*stands on axes \[0, 1\]"):
        Symmetry.from_axes({"v": "g[c]", "w": "g g c"}, params, sizes={"g": 2})


def test_a_tied_weight_with_two_roles_is_refused():
    a, b = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    b.weight = a.weight
    model = nn.Sequential(a, b)
    with pytest.raises(
        InputError, match=r"'0.weight' and '1.weight' are one tied weight with two roles: 'h' and '- /h'"
    ):
        Symmetry.from_axes({"0.weight": "h", "1.weight": "- /h"}, model)
    # The same role in other words is one role.
    assert Symmetry.from_axes({"0.weight": "h", "1.weight": "h -"}, model).classes["h"].size == 4
    sym = Symmetry.from_axes({"1.weight": "h h"}, model)
    assert sym.parameters["0.weight"] == sym.parameters["1.weight"]


def test_shapes_from_a_state_dict_and_int_buffers():
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    sym = Symmetry.from_axes({"0.weight": "h{pre:1}", "0.bias": "h{pre:1}"}, model.state_dict())
    assert not sym.parameters["1.num_batches_tracked"].moves
    assert sym.act(sym.identity(), dict(model.state_dict()))["1.num_batches_tracked"].dtype == torch.int64


@pytest.mark.parametrize("name", CASES)
def test_symmetries_and_elements_round_trip_exactly(name, tmp_path):
    model, sym, _ = made(name)
    sym.save(tmp_path / "sym.json")
    again = Symmetry.load(tmp_path / "sym.json")
    assert again == sym
    assert hash(again) == hash(sym)
    assert again.to_json() == sym.to_json()
    json.loads(sym.to_json())
    g = sym.random(torch.Generator().manual_seed(0))
    g.save(tmp_path / "g.safetensors")
    loaded = Element.load(tmp_path / "g.safetensors")
    assert loaded == g
    params = randomized(model, torch.Generator().manual_seed(1))
    moved, expected = again.act(loaded, params), sym.act(g, params)
    assert all(torch.equal(moved[key], expected[key]) for key in expected)
    assert loaded != sym.identity()


def test_damaged_and_foreign_files_are_refused(tmp_path):
    sym = Symmetry.from_axes(GOOD, network())
    path = tmp_path / "sym.json"
    sym.save(path)
    text = path.read_text()
    nested = Symmetry.from_axes({"w": "g[c]"}, {"w": torch.zeros(6)}, sizes={"g": 2}).to_json()
    for content, message in [
        (nested.replace('"g^0*c"', '"g[c]"').replace('"inside": "g"', '"inside": null'), "'c' stands inside 'g' here"),
        (text.replace('"size": 6', '"size": "six"'), "class h1 is damaged: 'size' is 'six'"),
        (text.replace('"size": 6', '"size": 6.5'), "'size' is 6.5"),
        (text.replace('"permutes": true', '"permutes": "false"', 1), "'permutes' is 'false'"),
        (text.replace('"inside": null', '"inside": "zz"', 1), "nested in 'zz', which does not stand before it"),
        (text.replace('"notes": []', '"notes": "hello"'), "'notes' is 'hello'"),
        (text.replace('["h1", "4"]', '"h1"'), "'axes' is 'h1'"),
        (text[: len(text) // 2], "is not JSON"),
        ('{"a": 1}', "is not a symmetry: its format is None"),
        ("[]", "is not a symmetry: its format is 'list'"),
        (text.replace('"version": 1', '"version": 99'), "has version 99; this coset reads version 1"),
        (text.replace('"size": 6', '"size": 7'), "axis 0 has 6 positions, its description 7"),
        (text.replace('"shape"', '"shapes"'), "0.weight is damaged: it has no 'shape'"),
    ]:
        path.write_text(content)
        with pytest.raises(InputError, match=message):
            Symmetry.load(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not a text file"):
        Symmetry.load(path)
    with pytest.raises(InputError, match=r"absent\.json does not exist"):
        Symmetry.load(tmp_path / "absent.json")
    element = tmp_path / "g.safetensors"
    sym.identity().save(element)
    element.write_bytes(element.read_bytes()[:-8])
    with pytest.raises(InputError, match="is not a whole safetensors file"):
        Element.load(element)
    from safetensors.torch import save_file

    save_file({"w": torch.zeros(1)}, element)
    with pytest.raises(InputError, match="is not an element of version 1"):
        Element.load(element)
    with pytest.raises(InputError, match="does not exist"):
        Element.load(tmp_path / "absent")


def test_equality_does_not_depend_on_the_order_of_declaration():
    one = Symmetry.from_axes(GOOD, network(), scales={"h1": "positive", "h2": "sign"})
    two = Symmetry.from_axes(dict(reversed(GOOD.items())), network(), scales={"h2": "sign", "h1": "positive"})
    assert list(one.classes) != list(two.classes)
    assert one == two
    assert one.random(torch.Generator().manual_seed(0)) == two.random(torch.Generator().manual_seed(0))
    assert one != Symmetry.from_axes(GOOD, network(), scales={"h1": "positive", "h2": "nonzero"})


@pytest.mark.parametrize("name", ["a-b", "a*b", "1a", "", "a b"])
def test_names_must_fit_the_language(name):
    classes = {name: UnitClass(name, 2)}
    with pytest.raises(InputError, match="cannot name a class"):
        Symmetry(classes, {}, {"w": Parameter((2,), (Units(name),))})


def test_charges_must_be_sorted_and_single():
    classes = {"h": UnitClass("h", 2)}
    for charges in ((Charge("b", 1, 1), Charge("a", 1, 1)), (Charge("", 1, 1), Charge("", 2, 0)), (Charge("", 1, 2),)):
        with pytest.raises(InputError, match="not sorted, single"):
            Symmetry(classes, {}, {"w": Parameter((2,), (Units("h", charges),))})


def test_json_written_by_hand():
    """The language of the docs, with brackets and dashes."""
    text = """{"format": "coset.symmetry", "version": 1,
     "classes": {"g": {"size": 2, "inside": null, "permutes": true}, "c": {"size": 3, "inside": "g", "permutes": true}},
     "families": {}, "parameters": {"w": {"shape": [6, 4], "axes": ["g[c]", "-"]}}, "notes": [], "pinned": []}"""
    sym = Symmetry.from_json(text)
    assert sym == Symmetry.from_axes({"w": "g[c] -"}, {"w": torch.zeros(6, 4)}, sizes={"g": 2})


def test_values_cannot_be_changed():
    sym = Symmetry.from_axes(GOOD, network())
    with pytest.raises(TypeError):
        sym.classes["h3"] = sym.classes["h1"]
    with pytest.raises(AttributeError):
        sym.notes = ("x",)
    with pytest.raises(TypeError):
        sym.identity().permutations["h1"] = torch.arange(6)


def test_the_table_is_for_people():
    _, sym, _ = made("grouped-query attention")
    text = str(sym)
    assert "finite part: log|G| = " in text
    assert "free positive scales: 22" in text
    row = next(line for line in text.splitlines() if line.startswith("qk"))
    assert row.split() == [
        "qk",
        "2×4",
        "in",
        "g",
        "(4!)^2",
        "8",
        "8",
        "q.weight[0],",
        "q.bias[0],",
        "kv.weight[0],",
        "and",
        "1",
        "more",
    ]
    assert "trivial" in str(Symmetry.from_axes({}, network()))
    assert repr(sym).startswith("Symmetry(4 classes, 6 parameters")


def test_axes_are_explained_in_words():
    sym = Symmetry.from_axes(GOOD, network(), scales={"h1": "nonzero"})
    text = sym.explain("2.weight")
    assert "axis 0: h2\n  the 5 units of 'h2', which permute, shared with 2.bias, 4.weight" in text
    assert "axis 1: /h1\n  the 6 units of 'h1', which permute, shared with 0.weight, 0.bias" in text
    assert "; carries 'h1' with power -1 and its sign" in text
    assert sym.explain("4.bias") == "4.bias has shape (3,).\naxis 0: fixed, 3 positions (as declared)"
    with pytest.raises(InputError, match=r"'2.wieght' is not a parameter of this symmetry; did you mean '2.weight'\?"):
        sym.explain("2.wieght")


def test_many_families_are_shortened():
    _, sym, _ = made("resnet20, batch")
    assert len(sym.families) > 20
    assert f"and {len(sym.families) - 20} more; explain(name) tells what a parameter carries" in str(sym)
    assert "fixed: " in str(sym)
