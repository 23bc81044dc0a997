"""Rotary pairs: the null space of the Jacobian, layouts, what is refused, files, models that only look rotary."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from coset.errors import InputError
from coset.models import build
from coset.symmetry import Symmetry, discover
from coset.symmetry.mixing import random_matrices
from coset.symmetry.pairs import best_rotations, rotations
from jacobian_null_space import null_dimension
from mixing_networks import outputs, setting, tokens
from rotary_networks import Latent, RotaryBlock, RotaryModel, as_complex, in_halves, side_by_side, skewed


@pytest.mark.parametrize(
    ("name", "dimension"),
    [("rotary halves", 98), ("rotary, one key", 120), ("rotary, norms of queries", 92), ("rotary, tied", 62)],
)
def test_the_group_is_the_null_space_of_the_jacobian(name, dimension):
    """There are no translations without biases: the group is all there is."""
    model, sym, _, _ = setting(name)
    assert sym.continuous_dimension == dimension
    assert not sym.translations
    assert null_dimension(model, torch.randint(12, (20, 6), generator=torch.Generator().manual_seed(0))) == dimension


def test_every_layer_adds_as_much():
    """d(d−1)/2 + (2L+1)d + L·(n_kv·(d_h² + d_h) + d_ff)."""
    for layers, dimension in ((2, 160), (3, 222)):
        torch.manual_seed(0)
        sym = discover(RotaryModel(layers=layers).double(), tokens(torch.Generator().manual_seed(1)))
        assert sym.continuous_dimension == dimension


def test_pairs_as_complex_numbers_have_the_same_group():
    torch.manual_seed(0)
    sym = discover(RotaryModel(as_complex).double(), tokens(torch.Generator().manual_seed(1)))
    assert sym.continuous_dimension == 98


@pytest.mark.parametrize(("name", "neighbours"), [("rotary halves", False), ("rotary neighbours", True)])
def test_queries_and_keys_turn_by_the_same_angle(name, neighbours):
    """Against the formula, weight by weight: (x, y) → R(φ)(x, y) for both, pair by pair of every key head."""
    _, sym, params, _ = setting(name)
    (pairs,) = (key for key, item in sym.continuous.items() if item.kind == "rotary")
    angles = torch.rand(2, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    moved = sym.act(sym.element(matrices={pairs: rotations(angles)}), params)
    for weight in ("blocks.0.q.weight", "blocks.0.k.weight"):
        before, after = (item[weight].unflatten(0, (2, -1, 4)) for item in (params, moved))
        first = [0, 2] if neighbours else [0, 1]
        second = [1, 3] if neighbours else [2, 3]
        cos, sin = angles.cos()[:, None, :, None], angles.sin()[:, None, :, None]
        x, y = before[:, :, first], before[:, :, second]
        torch.testing.assert_close(after[:, :, first], cos * x - sin * y)
        torch.testing.assert_close(after[:, :, second], sin * x + cos * y)
    assert all(torch.equal(moved[key], params[key]) for key in params if ".q." not in key and ".k." not in key)


def test_what_is_linear_and_no_rotation_does_not_turn():
    torch.manual_seed(0)
    sym = discover(RotaryModel(skewed).double(), tokens(torch.Generator().manual_seed(1)))
    assert "rotary" not in {item.kind for item in sym.continuous.values()}
    assert sym.scale_dimension == setting("rotary halves")[1].scale_dimension
    assert sym.notes == ()


def test_pairs_behind_a_function_do_not_turn():
    """An odd function of single coordinates keeps signs of pairs, and nothing else."""

    def bent(y, cos, sin):
        return in_halves(torch.tanh(y), cos, sin)

    torch.manual_seed(0)
    sym = discover(RotaryModel(bent).double(), tokens(torch.Generator().manual_seed(1)))
    assert "rotary" not in {item.kind for item in sym.continuous.values()}


def test_angles_are_found_without_verification_too():
    """Whether maps are rotations is told by values, which are tried in any case; without values a note says so."""
    x = tokens(torch.Generator().manual_seed(1))
    for rotate, kinds in ((in_halves, {"general", "orthogonal", "rotary"}), (skewed, {"general", "orthogonal"})):
        torch.manual_seed(0)
        sym = discover(RotaryModel(rotate).double(), x, verify=False)
        assert {item.kind for item in sym.continuous.values()} == kinds
        assert sym.notes == ()
    with torch.device("meta"):
        options = {"vocabulary": 12, "context": 6, "dim": 8, "depth": 1, "heads": 2, "bias": False}
        model = build("transformer", norm="rms", positions="rotary", **options).eval()
    sym = discover(model, x.to("meta"), verify=False)
    assert {item.kind for item in sym.continuous.values()} == {"general", "orthogonal"}
    (note,) = sym.notes
    assert note.endswith("may turn: that is told by values, which were not read")


class EqualFrequencies(RotaryBlock):
    """All pairs of a head rotate by the same angles."""

    def positioned(self, y):
        angles = torch.arange(y.shape[-2], dtype=y.dtype)[:, None] * torch.tensor([0.7, 0.7], dtype=y.dtype)
        return self.rotate(y, angles.cos(), angles.sin())


@pytest.mark.parametrize("rotate", [in_halves, side_by_side, as_complex])
def test_pairs_that_rotate_alike_are_told_with_what_is_missed(rotate):
    """GL(2, ℂ) for two of them has 8 dimensions, of which 4 are found, in each of two heads."""
    torch.manual_seed(0)
    model = RotaryModel(rotate)
    model.blocks[0] = EqualFrequencies(rotate)
    sym = discover(model.double(), tokens(torch.Generator().manual_seed(1)))
    assert sym.continuous_dimension == 98
    assert sym.notes == (
        "pairs of 'blocks.0.q.inside' rotate alike (0, 1): complex matrices that mix them are not looked for, 8 more "
        "dimensions",
    )
    if rotate is in_halves:
        assert null_dimension(model, torch.randint(12, (12, 6), generator=torch.Generator().manual_seed(0))) == 98 + 8


def test_pairs_that_permute_are_told_with_what_is_missed():
    """Heads of a single pair: one angle each."""
    torch.manual_seed(0)
    model = RotaryModel(heads=4).double()
    sym = discover(model, tokens(torch.Generator().manual_seed(1)))
    assert sym.continuous_dimension == 78
    assert sym.notes == (
        "pairs of 'blocks.0.q.blocks' may turn, but permute, too, and are not turned: at least 4 dimensions",
    )
    assert null_dimension(model, torch.randint(12, (12, 6), generator=torch.Generator().manual_seed(0))) == 78 + 4


@pytest.mark.parametrize("moved", [False, True])
def test_rotary_parts_apart_from_the_others(moved):
    """The stream and two gains; a latent and its gain; GL(3) of keys and of values, twice; two pairs for all heads."""
    torch.manual_seed(0)
    model = Latent(moved).double()
    x = tokens(torch.Generator().manual_seed(1))
    sym = discover(model, x)
    assert sym.continuous_dimension == (28 + 8 + 8) + (10 + 5) + 4 * 9 + 2 * 2
    (pairs,) = (name for name, item in sym.continuous.items() if item.kind == "rotary")
    assert sym.shape(pairs) == (2,)
    params = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    moved_by_all = sym.act(sym.random(torch.Generator().manual_seed(0)), params)
    torch.testing.assert_close(outputs(model, moved_by_all, x), outputs(model, params, x))


class Normalized(nn.Module):
    """Norms of queries and keys that have no gain."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


