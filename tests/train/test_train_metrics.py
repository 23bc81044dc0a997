"""Metrics against direct formulas."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from coset.errors import InputError
from coset.train import evaluate

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(11, 4, generator=GENERATOR)
LABELS = torch.randint(3, (11,), generator=GENERATOR)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))


@pytest.mark.parametrize("batch_size", [1, 4, 11, 100])
def test_classification(batch_size: int) -> None:
    model = network()
    outputs = copy.deepcopy(model).eval()(X).detach()
    metrics = evaluate(model, X, LABELS, batch_size=batch_size)
    assert metrics.loss == pytest.approx(float(functional.cross_entropy(outputs, LABELS)), rel=1e-6)
    assert metrics.accuracy == float((outputs.argmax(1) == LABELS).double().mean())
    assert (metrics.rmse, metrics.count) == (None, 11)


def test_regression() -> None:
    model, targets = network(), torch.randn(11, 3, generator=torch.Generator().manual_seed(1))
    outputs = copy.deepcopy(model).eval()(X).detach()
    metrics = evaluate(model, X, targets, loss="mse", batch_size=4)
    expected = float((outputs - targets).square().mean())
    assert metrics.loss == pytest.approx(expected, rel=1e-6)
    assert metrics.rmse == pytest.approx(expected**0.5, rel=1e-6)
    assert metrics.accuracy is None


def test_regression_to_one_number_per_example() -> None:
    model = nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))
    metrics = evaluate(model, X, X[:, 0], loss="mse", batch_size=4)
    assert metrics.rmse == pytest.approx(float((model(X).detach() - X[:, 0]).square().mean().sqrt()), rel=1e-6)


def test_binary_labels_of_several_outputs() -> None:
    model, targets = network(), torch.randint(2, (11, 3), generator=torch.Generator().manual_seed(1))
    outputs = copy.deepcopy(model).eval()(X).detach()
    metrics = evaluate(model, X, targets, loss="binary-cross-entropy", batch_size=4)
    expected = functional.binary_cross_entropy_with_logits(outputs, targets.float())
    assert metrics.loss == pytest.approx(float(expected), rel=1e-6)
    assert metrics.accuracy == pytest.approx(float(((outputs > 0) == (targets == 1)).double().mean()), rel=1e-6)


def test_given_weights_take_the_place_of_the_models_own() -> None:
    model, other = network(), network()
    with torch.no_grad():
        for tensor in other.state_dict().values():
            tensor.copy_(tensor * 2)
    before = copy.deepcopy(model.state_dict())
    assert evaluate(model, X, LABELS, params=other.state_dict()) == evaluate(other, X, LABELS)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_modes_come_back_even_after_an_error() -> None:
    model = network().train()
    model[1].eval()
    modes = [module.training for module in model.modules()]
    evaluate(model, X, LABELS)
    assert [module.training for module in model.modules()] == modes
    with pytest.raises(InputError, match="the model cannot take inputs"):
        evaluate(model, X[:, :3], LABELS)
    assert [module.training for module in model.modules()] == modes


def test_refusals() -> None:
    model = network()
    with pytest.raises(InputError, match="loss is 'hinge'; expected one of cross-entropy"):
        evaluate(model, X, LABELS, loss="hinge")
    with pytest.raises(InputError, match="batch_size is 0"):
        evaluate(model, X, LABELS, batch_size=0)
    params = dict(model.state_dict())
    with pytest.raises(InputError, match=r"0\.weight has shape \(4, 8\), the model expects \(8, 4\)"):
        evaluate(model, X, LABELS, params=params | {"0.weight": torch.zeros(4, 8)})
    with pytest.raises(InputError, match="extra is in params but not in the model"):
        evaluate(model, X, LABELS, params=params | {"extra": torch.zeros(1)})
    del params["1.running_mean"]
    with pytest.raises(InputError, match=r"1\.running_mean is in the model but not in params"):
        evaluate(model, X, LABELS, params=params)
