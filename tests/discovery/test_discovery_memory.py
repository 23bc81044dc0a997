"""One model after the other: what discovery makes on its way is given back."""

import gc
import linecache
import tracemalloc

import torch
from torch import nn
from torch.fx import graph_module

from coset.symmetry import discover
from coset.symmetry.graph_sources import sources_forgotten

WARM_UP, CALLS = 8, 30
ALLOWED = 2560
"""Bytes a call. About 1.5 kB stay: 1 kB of names of generated files, which tracemalloc keeps for itself, and context
variables of torch's configuration, which it does not give back. The texts are 4.5 kB more.
"""


def discovered(seed):
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    return discover(model, torch.randn(4, 6, generator=generator), verify=False)


def test_discovery_again_and_again_takes_no_more_memory():
    # What torch imports when it is first asked is not traced: that would take longer than all the rest.
    discovered(0)
    tracemalloc.start()
    try:
        for seed in range(WARM_UP):
            discovered(seed)
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        for seed in range(CALLS):
            discovered(seed)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < CALLS * ALLOWED


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
