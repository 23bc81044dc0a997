"""Readers at the edges: all orbits of tiny networks, silent units, numbers without axes, derivatives, slices."""

from itertools import pairwise, product

import pytest
import torch
from reader_networks import moved, setting, stacked
from torch import nn

import coset
from coset.alignment import align_stack
from coset.errors import InputError
from coset.metanet import PNA, GATReader, GCNReader, RelationalTransformer, neural_graph
from coset.zoo._optimizers import clip_each

GAUGES = ("canonical", "layers", "none")
READERS = (RelationalTransformer, PNA, GCNReader, GATReader)
SMALL = {"channels": 8, "heads": 2, "layers": 3}


def perceptron(*widths, activation=nn.ReLU, bias=True):
    layers = []
    for one, two in pairwise(widths):
        layers += [nn.Linear(one, two, bias=bias), activation()]
    model = nn.Sequential(*layers[:-1]).double()
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return dict(model.state_dict()), coset.discover(model, torch.zeros(2, widths[0], dtype=torch.float64))


def orbit(first, second, activation, gauge):
    """A network of one hidden layer up to what the gauge removes: its units as a sorted list, by definition."""
    rows = []
    for w, v in zip(first, second.T, strict=True):
        if gauge != "none" and activation is nn.ReLU:
            size = w.norm() if float(w.norm()) else 1 / v.norm() if float(v.norm()) else torch.ones(())
            w, v = w / size, v * size
        row = torch.cat([w, v]).mul(1e9).round().div(1e9).add(0.0)
        flipped = tuple((0.0 - row).tolist())
        rows.append(
            max(tuple(row.tolist()), flipped) if gauge != "none" and activation is nn.Tanh else tuple(row.tolist())
        )
    return tuple(sorted(rows))


@pytest.mark.parametrize(
    ("widths", "values", "activation"),
    [((3, 2, 1), (-1.0, 1.0), nn.Tanh), ((2, 2, 1), (-1.0, 0.0, 1.0), nn.Tanh), ((2, 2, 1), (-1.0, 0.0, 2.0), nn.ReLU)],
    ids=["tanh", "tanh, zeros", "relu, zeros"],
)
def test_answers_are_equal_exactly_on_orbits(widths, values, activation):
    """All networks with weights of a few values, by brute force: relative signs, silent and equal units included."""
    _, sym = perceptron(*widths, activation=activation, bias=False)
    split = (widths[0] * widths[1], widths[1])
    rows = torch.tensor(list(product(values, repeat=sum(split))), dtype=torch.float64)[:: 3 if len(values) > 2 else 1]
    first, second = rows.split(split, 1)
    stack = {"0.weight": first.reshape(-1, widths[1], widths[0]), "2.weight": second.reshape(-1, 1, widths[1])}
    for gauge in GAUGES:
        orbits = {}
        for number, weights in enumerate(zip(*stack.values(), strict=True)):
            orbits.setdefault(orbit(*weights, activation, gauge), []).append(number)
        graph = neural_graph(sym, stack, gauge=gauge)
        for kind in READERS:
            reader = kind(sym, 4, gauge=gauge, **SMALL).double()
            with torch.no_grad():
                answers = reader(graph)
            spread = max(float((answers[same] - answers[same[0]]).abs().max()) for same in orbits.values())
            one_each = answers[[same[0] for same in orbits.values()]]
            assert spread < 1e-12
            assert float(torch.pdist(one_each).min()) > 1e-6, (gauge, kind)


