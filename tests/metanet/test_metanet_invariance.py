"""Readers are invariant, or move with weights, under the whole group that discovery finds: on all of its networks."""

import math
from functools import cache
from itertools import permutations, product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reader_networks import NAMES, OPEN, element, moved, setting, stacked
from torch import nn

import architectures
import coset
from coset.data import load
from coset.metanet import PNA, GATReader, GCNReader, RelationalTransformer, neural_graph
from coset.metanet._layout import make_layout
from coset.symmetry.enumeration import finite_order
from coset.symmetry.group import full_map

READERS = {"relational": RelationalTransformer, "pna": PNA, "gcn": GCNReader, "gat": GATReader}
GAUGES = ("canonical", "layers", "none")
SMALL = {"channels": 8, "heads": 2, "layers": 2}


def made(kind, sym, given, **options):
    """A reader with the sizes of networks, given as a stack or, so that they are read once, as a graph."""
    reader = READERS[kind](sym, 3, **(SMALL | options)).double()
    reader.calibrate(given)
    return reader


def apart(one, two):
    return float((one - two).abs().max() / one.abs().max())


@pytest.mark.parametrize("name", NAMES)
def test_a_network_and_the_rest_of_its_orbit_are_one_to_a_reader(name):
    _, sym, params, _ = setting(name)
    for seed, (gauge, kind) in enumerate((("canonical", "relational"), ("layers", "pna"))):
        if name in OPEN:
            graph = neural_graph(sym, params, gauge=gauge)
            assert graph.free
            continue
        graph = neural_graph(sym, stacked(params, moved(sym, params, gauge, seed)), gauge=gauge)
        with torch.no_grad():
            answers = made(kind, sym, graph, gauge=gauge, seed=seed)(graph)
        assert apart(answers[0], answers[1]) < 1e-9, (gauge, kind)
        assert bool(torch.isfinite(answers).all())


def test_readers_see_what_is_no_symmetry():
    """Weights that differ otherwise have other answers, in every gauge."""
    _, sym, params, _ = setting("discovered: vgg")
    other = {
        name: t + 0.1 * torch.randn(t.shape, generator=torch.Generator().manual_seed(1), dtype=t.dtype)
        if t.is_floating_point()
        else t
        for name, t in params.items()
    }
    graphs = {gauge: neural_graph(sym, stacked(params, other), gauge=gauge) for gauge in GAUGES}
    for gauge, kind in product(GAUGES, READERS):
        answers = made(kind, sym, graphs[gauge], gauge=gauge)(graphs[gauge])
        assert apart(answers[0], answers[1]) > 1e-5


@pytest.mark.parametrize("kind", ["relational", "pna"])
@pytest.mark.parametrize("name", ["discovered: resnext block", "turning: siren"])
def test_edges_and_nodes_move_with_the_units_after_half_of_the_layers(name, kind):
    _, sym, params, _ = setting(name)
    for gauge in ("layers", "none"):
        g = element(sym, gauge, 3)
        stack = stacked(params, sym.act(g, params))
        graph = neural_graph(sym, stack, gauge=gauge)
        reader = made(kind, sym, graph, gauge=gauge)
        nodes, edges, _ = reader.features(graph, 1)
        for key in sym.permuting:
            item = graph.layout.by_name.get(key)
            if item is not None:
                own = nodes[:, item.start : item.start + item.count]
                assert apart(own[0][full_map(sym, g, key)], own[1]) < 1e-12
        # Edges, as the parameters that they are features of: every channel is moved like weights without charges.
        plain = sym.restrict(scales=False, signs=False, continuous=False)
        order = plain.element(g.permutations)
        for block in graph.layout.edges:
            for channel in range(edges[block.name].shape[-1]):
                one, two = edges[block.name][..., channel : channel + 1].expand(-1, *block.sizes, block.features)
                before = block.tensor(one[None])[0, ..., 0]
                after = block.tensor(two[None])[0, ..., 0]
                found = plain.act(order, {block.source: before}, partial=True)[block.source]
                assert apart(found, after) < 1e-12


