"""Verification says of which classes it says nothing: those whose moves no output notices."""

import pytest
import torch
import torch.nn.functional as F
from groups import found_group, group
from probes import Function
from torch import nn

from coset.errors import InputError
from coset.symmetry import discover
from coset.symmetry.discovery import elementwise, verification
from coset.symmetry.discovery.rules import RULES
from coset.symmetry.preserving import is_proven

SHAPES = {"a": (5, 4), "b": (3, 5), "c": (6, 4), "d": (3, 6)}
X = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def _branched(threshold, activation=F.relu):
    torch.manual_seed(0)

    def function(x, a, b, c, d):
        chosen = x.sum(-1, keepdim=True) > threshold
        return torch.where(chosen, activation(x @ c.T) @ d.T, F.relu(x @ a.T) @ b.T)

    return Function(function, SHAPES).double()


def test_a_branch_that_no_input_enters_is_told():
    sym = discover(_branched(1e9), X)
    assert found_group(sym) == group("5 6", scales=11, signs=0)
    (line,) = sym.unverified
    assert line.startswith("'c': no output notices how it moves c, d")
    assert "unverified: 'c'" in str(sym)
    with pytest.raises(InputError, match="1 classes cannot be verified on these inputs: 'c'"):
        discover(_branched(1e9), X, strict=True)


@pytest.mark.parametrize("threshold", [1e3, 0.0, -1e3])
def test_larger_inputs_and_other_signs_enter_branches(threshold):
    model = _branched(threshold)
    sym = discover(model, X, strict=True)
    assert sym.unverified == ()
    assert is_proven(sym, model)


def test_a_wrong_rule_in_a_branch_is_found_by_the_inputs_that_enter_it(monkeypatch):
    """At the example's scale nobody sees that softmax lets no scale pass."""
    monkeypatch.setitem(RULES, "softmax", elementwise.same_values)

    def softmax(x):
        return torch.softmax(x, -1)

    with pytest.raises(InputError, match=r"class 'c' .* does not preserve the function"):
        discover(_branched(1e3, softmax), X)
    assert any("'c'" in line for line in discover(_branched(1e9, softmax), X).unverified)


def test_a_longer_example_is_tried():
    """A second branch that only more than five tokens reach."""

    class Long(nn.Module):
        def __init__(self):
            super().__init__()
            self.near, self.far, self.last = nn.Linear(4, 5), nn.Linear(4, 6), nn.Linear(5, 3)
            self.end = nn.Linear(6, 3)

        def forward(self, x):
            late = torch.arange(x.shape[1])[None, :, None] > 5
            return torch.where(late, self.end(torch.relu(self.far(x))), self.last(torch.relu(self.near(x))))

    torch.manual_seed(0)
    model = Long().double()
    sym = discover(model, torch.randn(2, 5, 4, dtype=torch.float64), strict=True)
    assert found_group(sym) == group("5 6", scales=11, signs=0)


def test_outputs_without_gradients_are_tried_by_single_moves():
    torch.manual_seed(0)
    model = Function(lambda x, a, b: (F.relu(x @ a.T) @ b.T).argmax(1), {"a": (5, 4), "b": (3, 5)}).double()
    assert discover(model, X, strict=True).unverified == ()


