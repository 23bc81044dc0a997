"""The one-sweep gather of large tensors gives the same bits as pass after pass."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coset.models import MLP
from coset.symmetry import gather
from coset.symmetry.gather import Pass, apply
from declared import declared

SHAPES = [(300, 200), (70000,), (3, 300, 64), (40, 40, 30), (2, 3, 128, 64), (1, 200, 300), (33000, 2), (2, 33000)]


def passes_for(shape, generator, dims):
    return [
        Pass(
            (dim,),
            torch.randperm(shape[dim], generator=generator) if use_index else None,
            torch.rand(shape[dim], generator=generator, dtype=torch.float64) + 0.5 if use_factor else None,
        )
        for dim, use_index, use_factor in dims
    ]


@settings(max_examples=60)
@given(
    shape=st.sampled_from(SHAPES),
    choices=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=4, max_size=4),
    seed=st.integers(0, 1000),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
def test_a_sweep_equals_its_passes(shape, choices, seed, dtype):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator).to(dtype)
    dims = [(dim, *choices[dim]) for dim in range(len(shape)) if any(choices[dim])]
    passes = passes_for(shape, generator, dims)
    ready = [gather._ready(step, x) for step in passes]
    assert gather._can_sweep(x, ready)
    swept = apply(x, passes)
    expected = x
    for step in ready:
        expected = gather._along(expected, step)
    assert torch.equal(swept, expected)
    assert swept.data_ptr() != x.data_ptr()


def test_where_a_sweep_is_not_allowed():
    x = torch.randn(400, 300)
    steps = [Pass((0,), torch.randperm(400), torch.rand(400))]
    assert gather._can_sweep(x, steps)
    assert not gather._can_sweep(x.t(), steps)
    assert not gather._can_sweep(x[:10], steps)
    assert not gather._can_sweep(x.clone().requires_grad_(), steps)
    assert not gather._can_sweep(x, [Pass((0,), None, torch.rand(400, requires_grad=True))])
    assert not gather._can_sweep(x, [Pass((0, 2), torch.randperm(400), None)])
    assert not gather._can_sweep(x.to("meta"), steps)
    with torch.no_grad():
        assert gather._can_sweep(x.clone().requires_grad_(), steps)
    torch.vmap(lambda row: check_not(row, steps))(x.expand(2, 400, 300))


def check_not(row, steps):
    assert not gather._can_sweep(row, steps)
    return row


@pytest.mark.parametrize("lead", [(), (2,)])
def test_the_action_on_large_parameters_is_the_same_with_and_without_derivatives(lead):
    model = MLP(300, [256, 200], 10)
    sym = declared(model)
    g = sym.random(torch.Generator().manual_seed(0))
    params = {name: tensor.expand(*lead, *tensor.shape).clone() for name, tensor in model.state_dict().items()}
    fast = sym.act(g, params)
    slow = sym.act(g, {name: tensor.requires_grad_() for name, tensor in params.items()})
    for name in params:
        assert torch.equal(fast[name], slow[name].detach()), name
        assert slow[name].requires_grad
