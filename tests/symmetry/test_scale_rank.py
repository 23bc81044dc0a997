"""Scales are counted by the rank of what they do: directions that two families share are counted once."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from coset.distribution import normalize_scales
from coset.symmetry import Symmetry, discover
from scale_directions import jacobian_rank


def _params(shapes):
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}


@pytest.mark.parametrize(
    ("axes", "shapes", "rank"),
    [
        # Rows and columns of one matrix: 3 + 4 − 1.
        ({"w": "a b"}, {"w": (3, 4)}, 6),
        # A second matrix with one of them tells them apart.
        ({"w": "a b", "v": "b"}, {"w": (3, 4), "v": (4,)}, 7),
        # Both ends of one matrix by the same class: s_i + s_j says it all; with opposite powers, all but a constant.
        ({"w": "a a"}, {"w": (3, 3)}, 3),
        ({"w": "a /a"}, {"w": (3, 3)}, 2),
        # Three in a cycle of matrices.
        ({"u": "a b", "v": "b c", "w": "c a"}, {"u": (2, 3), "v": (3, 4), "w": (4, 2)}, 9),
        ({"u": "a /b", "v": "b /c", "w": "c /a"}, {"u": (2, 3), "v": (3, 4), "w": (4, 2)}, 8),
    ],
)
def test_overlapping_scales(axes, shapes, rank):
    params = _params(shapes)
    sym = Symmetry.from_axes(axes, params, scales="positive")
    assert sym.scale_dimension == rank == jacobian_rank(sym, params)


# Each word of the axes' language with its size and the classes that carry a scale in it.
WORDS = {
    "a": (2, "a"), "/a": (2, "a"), "a^2": (2, "a"), "b": (3, "b"), "/b": (3, "b"), "c": (1, "c"), "-": (2, ""),
    "h[d]": (6, "d"), "h[/d]": (6, "d"), "h^1[d]": (6, "hd"), "h[e]": (4, "e"), "h[d^2]": (6, "d"), "h^1": (2, "h"),
    "h[d+e]": (10, "de"),
}  # fmt: skip


@given(st.lists(st.lists(st.sampled_from(list(WORDS)), min_size=1, max_size=3), min_size=1, max_size=4))
def test_random_axes(words):
    """Nested classes, powers, classes of one unit and repeated axes, against the derivatives."""
    # A class inside of a block must know which block it is in.
    words = [row for row in words if sum("h" in word for word in row) < 2] or [["a"]]
    axes = {f"p{number}": " ".join(row) for number, row in enumerate(words)}
    params = _params({f"p{i}": tuple(WORDS[word][0] for word in row) for i, row in enumerate(words)})
    carried = {name for row in words for word in row for name in WORDS[word][1]}
    present = {name for row in words for word in row for name in "hde" if name in word}
    sizes = {name: size for name, size in {"h": 2, "d": 3, "e": 2}.items() if name in present}
    sym = Symmetry.from_axes(axes, params, scales=dict.fromkeys(carried, "positive"), sizes=sizes)
    assert sym.scale_dimension == jacobian_rank(sym, params)


def test_a_single_number_carries_a_scale():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 2, bias=False)
            self.factor = nn.Parameter(torch.tensor(1.5))

        def forward(self, x):
            return self.factor * self.last(torch.relu(self.first(x)))

    torch.manual_seed(0)
    model = Scaled().double()
    x = torch.randn(3, 4, dtype=torch.float64)
    sym = discover(model, x)
    assert sym.scale_dimension == 6
    params = dict(model.state_dict())
    assert jacobian_rank(sym, params) == 6
    moved = sym.act(sym.random(torch.Generator().manual_seed(0)), params)
    assert moved["factor"].shape == ()
    assert moved["factor"] != params["factor"]
    assert torch.allclose(torch.func.functional_call(model, moved, (x,)), model(x), rtol=1e-12)
    stacked = {name: torch.stack([tensor, 2 * tensor]) for name, tensor in params.items()}
    element = sym.random(torch.Generator().manual_seed(0))
    assert torch.equal(sym.act(element, stacked)["factor"][0], moved["factor"])
    assert Symmetry.from_json(sym.to_json()) == sym


def test_two_single_numbers_are_measured_by_themselves():
    """Both are factors of one function: each is the measure of its own scale, and is 1 in the normal form."""

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 2, bias=False)
            self.one, self.two = nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.tensor(0.4))

        def forward(self, x):
            return self.last(self.one * torch.relu(self.first(x))) * self.two

    torch.manual_seed(0)
    model = Twice().double()
    sym = discover(model, torch.randn(3, 4, dtype=torch.float64))
    assert sym.scale_dimension == 7
    params = dict(model.state_dict())
    plain, g = normalize_scales(sym, params)
    scaled = sym.element(scales=sym.random(torch.Generator().manual_seed(0)).scales)
    again, _ = normalize_scales(sym, sym.act(scaled, params))
    for name, tensor in plain.items():
        torch.testing.assert_close(again[name], tensor)
        torch.testing.assert_close(sym.act(g, plain)[name], params[name])