def test_what_never_has_any_effect_is_not_asked_for():
    """A bias of keys shifts all scores alike: no move of it is ever noticed, by no fault of the inputs."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True).double().eval()
    assert discover(layer, torch.randn(2, 3, 8, dtype=torch.float64), strict=True).unverified == ()


def test_signals_that_die_on_their_way_are_kept_alive():
    """Thirty layers with weights of 0.01 pass nothing on; verification takes weights that do."""
    torch.manual_seed(0)
    layers = [layer for _ in range(30) for layer in (nn.Linear(4, 4), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(4, 2)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.01)
    assert discover(model, X, strict=True).scale_dimension == 30 * 4


def test_lengths_that_a_model_does_not_take_are_not_held_against_it():
    """A branch that is hardly entered, and a table of positions that ends before the longer example."""

    class Short(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.places = nn.Embedding(6, 8), nn.Embedding(7, 8)
            self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            x = self.words(x) + self.places(torch.arange(x.shape[1]))
            return torch.where(x.sum(2, keepdim=True) > 1e6, self.one(x).tanh(), self.two(x).tanh())

    torch.manual_seed(0)
    sym = discover(Short().double(), torch.randint(6, (2, 4)))
    assert found_group(sym).classes == group("8", scales=0, signs=0).classes


def test_rounding_is_not_taken_for_a_wrong_rule(monkeypatch):
    """With a bound below rounding, what rounding does is no reason to refuse a group, and a wrong group still is."""
    monkeypatch.setattr(verification, "TOLERANCE", 1e-17)
    torch.manual_seed(0)
    model = Function(lambda x, a, b: torch.sin((10 * (x @ a.T)).pow(3) @ b.T), {"a": (5, 4), "b": (3, 5)}).double()
    assert found_group(discover(model, X)) == group("5", scales=5, signs=5)
    monkeypatch.setitem(RULES, "softmax", elementwise.same_values)
    wrong = Function(lambda x, a, b: torch.softmax(x @ a.T, -1) @ b.T, {"a": (5, 4), "b": (3, 5)}).double()
    with pytest.raises(InputError, match="does not preserve the function"):
        discover(wrong, X)


def test_rounding_is_measured_on_the_inputs_on_which_outputs_changed(monkeypatch):
    """A function that magnifies rounding on half of the inputs, on the example among them."""
    monkeypatch.setattr(verification, "TOLERANCE", 1e-12)

    def magnified(x, a, b):
        return torch.sin(torch.where(x[:, :1] > 0.499, 1e5, 1.0) * torch.tanh(x @ a.T) @ b.T)

    for seed in range(10):
        torch.manual_seed(seed)
        model = Function(magnified, {"a": (5, 4), "b": (3, 5)}).double()
        sym = discover(model, torch.full((1, 4), 0.5, dtype=torch.float64) + torch.arange(4) / 8)
        assert found_group(sym) == group("5", scales=0, signs=5)


def test_functions_of_which_rounding_decides_are_refused():
    torch.manual_seed(0)
    chaotic = Function(lambda x, a, b: torch.sin((1e6 * (x @ a.T)).pow(3) @ b.T), {"a": (5, 4), "b": (3, 5)}).double()
    with pytest.raises(InputError, match="nothing can be verified on these inputs: rounding alone changes the outputs"):
        discover(chaotic, X)


def test_a_step_that_is_too_few_is_told():
    """One step of a recurrence from a learned state, and a branch that is not entered: on two steps there is less."""

    class Steps(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.outer, self.last = nn.Linear(4, 5), nn.Linear(5, 5), nn.Linear(5, 2)
            self.start = nn.Parameter(torch.randn(5))
            self.other = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))

        def forward(self, x):
            state = self.start.expand(x.shape[0], 5)
            for step in x.unbind(1):
                state = torch.tanh(self.inner(step) + self.outer(state))
            return torch.where(x[:, 0, :1] > 1e9, self.other(x[:, 0]), self.last(state))

    torch.manual_seed(0)
    sym = discover(Steps().double(), torch.randn(2, 1, 4, dtype=torch.float64))
    # The state before the step and the one behind it are units apart, as the example has it.
    assert found_group(sym) == group("5 5 3", scales=5, signs=13)
    assert any(note.startswith("on an example that is twice as long the group is smaller: ") for note in sym.notes)
    assert any("'other.0'" in line for line in sym.unverified)


@pytest.mark.parametrize("activation", [nn.ReLU6, nn.SiLU, nn.Hardtanh])
def test_deep_networks_with_norms_of_any_size_are_noticed(activation):
    """Ten convolutions with gains of 0.02, whose activations saturate if signals are too large."""
    torch.manual_seed(0)
    layers = [part for _ in range(10) for part in (nn.Conv1d(8, 8, 1), nn.BatchNorm1d(8), activation())]
    model = nn.Sequential(*layers, nn.Conv1d(8, 2, 1)).double().eval()
    with torch.no_grad():
        for module in model:
            if isinstance(module, nn.BatchNorm1d):
                module.weight.mul_(0.02)
    assert discover(model, torch.randn(2, 8, 6, dtype=torch.float64), strict=True).unverified == ()


def test_statistics_of_norms_in_graphs_that_are_decomposed_have_derivatives():
    """An activation in place makes a graph of other operations of the same model."""

    class Writes(nn.Module):
        def forward(self, x):
            y = x.view(x.shape[0], -1)
            y.mul_(2.0)
            return x.relu_()

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), Writes(), nn.Linear(5, 2)).double().eval()
    sym = discover(model, X, strict=True)
    assert found_group(sym) == group("5", scales=10, signs=5)
