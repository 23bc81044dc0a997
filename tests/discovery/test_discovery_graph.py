"""The network as discovery saw it: outputs of layers move with the units that stand on them."""

from xml.etree import ElementTree

import pytest
import torch
from layers_moving import assert_layers_move, outputs_of_modules
from torch import nn

from architectures import discovered, made
from coset.errors import InputError
from coset.models import MLP, ResNet20
from coset.symmetry import Symmetry, discover


@pytest.mark.parametrize("name", ["resnet20, batch", "cct", "residual mlp"])
def test_every_layer_is_known(name):
    model, _, shape = made(name)
    x = torch.randn(2, *shape, dtype=torch.float64)
    sym = discovered(name)
    known = assert_layers_move(model, sym, (x,))
    leaves = {path for path, part in model.named_modules() if path and not list(part.children())}
    called = {path for path in outputs_of_modules(model, model.state_dict(), (x,)) if path in leaves}
    assert called <= set(known)


def test_layers_read_layers():
    sym = discover(MLP(4, [5, 3], 2).eval(), torch.randn(2, 4))
    reads = {layer.name: layer.reads for layer in sym.graph.layers}
    assert reads == {
        "layers.0": ("input",),
        "activations.0": ("layers.0",),
        "layers.1": ("activations.0",),
        "activations.1": ("layers.1",),
        "layers.2": ("activations.1",),
    }
    assert sym.graph.ends == ("layers.2",)
    assert sym.graph.activation("layers.1").classes == ("layers.1",)
    with pytest.raises(InputError, match="nothing is known of the output of layer 'nowhere'"):
        sym.graph.activation("nowhere")


def test_a_layer_that_is_called_twice_has_twooutputs_of_modules():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x):
            return self.last(self.layer(self.layer(x).relu()).relu())

    sym = discover(Twice().eval(), torch.randn(3, 4))
    assert {"layer", "layer#1", "last"} == set(sym.graph.activations)
    assert sym.graph.activation("layer#0") is sym.graph.activations["layer"]
    assert sym.graph.activation("layer#1") is sym.graph.activation("layer") is sym.graph.activations["layer#1"]


def test_the_graph_is_no_part_of_the_group():
    model = ResNet20(width=0.25).eval()
    sym = discover(model, torch.randn(2, 3, 8, 8))
    bare = Symmetry(sym.classes, sym.families, sym.parameters)
    assert bare == sym
    assert not bare.graph.layers
    assert len(sym.graph.layers) > 20


def test_a_picture_shows_repeated_blocks_once():
    sym = discover(ResNet20(width=0.25).eval(), torch.randn(2, 3, 8, 8))
    picture = sym.graph.to_svg()
    assert picture == sym.graph._repr_html_()
    assert "stages.0.0 … stages.0.2   × 3" in picture
    assert "stages.0.0.conv1" in picture
    assert "stages.0.1.conv1" not in picture
    ElementTree.fromstring(picture)
    dot = sym.graph.to_dot()
    assert '"stages.0.0.conv1" -> "stages.0.0.norm1";' in dot
    assert '"fc" -> "output";' in dot


def test_heads_are_boxes_around_their_units():
    """Two colours for each of queries and keys, values: one around the other."""

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v, self.o = (nn.Linear(8, 8) for _ in range(4))

        def forward(self, x):
            q, k, v = (part(x).unflatten(-1, (2, 4)).transpose(1, 2) for part in (self.q, self.k, self.v))
            return self.o(((q @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(2))

    graph = discover(Attention().eval(), torch.randn(2, 3, 8)).graph
    heads, inside = graph.activation("q").classes
    assert graph.nodes[inside].parent == heads
    assert f"{inside}: 2×4 units, permute" in graph.to_svg()


def test_looking_at_layers_changes_neither_the_model_nor_the_example():
    """Where a module hands on what it gets the model is run; this one counts its calls and writes on its input."""

    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.same, self.last = nn.Linear(4, 5), nn.Identity(), nn.Linear(5, 2)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls += 1
            return self.last(self.same(self.first(x.mul_(1.5))).relu())

    model, x = Counting().eval(), torch.ones(3, 4)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    sym = discover(model, x)
    assert sym.graph.activation("same") == sym.graph.activation("first")
    assert torch.equal(x, torch.ones(3, 4))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
