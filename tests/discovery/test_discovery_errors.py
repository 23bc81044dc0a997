"""What discovery refuses, in one clear sentence; what it takes as it is."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from coset.errors import InputError
from coset.symmetry import discover
from coset.symmetry.discovery import verification
from coset.symmetry.preserving import is_proven


class Wrapped(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, x):
        return self.fc(x) if x.sum() > 0 else -self.fc(x)


X = torch.ones(2, 3)


def test_control_flow_that_depends_on_data_names_its_module():
    with pytest.raises(InputError, match=r"control flow of 'inner' \(Branching\) depends on its data"):
        discover(Wrapped(Branching()), X)


@pytest.mark.parametrize("inputs", [torch.ones(2, 4), (X, X), ()], ids=["shape", "too many", "none"])
def test_wrong_example_inputs(inputs):
    with pytest.raises(InputError, match="Linear cannot be called with these example inputs: "):
        discover(nn.Linear(3, 2), inputs)


def test_not_a_module():
    with pytest.raises(InputError, match=r"model is a function; expected an nn\.Module"):
        discover(F.relu, X)


@pytest.mark.parametrize("layer", [nn.Dropout(0.1), nn.Dropout1d(0.1), nn.BatchNorm1d(3)], ids=repr)
def test_training_mode(layer):
    with pytest.raises(InputError, match=r"'1' .*training mode; call model.eval\(\) first"):
        discover(nn.Sequential(nn.Linear(3, 3), layer), X)
    assert discover(nn.Sequential(nn.Linear(3, 3), layer).eval(), X).parameters


class Random(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.dropout(x, 0.5, training=True),
        lambda x: x + torch.randn_like(x),
        lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.1),
    ],
    ids=["dropout", "noise", "attention"],
)
def test_random_functions(function):
    with pytest.raises(InputError, match="draws random numbers"):
        discover(Random(function).eval(), torch.ones(1, 2, 3))


def test_dropout_without_effect_is_no_randomness():
    sym = discover(nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.0), nn.Linear(4, 2)), X)
    assert sym.scale_dimension == 4


def test_a_module_that_cannot_be_exported_is_named():
    class Printing(nn.Module):
        def forward(self, x):
            return x * float(x.detach().cpu().numpy().sum())

    with pytest.raises(InputError, match=r"'inner' \(Printing\)"):
        discover(Wrapped(Printing()), X)


def test_parameters_that_are_not_floating_stay_fixed():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)
            self.register_buffer("steps", torch.tensor(3))
            self.mask = nn.Parameter(torch.tensor([1, 0, 1, 1]), requires_grad=False)

        def forward(self, x):
            return self.b(F.relu(self.a(x)) * self.mask)

    sym = discover(Mixed(), X)
    assert not sym.parameters["mask"].moves
    assert not sym.parameters["steps"].moves
    # Hidden units are told apart by the mask; each keeps its scale.
    assert not sym.permuting
    assert sym.scale_dimension == 4


def test_an_empty_group_is_said_plainly():
    sym = discover(nn.Linear(3, 2), X)
    assert not sym.classes
    assert sym.log_order == 0
    assert "trivial" in str(sym)
    identity = sym.identity()
    assert torch.equal(sym.act(identity, {"weight": X[:, :3], "bias": X[:, 0]})["bias"], X[:, 0])


def test_unused_parameters_stay_fixed():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    model.register_parameter("unused", nn.Parameter(torch.ones(4)))
    sym = discover(model, X)
    assert not sym.parameters["unused"].moves
    assert sym.scale_dimension == 4


def test_verification_can_be_left_out(monkeypatch):
    def forbidden(*_, **__):
        raise AssertionError

    monkeypatch.setattr(verification, "_round", forbidden)
    model = nn.Linear(3, 2)
    sym = discover(model, X, verify=False)
    assert sym.parameters
    assert not is_proven(sym, model)


def test_the_model_is_left_as_it_was():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.random.get_rng_state()
    discover(model, X)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert not model.training


def test_instance_norm_with_statistics_in_training_mode():
    model = nn.Sequential(nn.Conv1d(3, 4, 1), nn.InstanceNorm1d(4, track_running_stats=True), nn.Conv1d(4, 2, 1))
    with pytest.raises(InputError, match="'1' uses the statistics of the batch"):
        discover(model, torch.randn(2, 3, 6))
