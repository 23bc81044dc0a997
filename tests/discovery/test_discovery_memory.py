"""One model after the other: what discovery makes on its way is given back."""

import gc
import linecache
from collections import Counter

import torch
from torch import nn
from torch.fx import GraphModule, graph_module

from coset.symmetry import discover
from coset.symmetry.discovery.exporting import sources_forgotten
from coset.symmetry.discovery.relations import Value
from coset.symmetry.discovery.terms import Atom


def discovered(seed):
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    return discover(model, torch.randn(4, 6, generator=generator), verify=False)


def kept():
    """What a process holds on to: texts of generated code, graphs, what discovery writes down, tensors."""
    gc.collect()
    kinds = (GraphModule, torch.fx.Node, Value, Atom, torch.Tensor)
    alive = Counter(kind.__name__ for item in gc.get_objects() for kind in kinds if issubclass(type(item), kind))
    return alive | {"texts": len(graph_module._loader.eval_cache), "lines": len(linecache.cache)}


def test_discovery_again_and_again_keeps_nothing():
    for seed in range(3):  # what torch keeps of its first calls
        discovered(seed)
    before = kept()
    for seed in range(10):
        discovered(seed)
    after = kept()
    # A tensor here and there is torch's; texts alone were six a call.
    assert all(after[name] - before[name] < 10 for name in after)


def test_only_texts_of_the_block_are_forgotten():
    class Twice(nn.Module):
        def forward(self, x):
            return 2 * x

    kept = torch.fx.symbolic_trace(Twice())
    with sources_forgotten():
        other = torch.fx.symbolic_trace(Twice())
    names = [module.forward.__code__.co_filename for module in (kept, other)]
    assert [name in graph_module._loader.eval_cache for name in names] == [True, False]
    assert [bool(linecache.getlines(name)) for name in names] == [True, False]
    assert torch.equal(other(torch.ones(2)), kept(torch.ones(2)))
