"""Exports: graphs without Python code still run, and torch is left as it was."""

import threading

import pytest
import torch
from torch import nn
from torch.fx import Graph, GraphModule

from coset.errors import InputError
from coset.symmetry.discovery.exporting import _code_when_called, export


def _doubling() -> GraphModule:
    graph = Graph()
    graph.output(graph.call_function(torch.mul, (graph.placeholder("x"), 2)))
    return GraphModule(nn.Module(), graph)


def test_a_graph_gets_its_code_when_it_is_called():
    with _code_when_called():
        inside, later = _doubling(), _doubling()
        assert float(inside(torch.tensor(3.0))) == 6.0
    assert float(later(torch.tensor(3.0))) == 6.0
    assert float(later(torch.tensor(4.0))) == 8.0
    assert "mul" in later.code


def test_graphs_of_other_threads_have_theirs_at_once():
    made = []
    with _code_when_called():
        mine = _doubling()
        thread = threading.Thread(target=lambda: made.append(_doubling()))
        thread.start()
        thread.join()
    assert "mul" in made[0].code
    with pytest.raises(RuntimeError, match="Code has not been generated"):
        _ = mine.code


def test_torch_is_left_as_it_was():
    before = GraphModule.recompile

    class Branching(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    with pytest.raises(InputError, match="depends on its data"):
        export(Branching(), (torch.ones(2),), {})
    assert GraphModule.recompile is before


def test_an_exported_program_runs():
    class Guarded(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 2)

        def forward(self, x):
            with torch.no_grad():
                y = self.linear(x)
            return torch.cond(x.sum() > 0, lambda z: z + y, lambda z: z - y, (self.linear(x),))

    model, x = Guarded().eval(), torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    program, _, _ = export(model, (x,), {})
    for inputs in (x, -x):
        assert torch.equal(program.module()(inputs), model(inputs))
