"""Two networks joined at a layer: against a network whose weights are exchanged while it runs."""

import copy

import pytest
import torch
from torch import Tensor, nn

from architectures import CASES, made, randomized
from coset.errors import InputError
from coset.represent._anatomy import part_below
from coset.represent._cut import cut


def twin(model: nn.Module, seed: int) -> nn.Module:
    """The same architecture with other weights."""
    other = copy.deepcopy(model)
    other.load_state_dict(randomized(model, torch.Generator().manual_seed(seed)))
    return other


def inputs_of(model: nn.Module, shape: tuple[int, ...], count: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if any(isinstance(module, nn.Embedding) for module in model.modules()):
        return torch.randint(0, 5, (count, *shape), generator=generator)
    return torch.randn(count, *shape, generator=generator, dtype=torch.float64)


def points(count: int) -> Tensor:
    return torch.randn(count, 3, generator=torch.Generator().manual_seed(7), dtype=torch.float64)


@torch.no_grad()
def exchanged(below: nn.Module, above: nn.Module, layer: str, x: Tensor, change) -> Tensor:
    """The oracle: run with the weights of ``below``, and load those of ``above`` when the layer has spoken."""
    skeleton = copy.deepcopy(below)

    def speak(_module, _args, output):
        skeleton.load_state_dict(above.state_dict())
        return change(output)

    skeleton.get_submodule(layer).register_forward_hook(speak)
    return skeleton(x)


def layers_called_once(model: nn.Module, x: Tensor) -> list[str]:
    counts: dict[str, int] = {}
    outputs: dict[str, object] = {}
    probe = copy.deepcopy(model)
    for name, module in probe.named_modules():

        def note(_module, _args, output, name=name):
            counts[name] = counts.get(name, 0) + 1
            outputs[name] = output

        module.register_forward_hook(note)
    probe(x)
    return [name for name, count in counts.items() if count == 1 and isinstance(outputs[name], Tensor)]


# Of the residual networks one with and one without an activation on the stream: their norms do not matter here.
SOME = [name for name in CASES if "resnet" not in name or name in ("resnet20, batch", "resnet20, frn, linear stream")]


@pytest.mark.parametrize("name", SOME)
def test_below_the_cut_is_the_first_network_and_above_it_the_second(name):
    model, _, shape = made(name)
    below, above = twin(model, 1), twin(model, 2)
    x = inputs_of(model, shape, 3)
    state = {key: value.clone() for key, value in above.state_dict().items()}
    layers = layers_called_once(model, x)
    # Of large networks some layers, spread over their depth.
    for layer in layers[:: -(-len(layers) // 6)]:
        joined = cut(below, above, layer, x)
        expected = exchanged(below, above, layer, x, lambda z: 2 * z)
        found = joined.run(x, joined.features(x), lambda z: 2 * z)
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10, msg=f"at layer {layer}")
    assert all(torch.equal(value, state[key]) for key, value in above.state_dict().items())


class Reader(nn.Module):
    """Reads a parameter of its own below the cut, a ReLU in place in two places, and returns to an early value."""

    def __init__(self):
        super().__init__()
        self.lift, self.mix, self.out = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.offset = nn.Parameter(torch.randn(4))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        stream = self.lift(x) + self.offset
        return self.out(self.relu(self.mix(self.relu(stream))) + stream)


def reader(seed: int) -> Reader:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Reader().double().eval()


def test_parameters_read_below_the_cut_are_the_first_networks():
    a, b = reader(1), reader(2)
    x = points(5)
    joined = cut(a, b, "mix", x)
    assert joined.kept == ("lift",)
    assert set(joined.borrowed) == {"offset"}
    # The ReLU writes to the stream in place: what is added is not negative.
    stream = (a.lift(x) + a.offset).relu()
    expected = b.out(a.mix(stream).relu() + stream)
    torch.testing.assert_close(joined.run(x, joined.features(x), lambda z: z), expected, rtol=1e-12, atol=1e-12)


def test_one_call_of_a_layer_that_is_called_twice():
    a, b = reader(1), reader(2)
    x = points(5)
    joined = cut(a, b, "relu#1", x)
    stream = (a.lift(x) + a.offset).relu()
    expected = b.out(3 * a.mix(stream).relu() + stream)
    torch.testing.assert_close(joined.run(x, joined.features(x), lambda z: 3 * z), expected, rtol=1e-12, atol=1e-12)
    with pytest.raises(InputError, match="called 2 times"):
        cut(a, b, "relu", x)


def test_gradients_reach_the_map_and_nothing_else():
    a, b = reader(1), reader(2)
    x = points(5)
    joined = cut(a, b, "mix", x)
    matrix = torch.eye(4, dtype=torch.float64, requires_grad=True)
    joined.run(x, joined.features(x), lambda z: z @ matrix.T).sum().backward()
    assert matrix.grad is not None
    assert bool((matrix.grad != 0).any())
    assert all(parameter.grad is None for model in (a, b) for parameter in model.parameters())


def test_hooks_answers_and_borrowed_weights_are_gone_after_an_exception():
    a, b = reader(1), reader(2)
    x = points(5)
    joined = cut(a, b, "mix", x)
    features = joined.features(x)
    before = joined.above(x)

    def fail(_features: Tensor) -> Tensor:
        raise ArithmeticError("on purpose")

    with pytest.raises(ArithmeticError, match="on purpose"):
        joined.run(x, features, fail)
    assert torch.equal(joined.above(x), before)
    for module in (*joined.above.modules(), *a.modules(), *b.modules()):
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
        assert "forward" not in vars(module)


def test_different_architectures_join_where_everything_passes_the_layer():
    a = nn.Sequential(nn.Linear(3, 6), nn.Tanh()).double()
    b = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    x = points(5)
    joined = cut(a, b, "1", x)
    matrix = torch.randn(4, 6, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    found = joined.run(x, joined.features(x), lambda z: z @ matrix.T)
    torch.testing.assert_close(found, b[2](a(x) @ matrix.T), rtol=1e-12, atol=1e-12)


def test_different_architectures_do_not_join_inside_a_block():
    a = nn.Sequential(nn.Linear(3, 4), nn.Tanh()).double()
    with pytest.raises(InputError, match="'lift', 'offset' of the second model reach"):
        cut(a, reader(1), "1", points(5), upper_layer="mix")


class Detached(nn.Module):
    def __init__(self):
        super().__init__()
        self.early, self.late = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        first = self.early(x)
        return self.late(first) * first.detach()


def test_a_way_without_derivatives_is_an_error():
    with pytest.raises(InputError, match="cannot be cut at layer 'late'"):
        cut(Detached(), Detached(), "late", points(4).float())


def test_a_layer_that_does_not_exist_is_named():
    with pytest.raises(InputError, match="'mixx' is no layer"):
        cut(reader(1), reader(2), "mixx", points(4).float())


def test_the_part_below_a_layer_of_a_residual_network():
    model = reader(1)
    below = part_below(model, "mix", points(4))
    assert set(below.parameters) == {"offset", "lift.weight", "lift.bias", "mix.weight", "mix.bias"}
    assert set(below.modules) == {"lift", "relu", "mix"}