@cache
def trained():
    """A network with scales, signs and batch normalisation after 40 steps of Adam, which leave some units dead."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Conv2d(5, 4, 3), nn.Tanh(), nn.Flatten(),
            nn.Linear(64, 6), nn.ReLU(), nn.Linear(6, 10),
        ).double()  # fmt: skip
    data = load("digits", dtype=torch.float64, flatten=False).train
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=1e-3)
    first = nn.functional.cross_entropy(model(data.x), data.y)
    for step in range(40):
        rows = slice(32 * step, 32 * (step + 1))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(data.x[rows]), data.y[rows]).backward()
        optimizer.step()
    assert nn.functional.cross_entropy(model.eval()(data.x), data.y) < 0.5 * first
    return coset.discover(model, data.x[:2]), model.state_dict()


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("gauge", GAUGES)
def test_trained_networks_are_read_alike_at_half_of_the_layers_and_at_the_head(gauge, kind):
    sym, params = trained()
    assert sym.scaling
    assert sym.flipping
    g = element(sym, gauge, 3)
    graph = neural_graph(sym, stacked(params, sym.act(g, params)), gauge=gauge)
    reader = made(kind, sym, graph, gauge=gauge)
    with torch.no_grad():
        answers, (nodes, _, _) = reader(graph), reader.features(graph, 1)
    assert apart(answers[0], answers[1]) < 1e-9
    for key in sym.permuting:
        item = graph.layout.by_name[key]
        own = nodes[:, item.start : item.start + item.count]
        order = torch.arange(item.count) if gauge == "canonical" else full_map(sym, g, key)
        assert apart(own[0][order], own[1]) < 1e-9


EDITED = [
    "discovered: vgg",
    "discovered: resnext block",
    "discovered: group norm",
    "discovered: shuffle unit",
    "discovered: tied autoencoder, tanh",
    "discovered: fourier operator",
    "mixing: rotary, tied",
    "mixing: layer norm",
    "turning: siren",
    "turning: sigmoid",
    "declared: mlp, batch norm",
    "declared: grouped-query attention",
]


@pytest.mark.parametrize("name", EDITED)
def test_values_for_parameters_and_for_units_move_as_these_do(name):
    _, sym, params, _ = setting(name)
    for gauge in GAUGES:
        g = element(sym, gauge, 5)
        stack = stacked(params, sym.act(g, params))
        graph = neural_graph(sym, stack, gauge=gauge)
        if gauge == "layers" and sym.turns and any(turn.taken for turn in sym.turns.values()):
            assert graph.free
        with torch.no_grad():
            edits = made("relational", sym, graph, gauge=gauge, head="equivariant")(graph)
            units = made("relational", sym, graph, gauge=gauge, head="units")(graph)
        real = {key for key, tensor in params.items() if tensor.is_floating_point() or tensor.is_complex()}
        assert set(edits) == real
        # g acts on changes by its linear part.
        changed = {key: tensor + edits[key][0] if key in edits else tensor for key, tensor in params.items()}
        whole = sym.act(g, changed)
        for key in edits:
            assert edits[key].shape[1:] == params[key].shape
            if not sym.parameters[key].shift:
                wanted = whole[key] - stack[key][1]
                assert float((edits[key][1] - wanted).abs().max()) < 1e-9 * (1 + float(wanted.abs().max()))
        for key, values in units.items():
            assert values.shape == (2, *sym.shape(key), 3)
            if key not in g.matrices and not (gauge == "canonical" and key in sym.continuous):
                flat = values.flatten(1, -2)
                assert apart(flat[0][full_map(sym, g, key)], flat[1]) < 1e-9


def test_values_of_tied_parameters_are_tied():
    model = architectures.TiedLanguageModel().double()
    sym = coset.discover(model, torch.randn(2, 7, dtype=torch.float64))
    edits = RelationalTransformer(sym, head="equivariant", **SMALL).double()(model.state_dict())
    assert torch.equal(edits["embed.weight"], edits["head.weight"])


@pytest.mark.parametrize("gauge", ["canonical", "layers"])
@pytest.mark.parametrize("name", ["discovered: vgg", "turning: tanh", "turning: siren"])
def test_derivatives_are_those_of_a_function_of_orbits(name, gauge):
    """∇f(θ) = gᵀ∇f(g·θ); derivatives along scales vanish; and along others they are those of differences."""
    _, sym, params, _ = setting(name)
    real = [key for key, tensor in params.items() if tensor.is_floating_point()]
    reader = made("relational", sym, stacked(params), gauge=gauge)

    def gradient(of):
        weights = {key: params[key].clone().requires_grad_(key in real) for key in params}
        return torch.autograd.grad(of(weights), [weights[key] for key in real], allow_unused=True)

    def answer(weights):
        return reader(weights)[0]

    g = element(sym, gauge, 2)
    own, through = gradient(answer), gradient(lambda weights: answer(sym.act(g, weights)))
    for one, two in zip(own, through, strict=True):
        assert one is not None
        torch.testing.assert_close(one, two, rtol=1e-7, atol=1e-10)
    generator = torch.Generator().manual_seed(4)
    direction = {key: torch.randn(params[key].shape, generator=generator, dtype=torch.float64) for key in real}
    slope = sum(float((d * direction[key]).sum()) for key, d in zip(real, own, strict=True))
    step = 1e-6
    ends = [
        float(answer({k: t + sign * step * direction[k] if k in real else t for k, t in params.items()}))
        for sign in (1, -1)
    ]
    assert slope == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-4, abs=1e-8)
    for key in sym.scaling:
        rate = torch.randn(sym.shape(sym.families[key].owner), generator=generator, dtype=torch.float64)
        scaled = [sym.act(sym.element(scales={key: (sign * step * rate).exp()}), params) for sign in (1, -1)]
        along = {k: (scaled[0][k] - scaled[1][k]) / (2 * step) for k in real}
        size = sum(float((d * along[k]).abs().sum()) for k, d in zip(real, own, strict=True))
        assert abs(sum(float((d * along[k]).sum()) for k, d in zip(real, own, strict=True))) < 1e-6 * size + 1e-12


TINY = {
    "mlp": lambda: nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 2)),
    "grouped": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 1, groups=2), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2)
    ),
    "norm": lambda: nn.Sequential(
        nn.Conv2d(1, 3, 1), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 3, 2, groups=3), nn.Flatten(), nn.Linear(3, 1)
    ),
}


@pytest.mark.parametrize("name", TINY)
def test_the_automorphisms_of_the_graph_are_the_permutations_of_the_group(name):
    """By brute force over all orders of nodes: those that keep the kinds of nodes and every parameter's places."""
    model = TINY[name]().double().eval()
    x = torch.zeros(2, 2, dtype=torch.float64) if name == "mlp" else torch.zeros(2, 1, 2, 2, dtype=torch.float64)
    sym = coset.discover(model, x).restrict(scales=False, signs=False)
    layout = make_layout(sym, list(sym.parameters))
    fixed = {node for item in layout.sets if item.kinds > 1 for node in range(item.start, item.start + item.count)}
    fixed.add(0)
    places = {
        (block.name, roles, nodes)
        for block in layout.blocks
        for at in product(*(range(n) for n in block.sizes))
        for roles in [tuple(int(slot.roles[i]) for slot, i in zip(block.slots, at, strict=True))]
        for nodes in [tuple(int(end.nodes[at[end.slot]]) for end in block.ends)]
    }
    free = [node for node in range(layout.nodes) if node not in fixed]
    assert len(free) <= 8
    count = 0
    for order in permutations(free):
        to = dict(zip(free, order, strict=True))
        image = {(name, roles, tuple(to.get(node, node) for node in nodes)) for name, roles, nodes in places}
        count += image == places
    assert count == finite_order(sym)
    assert count > 1


@given(st.integers(0, 2**31), st.sampled_from(GAUGES), st.sampled_from(sorted(READERS)))
@settings(max_examples=15)
def test_any_element_any_reader(seed, gauge, kind):
    _, sym, params, _ = setting("declared: batchnorm+depthwise")
    stack = stacked(params, moved(sym, params, gauge, seed))
    with torch.no_grad():
        answers = made(kind, sym, stack, gauge=gauge)(stack)
    assert apart(answers[0], answers[1]) < 1e-9


def test_single_precision_is_invariant_to_its_rounding():
    _, sym, params, _ = setting("discovered: vgg")
    single = {name: t.float() if t.is_floating_point() else t for name, t in params.items()}
    for gauge in ("canonical", "layers"):
        stack = stacked(single, moved(sym, single, gauge, 1))
        reader = RelationalTransformer(sym, 3, gauge=gauge, **SMALL)
        reader.calibrate(stack)
        answers = reader(stack)
        assert answers.dtype == torch.float32
        assert apart(answers[0], answers[1]) < 64 * math.sqrt(sym.scale_dimension) * torch.finfo(torch.float32).eps
