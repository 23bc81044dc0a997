"""Discovery is sound and complete: on every structure it finds the maximal group, written down by hand."""

import json
import math
from functools import cache

import pytest
import torch
from blocked_networks import BLOCKED
from convolutional_networks import CONVOLUTIONAL
from further_networks import FURTHER
from groups import Group, found_group, group
from layers_moving import assert_layers_move
from sequence_networks import SEQUENCE
from torch import nn

import architectures
from architectures import CASES, made, randomized
from coset.models import MLP, Elementwise, MyrtleCNN, ResNet18, Tiny10
from coset.symmetry import Symmetry, activation_function, activation_names, discover, intertwiner

NETWORKS = CONVOLUTIONAL | SEQUENCE | FURTHER | BLOCKED


def built(build) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build().double().eval()


def examples(shapes, batch=2):
    generator = torch.Generator().manual_seed(1)
    return tuple(torch.randn(batch, *shape, generator=generator, dtype=torch.float64) for shape in shapes)


@cache
def discovered(name: str) -> tuple[nn.Module, tuple[torch.Tensor, ...], Symmetry]:
    """A network in float64, its inputs, and what is discovered of it: once for all tests of a process."""
    build, shapes, _ = NETWORKS[name]
    model, inputs = built(build), examples(shapes)
    return model, inputs, discover(model, inputs)


def _assert_sound(model, sym, inputs) -> None:
    """Other weights, other inputs and another element than those of the verification; outputs up to rounding."""
    generator = torch.Generator().manual_seed(2)
    params = randomized(model, generator)
    moved = sym.act(sym.random(generator), params)
    before, after = (
        torch.utils._pytree.tree_leaves(torch.func.functional_call(model, p, inputs)) for p in (params, moved)
    )
    for one, two in zip(before, after, strict=True):
        assert float((one - two).abs().max() / one.abs().max()) < 1e-10


@pytest.mark.parametrize("name", NETWORKS)
def test_the_maximal_group_is_found(name):
    _, shapes, expected = NETWORKS[name]
    model, inputs, sym = discovered(name)
    assert found_group(sym) == expected
    assert not sym.pinned
    _assert_sound(model, sym, inputs)
    assert not any("do not move as" in note for note in sym.notes)
    assert Symmetry.from_json(sym.to_json()).graph == sym.graph
    assert_layers_move(model, sym, examples(shapes, batch=3))


# What the hand-written declarations leave out. FRN's ε stands under |ε|: each of its entries may change sign. A stream
# that a LayerNorm begins anew and a LayerNorm reads may change sign as a whole: norm2's γ and β, the columns of expand,
# contract, and γ of the norm that reads it.
MORE_SIGNS = {"resnet20, frn": 196, "resnet20, frn, linear stream": 196, "cct, renormalised": 1}


@pytest.mark.parametrize("name", CASES)
def test_declared_groups_are_found(name):
    model, declared, shape = made(name)
    (x,) = examples([shape], batch=3)
    sym = architectures.discovered(name)
    want, have = found_group(declared), found_group(sym)
    assert have == Group(want.classes, want.scales, want.signs + MORE_SIGNS.get(name, 0))
    _assert_sound(model, sym, (x,))


@pytest.mark.parametrize("name", ["cct", "grouped+groupnorm", "resnet20, frn"])
def test_the_same_group_is_found_again(name):
    model, _, shape = made(name)
    one, two = (
        json.loads(sym.to_json())
        for sym in (architectures.discovered(name), discover(model, *examples([shape], batch=3)))
    )
    # Shapes on the example are those of other batches.
    graphs = [found.pop("graph") for found in (one, two)]
    assert one == two
    assert graphs[0]["layers"] == graphs[1]["layers"]
    axes = [{name: words for name, (_, words) in graph["activations"].items()} for graph in graphs]
    assert axes[0] == axes[1]


