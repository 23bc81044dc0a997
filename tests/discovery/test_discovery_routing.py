"""Experts that a router picks by their number permute with the rows of the router, and units inside each of them."""

import os

import pytest
import torch
import torch.nn.functional as F
from groups import found_group, group
from probes import Function
from torch import nn

from coset.errors import InputError
from coset.symmetry import discover

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

X = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
EXPERTS = {"r": (5, 4), "w": (5, 4, 6), "v": (5, 6, 3)}


def _picked(x, r, w, v):
    """The two best experts of every token, their matrices picked by number."""
    score, index = (x @ r.T).topk(2, -1)
    hidden = F.relu(torch.einsum("ti,tkih->tkh", x, w[index]))
    return torch.einsum("tk,tko->to", score.softmax(-1), torch.einsum("tkh,tkho->tko", hidden, v[index]))


def _all(x, r, w, v):
    """Every expert on every token, then the best one."""
    hidden = F.relu(torch.einsum("ti,eih->teh", x, w))
    chosen = F.one_hot((x @ r.T).argmax(-1), 5).to(x.dtype)
    return torch.einsum("te,teo->to", chosen, torch.einsum("teh,eho->teo", hidden, v))


def _gathered(x, r, w, v):
    out = torch.einsum("teh,eho->teo", F.relu(torch.einsum("ti,eih->teh", x, w)), v)
    index = (x @ r.T).topk(2, -1)[1]
    return out.gather(1, index[:, :, None].expand(-1, -1, 3)).sum(1)


def _code(x, r, w, v):
    """The nearest code of a codebook."""
    return w.flatten(1)[(x @ r.T).argmax(1)]


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        # The scores' softmax keeps no scale of the router; 5! experts with 6! units each.
        (_picked, group("5 5x6", scales=30, signs=0)),
        # Which is the largest does not change with the router's scale.
        (_all, group("5 5x6", scales=30 + 1, signs=0)),
        (_code, group("5", scales=1, signs=0)),
    ],
)
def test_experts_in_one_tensor(function, expected):
    torch.manual_seed(0)
    model = Function(function, EXPERTS).double()
    sym = discover(model, X, strict=function is not _code)
    assert not sym.pinned
    assert found_group(sym) == expected


def test_experts_that_no_token_goes_to_are_told():
    """A token goes to the two experts of the smallest weights; one with large weights gets none, on no input."""

    def smallest(x, r, w, v):
        score, index = (-(x.abs() @ r.abs().T)).topk(2, -1)
        hidden = F.relu(torch.einsum("ti,tkih->tkh", x, w[index]))
        return torch.einsum("tk,tko->to", score.softmax(-1), torch.einsum("tkh,tkho->tko", hidden, v[index]))

    torch.manual_seed(0)
    model = Function(smallest, EXPERTS).double()
    assert discover(model, X, strict=True).unverified == ()
    with torch.no_grad():
        model.r[3] *= 1e3
    assert discover(model, X).unverified == (
        "'r.inside': no output notices how it moves r in unit 3 of 'r.blocks'",
        "'w.inside': no output notices how it moves w, v in unit 3 of 'r.blocks'",
    )
    with pytest.raises(InputError, match="2 classes cannot be verified on these inputs"):
        discover(model, X, strict=True)


def test_what_all_experts_share_is_shared():
    """A shift by rank meets the units of whatever expert has that rank: they move alike in all experts."""

    def shifted(x, r, w, v, c):
        score, index = (x @ r.T).topk(2, -1)
        hidden = F.relu(torch.einsum("ti,tkih->tkh", x, w[index]) + c)
        return torch.einsum("tk,tko->to", score.softmax(-1), torch.einsum("tkh,tkho->tko", hidden, v[index]))

    torch.manual_seed(0)
    sym = discover(Function(shifted, {**EXPERTS, "c": (2, 6)}).double(), X)
    assert found_group(sym) == group("5 6", scales=6, signs=0)


def _in_order(x, r, w):
    expert, order = (x @ r.T).argmax(-1).sort()
    return x[order].sum(-1) * w[expert].sum((-1, -2))


def test_an_order_that_is_undone_is_not_read():
    def undone(x, r, w, v):
        order = (x @ r.T).argmax(-1).sort()[1]
        return (_in_order(x, r, w)[order.argsort()], _in_order(x, r, w).sum())

    torch.manual_seed(0)
    sym = discover(Function(undone, EXPERTS).double(), X)
    # Two sortings are two orders, though they are the same: that is not known, and the experts keep their order.
    assert sym.pinned == ("output: the order of what is sorted by these units is read",)
    assert found_group(sym) == group("5x4 20x6", scales=1, signs=0)

    def once(x, r, w, v):
        expert, order = (x @ r.T).argmax(-1).sort()
        return (x[order].sum(-1) * w[expert].sum((-1, -2)))[order.argsort()]

    sym = discover(Function(once, EXPERTS).double(), X)
    assert not sym.pinned
    # The six and four columns of w, which are summed, permute in every expert; r has a scale.
    assert found_group(sym) == group("5 5x4 20x6", scales=1, signs=0)


NEAR = torch.tensor([[1.5, 1.2, 0.7, 2.1], [1.45, 1.25, 0.75, 2.05]], dtype=torch.float64)


def _inside(x, w, index):
    return F.relu(torch.einsum("ti,tih->th", x, w[index]))


def _out(h, v, index):
    return torch.einsum("th,tho->to", h, v[index])


