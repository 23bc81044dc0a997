"""Entries that are larger than others by any factor, as canonical forms of dead units have them."""

import torch
from torch import nn

import coset
from coset.metanet import PNA, RelationalTransformer
from coset.metanet._embedding import LINEAR, compressed


def test_compression_is_odd_and_smooth_and_leaves_ordinary_entries_as_they_are():
    x = torch.linspace(-3 * LINEAR, 3 * LINEAR, 601, dtype=torch.float64).requires_grad_()
    y = compressed(x)
    ordinary = x.abs() <= LINEAR
    assert torch.equal(y[ordinary], x[ordinary])
    torch.testing.assert_close(y, -compressed(-x))
    (slope,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(slope, 1 / (1 + (x.detach().abs() - LINEAR).clamp_min(0)))
    assert 50 < float(compressed(torch.tensor(1e25))) < 70


def dead_networks(count):
    """Networks with a unit that weight decay has killed, but for its bias."""
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)).double()
    sym = coset.discover(model, torch.randn(2, 4, dtype=torch.float64))
    generator = torch.Generator().manual_seed(0)
    stack = {n: torch.randn(count, *t.shape, generator=generator).to(t) for n, t in model.state_dict().items()}
    stack["0.weight"][:, 0] *= 1e-25
    return sym, stack


def test_dead_units_leave_readers_the_biases_of_others():
    sym, stack = dead_networks(20)
    changed = {**stack, "0.bias": stack["0.bias"].clone()}
    changed["0.bias"][:, 3] *= -1
    for make in (RelationalTransformer, PNA):
        reader = make(sym, 3, channels=8, layers=2)
        reader.calibrate(stack)
        sizes = reader.embedding.sizes
        assert 0.1 < float(sizes.min()) <= float(sizes.max()) < 30
        answers = reader(stack).detach()
        assert answers.isfinite().all()
        difference = (reader(changed).detach() - answers).abs().amax(1)
        # Of biases over root mean squares of 1e24 nothing would be left: a difference of 0.
        assert float(difference.median()) > 1e-4 * float(answers.abs().max())


def test_typical_sizes_of_ordinary_networks_are_root_mean_squares():
    sym, stack = dead_networks(20)
    stack = {name: torch.randn_like(tensor) for name, tensor in stack.items()}
    reader = RelationalTransformer(sym, 1, channels=8, layers=1, gauge="none")
    reader.calibrate(stack)
    for name, tensor in stack.items():
        row = reader.embedding.rows[name]
        torch.testing.assert_close(reader.embedding.sizes[row], tensor.square().mean().sqrt().float())
