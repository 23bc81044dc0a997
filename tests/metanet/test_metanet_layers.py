"""Layers of messages against their equations, entry by entry; graphs, probes, slices, bad input."""

import copy
import math
from itertools import pairwise

import pytest
import torch
from reader_networks import setting, stacked
from torch import nn

import coset
from coset.errors import InputError
from coset.metanet import PNA, GATReader, GCNReader, RelationalLayer, RelationalTransformer, neural_graph
from coset.metanet._layout import make_layout
from coset.metanet._pna import PNALayer

SMALL = {"channels": 8, "heads": 2, "layers": 2}


def mlp(*widths, activation=nn.ReLU):
    layers = []
    for one, two in pairwise(widths):
        layers += [nn.Linear(one, two), activation()]
    model = nn.Sequential(*layers[:-1]).double()
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return model, coset.discover(model, torch.zeros(2, widths[0], dtype=torch.float64))


def features(layout, count, channels, seed=0):
    generator = torch.Generator().manual_seed(seed)
    nodes = torch.randn(count, layout.nodes, channels, generator=generator, dtype=torch.float64)
    edges = {
        block.name: torch.randn(count, *block.sizes, channels, generator=generator, dtype=torch.float64)
        for block in layout.edges
    }
    return nodes, edges


@pytest.mark.parametrize(
    "name",
    ["discovered: convnext block", "discovered: resnext block", "mixing: rotary halves", "declared: tied embeddings"],
)
def test_products_of_whole_parameters_are_the_sums_of_single_messages(name):
    """Blocks with three ends, with pairs of units on one slot, with units at several positions."""
    _, sym, _, _ = setting(name)
    layout = make_layout(sym, list(sym.parameters))
    nodes, edges = features(layout, 2, 8)
    layer = RelationalLayer(8, 2).double()
    quick, plain = layer(layout, nodes, edges, {}), layer.by_messages(layout, nodes, edges, {})
    torch.testing.assert_close(quick[0], plain[0])
    torch.testing.assert_close(quick[1], plain[1])


def neighbours(layout, nodes, edges):
    """Every node's messages, one by one: node → [(way, edge, neighbour)], of blocks with two ends."""
    found = {number: [] for number in range(layout.nodes)}
    for block in layout.edges:
        first, second = (end.nodes.tolist() for end in block.ends)
        for i, one in enumerate(first):
            for j, two in enumerate(second):
                edge = edges[block.name][0, i, j]
                found[one].append((0, edge, nodes[0, two]))
                found[two].append((1, edge, nodes[0, one]))
    return found


def test_the_relational_transformer_takes_keys_and_values_from_the_neighbour():
    _, sym = mlp(2, 3, 2)
    layout = make_layout(sym, list(sym.parameters))
    nodes, edges = features(layout, 1, 8)
    layer = RelationalLayer(8, 2).double()
    combined = torch.zeros(1, layout.nodes, 8, dtype=torch.float64)
    q, k, v = zip(*(layer.of_nodes.weight.chunk(6)[3 * way : 3 * way + 3] for way in (0, 1)), strict=True)
    eq, ek = zip(*(layer.of_edges.weight.chunk(5)[2 * way : 2 * way + 2] for way in (0, 1)), strict=True)
    for number, messages in neighbours(layout, nodes, edges).items():
        if not messages:
            continue
        own = layer.node_norm(nodes[0, number])
        scores, values = [], []
        for way, edge, other in messages:
            e, n = layer.edge_norm(edge), layer.node_norm(other)
            query, key = q[way] @ own + eq[way] @ e, k[way] @ n + ek[way] @ e
            value = v[way] @ n + layer.edge_values[way].weight @ e
            scores.append((query * key).reshape(2, 4).sum(1) / math.sqrt(4))
            values.append(value.reshape(2, 4))
        weights = torch.stack(scores).softmax(0)
        combined[0, number] = (weights[..., None] * torch.stack(values)).sum(0).flatten()
    torch.testing.assert_close(layer(layout, nodes, edges, {})[0], layer.update_nodes(nodes, combined))


