"""Dimensions seen in several ways at once: blocks across blocks, shuffles of shuffles, turns within turns."""

import math

import pytest
import torch
from torch import nn

from coset.symmetry import discover


class Net(nn.Module):
    """A function of named layers."""

    def __init__(self, function, **layers):
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, *x):
        return self.function(self, *x)


def _random(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def shuffled(x, groups):
    return x.unflatten(1, (groups, -1)).transpose(1, 2).flatten(1, 2)


def in_turns(*parts):
    return torch.stack(parts, 2).flatten(1, 2)


def conv(i, o, groups=1):
    return nn.Conv1d(i, o, 1, groups=groups)


def _follower_on_another_axis(net, x):
    y = net.a(x)
    y = y + net.b(y)
    return net.h(shuffled(y, 4))


def _constant_and_turns(net, x):
    m = torch.full((8,), 1.5, dtype=x.dtype)
    pairs = ((net.a, net.b, net.o), (net.c, net.d, net.p))
    return sum(out(in_turns(one(x), two(x)).relu() * m) for one, two, out in pairs)


def _shuffle_cut_and_woven(net, x):
    t = shuffled(net.a(x), 4)
    u, v = shuffled(t, 4), t.chunk(2, 1)[1]
    return net.h(in_turns(u, t)) + net.k(v)


def _cut_and_woven_twice(net, x):
    t = net.a(x).relu()
    k = net.k(t.chunk(2, 1)[1])
    w = in_turns(t, t)
    return net.h(in_turns(w, w)), k, net.l(t)


F = math.factorial
CASES = {
    # The groups p of b, each of (c, p') with c in 2: h tells apart the pairs that stand together behind the shuffle.
    "a follower on another axis": (
        lambda: Net(_follower_on_another_axis, a=conv(3, 8), b=conv(8, 8, 2), h=conv(8, 2, 2)), None
    ),
    # Groups of the first convolution permute, those of the last are outputs; 4! before, 2! in every pair of groups.
    "a block that is not to be followed": (
        lambda: Net(lambda s, x: s.h(shuffled(s.b(s.a(x).relu()).relu(), 2)), a=conv(3, 8), b=conv(8, 8, 2),
                    h=conv(8, 4, 2)), 2 * F(4) ** 2 * F(2) ** 4 // 1
    ),
    # Two linear maps each, in turns; a constant ties neither pair to the other.
    "a constant that meets two": (
        lambda: Net(_constant_and_turns, **{name: nn.Linear(3, 4) for name in "abcd"}, o=nn.Linear(8, 2),
                    p=nn.Linear(8, 2)), F(4) ** 4
    ),
    "shuffled twice and cut": (
        lambda: Net(lambda s, x: s.h(shuffled(shuffled(s.a(x), 2), 2).chunk(2, 1)[0]), a=conv(3, 8), h=conv(4, 2)), None
    ),
    "stacked over a batch": (
        lambda: Net(lambda s, x: s.h(torch.stack([s.a(x), s.b(x)], 1).flatten(0, 1).reshape(-1, 8)), a=nn.Linear(3, 4),
                    b=nn.Linear(3, 4), h=nn.Linear(8, 2)), None
    ),
    "shuffled, cut and in turns": (
        lambda: Net(_shuffle_cut_and_woven, a=conv(3, 8), h=conv(16, 2), k=conv(4, 2)), None
    ),
    # Four units are cut off and read on their own. Of 32 positions the outputs tell the first half from the second: the
    # units before the cut are one kind, those behind it another.
    "cut and in turns of turns": (
        lambda: Net(_cut_and_woven_twice, a=conv(3, 8), h=conv(32, 2, 2), k=conv(4, 2), l=conv(8, 2)), F(4) * 1
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_every_view_fits(name):
    build, permutations = CASES[name]
    torch.manual_seed(0)
    model = build().double().eval()
    linear = isinstance(model.a, nn.Linear)
    sym = discover(model, _random(6, 3) if linear else _random(3, 3, 4))
    if permutations is not None:
        assert math.exp(sym.log_permutations) == pytest.approx(permutations)
    theta, x = model.state_dict(), _random(4, 3, seed=1) if linear else _random(2, 3, 5, seed=1)
    before = torch.func.functional_call(model, theta, (x,))
    for seed in range(3):
        g = sym.random(torch.Generator().manual_seed(seed))
        after = torch.func.functional_call(model, sym.act(g, theta), (x,))
        torch.testing.assert_close(after, before, rtol=1e-10, atol=1e-10)