@pytest.mark.parametrize(
    ("function", "inside"),
    [
        # One expert for every token, and both ranks one after the other: units move in each expert by themselves.
        (lambda x, r, w, v: _out(_inside(x, w, (x @ r.T).argmax(-1)), v, (x @ r.T).argmax(-1)), False),
        (lambda x, r, w, v: (lambda i: _out(_inside(x, w, i), v, i))((x @ r.T).argmax(-1)), True),
        (lambda x, r, w, v: (lambda i: sum(_out(_inside(x, w, i[:, k]), v, i[:, k]) for k in range(2)))(
            (x @ r.T).topk(2, -1)[1]), True),
        # Units of two tokens meet, or of two experts: there they move alike in all.
        (lambda x, r, w, v: (lambda i, h: _out((h[:, None] * h[None]).sum(1), v, i))(
            (x @ r.T).argmax(-1), _inside(x, w, (x @ r.T).argmax(-1))), False),
        (lambda x, r, w, v: (lambda i: _out((_inside(x, w, i)[:, None] * _inside(x, w, i)[None]).sum(1), v, i))(
            (x @ r.T).argmax(-1)), False),
        (lambda x, r, w, v: _out(_inside(x, w, (x @ r.T).argmax(-1)), v, (x @ r.T).argmin(-1)), False),
        (lambda x, r, w, v: (lambda i: _out(_inside(x, w, i[:, 0]), v, i[:, 1]))((x @ r.T).topk(2, -1)[1]), False),
        (lambda x, r, w, v: (lambda i: _out(_inside(x, w, i[:, 0]) - _inside(x, w, i[:, 1]), v, i[:, 0]))(
            (x @ r.T).topk(2, -1)[1]), False),
    ],
)  # fmt: skip
def test_units_of_experts_that_meet(function, inside):
    """On an example whose tokens go to one expert nothing would be noticed: the group has to be right by itself."""
    for seed in range(3):
        torch.manual_seed(seed)
        model = Function(function, EXPERTS).double()
        sym = discover(model, NEAR)
        nested = any(sym.classes[name].parent and sym.classes[name].size == 6 for name in sym.permuting)
        assert nested == inside
        moved = sym.act(sym.random(torch.Generator().manual_seed(seed)), dict(model.state_dict()))
        x = torch.randn(8, 4, dtype=torch.float64)
        with torch.no_grad():
            before, after = model(x), torch.func.functional_call(model, moved, (x,))
        assert float((before - after).abs().max() / before.abs().max()) < 1e-10


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (lambda x, r, w, v: (x @ r.T).argmax(-1).to(x.dtype)[:, None] * x, "mul: the numbers of these units"),
        (lambda x, r, w, v: torch.where((x @ r.T).argmax(-1) == 2, x.sum(-1), 0.0), "eq: the numbers of these units"),
        (lambda x, r, w, v: w[(x @ r.T).argmax(-1).sort()[0]].sum((-1, -2)) * x[:, 0], "sort: the numbers of these"),
        # In the order of the experts: summed up one after the other, or beside the inputs in theirs.
        (lambda x, r, w, v: torch.cumsum(_in_order(x, r, w), 0), "output: the order of what is sorted"),
        (lambda x, r, w, v: _in_order(x, r, w) * x[:, 0], "output: the order of what is sorted"),
    ],
)
def test_numbers_of_experts_that_are_read_pin_and_are_told(function, told):
    torch.manual_seed(0)
    sym = discover(Function(function, EXPERTS).double(), X)
    assert 5 not in {sym.classes[name].size for name in sym.permuting}
    assert any(line.startswith(told) for line in sym.pinned)


def test_experts_that_are_modules_of_their_own():
    """Whole modules are not exchanged, which is said; the units of each are free."""

    class Mixture(nn.Module):
        def __init__(self):
            super().__init__()
            self.router = nn.Linear(4, 3)
            self.experts = nn.ModuleList(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)) for _ in range(3))

        def forward(self, x):
            weights = self.router(x).softmax(-1)
            return sum(weights[:, e, None] * expert(x) for e, expert in enumerate(self.experts))

    torch.manual_seed(0)
    sym = discover(Mixture().double(), X, strict=True)
    assert found_group(sym) == group("3*5", scales=15, signs=0)
    assert any("axis 0 of 'router.weight' are read one by one" in line for line in sym.notes)


SETTINGS = {
    "vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 40,
    "max_position_embeddings": 20, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0, "num_key_value_heads": 2,
    "head_dim": 6, "use_cache": False,
}  # fmt: skip


def test_mixtral():
    """Tokens sorted by expert, multiplied in groups and put back: as Llama, with 5! experts of 40! units."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.MixtralConfig(**SETTINGS, num_local_experts=5, num_experts_per_tok=2)
    model = transformers.MixtralForCausalLM(config).eval()
    sym = discover(model, torch.randint(2, 50, (2, 7)), strict=True)
    assert not sym.pinned
    # Heads as in Llama; three RMS norms read linearly; the linear branch of every expert's gated MLP.
    assert found_group(sym) == group(
        "24 2 2x2 2x6 5 5x40", scales=3 * 24 + 12 + 6 + 5 * 40, signs=4 * 24 + 12 + 6 + 5 * 40
    )


def test_qwen2_moe():
    """The same beside an expert for all tokens, whose gate is a number."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.Qwen2MoeConfig(
        **SETTINGS, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=10, shared_expert_intermediate_size=12
    )
    model = transformers.Qwen2MoeForCausalLM(config).eval()
    sym = discover(model, torch.randint(2, 50, (2, 7)), strict=True)
    assert not sym.pinned
    classes = found_group(sym).classes
    assert {((1, 5), 1), ((5, 10), 1), ((1, 12), 1), ((1, 24), 1)} <= set(classes)
