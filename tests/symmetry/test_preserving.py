"""A symmetry from elsewhere is one of the model, or it is refused."""

import pytest
import torch
from torch import nn

import coset
from coset.errors import InputError
from coset.models import MLP
from coset.symmetry import Symmetry, check_preserves, discover

X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


def _mlp(activation):
    torch.manual_seed(0)
    return MLP(6, [5, 4], 3, activation=activation).eval()


def _loaded(sym):
    return Symmetry.from_json(sym.to_json())


def test_the_symmetry_of_another_activation_is_refused():
    tanh = _loaded(discover(_mlp(nn.Tanh), X))
    with pytest.raises(InputError, match=r"no symmetry of MLP: a random element of it changes the outputs by \d"):
        check_preserves(tanh, _mlp(nn.ReLU), X)
    assert check_preserves(tanh, _mlp(nn.Tanh), X).proven


def test_the_symmetry_of_another_architecture_is_refused():
    sym = _loaded(discover(_mlp(nn.Tanh), X))
    with pytest.raises(InputError, match=r"'layers.0.weight' has shape \(7, 6\) in the model; it expects \(5, 6\)"):
        check_preserves(sym, MLP(6, [7, 4], 3), X)
    with pytest.raises(InputError, match=r"it does not know '0.weight' of the model"):
        check_preserves(sym, nn.Sequential(nn.Linear(6, 3)), X)


def test_the_model_is_left_as_it_was_also_in_training_mode():
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.ReLU(), nn.Linear(5, 3))
    sym = _loaded(discover(model.eval(), X))
    model.train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert check_preserves(sym, model, X).proven
    assert model.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(tensor.dtype == before[name].dtype for name, tensor in model.state_dict().items())


def test_models_that_cannot_be_exported_are_run_all_the_same():
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = _mlp(nn.ReLU).layers

        def forward(self, x):
            hidden = torch.relu(self.layers[1](torch.relu(self.layers[0](x))))
            return self.layers[2](hidden) if float(x.sum()) > -1e9 else hidden

    with pytest.raises(InputError, match="depends on its data"):
        discover(Branching(), X)
    assert check_preserves(_loaded(discover(_mlp(nn.ReLU), X)), Branching(), X).proven


def test_alignment_on_activations_checks_what_it_is_given():
    relu = _mlp(nn.ReLU)
    wrong = _loaded(discover(_mlp(nn.Tanh), X))
    a, b = dict(relu.state_dict()), {name: 2 * tensor for name, tensor in relu.state_dict().items()}
    with pytest.raises(InputError, match="the symmetry does not fit the model: it is no symmetry of MLP"):
        coset.align(wrong, a, b, method="activations", model=relu, data=X)
    with pytest.raises(InputError, match="the symmetry does not fit the model"):
        coset.merge(wrong, [a, b], model=relu, data=X, method="activations")
    right = _loaded(discover(relu, X))
    assert coset.align(right, a, a, method="activations", model=relu, data=X).element == right.identity()
