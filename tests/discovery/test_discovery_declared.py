"""Symmetries declared by hand get the graph of a discovery, in their own classes and families."""

import pytest
import torch
from layers_moving import assert_layers_move
from torch import nn

from architectures import CASES, made
from coset.symmetry import Symmetry, discover, with_graph
from coset.symmetry.axes import Fixed


@pytest.mark.parametrize("name", [name for name in CASES if "linear stream" not in name])
def test_layers_move_as_the_declared_group_says(name):
    model, declared, shape = made(name)
    x = torch.randn(2, *shape, dtype=torch.float64)
    found = discover(model, x)
    sym = with_graph(declared, model, x)
    assert sym == declared
    assert sym.graph.tensors.keys() == found.graph.tensors.keys()
    assert set(sym.graph.nodes) == set(declared.classes)
    assert assert_layers_move(model, sym, (x,))


def test_a_subgroup_moves_only_what_it_declares():
    """One class of two, with a sign common to all of its units where each has one of its own."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    axes = {"0.weight": "h^0*one", "0.bias": "h^0*one", "2.weight": "- h^0*one"}
    scales = {"h": "one", "one": "sign"}
    x = torch.randn(6, 4, dtype=torch.float64)
    declared = Symmetry.from_axes(axes, model, scales=scales, sizes={"one": 1}, ordered=["one"])
    sym = with_graph(declared, model, x)
    assert assert_layers_move(model, sym, (x,)) == ["0", "1", "2", "3", "4"]
    assert sym.graph.activation("1").classes == ("h", "one")
    assert sym.graph.activation("3").axes == (Fixed(0), Fixed(3))


def test_what_moves_otherwise_than_anything_found_has_no_place():
    """Units that are declared to change places in pairs, where single ones do."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)).double()
    axes = {"0.weight": "p*2", "0.bias": "p*2", "2.weight": "u p*2", "2.bias": "u", "4.weight": "- u"}
    x = torch.randn(6, 4, dtype=torch.float64)
    sym = with_graph(Symmetry.from_axes(axes, model), model, x)
    assert assert_layers_move(model, sym, (x,)) == ["2", "3", "4"]


def test_one_that_was_found_keeps_its_own_graph():
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    x = torch.randn(3, 4)
    sym = discover(model, x)
    assert with_graph(sym, model, x) is sym
    part = sym.restrict(scales=False)
    assert with_graph(part, model, x) is part
