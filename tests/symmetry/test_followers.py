"""Units in blocks of two classes at once: a class that moves as another one does, inside a third."""

import itertools
import math

import pytest
import torch

from coset.alignment import align
from coset.alignment.matching.soft_action import soft_act
from coset.errors import InputError
from coset.symmetry import Symmetry
from coset.symmetry.orbits import unit_orbits
from shuffle_networks import ShuffleUnitInside, ShuffleUnitWithShortcut

X = torch.randn(2, 3, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def shortcut():
    """The unit with its shortcut: both grouped convolutions have the groups g of the stream, as which k moves."""
    torch.manual_seed(0)
    model = ShuffleUnitWithShortcut().double().eval()
    axes = {
        "stem.weight": "g*n", "stem.bias": "g*n",
        "first.weight": "g*k^0*m^0 /n", "first.bias": "g*k^0*m^0",
        "depth.weight": "k^0*m^0*g", "depth.bias": "k^0*m^0*g",
        # Rows in groups of the stream, columns in (second group, channel, first group).
        "last.weight": "g*n m^0*g", "last.bias": "g*n", "head.weight": "- g*/n",
    }  # fmt: skip
    for part in ("weight", "bias", "running_mean", "running_var"):
        axes[f"norms.0.{part}"], axes[f"norms.1.{part}"] = "g*k^0*m^0", "k^0*m^0*g"
    sym = Symmetry.from_axes(
        axes, model, sizes={"g": 2, "k": 2, "m": 2}, inside={"n": "g", "k": "g", "m": "k"}, follows={"k": "g"},
        scales={"n": "positive"},
    )  # fmt: skip
    return model, sym


def branch():
    torch.manual_seed(0)
    model = ShuffleUnitInside().double().eval()
    axes = {
        "stem.weight": "g*n", "stem.bias": "g*n",
        "first.weight": "g*h^0*m^0 /n", "first.bias": "g*h^0*m^0",
        "depth.weight": "h^0*m^0*g", "depth.bias": "h^0*m^0*g",
        "last.weight": "k*o m^0*g", "last.bias": "k*o", "head.weight": "- k*/o",
    }  # fmt: skip
    for part in ("weight", "bias", "running_mean", "running_var"):
        axes[f"norms.0.{part}"], axes[f"norms.1.{part}"] = "g*h^0*m^0", "h^0*m^0*g"
    sym = Symmetry.from_axes(
        axes, model, sizes={"g": 2, "k": 2, "h": 2, "m": 2}, inside={"n": "g", "h": "g", "m": "h", "o": "k"},
        follows={"h": "k"}, scales={"n": "positive", "o": "positive"},
    )  # fmt: skip
    return model, sym


MADE = {"shortcut": shortcut, "branch": branch}


def _values(model, params):
    with torch.no_grad():
        return torch.func.functional_call(model, params, (X,))


def _randomised(model):
    generator = torch.Generator().manual_seed(3)
    return {
        name: torch.rand(tensor.shape, generator=generator, dtype=torch.float64) + 0.5 * ("var" in name)
        if tensor.is_floating_point()
        else tensor
        for name, tensor in model.state_dict().items()
    }


@pytest.mark.parametrize("name", MADE)
def test_the_function_is_kept_and_elements_form_a_group(name):
    model, sym = MADE[name]()
    params = _randomised(model)
    generator = torch.Generator().manual_seed(0)
    before = _values(model, params)
    for _ in range(8):
        g, h = sym.random(generator), sym.random(generator)
        assert torch.allclose(_values(model, sym.act(g, params)), before, rtol=1e-10, atol=0)
        both = sym.act(g, sym.act(h, params))
        once = sym.act(sym.compose(g, h), params)
        back = sym.act(sym.inverse(g), sym.act(g, params))
        for key in params:
            torch.testing.assert_close(once[key], both[key])
            torch.testing.assert_close(back[key], params[key])
    assert Symmetry.from_json(sym.to_json()) == sym


def test_orders_are_counted_by_hand():
    """2 orders of the groups (of the branch: 2·2), 4!² of the channels of the stem, 2 for the channels of each pair of
    groups, of the branch 2! outputs in each of the second groups."""
    assert math.exp(shortcut()[1].log_order) == pytest.approx(2 * 24**2 * 2**4)
    assert math.exp(branch()[1].log_order) == pytest.approx(2 * 2 * 24**2 * 2**4 * 2**2)


@pytest.mark.parametrize("name", MADE)
def test_the_relaxed_action_is_the_action_at_permutations(name):
    model, sym = MADE[name]()
    params = _randomised(model)
    moving = sym.restrict(scales=False, signs=False)
    for seed in range(5):
        g = moving.random(torch.Generator().manual_seed(seed))
        matrices = {key: torch.eye(p.shape[-1], dtype=torch.float64)[p] for key, p in g.permutations.items()}
        found = soft_act(moving, matrices, params)
        for key, tensor in moving.act(g, params).items():
            torch.testing.assert_close(found[key], tensor)


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("method", ["weights", "activations"])
def test_a_planted_element_is_found(name, method):
    model, sym = MADE[name]()
    params = _randomised(model)
    moving = sym.restrict(scales=False, signs=False)
    for seed in range(6):
        g = moving.random(torch.Generator().manual_seed(seed))
        planted = moving.act(g, params)
        given = {"model": model, "data": X} if method == "activations" else {}
        found = align(moving, params, planted, method=method, seed=0, **given)
        for key, tensor in found.params.items():
            torch.testing.assert_close(tensor, params[key])


def test_orbits_of_pairs_of_units():
    """Exchanging the groups keeps whether both are the same; with two classes of groups nothing is kept."""
    _, sym = shortcut()
    pairs = torch.tensor([a == b for a, b in itertools.product(range(2), repeat=2)]).repeat_interleave(2)
    labels = unit_orbits(sym, "m")
    assert bool(((labels[:, None] == labels) == (pairs[:, None] == pairs)).all())
    assert len(unit_orbits(branch()[1], "m").unique()) == 1


def test_what_can_be_followed():
    model, _ = shortcut()
    axes, sizes = {"stem.bias": "g*n", "first.bias": "g*k^0*m"}, {"g": 2, "k": 2}

    def declared(inside, follows, axes=axes, **more):
        return Symmetry.from_axes(axes, model, sizes=sizes, inside=inside, follows=follows, **more)

    with pytest.raises(InputError, match="class 'k' follows 'n', of size 4, nested in 'g'; expected a class of size 2"):
        declared({"n": "g", "k": "g"}, {"k": "n"})
    with pytest.raises(InputError, match="class 'k' follows 'g'; expected it to be nested"):
        declared({"n": "g"}, {"k": "g"})
    with pytest.raises(InputError, match="axis 0 carries scales of 'k', which follows another class"):
        declared({"n": "g", "k": "g"}, {"k": "g"}, axes | {"first.bias": "g*k*m"})
    with pytest.raises(InputError, match="follows names the class 'z', which no axis carries"):
        declared({"n": "g", "k": "g"}, {"z": "g"})
