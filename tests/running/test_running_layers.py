"""Recording and replacing the outputs of named layers."""

import pytest
import torch
from torch import nn

from architectures import CASES, evaluate, made
from coset.errors import InputError
from coset.running import check_layers, layer_names, recording, replacing, replacing_all


class Shared(nn.Module):
    """One ReLU, in place, three times; an attention that returns a tuple; a layer that is never called."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)
        self.relu = nn.ReLU(inplace=True)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.idle = nn.Linear(1, 1)

    def forward(self, x):
        x = self.relu(self.b(self.relu(self.a(x))))
        x, weights = self.attention(x, x, x)
        return self.relu(x), weights.sum()


@pytest.fixture
def shared():
    torch.manual_seed(0)
    return Shared().double().eval()


X = torch.randn(2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def hooks(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def test_outputs_are_those_of_the_layers_before_operations_in_place(shared):
    with recording(shared, ["a", "b", "relu#0", "relu#2", "attention"]) as outputs:
        result, _ = shared(X)
    a = shared.a(X)
    torch.testing.assert_close(outputs["a"], a)
    assert bool((outputs["a"] < 0).any())
    torch.testing.assert_close(outputs["relu#0"], a.relu())
    b = shared.b(a.relu())
    torch.testing.assert_close(outputs["b"], b)
    torch.testing.assert_close(outputs["attention"], shared.attention(b.relu(), b.relu(), b.relu())[0])
    torch.testing.assert_close(outputs["relu#2"], result)


def test_each_pass_leaves_its_own_outputs(shared):
    with recording(shared, ["a"]) as outputs:
        shared(X)
        first = outputs["a"]
        shared(2 * X)
    torch.testing.assert_close(first, shared.a(X))
    torch.testing.assert_close(outputs["a"], shared.a(2 * X))


def test_recorded_outputs_are_differentiable(shared):
    with recording(shared, ["a"]) as outputs:
        shared(X)
    outputs["a"].sum().backward()
    torch.testing.assert_close(shared.a.weight.grad, X.sum((0, 1)).expand(4, 4))


def test_the_part_above_a_layer_runs_on_other_features(shared):
    other = shared.b(torch.randn(2, 3, 4, dtype=torch.float64))
    kept = other.clone()
    with replacing(shared, "b", lambda _: other):
        result, _ = shared(X)
    torch.testing.assert_close(result, shared.attention(other.relu(), other.relu(), other.relu())[0].relu())
    assert torch.equal(other, kept)


def test_the_first_part_of_a_tuple_is_replaced_and_the_rest_stays(shared):
    with replacing_all(shared, {"attention": lambda y: -y, "relu#2": lambda y: y + 1}):
        result, weights = shared(X)
    mixed, rest = shared.attention(*[shared.relu(shared.b(shared.relu(shared.a(X))))] * 3)
    torch.testing.assert_close(result, (-mixed).relu() + 1)
    torch.testing.assert_close(weights, rest.sum())


def test_recording_inside_replacing_sees_what_replaces(shared):
    with replacing(shared, "a", lambda y: y * 0 + 7), recording(shared, ["a"]) as outputs:
        shared(X)
    assert bool((outputs["a"] == 7).all())


@pytest.mark.parametrize("name", list(CASES))
def test_replacing_by_the_same_changes_nothing_in_any_model(name):
    model, _, shape = made(name)
    x = torch.randn(2, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    names = [layer for layer in layer_names(model) if not list(model.get_submodule(layer).children())]
    expected = model(x)
    with recording(model, [""]) as outputs:
        model(x)
    torch.testing.assert_close(outputs[""], expected)
    with replacing(model, names[0], lambda y: y):
        torch.testing.assert_close(evaluate(model, dict(model.named_parameters()), x), expected)
    assert hooks(model) == 0


def test_hooks_are_removed_after_an_exception(shared):
    def fail(_):
        raise RuntimeError("by intention")

    with pytest.raises(RuntimeError, match="by intention"), recording(shared, ["a"]):
        raise RuntimeError("by intention")
    with pytest.raises(RuntimeError, match="by intention"), replacing(shared, "b", fail):
        shared(X)
    assert hooks(shared) == 0
    with recording(shared, ["a"]) as outputs:
        shared(X)
    torch.testing.assert_close(outputs["a"], shared.a(X))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["relu"], r"'relu' is called 3 times in one pass; expected .* 'relu#0' … 'relu#2'"),
        (["relu#3"], r"'relu#3' names a call that there is not: layer 'relu' is called 3 times"),
        (["idle"], r"'idle' is not called"),
    ],
)
def test_calls_that_a_name_does_not_decide_are_refused(shared, names, message):
    with pytest.raises(InputError, match=message), recording(shared, names):
        shared(X)
    assert hooks(shared) == 0


def test_a_layer_that_returns_no_tensor_is_refused():
    class Named(nn.Module):
        def forward(self, x):
            return {"x": x}

    model = nn.Sequential(Named())
    with pytest.raises(InputError, match="layer '0' returns a dict; expected a tensor"), recording(model, ["0"]):
        model(X)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["attenton"], "'attenton' is no layer of Shared; near it are 'attention'"),
        (["zzz"], "'zzz' is no layer of Shared; its layers are 'a', 'b', 'relu'"),
        (["a", "a"], "names 'a' more than once"),
        ([], "layers is empty"),
        ("a", "expected a sequence of names"),
    ],
)
def test_names_that_are_no_layers_are_refused(shared, names, message):
    with pytest.raises(InputError, match=message):
        check_layers(shared, names)


def test_what_replaces_must_be_a_tensor(shared):
    message = "what replaces layer 'a' is a NoneType"
    with pytest.raises(InputError, match=message), replacing(shared, "a", lambda _: None):
        shared(X)
