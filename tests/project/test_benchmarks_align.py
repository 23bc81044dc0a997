"""The loop that alignment is timed against is a fair one: it ends where our own ascent ends."""

from pathlib import Path

import pytest
import torch

from coset import align, discover
from coset.models import MLP

ROOT = Path(__file__).parents[2]
WIDTHS = [12, 9, 11]


@pytest.fixture
def benchmark_of_align(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks import align as module

    return module


def _networks():
    generator = torch.Generator().manual_seed(0)
    weights = MLP(7, WIDTHS, 4).state_dict()
    return [{name: torch.randn(t.shape, generator=generator) for name, t in weights.items()} for _ in range(2)]


@pytest.mark.parametrize("seed", range(5))
def test_the_loop_ends_where_an_ascent_with_the_same_order_of_classes_does(benchmark_of_align, seed):
    a, b = _networks()
    orders = benchmark_of_align.loop(a, b, seed)
    sym = discover(MLP(7, WIDTHS, 4).eval(), torch.zeros(2, 7))
    result = align(sym, a, b, relax=False, seed=seed)
    assert benchmark_of_align.objective(a, b, orders) == pytest.approx(result.objective, rel=1e-6)


def test_the_objective_is_the_product_of_what_moves(benchmark_of_align):
    a, b = _networks()
    identity = [torch.arange(width) for width in WIDTHS]
    moving = [name for name in a if name != "layers.3.bias"]
    expected = sum(float((a[name].double() * b[name]).sum()) for name in moving)
    assert benchmark_of_align.objective(a, b, identity) == pytest.approx(expected, rel=1e-12)


def test_an_objective_below_the_loops_is_told(benchmark_of_align):
    worse = benchmark_of_align.no_worse("align", [1.0, 0.9, 0.9], [1.0, 1.0, 1.0])
    assert worse.ratio > worse.bound
    equal = benchmark_of_align.no_worse("align", [1.0, 0.9, 1.2], [1.0, 0.8, 1.1])
    assert equal.ratio <= equal.bound