def test_principal_neighbourhood_aggregation():
    """Equations (5.3) and (5.4), node by node."""
    _, sym = mlp(2, 3, 2)
    layout = make_layout(sym, list(sym.parameters))
    nodes, edges = features(layout, 1, 4)
    layer = PNALayer(4, 1.3).double()
    combined = torch.zeros(1, layout.nodes, 48, dtype=torch.float64)
    seen = layer.node_norm(nodes)
    for number, messages in neighbours(layout, seen, edges).items():
        if not messages:
            continue
        rows = []
        for way, edge, other in messages:
            gain, offset = layer.film[way](layer.edge_norm(edge)).chunk(2)
            rows.append((1 + gain) * (layer.targets[way](seen[0, number]) + layer.sources[way](other)) + offset)
        rows = torch.stack(rows)
        deviation = (rows.var(0, correction=0) + 1e-5).sqrt()
        four = torch.cat([rows.mean(0), deviation, rows.amax(0), rows.amin(0)])
        scaler = math.log(len(rows) + 1) / 1.3
        combined[0, number] = torch.cat([four, scaler * four, four / scaler])
    wanted = layer.update_nodes(nodes, combined)
    known = layout.degrees > 0
    torch.testing.assert_close(layer(layout, nodes, edges, {})[0][:, known], wanted[:, known])


@pytest.mark.parametrize("kind", [RelationalTransformer, PNA, GCNReader, GATReader])
def test_layers_made_again_in_the_backward_pass_give_the_same_derivatives(kind):
    model, sym = mlp(3, 4, 2, activation=nn.Tanh)
    stack = {name: tensor[None].repeat(2, *[1] * tensor.ndim) for name, tensor in model.state_dict().items()}
    found = []
    for checkpoint in (False, True):
        reader = kind(sym, 2, gauge="layers", checkpoint=checkpoint, **SMALL).double()
        reader(stack).square().sum().backward()
        found.append([p.grad for p in reader.parameters() if p.grad is not None])
    assert len(found[0]) == len(found[1]) > 10
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two)


def test_a_graph_has_an_edge_for_every_weight_and_nothing_else():
    model, sym = mlp(5, 4, 3)
    graph = neural_graph(sym, model.state_dict(), gauge="none")
    assert len(graph) == 1
    assert graph.layout.nodes == 1 + 5 + 4 + 3
    assert sum(tensor.numel() for tensor in graph.entries.values()) == sum(p.numel() for p in model.parameters())
    weight = graph.entries["0.weight"]
    assert weight.shape == (1, 4, 5, 1)
    assert torch.equal(weight[0, ..., 0], model[0].weight.detach())
    assert "13 nodes" in repr(graph)


def test_every_two_nodes_are_neighbours_of_small_networks_if_asked_for():
    model, sym = mlp(5, 4, 3)
    stack = stacked(model.state_dict(), sym.act(sym.random(torch.Generator().manual_seed(0)), model.state_dict()))
    reader = RelationalTransformer(sym, 2, everywhere=True, **SMALL).double()
    assert reader.read(stack).entries["every pair"].shape == (2, 13, 13, 1)
    answers = reader(stack)
    torch.testing.assert_close(answers[0], answers[1])
    wide, other = mlp(300, 2, 2)
    with pytest.raises(InputError, match="305 nodes; every two are made neighbours of at most 256"):
        neural_graph(other, wide.state_dict(), everywhere=True)


@pytest.mark.parametrize("gauge", ["canonical", "layers", "none"])
def test_probes_are_activations_in_the_gauge(gauge):
    model, sym = mlp(3, 4, 2)
    x = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    graph = neural_graph(sym, model.state_dict(), gauge=gauge, model=model, inputs=x)
    assert graph.probes["u0"].shape == (1, 4, 6)
    seen = model[0](x).T.detach()
    if gauge == "none":
        torch.testing.assert_close(graph.probes["u0"][0], seen)
    else:
        normal = seen / model[0].weight.detach().norm(dim=1, keepdim=True)
        torch.testing.assert_close(graph.probes["u0"][0].sort(0).values, normal.sort(0).values)
    g = sym.random(torch.Generator().manual_seed(2))
    if gauge == "none":
        g = sym.element(g.permutations)
    reader = RelationalTransformer(sym, 2, gauge=gauge, probes=6, **SMALL).double()
    both = stacked(model.state_dict(), sym.act(g, model.state_dict()))
    answers = reader(both, model=model, inputs=x)
    torch.testing.assert_close(answers[0], answers[1])
    assert float((answers[0] - reader(both, model=model, inputs=2 * x)[0]).abs().max()) > 1e-6


@pytest.mark.parametrize("gauge", ["canonical", "layers", "none"])
def test_what_a_network_gives_for_probes_is_seen_by_its_place(gauge):
    model, sym = mlp(3, 4, 2)
    x = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    params = model.state_dict()
    # The two outputs exchanged: the same sets of numbers at other places.
    other = params | {name: params[name].flip(0) for name in ("2.weight", "2.bias")}
    both = stacked(params, other)
    reader = PNA(sym, 2, gauge=gauge, probes=6, **SMALL).double()
    graph = reader.read(both, model=model, inputs=x)
    torch.testing.assert_close(graph.probes["the output"][0], model(x).T.detach())
    torch.testing.assert_close(graph.probes["the output"][1], model(x).T.detach().flip(0))
    found = {s.name: s.values for s in reader.head.summaries.raw(graph, reader.embedding, *reader.features(graph)[:2])
             if s.part == "2 outputs"}  # fmt: skip
    torch.testing.assert_close(found["the output"], graph.probes["the output"].flatten(1))
    reader.calibrate(graph)
    assert float((reader(graph)[0] - reader(graph)[1]).detach().abs().max()) > 1e-3
    with pytest.raises(InputError, match="the graph has 5 probes; expected 6, as probes= says"):
        reader(params, model=model, inputs=x[:5])


