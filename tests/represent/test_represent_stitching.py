"""Stitching: planted symmetries are found outside residual blocks and not inside them; batch statistics; penalties."""

import copy

import pytest
import torch
from stitched_networks import AT_ONCE, balanced, labelled, moved, normal, seeded
from torch import Tensor, nn

from coset.errors import InputError
from coset.models import MLP, MyrtleCNN, ResNet
from coset.represent._cut import cut
from coset.represent.stitching._stitch import StitchTraining, stitch
from coset.represent.stitching.maps import make_family, sparsity
from coset.represent.stitching.penalties import stitching_penalty
from coset.symmetry import activation_function, intertwiner

NETWORKS = {
    "mlp": (lambda: MLP(5, [7, 6], 4), (5,), ["activations.0", "activations.1"]),
    "cnn with batch norm": (lambda: MyrtleCNN(width=3), (3, 32, 32), ["activation1", "pool3"]),
    "resnet": (lambda: ResNet((4, 6), 1), (3, 8, 8), ["stem", "stages.0.0", "stages.1.0.activation2"]),
}


@torch.no_grad()
@pytest.mark.parametrize("name", NETWORKS)
def test_g_relu_finds_a_planted_symmetry_where_everything_passes_the_layer(name):
    make, shape, layers = NETWORKS[name]
    x = normal(60, *shape)
    model = balanced(seeded(make), x)
    other = moved(model, x)
    data, held_out = labelled(model, x[:40]), labelled(model, x[40:])
    for layer in layers:
        stitching = stitch(model, other, layer, data, family="g-relu", training=AT_ONCE)
        torch.testing.assert_close(stitching(x), model(x), rtol=1e-7, atol=1e-7)
        penalty = stitching_penalty(stitching, held_out)
        assert (penalty.value, penalty.low, penalty.high) == (0, 0, 0)
        assert sparsity(stitching.matrix, 0.0) == pytest.approx(1 - 1 / len(stitching.matrix))


@torch.no_grad()
@pytest.mark.parametrize("layer", ["stages.0.0.activation1", "stages.1.0.activation1"])
def test_g_relu_fails_inside_residual_blocks(layer):
    x = normal(60, 3, 8, 8)
    model = balanced(seeded(lambda: ResNet((4, 6), 1)), x)
    other = moved(model, x)
    data, held_out = labelled(model, x[:40]), labelled(model, x[40:])
    stitching = stitch(model, other, layer, data, family="g-relu", training=AT_ONCE)
    # The map is the right one, and yet the skip connection carries the first network's units (E.54).
    mapped = torch.einsum("dc,nchw->ndhw", stitching.matrix, stitching.cut.features(x)[layer])
    torch.testing.assert_close(mapped, cut(other, other, layer, x).features(x)[layer], rtol=1e-7, atol=1e-7)
    assert stitching_penalty(stitching, held_out).low > 0
    # Nor does training find another.
    training = StitchTraining(epochs=4, batch_size=20, learning_rate=0.05, batch_statistics=False)
    trained = stitch(model, other, layer, data, family="g-relu", training=training)
    assert stitching_penalty(trained, held_out).low > 0


