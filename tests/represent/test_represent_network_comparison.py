"""Two networks compared layer by layer: the numbers of the measures, orbits, different shapes; the figure."""

import csv
import io

import pytest
import torch
from stitched_networks import balanced, moved, normal, seeded
from torch import nn

from coset.errors import InputError
from coset.models import CCT, MLP, ResNet
from coset.represent import (
    called_layers,
    cka,
    cka_interval,
    compare_layers,
    compare_networks,
    features,
    hsic,
    layer_groups,
    layers_before_weights,
    plot_layers,
    procrustes,
    procrustes_interval,
)
from coset.represent.layer_choice import groups_of_comparable, matching_layers
from coset.represent.similarity import LayerMatrix
from coset.represent.similarity import network_comparison as comparison_module
from coset.represent.similarity._cka import shared_kernel, side_of
from coset.represent.unit_groups import orthogonal, permutation, trivial
from coset.symmetry import discover

LAYERS = ("activations.0", "activations.1", "layers.2")


def mlp(seed, widths=(6, 5)):
    return seeded(lambda: MLP(4, list(widths), 3), seed)


def groups(model, layers=LAYERS):
    return layer_groups(discover(model.float(), torch.randn(2, 4), verify=False), model.double(), layers, normal(6, 4))


@pytest.fixture(scope="module")
def compared():
    a, b, x = mlp(0), mlp(1), normal(40, 4)
    found = groups(a)
    return a, b, x, found, compare_networks(a, b, x, found, seed=3, draws=20)


def test_the_numbers_are_those_of_the_measures(compared):
    a, b, x, acting, found = compared
    fx, fy = features(a, x, LAYERS), features(b, x, LAYERS)
    assert [pair.layer_x for pair in found.pairs] == list(LAYERS)
    for pair in found.pairs:
        name = pair.layer_x
        for way, group in (("own", acting[name]), ("orthogonal", "orthogonal")):
            expected = cka_interval(fx[name], fy[name], group=group, seed=3, draws=20)
            assert pair.cka[way].value == pytest.approx(expected.value, abs=1e-12)
            torch.testing.assert_close(pair.cka[way].draws, expected.draws, rtol=1e-10, atol=1e-10)
            distance = procrustes_interval(fx[name], fy[name], group=group, seed=3, draws=20)
            assert pair.procrustes[way].value == pytest.approx(1 - distance.value, abs=1e-12)
            assert pair.procrustes[way].low == pytest.approx(1 - distance.high, abs=1e-12)
        assert pair.note is None
    assert [pair.advice_x.invariant for pair in found.pairs] == ["own only", "own only", "all"]
    for i, one in enumerate(LAYERS):
        for j, other in enumerate(LAYERS):
            value = cka(fx[one], fy[other])
            assert float(found.matrices["orthogonal"].similarity[i, j]) == pytest.approx(value, abs=1e-12)


def test_few_features_are_held_at_a_time(compared, monkeypatch):
    a, b, x, acting, found = compared
    monkeypatch.setattr(comparison_module, "_KEPT", 1)
    again = compare_networks(a, b, x, acting, seed=3, draws=20)
    assert torch.equal(again.matrices["own"].similarity, found.matrices["own"].similarity)


DISCOVERED = {
    "mlp, tanh": (lambda: MLP(4, [6, 5], 3, activation="tanh"), (4,)),
    "mlp, batch norm": (lambda: MLP(4, [6, 5], 3, norm="batch"), (4,)),
    "resnet": (lambda: ResNet((4, 6), 1), (3, 8, 8)),
    "cct": (lambda: CCT(dim=8, heads=2, depth=1, image_size=8), (3, 8, 8)),
}


@torch.no_grad()
@pytest.mark.parametrize("name", DISCOVERED)
def test_networks_related_by_a_symmetry_are_equal_at_every_layer_of_a_discovered_model(name):
    make, shape = DISCOVERED[name]
    x = normal(12, *shape)
    model = balanced(seeded(make), x)
    other = moved(model, x)
    sym = discover(seeded(make).float(), torch.randn(2, *shape), verify=False)
    called = called_layers(model, x[:2])
    acting, refused = groups_of_comparable(sym, model, called, x)
    assert len(acting) >= 5
    assert all("channels" in reason or "axis" in reason for reason in refused.values())
    found = compare_networks(model, other, x, acting, seed=0, draws=2)
    for pair in found.pairs:
        assert pair.procrustes["own"].value == pytest.approx(1, abs=1e-7), pair.layer_x
        assert pair.cka["own"].value == pytest.approx(1, abs=1e-7), pair.layer_x
        if pair.advice_x.orthogonal:
            # What the advice says of orthogonal measures.
            assert pair.procrustes["orthogonal"].value == pytest.approx(1, abs=1e-7), pair.layer_x
            assert pair.cka["orthogonal"].value == pytest.approx(1, abs=1e-7), pair.layer_x
    scaled = [pair.cka["orthogonal"].value for pair in found.pairs if not pair.advice_x.orthogonal]
    assert min(scaled, default=0) < 0.999