@pytest.mark.parametrize("head", ["invariant", "units", "equivariant"])
@pytest.mark.parametrize("gauge", ["canonical", "layers"])
def test_a_part_of_a_graph_and_a_single_network_are_read_alike(head, gauge):
    model, sym = mlp(3, 4, 2, activation=nn.Tanh)
    generator = torch.Generator().manual_seed(3)
    stack = {
        n: torch.randn(5, *t.shape, generator=generator, dtype=torch.float64) for n, t in model.state_dict().items()
    }
    reader = RelationalTransformer(sym, 2, head=head, gauge=gauge, **SMALL).double()
    whole = reader(stack)
    graph = reader.read(stack)
    part, alone = reader(graph[[3, 1]]), reader({name: tensor[3] for name, tensor in stack.items()})
    for name in whole if isinstance(whole, dict) else [None]:
        every, some, one = (whole, part, alone) if name is None else (whole[name], part[name], alone[name])
        torch.testing.assert_close(some, every[[3, 1]])
        torch.testing.assert_close(one, every[3])


def test_networks_of_several_architectures():
    (one, first), (two, second), (three, third) = mlp(3, 4, 2), mlp(3, 5, 4, 2), mlp(3, 6, 2)
    reader = RelationalTransformer([first, second], 2, **SMALL).double()
    assert reader(one.state_dict(), sym=first).shape == reader(two.state_dict(), sym=second).shape == (2,)
    # One that was not given is read by what kinds of layers have in common.
    assert bool(torch.isfinite(reader(three.state_dict(), sym=third)).all())
    with pytest.raises(InputError, match="knows 2 architectures; expected sym="):
        reader(one.state_dict())


def test_the_same_seed_gives_the_same_reader_and_leaves_the_generator_alone():
    _, sym = mlp(3, 4, 2)
    state = torch.get_rng_state()
    one, two, three = (PNA(sym, 2, seed=seed, **SMALL) for seed in (1, 1, 2))
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(one.parameters(), three.parameters(), strict=True))
    other = copy.deepcopy(three)
    other.load_state_dict(one.state_dict())
    assert torch.equal(other.embedding.project.kernel, one.embedding.project.kernel)


def test_bad_input_is_one_line():
    model, sym = mlp(3, 4, 2)
    params = model.state_dict()
    reader = RelationalTransformer(sym, 2, **SMALL).double()
    broken = {**params, "0.bias": torch.full((4,), torch.nan, dtype=torch.float64)}
    cases = [
        (lambda: reader(broken), "'0.bias' of network 0 has entries that are NaN or infinite"),
        (
            lambda: reader({**params, "extra.weight": params["0.bias"]}),
            "'extra.weight' is not explained by the symmetry",
        ),
        (lambda: reader({n: t for n, t in params.items() if n != "2.weight"}), "'2.weight' moves under this symmetry"),
        (lambda: reader(mlp(3, 5, 2)[0].state_dict()), "'0.weight' has shape"),
        (lambda: reader({n: t[None][:0] for n, t in params.items()}), "holds no network"),
        (lambda: reader(reader.read(params).__class__), "params is a type"),
        (lambda: reader(neural_graph(sym, params, gauge="none")), "gauge 'none'; expected 'canonical'"),
        (lambda: neural_graph(sym, params, gauge="polar"), "gauge is 'polar'"),
        (lambda: neural_graph(model, params), "sym is a Sequential"),
        (lambda: neural_graph(sym, params, model=model), "probes need both model and inputs"),
        (lambda: reader(params, model=model, inputs=torch.zeros(2, 3)), "made without; give it probes="),
        (lambda: RelationalTransformer([], 2), "sym holds no symmetry"),
        (lambda: RelationalTransformer(sym, 2, channels=10, heads=4), "channels is 10 and heads is 4"),
        (lambda: PNA(sym, 2, head="vector"), "head is 'vector'"),
    ]
    for call, message in cases:
        with pytest.raises(InputError, match=message.replace("(", r"\(")) as caught:
            call()
        assert "\n" not in str(caught.value)
