"""Models run with other weights: the same outputs as their own, derivatives, and nothing left behind."""

import pytest
import torch
from torch import nn
from torch.func import vmap

from coset.errors import InputError
from coset.running import check_model, outputs_with, under_owners, whole_weights, with_weights


class Counting(nn.Module):
    """Two names for one matrix, and a buffer that every pass writes to."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3, bias=False)
        self.second = nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x):
        self.passes += 1
        return self.second(self.first(x).relu()) + self.passes


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Counting().double()


def test_outputs_are_those_of_a_model_that_holds_the_weights(model):
    other = Counting().double()
    x = torch.randn(4, 3, dtype=torch.float64)
    weights = whole_weights(model, other.state_dict())
    found = outputs_with(model, weights, x)
    assert torch.equal(found, with_weights(model, weights, lambda network: network(x)))
    assert torch.equal(found, other(x))


def test_no_pass_writes_to_the_model_or_the_weights(model):
    x = torch.randn(4, 3, dtype=torch.float64)
    for weights in (whole_weights(model, model.state_dict()), {"first.weight": model.first.weight.detach()}):
        before = {name: tensor.clone() for name, tensor in weights.items()}
        once = outputs_with(model, weights, x)
        assert torch.equal(outputs_with(model, weights, x), once)
        twice = with_weights(model, weights, lambda network: network(x) * 0 + network(x))
        torch.testing.assert_close(twice, once + 1)
        assert all(torch.equal(weights[name], tensor) for name, tensor in before.items())
        assert float(model.passes) == 0


def test_derivatives_and_many_networks_at_once():
    model = nn.Linear(3, 1).double()
    x = torch.randn(4, 3, dtype=torch.float64)
    weight = torch.randn(5, 1, 3, dtype=torch.float64, requires_grad=True)
    found = vmap(lambda one: outputs_with(model, {"weight": one}, x))(weight)
    torch.testing.assert_close(found[..., 0], (x @ weight[:, 0].T).T + model.bias)
    (gradient,) = torch.autograd.grad(found.sum(), weight)
    torch.testing.assert_close(gradient, x.sum(0).expand(5, 1, 3))


def test_each_tensor_once_under_its_first_name(model):
    weight, others = torch.zeros(3, 3), torch.ones(3, 3)
    assert under_owners(model, {"second.weight": weight}) == {"first.weight": weight}
    both = under_owners(model, {"second.weight": weight, "first.weight": others})
    assert list(both) == ["first.weight"]
    assert both["first.weight"] is weight


def test_what_is_no_module_is_refused():
    check_model(nn.ReLU())
    with pytest.raises(InputError, match=r"^model is a function; expected a torch.nn.Module$"):
        check_model(lambda x: x)