def test_networks_of_different_shape_are_compared_where_that_is_defined():
    a, b, x = mlp(0), mlp(1, (7, 5)), normal(30, 4)
    found = compare_networks(a, b, x, groups(a), groups(b), seed=0, draws=5)
    first = found.pairs[0]
    expected = procrustes(*(features(m, x, LAYERS[:1])[LAYERS[0]] for m in (a, b)), group="permutation")
    assert first.procrustes["own"].value == pytest.approx(expected.similarity, abs=1e-12)
    assert str(first.advice_y.group) == "SR(7)"
    # Of a layer that moves and one that does not, no group acts on both.
    crossed = compare_networks(
        a, a, x, {LAYERS[0]: groups(a)[LAYERS[0]]}, {LAYERS[2]: groups(a)[LAYERS[2]]}, seed=0, draws=5
    )
    (pair,) = crossed.pairs
    assert pair.procrustes["own"] is None
    assert pair.note == "different groups, Procrustes needs one that acts on both"
    assert 0 < pair.procrustes["orthogonal"].value < 1
    conv = seeded(lambda: nn.Sequential(nn.Conv2d(1, 3, 2), nn.Flatten()))
    images = x.reshape(30, 1, 2, 2)
    acting = {"0": permutation(3)}
    flat = compare_networks(conv, a, images, acting, {LAYERS[0]: groups(a)[LAYERS[0]]}, inputs_y=x, seed=0, draws=5)
    assert flat.pairs[0].procrustes["own"] is not None


def test_bad_input_is_refused(compared):
    a, b, x, acting, _ = compared
    with pytest.raises(InputError, match="inputs have 3 examples; the unbiased HSIC needs at least 4"):
        compare_networks(a, b, x[:3], acting, seed=0)
    with pytest.raises(InputError, match="inputs has 40 examples and inputs_y 39"):
        compare_networks(a, b, x, acting, inputs_y=x[1:], seed=0)
    with pytest.raises(InputError, match="groups_x has 3 layers and groups_y 1"):
        compare_networks(a, b, x, acting, {"layers.2": acting["layers.2"]}, seed=0)
    with pytest.raises(
        InputError, match=r"layer 'activations\.0' of x has features that do not tell the examples apart"
    ):
        compare_networks(a, b, x[:1].expand(10, -1), acting, seed=0)
    with pytest.raises(InputError, match=r"'activations\.9' is no layer of MLP"):
        compare_networks(a, b, x, {"activations.9": acting["layers.2"]}, seed=0)


def test_layers_before_weights_and_patterns():
    model = seeded(lambda: ResNet((4, 6), 1))
    x = normal(2, 3, 8, 8)
    assert matching_layers(model, ["stages.0.*.activation?", "stem"], x) == (
        "stages.0.0.activation1",
        "stages.0.0.activation2",
        "stem",
    )
    with pytest.raises(InputError, match=r"no layer that is called matches 'relu\*'; there are"):
        matching_layers(model, ["relu*"], x)
    shared = nn.ReLU()
    twice = nn.Sequential(nn.Linear(4, 4), shared, nn.Linear(4, 4), shared, nn.Linear(4, 2)).double()
    assert called_layers(twice, normal(2, 4)) == ("0", "1#0", "2", "1#1", "4")
    assert layers_before_weights(twice, normal(2, 4)) == ("1#0", "1#1", "4")
    assert not any(module._forward_hooks for module in twice.modules())


class Branches(nn.Module):
    """σ4(norm(W2 σ1(W1 x)) + W3 σ1(W1 x)) to W5, with σ3(σ1(W1 x)) beside it: calls are not in the order of reading."""

    def __init__(self):
        super().__init__()
        self.first, self.inner, self.shortcut = nn.Linear(4, 5), nn.Linear(5, 6), nn.Linear(5, 6)
        self.norm, self.last, self.unused = nn.LayerNorm(6), nn.Linear(6, 3), nn.Linear(6, 2)
        self.relu1, self.beside, self.relu4, self.gate = nn.ReLU(), nn.Tanh(), nn.ReLU(inplace=True), nn.Sigmoid()

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        h = self.relu1(self.first(x))
        side = self.beside(h)
        branch = self.norm(self.inner(h.reshape(-1, 5)))
        h = self.relu4(branch + self.shortcut(h))
        return {"main": self.last(h) * self.gate(side).sum(1, keepdim=True)}


@pytest.mark.parametrize("norm", [nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.spectral_norm])
def test_modules_that_make_weights_are_no_layers(norm):
    model = nn.Sequential(norm(nn.Linear(4, 5)), nn.ReLU(), norm(nn.Linear(5, 3))).double()
    assert layers_before_weights(model, normal(2, 4)) == ("1", "2")


