"""Nodes without neighbours have finite derivatives, however steep what is made of them."""

import pytest
import torch
from torch import nn

import coset
from coset.metanet import GATReader, RelationalTransformer


@pytest.mark.parametrize("kind", [RelationalTransformer, GATReader])
def test_steep_functions_of_lone_nodes_have_finite_gradients(kind):
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    sym = coset.discover(model, torch.randn(2, 3))
    stack = {name: tensor.detach()[None] for name, tensor in model.state_dict().items()}
    reader = kind(sym, channels=4, layers=1, heads=2)
    graph = reader.read(stack)
    lone = graph.layout.degrees == 0
    assert bool(lone.any())
    nodes, _, _ = reader.features(graph)
    (1e6 * nodes[:, lone].sum()).backward()
    for name, parameter in reader.named_parameters():
        assert parameter.grad is None or bool(torch.isfinite(parameter.grad).all()), name
