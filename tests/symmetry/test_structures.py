"""Random structures: any axes that are accepted carry a group action, entry by entry the one that is declared."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_symmetry import brute_force

from coset.distribution import MeanField
from coset.errors import InputError
from coset.symmetry import Family, Parameter, Symmetry
from coset.symmetry.axes import Charge, Concat, Fixed, Interleaved, Product, Units, size_of, units_of
from coset.symmetry.structure import UnitClass, build_structure, check_standing

NAMES = ("k0", "k1", "k2", "k3")


# Strategies are made once: hypothesis goes through every new one before it draws. So what they draw names no class yet:
# units are numbers, which the classes that are drawn give their names.
_NUMBERS = st.sampled_from(range(12))
_CHARGES = st.dictionaries(
    st.sampled_from(["", "p"]), st.tuples(st.integers(-2, 2), st.integers(0, 1)).filter(any), max_size=2
)
_LEAVES = st.tuples(st.just(Units), _NUMBERS, _CHARGES) | st.tuples(st.just(Fixed), st.integers(1, 3))


def _deeper(inner):
    return st.tuples(st.sampled_from([Product, Product, Concat, Interleaved]), st.lists(inner, min_size=2, max_size=3))


_AXES = st.lists(st.recursive(_LEAVES, _deeper, max_leaves=5), min_size=1, max_size=3)
_PARAMETERS = st.lists(_AXES, min_size=1, max_size=3)
_TRUTHS, _SIZES = st.booleans(), st.integers(1, 3)


def _node(drawn, classes, sizes):
    """What was drawn, in these classes."""
    kind, *parts = drawn
    if kind is Fixed:
        return Fixed(*parts)
    if kind is Units:
        number, powers = parts
        name = tuple(classes)[number % len(classes)]
        charges = () if classes[name].follows else tuple(Charge(key, *powers[key]) for key in sorted(powers))
        return Units(name, charges)
    nodes = [_node(part, classes, sizes) for part in parts[0]]
    if kind is Interleaved:
        # Parts in turns are of one size.
        equal = [node for node in nodes if size_of(node, sizes) == size_of(nodes[0], sizes)]
        nodes = equal if len(equal) > 1 else [nodes[0], nodes[0]]
    return kind(tuple(nodes))


@st.composite
def symmetries(draw):
    """Classes nested at random, families at random, and parameters whose axes are random trees over them."""
    names = NAMES[: 1 + draw(_NUMBERS) % 4]
    classes = {}
    for name in names:
        outside = [None, None, *classes]
        parent = outside[draw(_NUMBERS) % len(outside)]
        roots = [None, *(other for other, item in classes.items() if item.parent is None)]
        followed = roots[draw(_NUMBERS) % len(roots)] if parent is not None else None
        size = draw(_SIZES) if followed is None else classes[followed].size
        classes[name] = UnitClass(name, size, parent, followed is None and draw(_TRUTHS), followed)
    families = {}
    for name in (name for name in names if classes[name].follows is None):
        for family in ("", "p"):
            made = Family(name, family, draw(_TRUTHS), draw(_TRUTHS))
            if made.scales or made.signs:
                families[made.key] = made
    sizes = {name: item.size for name, item in classes.items()}
    parameters = {}
    for number, drawn in enumerate(draw(_PARAMETERS)):
        axes = tuple(_node(axis, classes, sizes) for axis in drawn)
        shape = tuple(size_of(axis, sizes) for axis in axes)
        parameter = Parameter(shape, axes)
        if torch.Size(shape).numel() > 600:
            continue
        try:
            Symmetry(classes, {}, {"w": parameter})
        except InputError:
            continue  # a nested class without the class around it
        parameters[f"w{number}"] = parameter
    return Symmetry(classes, families, parameters)


def _each_once(parameter):
    """Whether no class stands twice: then "the block beside it" needs no rule of preference."""
    names = [unit.name for axis in parameter.axes for unit in units_of(axis)]
    return len(set(names)) == len(names)


@settings(max_examples=200)
@given(sym=symmetries(), seed=st.integers(0, 1000))
def test_every_accepted_structure_carries_a_group_action(sym, seed):
    generator = torch.Generator().manual_seed(seed)
    params = {
        name: torch.randn(item.shape, generator=generator, dtype=torch.float64) for name, item in sym.parameters.items()
    }
    g, h = sym.random(generator), sym.random(generator)
    moved = sym.act(g, params)
    product, one_by_one = sym.act(sym.compose(g, h), params), sym.act(g, sym.act(h, params))
    back = sym.act(sym.inverse(g), moved)
    spread = sym.act(g, MeanField(params, {name: tensor.abs() for name, tensor in params.items()})).std
    again = Symmetry.from_json(sym.to_json())
    assert again == sym
    twice = again.act(g, {name: torch.stack([tensor, 2 * tensor]) for name, tensor in params.items()})
    for name, tensor in params.items():
        torch.testing.assert_close(product[name], one_by_one[name], rtol=1e-11, atol=1e-13)
        torch.testing.assert_close(back[name], tensor, rtol=1e-11, atol=1e-13)
        torch.testing.assert_close(spread[name], moved[name].abs(), rtol=1e-13, atol=0)
        assert torch.equal(twice[name][1], 2 * moved[name])
        if tensor.numel() <= 60 and _each_once(sym.parameters[name]):
            torch.testing.assert_close(moved[name], brute_force(sym, g, name, tensor), rtol=1e-12, atol=1e-14)


@settings(max_examples=60)
@given(sym=symmetries(), seed=st.integers(0, 1000))
def test_subgroups_act_as_their_elements_in_the_group(sym, seed):
    generator = torch.Generator().manual_seed(seed)
    params = {
        name: torch.randn(item.shape, generator=generator, dtype=torch.float64) for name, item in sym.parameters.items()
    }
    for part in (sym.restrict(["k0"]), sym.restrict(permutations=False), sym.restrict(scales=False)):
        g = part.random(generator)
        inside, outside = part.act(g, params), sym.act(sym.element(g.permutations, g.scales, g.signs), params)
        assert all(torch.equal(inside[name], outside[name]) for name in params)


H, D, F = Units("h"), Units("d"), Units("f")


@pytest.mark.parametrize(
    "axes",
    [
        (D,), (H, D), (Product((H, D)),), (Product((H, D)), Fixed(3)), (Product((H, D)), D), (H, H, D), (Fixed(2), D),
        (Product((H, D)), H), (Concat((Product((H, D)), D)),), (Concat((Product((H, D)), Fixed(2))),),
        (Interleaved((Product((H, D)), Product((H, D)))),), (H, Concat((D, D))), (Concat((H, Fixed(1))), D),
        (Product((H, F)),), (F,), (H, F, D), (Product((D, H)), Product((H, D))),
    ],
)  # fmt: skip
def test_units_stand_where_a_structure_can_be_built(axes):
    """Building it is the oracle of what is told without."""
    classes = {"h": UnitClass("h", 2), "d": UnitClass("d", 3, "h"), "f": UnitClass("f", 2, "h", True, "h")}

    def refused(task):
        try:
            task(axes, classes, "w")
        except InputError as error:
            return str(error)
        return None

    assert refused(check_standing) == refused(build_structure)