@pytest.mark.parametrize("gauge", ["canonical", "layers"])
def test_units_without_incoming_weights_have_no_scale_to_a_reader(gauge):
    params, sym = perceptron(3, 4, 3, 2)
    params["0.weight"][1:3] = params["0.bias"][1:3] = 0  # silent
    params["2.weight"][1, [0, 3]] = params["2.bias"][1] = 0  # hears silent units alone
    g = sym.random(torch.Generator().manual_seed(1))
    stack = stacked(params, sym.act(g, params))
    reader = RelationalTransformer(sym, 2, gauge=gauge, **SMALL).double()
    answers = reader(stack)
    torch.testing.assert_close(answers[0], answers[1], rtol=1e-10, atol=1e-12)
    edits = RelationalTransformer(sym, gauge=gauge, head="equivariant", **SMALL).double()(stack)
    changed = sym.act(g, {name: tensor + edits[name][0] for name, tensor in params.items()})
    for name, edit in edits.items():
        torch.testing.assert_close(changed[name] - stack[name][1], edit[1], rtol=1e-9, atol=1e-11)
    # The variance of a channel that nothing comes in to.
    model = nn.Sequential(nn.Conv2d(1, 3, 1), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 1, 1)).double().eval()
    sym = coset.discover(model, torch.zeros(2, 1, 2, 2, dtype=torch.float64))
    params = dict(model.state_dict())
    params["0.weight"][0] = params["0.bias"][0] = params["1.running_mean"][0] = 0
    answers = RelationalTransformer(sym, 2, gauge=gauge, **SMALL).double()(
        stacked(params, sym.act(sym.random(torch.Generator().manual_seed(1)), params))
    )
    torch.testing.assert_close(answers[0], answers[1], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("gauge", GAUGES)
@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
def test_zeros_everywhere_have_finite_derivatives_of_both_orders(gauge, activation):
    params, sym = perceptron(3, 4, 3, 2, activation=activation)
    for rows in (slice(1, 2), slice(None)):
        params["0.weight"][rows] = params["0.bias"][rows] = params["2.weight"][rows] = 0
        reader = RelationalTransformer(sym, 2, gauge=gauge, **SMALL).double()
        leaves = {name: tensor.clone().requires_grad_() for name, tensor in params.items()}
        first = torch.autograd.grad(reader(leaves).sum(), list(leaves.values()), create_graph=True)
        second = torch.autograd.grad(sum(part.square().sum() for part in first), list(leaves.values()))
        assert all(bool(torch.isfinite(part).all()) for part in (*first, *second))


@pytest.mark.parametrize("gauge", GAUGES)
@pytest.mark.parametrize("name", ["discovered: vgg", "mixing: rotary, tied"])
def test_answers_do_not_depend_on_whether_derivatives_are_taken(name, gauge):
    _, sym, params, _ = setting(name)
    reader = RelationalTransformer(sym, 2, gauge=gauge, **SMALL).double()
    leaves = {key: t.clone().requires_grad_() if t.is_floating_point() else t for key, t in params.items()}
    torch.testing.assert_close(reader(leaves), reader(params), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("gauge", GAUGES)
def test_derivatives_forwards_are_those_backwards(gauge):
    params, sym = perceptron(3, 4, 2)
    reader = PNA(sym, gauge=gauge, **SMALL).double()
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in params.items()}
    slope = sum(part.sum() for part in torch.autograd.grad(reader(leaves)[0], list(leaves.values())))
    ones = {name: torch.ones_like(tensor) for name, tensor in params.items()}
    _, along = torch.func.jvp(lambda given: reader(given)[0], (params,), (ones,))
    torch.testing.assert_close(along, slope)
    assert float(slope.detach().abs()) > 1e-6


class Numbers(nn.Module):
    """A number without axes, an empty tensor, whole numbers and truth values beside two layers."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(2, 3), nn.Linear(3, 1)
        self.size = nn.Parameter(torch.tensor(0.5))
        self.register_buffer("empty", torch.zeros(0, 3))
        self.register_buffer("steps", torch.arange(3))
        self.register_buffer("mask", torch.tensor([True, False]))

    def forward(self, x):
        return self.second(torch.relu(self.first(x))) * self.size


@pytest.mark.parametrize("gauge", GAUGES)
def test_numbers_without_axes_are_read(gauge):
    model = Numbers().double()
    sym = coset.discover(model, torch.ones(2, 2, dtype=torch.float64))
    params = dict(model.state_dict())
    other = params | {"size": params["size"] + 1}
    reader = RelationalTransformer(sym, 2, gauge=gauge, **SMALL).double()
    reader.calibrate(stacked(params, other))
    answers = reader(stacked(params, other))
    assert float((answers[0] - answers[1]).detach().abs().max()) > 1e-6
    torch.testing.assert_close(reader(other), answers[1])
    edits = RelationalTransformer(sym, gauge=gauge, head="equivariant", **SMALL).double()(params)
    assert edits["size"].shape == ()


def test_numbers_without_axes_are_aligned_and_clipped():
    model = Numbers().double()
    sym = coset.discover(model, torch.ones(2, 2, dtype=torch.float64))
    stack = stacked(*[dict(model.state_dict())] * 2)
    aligned = align_stack(sym, dict(model.state_dict()), stack)
    assert torch.equal(aligned.aligned["size"], stack["size"])
    gradients = clip_each([torch.full((2,), 3.0), torch.full((2, 4), 2.0)], torch.tensor([1.0, 10.0]))
    torch.testing.assert_close(gradients[0], torch.tensor([0.6, 3.0]))


def test_equal_names_of_several_architectures_keep_their_inputs_apart():
    (one, first), (two, second) = perceptron(3, 4, 2), perceptron(5, 4, 2)
    reader = RelationalTransformer([first, second], 2, **SMALL).double()
    for params, sym in ((one, first), (two, second)):
        answers = reader(stacked(params, params | {"0.weight": params["0.weight"].flip(1)}), sym=sym)
        assert float((answers[0] - answers[1]).detach().abs().max()) > 1e-6


def test_parts_of_a_graph():
    params, sym = perceptron(3, 4, 2)
    stack = {name: torch.stack([tensor * (1 + n) for n in range(4)]) for name, tensor in params.items()}
    reader = PNA(sym, 2, **SMALL).double()
    graph = reader.read(stack)
    every = reader(graph)
    for chosen in (slice(1, 3), [3, 0], range(2), torch.tensor([True, False, True, False]), -1, 2, torch.tensor(1)):
        wanted = every[list(chosen)] if isinstance(chosen, range) else every[chosen]
        torch.testing.assert_close(reader(graph[chosen]), wanted)
    assert reader(reader.read(params)[[0, 0]]).shape == (2, 2)
    for chosen in (4, [0, 9], slice(2, 2), [], [[0, 1]], "all", torch.tensor([True])):
        with pytest.raises(InputError, match="4 networks; expected"):
            graph[chosen]


def test_what_canonical_forms_leave_out_is_open():
    """Two inputs written to four mixing units: their form keeps matrices, and says so."""
    model = nn.Sequential(nn.Linear(2, 4, bias=False), nn.Linear(4, 3, bias=False)).double()
    sym = coset.discover(model, torch.zeros(2, 2, dtype=torch.float64))
    graph = neural_graph(sym, model.state_dict())
    assert sym.continuous
    assert graph.free


def test_scales_of_silent_units_are_open_where_signs_are_chosen_with_them():
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    sym = coset.discover(model, torch.zeros(2, 2, dtype=torch.float64))
    params = dict(model.state_dict())
    assert not neural_graph(sym, params).free
    params["0.weight"][0] = params["0.bias"][0] = 0
    assert neural_graph(sym, params).free == ("scales of silent units of u0",)
    assert not neural_graph(sym, params, gauge="layers").free


def test_entries_of_any_size_are_read():
    params, sym = perceptron(3, 4, 2)
    for size in (1e-170, 1e170):
        small = params | {name: params[name] * size for name in ("0.weight", "0.bias")}
        for gauge in ("canonical", "layers"):
            stack = stacked(small, moved(sym, small, gauge, 1))
            reader = RelationalTransformer(sym, 2, gauge=gauge, **SMALL).double()
            reader.calibrate(stack)
            answers = reader(stack)
            torch.testing.assert_close(answers[0], answers[1], rtol=1e-9, atol=1e-12)
