"""Features of named layers over data."""

import pytest
import torch
from torch import nn

from coset.data import Split
from coset.errors import InputError
from coset.models import CCT
from coset.represent import feature_chunks, features


def generator():
    return torch.Generator().manual_seed(0)


@pytest.fixture
def cnn():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 5, 3), nn.BatchNorm2d(5), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(80, 3))


X = torch.randn(11, 2, 6, 6, generator=generator())


def test_features_are_the_outputs_in_evaluation_mode_whatever_the_batches(cnn):
    cnn.train()
    modes = [module.training for module in cnn.modules()]
    before = {name: tensor.clone() for name, tensor in cnn.state_dict().items()}
    found = features(cnn, X, ["0", "1", "4"], batch_size=4)
    whole = features(cnn, X, ["0", "1", "4"], batch_size=100)
    assert [module.training for module in cnn.modules()] == modes
    assert all(torch.equal(tensor, before[name]) for name, tensor in cnn.state_dict().items())
    cnn.eval()
    with torch.no_grad():
        torch.testing.assert_close(found["0"], cnn[0](X))
        torch.testing.assert_close(found["1"], cnn[1](cnn[0](X)))
        torch.testing.assert_close(found["4"], cnn(X))
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, whole[name])
        assert tensor.dtype == torch.float32
        assert not tensor.requires_grad


@pytest.mark.parametrize("kind", ["pair", "split", "loader", "list"])
def test_all_forms_of_data_give_the_same(cnn, kind):
    labels = torch.zeros(11, dtype=torch.long)
    forms = {
        "pair": (X, labels),
        "split": Split(X, labels),
        "loader": torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, labels), batch_size=3),
        "list": [X[:5], X[5:]],
    }
    torch.testing.assert_close(features(cnn, forms[kind], ["0"])["0"], features(cnn, X, ["0"])["0"])


def test_other_weights_are_run_in_their_type_and_the_model_keeps_its_own(cnn):
    params = {name: 2 * tensor.double() for name, tensor in cnn.state_dict().items() if tensor.is_floating_point()}
    before = {name: tensor.clone() for name, tensor in cnn.state_dict().items()}
    found = features(cnn, X, ["0"], params=params)["0"]
    torch.testing.assert_close(found, 2 * features(cnn.double(), X, ["0"])["0"])
    assert found.dtype == torch.float64
    assert all(torch.equal(tensor, before[name].to(tensor)) for name, tensor in cnn.state_dict().items())


def test_channels_of_tokens_come_second():
    torch.manual_seed(0)
    model = CCT(dim=8, heads=2, depth=1, image_size=8).eval()
    x = torch.randn(3, 3, 8, 8, generator=generator())
    name = next(name for name, module in model.named_modules() if isinstance(module, nn.LayerNorm))
    found = features(model, x, [name])[name]
    assert found.shape[:2] == (3, 8)
    kept = features(model, x, [name], channel_axis={name: 1})[name]
    torch.testing.assert_close(found, kept.mT)


def test_chunks_leave_the_model_untouched_between_batches(cnn):
    cnn.train()
    chunks = feature_chunks(cnn, X, ["1"], batch_size=4)
    first = next(chunks)
    assert cnn.training
    assert not any(module._forward_hooks for module in cnn.modules())
    rest = [first, *chunks]
    assert [len(chunk["1"]) for chunk in rest] == [4, 4, 3]
    total = sum(chunk["1"].double().sum() for chunk in rest)
    torch.testing.assert_close(total, features(cnn, X, ["1"])["1"].double().sum())


@pytest.mark.parametrize("axis", [0, 4, -4, True, "1"])
def test_an_axis_that_holds_no_channels_is_refused(cnn, axis):
    with pytest.raises(InputError, match=r"channel_axis is .* for layer '0', whose output has shape \(11, 5, 4, 4\)"):
        features(cnn, X, ["0"], channel_axis=axis)


def test_outputs_without_examples_first_are_refused():
    class Sum(nn.Module):
        def forward(self, x):
            return x.sum(0)

    with pytest.raises(InputError, match=r"layer '0' gives an output of shape \(4,\) for 3 examples"):
        features(nn.Sequential(Sum()), torch.ones(3, 4), ["0"])


def test_shapes_that_change_with_the_batch_are_refused():
    with pytest.raises(InputError, match=r"layer '0' has features of shape \(2,\) for some examples and \(3,\)"):
        features(nn.Sequential(nn.ReLU()), [torch.ones(1, 2), torch.ones(1, 3)], ["0"])