ACTIVATIONS = [*activation_names(), "x^2", "x^3", "x^4", "relu^2", "relu^3", "|x|^1.5", "|x|^3", "leaky_relu(0.2)"]


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_every_activation_of_the_table(name):
    law = intertwiner(name)
    model = built(lambda: MLP(4, [5, 3], 2, activation=lambda: Elementwise(activation_function(name))))
    (x,) = examples([(4,)])
    sym = discover(model, x)
    # Of GL_n, which a linear layer has, the monomial matrices are kept.
    assert found_group(sym) == group("5 3", scales=8 * law.scales, signs=8 * law.signs)
    _assert_sound(model, sym, (x,))


@pytest.mark.parametrize(
    "module",
    [
        nn.PReLU(5),
        nn.PReLU(),
        nn.Hardtanh(-2, 1),
        nn.Hardtanh(-2, 2),
        nn.Threshold(0.1, 0),
        nn.Softplus(2),
        nn.ELU(0.3),
    ],
    ids=repr,
)
def test_modules_with_settings(module):
    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.activation, self.last = nn.Linear(4, 5), module, nn.Linear(5, 2)

        def forward(self, x):
            return self.last(self.activation(self.first(x)))

    law = intertwiner(module) if not isinstance(module, nn.PReLU) else intertwiner("prelu")
    (x,) = examples([(4,)])
    sym = discover(built(Network), x)
    assert found_group(sym) == group("5", scales=5 * law.scales, signs=5 * law.signs)


# Streams of 4 and 6 channels, two blocks each; convolutions: stem, 4 × (conv1, conv2), one shortcut.
_NORMED = (4 + 4 * 4) + (5 * 6)
RESNETS = {
    # Behind every norm but those that end in the stream a ReLU; before every norm a number per channel.
    "batch": group("4 4 4 6 6 6", scales=30 + _NORMED, signs=_NORMED),
    "frn": group("4 4 4 6 6 6", scales=30 + _NORMED, signs=2 * _NORMED),
    # One sign before each of the ten norms.
    "layer": group("4 4 4 6 6 6", scales=30, signs=10),
    "none": group("4 4 4 6 6 6", scales=30, signs=0),
}


@pytest.mark.parametrize("norm", RESNETS)
def test_resnet18(norm):
    """One class per stage for the stream and one inside each block, as Git Re-Basin's specification has it."""
    model = built(lambda: ResNet18(stages=(4, 6), norm=norm))
    (x,) = examples([(3, 8, 8)])
    sym = discover(model, x)
    assert found_group(sym) == RESNETS[norm]
    streams = {"stem.conv.weight", *(f"stages.0.{b}.{part}.weight" for b in (0, 1) for part in ("conv1", "conv2"))}
    shared = [name for name in sym.permuting if streams <= set(sym.carriers(name))]
    assert len(shared) == 1
    _assert_sound(model, sym, (x,))


def test_myrtle_and_its_order():
    model = built(lambda: MyrtleCNN(width=3))
    sym = discover(model, examples([(3, 32, 32)]))
    assert sym.log_permutations == pytest.approx(sum(math.lgamma(n + 1) for n in (3, 6, 12, 24)))
    assert found_group(sym) == group("3 6 12 24", scales=2 * 45, signs=45)


TINY10 = group("2*16 3*32 3*64", scales=2 * (2 * 16 + 3 * 32 + 3 * 64), signs=2 * 16 + 3 * 32 + 3 * 64)


def test_tiny10():
    assert found_group(discover(built(Tiny10), examples([(3, 32, 32)]))) == TINY10


def test_trained_tiny10(checkpoint_folder):
    """Trained weights, in the precision they come in."""
    from safetensors.torch import load_file

    model = Tiny10().eval()
    model.load_state_dict(load_file(checkpoint_folder / "tiny10-seed0.safetensors"))
    assert found_group(discover(model, torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)))) == TINY10