class Residual(nn.Module):
    """h = σ(W1 x), h ← h + σ(W3 σ(W2 h)), W4 h: E.46 with one block."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third, self.last = (
            nn.Linear(4, 5, bias=False),
            nn.Linear(5, 6, bias=False),
            nn.Linear(6, 5, bias=False),
            nn.Linear(5, 3, bias=False),
        )
        self.relu1, self.relu2, self.relu3 = nn.ReLU(), nn.ReLU(), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        h = self.relu1(self.first(x))
        return self.last(h + self.relu3(self.third(self.relu2(self.second(h)))))


@torch.no_grad()
def test_inside_a_block_the_ideal_map_leaves_the_inverse_of_the_stream_on_the_skip_connection():
    """(E.54): f_{>r}(A_r⁻¹ f_{≤r}(x) + g_{>j}(g_{≤j}(f_{≤r}(x)))) in the first network's weights."""
    f = seeded(Residual)
    stream = intertwiner("relu").sample(5, torch.Generator().manual_seed(1))
    inner = intertwiner("relu").sample(6, torch.Generator().manual_seed(2))
    g = copy.deepcopy(f)
    g.first.weight.copy_(stream @ f.first.weight)
    g.second.weight.copy_(inner @ f.second.weight @ stream.inverse())
    g.third.weight.copy_(stream @ f.third.weight @ inner.inverse())
    g.last.weight.copy_(f.last.weight @ stream.inverse())
    x = normal(20, 4)
    torch.testing.assert_close(g(x), f(x), rtol=1e-10, atol=1e-10)
    joined = cut(f, g, "relu2", x)
    found = joined.run(x, joined.features(x), lambda z: z @ inner.T)
    h = f.relu1(f.first(x))
    expected = f.last(h @ stream.inverse().T + f.relu3(f.third(f.relu2(f.second(h)))))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    assert float((found - f(x)).abs().max()) > 0.1
    # At the end of the block, where everything passes, the stream's element is all that is needed.
    joined = cut(f, g, "relu1", x)
    torch.testing.assert_close(joined.run(x, joined.features(x), lambda z: z @ stream.T), f(x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["relu", "tanh", "sigmoid", "gelu", "square", "abs", "cos", "leaky_relu"])
def test_phi_is_read_off_the_identity(name):
    """Lemma E.7: σ(I) has the eigenvalues σ(1) + (n−1)σ(0), once, and σ(1) − σ(0); then φ(A) = σ(A) σ(I)⁻¹."""
    n, function = 4, activation_function(name)
    of_identity = function(torch.eye(n, dtype=torch.float64))
    at_one, at_zero = (float(function(torch.tensor(value, dtype=torch.float64))) for value in (1.0, 0.0))
    expected = torch.tensor([at_one + (n - 1) * at_zero, *[at_one - at_zero] * (n - 1)], dtype=torch.float64)
    found = torch.linalg.eigvalsh(of_identity)
    torch.testing.assert_close(found, expected.sort().values, rtol=1e-12, atol=1e-12)
    assert float(found.abs().min()) > 0.1
    element = intertwiner(name).sample(n, torch.Generator().manual_seed(1))
    phi = function(element) @ of_identity.inverse()
    torch.testing.assert_close(phi, intertwiner(name).phi(element), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("activation", ["relu", "tanh", "gelu", "abs"])
def test_truncated_networks_differ_by_phi_of_the_element_at_the_cut(activation):
    """Proposition 3.4: f_{≤m}(W′) = φ(A_m) f_{≤m}(W), f_{>m}(W′) = f_{>m}(W) ∘ φ(A_m)⁻¹, and theorem 4.2."""
    group = intertwiner(activation)
    sizes = (4, 6, 5, 3)
    f = seeded(lambda: MLP(4, [6, 5], 3, activation=activation))
    g = copy.deepcopy(f)
    elements = [group.sample(n, torch.Generator().manual_seed(n)) for n in sizes[1:-1]]
    before = torch.eye(4, dtype=torch.float64)
    with torch.no_grad():
        for index, element in enumerate([*elements, torch.eye(3, dtype=torch.float64)]):
            g.layers[index].weight.copy_(element @ f.layers[index].weight @ before.inverse())
            g.layers[index].bias.copy_(element @ f.layers[index].bias)
            before = group.phi(element)
    x, other = normal(20, 4), normal(20, 4, seed=5)
    for index, element in enumerate(elements):
        phi, layer = group.phi(element), f"activations.{index}"
        joined = cut(f, g, layer, x)
        below = cut(g, g, layer, x).features(x)[layer]
        torch.testing.assert_close(below, joined.features(x)[layer] @ phi.T, rtol=1e-9, atol=1e-9)
        # Any features will do above the cut, these are of other inputs.
        z = joined.features(other)[layer]
        upper = cut(g, g, layer, x).run(x, {layer: z}, lambda z: z)
        lower = cut(f, f, layer, x).run(x, {layer: z}, lambda z, phi=phi: z @ phi.inverse().T)
        torch.testing.assert_close(upper, lower, rtol=1e-9, atol=1e-9)
        stitched = joined.run(x, joined.features(x), lambda z, phi=phi: z @ phi.T)
        torch.testing.assert_close(stitched, f(x), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("scales", [False, True])
def test_training_finds_a_planted_permutation_from_a_random_start(scales):
    model = seeded(lambda: MLP(6, [5], 8))
    order = torch.randperm(5, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        for layer in model.layers:
            # Answers clear enough to tell the units apart.
            layer.weight.mul_(3)
        other = copy.deepcopy(model)
        other.layers[0].weight.copy_(model.layers[0].weight[order])
        other.layers[0].bias.copy_(model.layers[0].bias[order])
        other.layers[1].weight.copy_(model.layers[1].weight[:, order])
    x = normal(300, 6)
    training = StitchTraining(epochs=20, learning_rate=0.02)
    stitching = stitch(
        model, other, "activations.0", labelled(model, x[:200]), start="random", training=training, scales=scales
    )
    planted = torch.eye(5, dtype=torch.float64)[order]
    assert torch.equal((stitching.matrix > 0).double(), planted)
    assert not torch.equal(stitching.relaxed, stitching.matrix)
    if not scales:
        # With scales hard labels draw these away from 1: the function is then another.
        assert torch.equal(stitching.matrix, planted)
        assert stitching_penalty(stitching, labelled(model, x[200:])).value == 0


@pytest.mark.parametrize("seed", [0, 1])
def test_training_finds_a_permutation_with_scales_between_convolutional_networks_from_a_random_start(seed):
    model = seeded(lambda: nn.Sequential(nn.Conv2d(2, 5, 3), nn.ReLU(), nn.Conv2d(5, 8, 3), nn.Flatten()), seed)
    x = normal(1200, 2, 5, 5)
    order = torch.randperm(5, generator=torch.Generator().manual_seed(3))
    scales = torch.logspace(-0.3, 0.3, 5, dtype=torch.float64)
    with torch.no_grad():
        model[0].weight.mul_(3)
        model[2].bias.sub_(model(x).mean(0))
        # Answers so clear that only the right scales give them all: labels that are in doubt draw scales away.
        for parameter in model[2].parameters():
            parameter.mul_(18)
        best, second = model(x).topk(2).values.unbind(1)
        x = x[best - second > (best - second).median()]
        other = copy.deepcopy(model)
        other[0].weight.copy_(model[0].weight[order] * scales[:, None, None, None])
        other[0].bias.copy_(model[0].bias[order] * scales)
        other[2].weight.copy_(model[2].weight[:, order] / scales[:, None, None])
        torch.testing.assert_close(other(x), model(x), rtol=1e-10, atol=1e-10)
    data, held_out = labelled(model, x[:400]), labelled(model, x[400:])
    planted = torch.eye(5, dtype=torch.float64)[order]

    def found(epochs: int):
        training = StitchTraining(epochs=epochs, learning_rate=0.02, batch_statistics=False)
        return stitch(model, other, "1", data, family="g-relu", start="random", training=training)

    begun, trained = found(0), found(20)
    assert not torch.equal((begun.matrix > 0).double(), planted)
    assert stitching_penalty(begun, held_out).low > 0
    assert torch.equal((trained.matrix > 0).double(), planted)
    assert stitching_penalty(trained, held_out).value == 0
    # Scales begin at 1, and those planted differ by a factor of 4.
    beside = trained.matrix.sum(1) / scales
    assert float(beside.max() / beside.min()) < 2


def test_scales_stay_fixed_for_the_head_start():
    model, other = seeded(lambda: MLP(5, [6], 3), 0), seeded(lambda: MLP(5, [6], 3), 1)
    data = labelled(model, normal(64, 5))
    for head_start, moves in ((2, False), (1, True)):
        training = StitchTraining(epochs=2, head_start=head_start, learning_rate=0.1)
        stitching = stitch(model, other, "activations.0", data, start="random", training=training)
        scales = stitching.matrix.sum(0)
        assert bool((scales != 1).any()) == moves


@pytest.mark.parametrize("name", ["full", "rank", "g-relu", "softsort", "l1", "orthogonal"])
def test_every_family_trains_reproducibly_and_lowers_the_loss(name):
    options = {"rank": {"rank": 3}, "l1": {"penalty": 1e-4}}.get(name, {})
    model, other = seeded(lambda: MLP(5, [6], 3), 0), seeded(lambda: MLP(5, [6], 3), 1)
    data = labelled(other, normal(64, 5))
    training = StitchTraining(epochs=4, learning_rate=0.1, batch_size=16)

    def run(seed: int):
        return stitch(
            model, other, "activations.0", data, family=name, start="random", training=training, seed=seed, **options
        )

    first, again, else_ = run(0), run(0), run(1)
    assert torch.equal(first.matrix, again.matrix)
    assert first.losses == again.losses
    assert not torch.equal(first.relaxed, else_.relaxed)
    assert first.losses[-1] < first.losses[0]
    if name == "orthogonal":
        eye = torch.eye(6, dtype=torch.float64)
        torch.testing.assert_close(first.matrix @ first.matrix.T, eye, rtol=0, atol=1e-12)


def test_without_epochs_the_full_map_is_least_squares_between_the_features():
    model, other = seeded(lambda: MLP(5, [6], 3), 0), seeded(lambda: MLP(5, [7], 3), 1)
    x = normal(64, 5)
    stitching = stitch(model, other, "activations.0", labelled(other, x), family="full", training=AT_ONCE)
    a = model.activations[0](model.layers[0](x))
    b = other.activations[0](other.layers[0](x))
    torch.testing.assert_close(stitching.matrix, torch.linalg.lstsq(a, b).solution.T, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(stitching(x), other.layers[1](a @ stitching.matrix.T), rtol=1e-10, atol=1e-10)


def test_networks_of_different_types_of_numbers_are_stitched_in_that_of_the_second():
    model, other = seeded(lambda: MLP(5, [6], 3), 0).float(), seeded(lambda: MLP(5, [6], 3), 0)
    x = normal(40, 5)
    stitching = stitch(model, other, "activations.0", labelled(other, x), training=AT_ONCE)
    assert stitching(x).dtype == torch.float64
    torch.testing.assert_close(stitching(x), other(x), rtol=1e-5, atol=1e-5)


def test_kept_features_and_computed_ones_give_the_same_map():
    model, other = seeded(lambda: MLP(5, [6], 3), 0), seeded(lambda: MLP(5, [6], 3), 1)
    data, training = labelled(other, normal(64, 5)), StitchTraining(epochs=2)
    kept = stitch(model, other, "activations.0", data, training=training)
    computed = stitch(model, other, "activations.0", data, training=training, kept_bytes=0)
    torch.testing.assert_close(kept.relaxed, computed.relaxed, rtol=1e-12, atol=1e-12)


def test_tokens_are_stitched_on_their_channels():
    model = seeded(lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2), nn.Flatten()))
    other = copy.deepcopy(model)
    element = intertwiner("relu").sample(4, torch.Generator().manual_seed(1))
    with torch.no_grad():
        other[0].weight.copy_(element @ model[0].weight)
        other[0].bias.copy_(element @ model[0].bias)
        other[2].weight.copy_(model[2].weight @ element.inverse())
    x = normal(30, 6, 3)
    stitching = stitch(model, other, "1", labelled(model, x), training=AT_ONCE)
    assert stitching.channel_axis == 2
    torch.testing.assert_close(stitching.matrix, element, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(stitching(x), model(x), rtol=1e-8, atol=1e-8)


def test_refreshed_batch_statistics_are_those_of_the_stitched_network():
    make = lambda: nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))  # noqa: E731
    model, other = seeded(make, 0), seeded(make, 1)
    x = normal(80, 5)
    data = labelled(model, x)
    state = copy.deepcopy(other.state_dict())
    stitching = stitch(model, other, "1", data, training=StitchTraining(epochs=1))
    norm = stitching.cut.above[3]
    reads = other[2](model[1](model[0](x)) @ stitching.matrix.T)
    # All examples are one batch of the last pass.
    torch.testing.assert_close(norm.running_mean, reads.mean(0), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(norm.running_var, reads.var(0), rtol=1e-10, atol=1e-10)
    assert norm.momentum == 0.1
    assert not norm.training
    assert all(torch.equal(value, state[key]) for key, value in other.state_dict().items())
    own = stitch(model, other, "1", data, training=StitchTraining(epochs=1, batch_statistics=False))
    assert torch.equal(own.cut.above[3].running_mean, other[3].running_mean)


def test_a_refresh_recovers_statistics_that_were_lost():
    model = seeded(lambda: MyrtleCNN(width=2))
    x = normal(30, 3, 32, 32)
    spoiled = copy.deepcopy(model)
    for norm in (spoiled.norm3, spoiled.norm4):
        norm.running_mean.add_(3)
        norm.running_var.mul_(7)
    data = labelled(model, x)
    for training, recovered in ((AT_ONCE, False), (StitchTraining(epochs=0), True)):
        whole, mended = (stitch(model, above, "activation2", data, training=training) for above in (model, spoiled))
        assert torch.allclose(whole(x), mended(x), rtol=1e-10, atol=1e-10) == recovered


def test_wrong_input_is_named():
    model, wide = seeded(lambda: MLP(5, [6], 3), 0), seeded(lambda: MLP(5, [7], 3), 1)
    data = labelled(model, normal(20, 5))
    with pytest.raises(InputError, match=r"6 channels and 'activations\.0' of the second model 7"):
        stitch(model, wide, "activations.0", data)
    with pytest.raises(InputError, match=r"data is a tensor of shape .*; expected inputs and targets"):
        stitch(model, model, "activations.0", data[0])
    with pytest.raises(InputError, match="start is 'zero'"):
        stitch(model, model, "activations.0", data, start="zero")
    with pytest.raises(InputError, match="labels from 0 to 9"):
        stitch(model, model, "activations.0", (data[0], torch.arange(20) % 10))
    with pytest.raises(InputError, match="are given with a family that is made"):
        stitch(model, model, "activations.0", data, family=make_family("full"), rank=2)
    with pytest.raises(InputError, match="batch_size is 1"):
        StitchTraining(batch_size=1)
    for name, value in (("learning_rate", "a"), ("learning_rate", None), ("momentum", "a"), ("momentum", True)):
        with pytest.raises(InputError, match=f"{name} is {value!r}; expected a number"):
            StitchTraining(**{name: value})
    with pytest.raises(InputError, match="batch_statistics is 'no'; expected True or False"):
        StitchTraining(batch_statistics="no")
    wrong = data[0], (data[1] + 1) % 3
    training = StitchTraining(epochs=10, learning_rate=1e308)
    with pytest.raises(InputError, match=r"in epoch \d+ of stitching; expected a learning_rate below"):
        stitch(model, model, "activations.0", wrong, family="full", training=training)
