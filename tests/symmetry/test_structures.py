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


def _units(name, powers):
    return Units(name, tuple(Charge(family, *powers[family]) for family in sorted(powers)))


@st.composite
def symmetries(draw):
    """Classes nested at random, families at random, and parameters whose axes are random trees over them."""
    names = NAMES[: draw(st.integers(1, 4))]
    classes = {}
    for index, name in enumerate(names):
        parent = draw(st.sampled_from([None, None, *names[:index]]))
        roots = [other for other, item in classes.items() if item.parent is None]
        followed = draw(st.sampled_from([None, *roots])) if parent is not None else None
        size = draw(st.integers(1, 3)) if followed is None else classes[followed].size
        classes[name] = UnitClass(name, size, parent, followed is None and draw(st.booleans()), followed)
    families = {}
    for name in (name for name in names if classes[name].follows is None):
        for family in ("", "p"):
            made = Family(name, family, draw(st.booleans()), draw(st.booleans()))
            if made.scales or made.signs:
                families[made.key] = made
    charge = st.tuples(st.integers(-2, 2), st.integers(0, 1)).filter(any)
    charges = st.dictionaries(st.sampled_from(["", "p"]), charge, max_size=2)
    unit = st.builds(_units, st.sampled_from(names), charges).map(
        lambda unit: Units(unit.name) if classes[unit.name].follows else unit
    )
    leaf = unit | st.builds(Fixed, st.integers(1, 3))

    def deeper(inner):
        several = st.lists(inner, min_size=2, max_size=3).map(tuple)
        in_turns = st.lists(inner, min_size=2, max_size=3).filter(_of_one_size).map(tuple)
        return st.builds(Product, several) | st.builds(Concat, several) | st.builds(Interleaved, in_turns)

    sizes = {name: item.size for name, item in classes.items()}

    def _of_one_size(nodes):
        return len({size_of(node, sizes) for node in nodes}) == 1

    node = st.recursive(leaf, deeper, max_leaves=5)
    parameters = {}
    for number in range(draw(st.integers(1, 3))):
        axes = tuple(draw(st.lists(node, min_size=1, max_size=3)))
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


@settings(max_examples=150)
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


@settings(max_examples=40)
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