@pytest.mark.parametrize(
    "function", [lambda x: F.rms_norm(x, (4,), eps=1e-2), lambda x: F.normalize(x, dim=-1)], ids=["rms", "l2"]
)
def test_pairs_turn_behind_norms_without_gains(function):
    """One angle for every pair of a key head, and no scale."""
    torch.manual_seed(0)
    model = RotaryModel()
    model.blocks[0].q_norm, model.blocks[0].k_norm = Normalized(function), Normalized(function)
    sym = discover(model.double(), tokens(torch.Generator().manual_seed(1)))
    assert sym.continuous_dimension == 98 - 4
    assert sorted(item.kind for item in sym.continuous.values()) == ["general", "orthogonal", "rotary"]


def test_the_best_angle_is_the_best_of_many():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(5, 2, 2, generator=generator, dtype=torch.float64)
    found, values = best_rotations(scores)
    torch.testing.assert_close((found * scores).sum((-2, -1)), values)
    grid = rotations(torch.linspace(0, 2 * torch.pi, 1001, dtype=torch.float64)[:, None].expand(-1, 5))
    tried = (grid * scores).sum((-2, -1))
    assert bool((tried <= values + 1e-12).all())
    torch.testing.assert_close(tried.amax(0), values, rtol=1e-4, atol=0)


def test_what_is_no_rotation_of_pairs_is_refused():
    _, sym, _, _ = setting("rotary halves")
    (pairs,) = (key for key, item in sym.continuous.items() if item.kind == "rotary")
    eye = torch.eye(2, dtype=torch.float64).expand(2, 2, 2, 2)
    with pytest.raises(InputError, match="is not orthogonal"):
        sym.element(matrices={pairs: 2 * eye})
    with pytest.raises(InputError, match="reflects pairs; expected rotations"):
        sym.element(matrices={pairs: eye * torch.tensor([1.0, -1.0])})
    with pytest.raises(InputError, match=r"has shape \(2, 2, 2\); expected \(2, 2, 2, 2\)"):
        sym.element(matrices={pairs: eye[0]})
    drawn = random_matrices("rotary", (4000, 2, 2), torch.Generator().manual_seed(0), 0.5)
    assert float(drawn.mean(0).abs().max()) < 5 / (2 * 4000) ** 0.5


def test_files_and_tables_tell_of_angles():
    _, sym, _, _ = setting("rotary neighbours")
    assert Symmetry.from_json(sym.to_json()) == sym
    assert Symmetry.from_json(sym.to_json()).continuous == sym.continuous
    assert "U(1)^2" in str(sym)


def test_single_precision():
    torch.manual_seed(0)
    model = RotaryModel().eval()
    x = tokens(torch.Generator().manual_seed(1))
    sym = discover(model, x)
    params = dict(model.state_dict())
    moved = sym.act(sym.random(torch.Generator().manual_seed(0)), params)
    assert all(tensor.dtype == torch.float32 for tensor in moved.values())
    assert torch.allclose(outputs(model, moved, x), outputs(model, params, x), atol=1e-4)


class Scores(nn.Module):
    """Rotary scores without heads: what is nested in nothing turns as well."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(5, 4), nn.Linear(5, 4), nn.Linear(5, 3)

    def forward(self, x):
        angles = torch.arange(x.shape[1], dtype=x.dtype)[:, None] * torch.tensor([1.0, 0.3], dtype=x.dtype)
        q, k = (in_halves(part(x), angles.cos(), angles.sin()) for part in (self.q, self.k))
        return (q @ k.mT).softmax(-1) @ self.v(x)


def test_matrices_without_heads():
    torch.manual_seed(0)
    sym = discover(Scores().double(), torch.randn(2, 6, 5, dtype=torch.float64))
    assert [item.named(2) for item in sym.continuous.values()] == ["U(1)^2"]
    assert (sym.scale_dimension, sym.continuous_dimension) == (2, 4)
