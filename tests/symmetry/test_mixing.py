"""Classes that matrices mix: the group law, the function, dimensions counted by hand, files, what is refused."""

from itertools import product

import pytest
import torch
from torch import nn

from coset.distribution import Delta, MeanField, Samples
from coset.errors import InputError
from coset.symmetry import Element, Symmetry, discover
from coset.symmetry.discovery import linearity
from coset.symmetry.mixing import centred_basis, random_matrices
from mixing_networks import NETWORKS, LanguageModel, outputs, setting, tokens


def kinds(sym):
    return sorted(item.named(sym.classes[name].size) for name, item in sym.continuous.items())


# Kinds, one for each class, and the dimension of the connected group, counted by hand. d = 8, two heads of 4, 6 hidden.
COUNTED = {
    "deep linear": (["GL(3)", "GL(4)"], 16 + 9),
    "linear autoencoder": (["GL(2)"], 4),
    "bottleneck": (["GL(3)"], 7 + 9 + 7),
    "convolutions": (["GL(4)"], 16),
    "low-rank adapter": (["GL(2)"], 6 + 4),
    # A scale of the gain for every unit beside the matrix.
    "gain between maps": (["GL(3)"], 9 + 3),
    "cosine head": (["O(6)"], 15),
    "heads": (["GL(4)", "GL(4)"], 2 * 16 + 2 * 16),
    # Values and scores of every head, gains of three norms against their readers, and the turning stream.
    "layer norm": (["GL(4)", "GL(4)", "O(7)"], 2 * 2 * 16 + 3 * 8 + 7 * 6 // 2),
    "layer norm, two layers": (["GL(4)"] * 4 + ["O(7)"], 2 * (2 * 2 * 16) + 5 * 8 + 7 * 6 // 2),
    # The final gain is read by what writes the stream: it has no scale, and the stream does not turn.
    "layer norm, tied": (["GL(4)", "GL(4)"], 2 * 2 * 16 + 2 * 8),
    "rms norm": (["GL(4)", "GL(4)", "O(8)"], 2 * 2 * 16 + 3 * 8 + 8 * 7 // 2),
    "rms norm, written out": (["GL(4)", "GL(4)", "O(8)"], 2 * 2 * 16 + 3 * 8 + 8 * 7 // 2),
    "rms norm, tied": (["GL(4)", "GL(4)"], 2 * 2 * 16 + 2 * 8),
    # One matrix for the keys and values of each pair of heads.
    "grouped queries": (["GL(4)", "GL(4)", "O(8)"], 2 * 16 + 3 * 8 + 8 * 7 // 2),
    # What a norm has written is added to: no stream turns. The final norm has a gain of its own.
    "norms behind": (["GL(4)", "GL(4)"], 2 * 2 * 16 + 8),
    # Values of every key head, a scale and an angle for every rotary pair of it, gains, the gated MLP, the stream.
    "rotary halves": (["GL(4)", "O(8)", "U(1)^2"], 2 * 16 + 2 * 2 * 2 + 3 * 8 + 6 + 8 * 7 // 2),
    "rotary neighbours": (["GL(4)", "O(16)", "U(1)^2"], 2 * 16 + 2 * 2 * 2 + 3 * 16 + 6 + 16 * 15 // 2),
    "rotary, one key": (["GL(4)"] * 2 + ["O(8)"] + ["U(1)^2"] * 2, 2 * (16 + 2 * 2 + 6) + 5 * 8 + 8 * 7 // 2),
    # Of eight coordinates of a head four rotate, and four mix.
    "rotary in part": (
        ["GL(4)", "GL(8)", "O(16)", "U(1)^2"],
        2 * (64 + 16 + 2 * 2) + 3 * 16 + 6 + 16 * 15 // 2,
    ),
    # Norms of queries and keys: scales of their gains, one for every pair, and no angle.
    "rotary, norms of queries": (["GL(4)", "O(8)"], 2 * 16 + 2 + 3 * 8 + 6 + 8 * 7 // 2),
    "rotary, tied": (["GL(4)", "U(1)^2"], 2 * 16 + 2 * 2 * 2 + 2 * 8 + 6),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_kinds_and_dimensions_are_those_counted_by_hand(name):
    sym = setting(name)[1]
    assert (kinds(sym), sym.continuous_dimension) == COUNTED[name]


@pytest.mark.parametrize("name", NETWORKS)
def test_the_whole_group_preserves_the_function(name):
    model, sym, params, x = setting(name)
    before = outputs(model, params, x)
    for seed in range(3):
        g = sym.random(torch.Generator().manual_seed(seed))
        assert set(g.matrices) == set(sym.continuous)
        after = outputs(model, sym.act(g, params), x)
        assert torch.allclose(after, before, rtol=1e-8, atol=1e-9 * float(before.abs().max()))


@pytest.mark.parametrize("name", NETWORKS)
def test_products_and_inverses_act_as_they_should(name):
    _, sym, params, _ = setting(name)
    generator = torch.Generator().manual_seed(2)
    g, h = sym.random(generator), sym.random(generator)
    one, two = sym.act(sym.compose(g, h), params), sym.act(g, sym.act(h, params))
    back = sym.act(sym.inverse(g), sym.act(g, params))
    for key in params:
        scale = float(two[key].abs().max())
        assert torch.allclose(one[key], two[key], rtol=1e-8, atol=1e-9 * scale), key
        assert torch.allclose(back[key], params[key], rtol=1e-8, atol=1e-9 * scale), key


def generators(kind, n):
    """A basis of the Lie algebra of matrices of a kind, one after the other."""
    if kind == "rotary":
        yield from torch.eye(n, dtype=torch.float64)[:, :, None, None] * torch.tensor([[0.0, -1], [1, 0]])
        return
    basis = centred_basis(n) if kind == "centred" else torch.eye(n, dtype=torch.float64)
    for i, j in product(range(basis.shape[1]), repeat=2):
        one = basis[:, i, None] * basis[:, j]
        if kind == "general":
            yield one
        elif i < j:
            yield one - one.T


def tangent_rank(sym, params):
    """The dimension of the orbit at ``params``: moves near the identity, by central differences."""

    def along(direction):
        step = 1e-5
        ends = [sym.act(direction(t), params) for t in (step, -step)]
        return torch.cat([((ends[0][name] - ends[1][name]) / (2 * step)).flatten() for name in params])

    rows = []
    for key in sym.scaling:
        shape = sym.shape(sym.families[key].owner)
        for unit in torch.eye(torch.Size(shape).numel(), dtype=torch.float64):
            one = unit.reshape(shape)
            rows.append(along(lambda t, key=key, one=one: sym.element(scales={key: torch.exp(t * one)})))
    for name, mixing in sym.continuous.items():
        *outer, n = sym.shape(name)
        for block in torch.eye(torch.Size(outer).numel(), dtype=torch.float64):
            for generator in generators(mixing.kind, n):
                x = block.reshape(*outer, *[1] * generator.ndim) * generator
                rows.append(along(lambda t, name=name, x=x: sym.element(matrices={name: torch.matrix_exp(t * x)})))
    return int(torch.linalg.matrix_rank(torch.stack(rows), rtol=1e-6))


@pytest.mark.parametrize(
    "name", ["deep linear", "low-rank adapter", "cosine head", "heads", "layer norm", "rms norm", "rotary halves"]
)
def test_dimensions_are_those_of_orbits(name):
    _, sym, params, _ = setting(name)
    assert tangent_rank(sym, params) == sym.continuous_dimension


def test_random_matrices_are_of_their_kinds():
    generator = torch.Generator().manual_seed(0)
    one = torch.eye(5, dtype=torch.float64)
    for kind in ("orthogonal", "centred"):
        found = random_matrices(kind, (3, 5, 5), generator, 0.5)
        assert torch.allclose(found @ found.mT, one.expand(3, 5, 5))
    means = random_matrices("centred", (20, 5, 5), generator, 0.5).sum(-1)
    assert torch.allclose(means, means[:, :1].sign().expand(20, 5))
    assert {-1.0, 1.0} == set(means[:, 0].sign().tolist())
    # Haar: E A = 0 and E A⊗A = I/n, to Monte Carlo error.
    many = random_matrices("orthogonal", (4000, 3, 3), generator, 0.5)
    assert float(many.mean(0).abs().max()) < 5 / (3 * 4000) ** 0.5
    assert torch.allclose(many.square().mean(0), torch.full((3, 3), 1 / 3, dtype=torch.float64), atol=0.03)
    even = torch.linalg.svdvals(random_matrices("general", (2, 4, 4), generator, 0.0))
    assert torch.allclose(even, torch.ones_like(even))


def test_the_monomial_part_is_the_group_without_matrices():
    _, sym, params, _ = setting("layer norm")
    part = sym.monomial
    assert part.continuous == {}
    assert part.fingerprint != sym.fingerprint
    assert part == sym.restrict(continuous=False)
    assert part.monomial is part
    assert (part.log_order, part.scale_dimension) == (sym.log_order, sym.scale_dimension)
    assert sym.restrict(scales=False).continuous == {}
    one = next(iter(sym.continuous))
    assert set(sym.restrict([one]).continuous) == {one}
    g = part.random(torch.Generator().manual_seed(0))
    moved = [group.act(g, params) for group in (sym, part)]
    assert all(torch.equal(moved[0][name], moved[1][name]) for name in params)


def test_files_keep_matrices(tmp_path):
    sym = setting("rms norm")[1]
    assert Symmetry.from_json(sym.to_json()) == sym
    assert Symmetry.from_json(sym.to_json()).continuous == sym.continuous
    g = sym.random(torch.Generator().manual_seed(0))
    g.save(tmp_path / "g.safetensors", sym)
    assert Element.load(tmp_path / "g.safetensors", sym) == g
    # An element of the monomial part is one of the whole.
    h = sym.monomial.random(torch.Generator().manual_seed(0))
    h.save(tmp_path / "h.safetensors", sym.monomial)
    assert Element.load(tmp_path / "h.safetensors", sym) == h
    with pytest.raises(InputError, match="damaged"):
        Symmetry.from_json(sym.to_json().replace('"orthogonal"', '"oblique"'))


def test_points_and_samples_are_mixed_and_mean_fields_are_not():
    _, sym, params, _ = setting("low-rank adapter")
    g = sym.random(torch.Generator().manual_seed(0))
    moved = sym.act(g, params)
    assert all(torch.equal(sym.act(g, Delta(params)).mean[name], moved[name]) for name in params)
    both = Samples({name: torch.stack([tensor, 2 * tensor])[None] for name, tensor in params.items()})
    drawn = sym.act(g, both).params
    assert all(torch.allclose(drawn[name][0, 0], moved[name]) for name in params)
    q = MeanField(params, {name: torch.ones_like(tensor) for name, tensor in params.items()})
    with pytest.raises(InputError, match=r"mixes the units of 'down'.*act with an element of sym.monomial"):
        sym.act(g, q)
    assert isinstance(sym.act(sym.monomial.random(torch.Generator().manual_seed(0)), q), MeanField)


def test_what_is_no_member_is_refused():
    _, sym, params, _ = setting("rms norm")
    stream = next(name for name, item in sym.continuous.items() if item.kind == "orthogonal")
    eye = torch.eye(8, dtype=torch.float64)
    with pytest.raises(InputError, match="is not orthogonal"):
        sym.element(matrices={stream: 2 * eye})
    with pytest.raises(InputError, match=r"has shape \(7, 7\); expected \(8, 8\)"):
        sym.element(matrices={stream: torch.eye(7, dtype=torch.float64)})
    with pytest.raises(InputError, match="the matrix of 'nobody' is not free in this symmetry"):
        sym.element(matrices={"nobody": eye})
    inner = next(name for name, item in sym.continuous.items() if item.kind == "general")
    with pytest.raises(InputError, match="singular"):
        sym.element(matrices={inner: torch.zeros(2, 4, 4, dtype=torch.float64)})
    dead = params | {"norm.weight": params["norm.weight"] * torch.tensor([0.0] + [1.0] * 7)}
    with pytest.raises(InputError, match=r"'norm.weight' has entries that are 0"):
        sym.act(sym.random(torch.Generator().manual_seed(0)), dead)


def test_single_precision():
    torch.manual_seed(0)
    model = LanguageModel(nn.RMSNorm).eval()
    x = tokens(torch.Generator().manual_seed(1))
    sym = discover(model, x)
    params = dict(model.state_dict())
    moved = sym.act(sym.random(torch.Generator().manual_seed(0)), params)
    assert all(tensor.dtype == torch.float32 for tensor in moved.values())
    assert torch.allclose(outputs(model, moved, x), outputs(model, params, x), atol=1e-4)


def test_tied_weights_stay_one_tensor():
    _, sym, params, _ = setting("layer norm, tied")
    moved = sym.act(sym.random(torch.Generator().manual_seed(0)), params)
    assert moved["head.weight"] is moved["words.weight"]


def test_the_table_tells_of_matrices():
    text = str(setting("rms norm")[1])
    assert "with matrices a group of dimension 116" in text
    assert "mixed by" in text
    assert "O(8)" in text
    assert "mixed by" not in str(setting("rms norm")[1].monomial)


def test_what_changes_outputs_is_not_mixed_and_a_note_says_so(monkeypatch):
    """A rule that takes tanh for a linear map: verification keeps what is right, and drops the rest."""
    monkeypatch.setitem(linearity._RULES, "tanh", linearity._Reader.rearranged)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3), nn.Linear(3, 4)).double()
    sym = discover(model, torch.randn(6, 5, dtype=torch.float64))
    assert kinds(sym) == ["GL(3)"]
    assert sym.notes == ("the units of u0 seem to be seen by linear maps alone, but outputs change when they mix",)


def test_behind_a_gain_with_zeros_units_are_not_mixed():
    torch.manual_seed(0)
    model = LanguageModel(nn.RMSNorm).double().eval()
    with torch.no_grad():
        model.blocks[0].norm1.weight[2] = 0
    sym = discover(model, tokens(torch.Generator().manual_seed(1)))
    assert kinds(sym) == ["GL(4)", "GL(4)"]
    assert sym.notes == ("'blocks.0.norm1.weight' has entries that are 0: the units of 'blocks.0.norm1' are not mixed",)


def test_steps_of_a_recurrence_side_by_side():
    """A norm reads states that were stacked, of which nothing but their places is known: no matrix is claimed."""

    class Steps(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.norm, self.last = nn.RNNCell(4, 5), nn.LayerNorm(5), nn.Linear(5, 2)

        def forward(self, x):
            states = [x.new_zeros(len(x), 5)]
            for step in range(x.shape[1]):
                states.append(self.cell(x[:, step], states[-1]))
            return self.last(self.norm(torch.stack(states[1:], 1)))

    torch.manual_seed(0)
    assert discover(Steps().double(), torch.randn(2, 3, 4, dtype=torch.float64)).continuous == {}
