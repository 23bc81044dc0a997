"""A symmetry from elsewhere is one of the model, or it is refused."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import coset
from coset.errors import InputError
from coset.models import MLP
from coset.symmetry import Symmetry, check_preserves, discover
from coset.symmetry.preserving import is_proven

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
    same = _mlp(nn.Tanh)
    assert not is_proven(tanh, same)
    check_preserves(tanh, same, X)
    assert is_proven(tanh, same)


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
    check_preserves(sym, model, X)
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
    check_preserves(_loaded(discover(_mlp(nn.ReLU), X)), Branching(), X)


def test_alignment_on_activations_checks_what_it_is_given():
    relu = _mlp(nn.ReLU)
    wrong = _loaded(discover(_mlp(nn.Tanh), X))
    a, b = dict(relu.state_dict()), {name: 2 * tensor for name, tensor in relu.state_dict().items()}
    with pytest.raises(InputError, match="the symmetry does not fit the model: it is no symmetry of MLP"):
        coset.align(wrong, a, b, method="activations", model=relu, data=X)
    with pytest.raises(InputError, match="the symmetry does not fit the model"):
        coset.merge(wrong, [a, b], model=relu, data=X, method="activations")
    loader = DataLoader(TensorDataset(X), batch_size=2, shuffle=True)
    with pytest.raises(InputError, match="the symmetry does not fit the model"):
        coset.align(wrong, a, b, method="activations", model=relu, data=loader)
    right = _loaded(discover(relu, X))
    assert coset.align(right, a, a, method="activations", model=relu, data=X).element == right.identity()


def test_what_was_proven_of_one_model_is_not_proven_of_another():
    """A symmetry that was discovered a moment ago, for a model of the same shapes."""
    sym = discover(_mlp(nn.Tanh), X)
    with pytest.raises(InputError, match="it is no symmetry of MLP"):
        check_preserves(sym, _mlp(nn.ReLU), X)
    relu = _mlp(nn.ReLU)
    with pytest.raises(InputError, match="the symmetry does not fit the model"):
        coset.align(sym, dict(relu.state_dict()), dict(relu.state_dict()), method="activations", model=relu, data=X)


def test_outputs_that_are_weights_are_seen():
    class Open(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = _mlp(nn.ReLU).layers

        def forward(self, x):
            hidden = torch.relu(self.layers[1](torch.relu(self.layers[0](x))))
            return self.layers[2](hidden), self.layers[0].weight, self.layers[1].weight.t()

    with pytest.raises(InputError, match="it is no symmetry of Open"):
        check_preserves(_loaded(discover(_mlp(nn.ReLU), X)), Open(), X)


def test_models_of_one_type_and_examples_that_do_not_fit():
    class Single(nn.Module):
        """Takes nothing but single precision."""

        def __init__(self):
            super().__init__()
            self.layers = _mlp(nn.ReLU).layers

        def forward(self, x):
            x = x.float()
            for layer in self.layers[:-1]:
                x = torch.relu(layer(x))
            return self.layers[-1](x)

    sym = _loaded(discover(_mlp(nn.ReLU), X))
    check_preserves(sym, Single(), X)
    with pytest.raises(InputError, match="it is no symmetry of Single"):
        check_preserves(_loaded(discover(_mlp(nn.Tanh), X)), Single(), X)
    with pytest.raises(InputError, match="MLP cannot be called with these example inputs: "):
        check_preserves(sym, _mlp(nn.ReLU), X[:, :5])
    with pytest.raises(InputError, match="MLP returns no finite number on the example"):
        check_preserves(sym, _mlp(nn.ReLU), X * float("nan"))


def test_a_wrong_translation_of_a_file_is_refused():
    model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3)).double()
    sym = discover(model, X.double())
    (item,) = sym.translations
    wrong = replace(sym, translations=(replace(item, moves=item.moves[:1]),))
    assert wrong.fingerprint == sym.fingerprint
    check_preserves(sym, model, X.double())
    with pytest.raises(InputError, match=r"its translation 'shift:0\.bias' changes the outputs"):
        check_preserves(Symmetry.from_json(wrong.to_json()), model, X.double())