def test_layers_before_weights_go_by_what_is_read():
    model, x = seeded(Branches), normal(3, 4)
    assert called_layers(model, x) == (
        "first", "relu1", "beside", "inner", "norm", "shortcut", "relu4", "last", "gate",
    )  # fmt: skip
    # "beside" and "norm" are called right before weights, which read other layers.
    assert layers_before_weights(model, x) == ("relu1", "relu4", "last", "gate")
    frozen = seeded(Branches).requires_grad_(False)
    assert layers_before_weights(frozen, x) == ("relu1", "relu4", "last", "gate")
    assert not any(parameter.requires_grad for parameter in frozen.parameters())
    # The convolution of the shortcut is called behind the last normalisation of its block.
    resnet = seeded(lambda: ResNet((4, 6), 1))
    assert layers_before_weights(resnet, normal(2, 3, 8, 8)) == (
        "stem.activation",
        "stages.0.0.activation1",
        "stages.0.0.activation2",
        "stages.1.0.activation1",
        "stages.1.0.activation2",
        "fc",
    )
    words = nn.Sequential(nn.Embedding(7, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    assert layers_before_weights(words, torch.tensor([[1, 2]])) == ("1", "2")


def test_hooks_are_gone_after_an_exception():
    model = mlp(0)
    for function in (called_layers, layers_before_weights):
        with pytest.raises(RuntimeError):
            function(model, normal(2, 9))
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_the_figure_shows_every_number_with_its_layers(compared):
    matrices = compared[-1].matrices
    figure = plot_layers(matrices, x="first", y="second")
    panels, bar = figure.axes[:2], figure.axes[2]
    assert bar.get_ylabel() == "CKA"
    for panel, matrix in zip(panels, matrices.values(), strict=True):
        image = torch.tensor(panel.images[0].get_array().tolist(), dtype=torch.float64)
        assert torch.equal(image, matrix.similarity)
        assert [label.get_text() for label in panel.get_xticklabels()] == list(LAYERS)
        written = [text.get_text() for text in panel.texts if text.get_text()]
        assert written[0] == f"{float(matrix.similarity[0, 0]):.2f}".replace("0.", ".")
        assert len(written) == 9
    assert [panel.get_xlabel() for panel in panels] == ["second\nkernel: max, framed: linear", "second\nkernel: linear"]
    assert [len(panel.patches) for panel in panels] == [1, 0]
    assert panels[0].patches[0].get_center() == pytest.approx((2, 2))
    assert panels[0].get_ylabel() == "first"
    small = LayerMatrix("cka", ("a",), ("b",), torch.tensor([[-0.001]]))
    assert plot_layers({"one": small}).axes[0].texts[0].get_text() == ".00"
    with pytest.raises(InputError, match="expected at least one LayerMatrix by label"):
        plot_layers({})


def test_numbers_of_a_matrix_are_written_as_they_are(compared):
    matrix = compared[-1].matrices["own"]
    rows = list(csv.reader(io.StringIO(matrix.to_csv())))
    assert rows[0] == ["layer of x", "layer of y", "cka", "kernel"]
    assert rows[2][:2] == [LAYERS[0], LAYERS[1]]
    assert float(rows[2][2]) == float(matrix.similarity[0, 1])
    assert [row[3] for row in rows[1:]] == ["max"] * 8 + ["sum"]
    assert matrix.to_dict()["similarity"] == matrix.similarity.tolist()
    assert matrix.to_dict()["kernels"] == [["max"] * 3, ["max"] * 3, ["max", "max", "sum"]]


def test_both_layers_of_a_pair_have_one_kernel(compared):
    """Of a layer whose units change places and one whose do not, both have the max kernel, each with its group."""
    a, b, x, acting, found = compared
    for matrix in (
        found.matrices["own"],
        compare_layers(a, b, x, LAYERS, group=acting, batch_size=len(x)),
    ):
        for i, first in enumerate(LAYERS):
            for j, second in enumerate(LAYERS):
                kernel = "sum" if i == j == 2 else "max"
                assert matrix.kernels[i][j] == kernel
                sides = [
                    (features(model, x, [name])[name][:, :, None], acting[name])
                    for model, name in ((a, first), (b, second))
                ]
                k, l = (side_of([part], group, kernel, "x").matrix(part) for part, group in sides)  # noqa: E741
                expected = hsic(k, l) / (hsic(k, k) * hsic(l, l)) ** 0.5
                assert float(matrix.similarity[i, j]) == pytest.approx(expected, abs=1e-12)
    assert [pair.kernel for pair in found.pairs] == ["max", "max", "sum"]
    assert shared_kernel(permutation(3), orthogonal(3)) == "sum"
    assert shared_kernel(orthogonal(3), trivial(3)) == "sum"


def test_equal_networks_are_no_more_than_equal(compared):
    a, _, x, acting, _ = compared
    found = compare_networks(a, a, x, acting, seed=0, draws=20)
    for matrix in found.matrices.values():
        assert float(matrix.similarity.max()) <= 1
    for pair in found.pairs:
        for one in (*pair.cka.values(), *pair.procrustes.values()):
            assert one.value == pytest.approx(1, abs=1e-12)
            assert 1 - 1e-7 < one.low <= one.high <= 1
