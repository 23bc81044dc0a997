"""Fitted curves: their optimum in closed form, their gradients by autograd, and a barrier they go around."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from architectures import made, randomized
from coset.errors import InputError
from coset.landscape import Bezier, PolygonalChain, barrier, fit_curve, linear, loss, on
from coset.landscape._criterion import mean_loss
from coset.landscape._curves import KINDS
from coset.landscape._fitting import _Fit
from coset.symmetry import Symmetry
from coset.train import DivergenceError

X = torch.randn(64, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
LABELS = (X[:, 0] * X[:, 1] > 0).long()


# The best bend m of one weight under the loss (θ − t)² + λ/2·θ², from ∫ w(τ)·∂loss(θ(τ)) dτ = 0, t' = t/(1 + λ/2):
# Bézier, w = 2τ(1−τ): (a + b)/20 + m/15 = t'/6; chain, w = 1 − |1 − 2τ|: (a + b)/12 + m/3 = t'/2.
@pytest.mark.parametrize(
    ("kind", "best"),
    [("bezier", lambda a, b, t: 2.5 * t - 0.75 * (a + b)), ("chain", lambda a, b, t: 1.5 * t - 0.25 * (a + b))],
)
@pytest.mark.parametrize("decay", [0.0, 0.5])
def test_the_bend_finds_its_optimum(kind, best, decay):
    model = nn.Linear(1, 1, bias=False).double()
    a, b = ({"weight": torch.tensor([[value]], dtype=torch.float64)} for value in (-1.0, 1.5))
    x = torch.ones(1, 1, dtype=torch.float64)
    options = {"kind": kind, "criterion": "mse", "learning_rate": 0.2, "steps": 300, "weight_decay": decay}
    found = [fit_curve(model, a, b, (x, 2 * x), **options, seed=seed).control[1]["weight"].item() for seed in range(4)]
    # What the random τ leave of noise, 0.2 in each run; the decay moves the optimum by 0.6 and more, the kind by 1.3.
    assert sum(found) / 4 == pytest.approx(best(-1.0, 1.5, 2.0 / (1 + decay / 2)), abs=0.2)


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["tied embeddings", "mlp, batch norm", "residual mlp"])
def test_gradients_are_those_through_the_curve(name, kind, decay):
    model, _, shape = made(name)
    generator = torch.Generator().manual_seed(0)
    a, b = randomized(model, generator), randomized(model, generator)
    x = torch.randn(6, *shape, generator=generator, dtype=torch.float64)
    y = model(x).detach() + 1
    fit = _Fit(model, (a, b), KINDS[kind], 2, mean_loss("mse"), decay)
    bends = [{n: t.clone().requires_grad_(n in fit.trained) for n, t in bend.items()} for bend in fit.bends]
    ends = [{n: end[n] for n in bends[0]} for end in (a, b)]
    for tau in (0.2, 0.55):
        point = KINDS[kind]([ends[0], *bends, ends[1]])(tau)
        value = (torch.func.functional_call(model, point, (x,)) - y).square().mean()
        total = value + decay / 2 * sum(point[n].square().sum() for n in fit.trained)
        leaves = [bend[n] for bend in bends for n in fit.trained]
        expected = torch.autograd.grad(total, leaves, materialize_grads=True)
        assert fit.step(tau, x, y, 0.0) == pytest.approx(float(value.detach()), rel=1e-12)
        for found, gradient in zip((bend[n].grad for bend in fit.bends for n in fit.trained), expected, strict=True):
            torch.testing.assert_close(found, gradient, rtol=1e-9, atol=1e-11)


def permuted_pair():
    """A small network that has learnt a task, and a copy of it with its hidden units in another order."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).double()
        optimizer = torch.optim.Adam(model.parameters(), 0.05)
        for _ in range(150):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(X), LABELS).backward()
            optimizer.step()
    axes = {"0.weight": "h", "0.bias": "h", "2.weight": "- /h"}
    sym = Symmetry.from_axes(axes, model)
    a = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    return model, a, sym.act(sym.element({"h": torch.arange(8).roll(3)}), a)


@pytest.mark.parametrize(
    ("kind", "bends", "form"), [("bezier", 1, Bezier), ("bezier", 3, Bezier), ("chain", 2, PolygonalChain)]
)
def test_a_curve_goes_around_the_barrier_between_permuted_copies(kind, bends, form):
    model, a, b = permuted_pair()
    data = (X, LABELS)
    straight = barrier(linear(a, b), loss(model, data))
    curve = fit_curve(model, a, b, data, kind=kind, bends=bends, steps=500, learning_rate=0.03, batch_size=64)
    bent = barrier(curve, loss(model, data))
    assert straight.barrier > 0.3
    assert bent.barrier < 0.1 * straight.barrier
    assert isinstance(curve.curve, form)
    assert len(curve.control) == bends + 2
    assert all(torch.equal(curve(tau)[name], end[name]) for tau, end in ((0, a), (1, b)) for name in a)
    assert [step.number for step in curve.history] == list(range(1, 501))
    assert 0.45 < sum(step.tau for step in curve.history) / 500 < 0.55
    assert not any(tensor.requires_grad for point in curve.control for tensor in point.values())


def batchnorm_network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, 2)).double()


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("kind", KINDS)
def test_buffers_and_frozen_parameters_stay_on_the_line_and_nothing_else_changes(mode, kind):
    model = batchnorm_network()
    model[4].bias.requires_grad_(False)
    model[3].eval()
    generator = torch.Generator().manual_seed(1)
    a, b = randomized(model, generator), randomized(model, generator)
    kept = copy.deepcopy((a, b, model.state_dict()))
    modes, state = [module.training for module in model.modules()], torch.get_rng_state()
    curve = fit_curve(model, a, b, (X, LABELS), kind=kind, bends=2, steps=4, mode=mode)
    for found, expected in zip((a, b, model.state_dict()), kept, strict=True):
        assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state)
    line, still = linear(a, b), {"1.running_mean", "1.running_var", "1.num_batches_tracked", "4.bias"}
    for tau in (0.1, 0.5, 0.9):
        for name, tensor in curve(tau).items():
            close = torch.allclose(tensor, line(tau)[name], rtol=1e-13, atol=0)
            assert close == (name in still), name


def test_the_mode_decides_which_statistics_normalise():
    model = batchnorm_network()
    a = randomized(model, torch.Generator().manual_seed(1))
    first = {mode: fit_curve(model, a, a, (X, LABELS), steps=1, batch_size=64, mode=mode) for mode in ("eval", "train")}
    with torch.no_grad():
        model.load_state_dict(a)
        expected = float(nn.functional.cross_entropy(model.eval()(X), LABELS))
    assert first["eval"].history[0].loss == pytest.approx(expected, rel=1e-12)
    assert first["train"].history[0].loss != pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("shuffle", ["tensors", "loader"])
def test_the_same_seed_gives_the_same_curve(shuffle):
    model = batchnorm_network()
    generator = torch.Generator().manual_seed(1)
    a, b = randomized(model, generator), randomized(model, generator)
    data = (X, LABELS) if shuffle == "tensors" else DataLoader(TensorDataset(X, LABELS), 16, shuffle=True)

    def run(seed, noise):
        def callback(step):
            # What a callback draws must not matter.
            if noise:
                torch.rand(3)

        return fit_curve(model, a, b, data, steps=12, batch_size=16, mode="train", seed=seed, callback=callback)

    one, two, other = run(0, False), run(0, True), run(1, False)
    assert one.history == two.history != other.history
    assert all(torch.equal(one(0.3)[name], two(0.3)[name]) for name in a)


def test_tied_weights_stay_tied():
    model, _, shape = made("tied embeddings")
    generator = torch.Generator().manual_seed(0)
    a, b = randomized(model, generator), randomized(model, generator)
    x = torch.randn(8, *shape, generator=generator, dtype=torch.float64)
    curve = fit_curve(model, a, b, (x, model(x).detach()), criterion="mse", steps=5)
    point = curve(0.5)
    assert point["head.weight"] is point["embed.weight"]
    assert not torch.equal(point["embed.weight"], linear(a, b)(0.5)["embed.weight"])
    assert (
        barrier(curve, on(model, criterion="mse", train=(x, model(x).detach())), points=3)["train loss"].values[1] > 0
    )


def test_a_callback_stops_the_fit():
    model = batchnorm_network()
    a = randomized(model, torch.Generator().manual_seed(1))
    curve = fit_curve(model, a, a, (X, LABELS), steps=50, callback=lambda step: step.number == 7)
    assert curve.stopped
    assert len(curve.history) == 7
    assert not fit_curve(model, a, a, (X, LABELS), steps=2).stopped


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "spline"}, "kind is 'spline'; expected one of bezier, chain"),
        ({"kind": ["bezier"]}, r"kind is \['bezier'\]; expected one of bezier, chain"),
        ({"mode": "training"}, "mode is 'training'; expected 'eval' or 'train'"),
        ({"bends": 0}, "bends is 0; expected a whole number of at least 1"),
        ({"steps": 0}, "steps is 0; expected a whole number of at least 1"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"seed": -1}, "seed is -1; expected a whole number of at least 0"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0; expected a positive number"),
        ({"learning_rate": "a"}, "learning_rate is 'a'; expected a positive number"),
        ({"weight_decay": None}, "weight_decay is None; expected a number of at least 0"),
        ({"weight_decay": -1.0}, "weight_decay is -1.0; expected a number of at least 0"),
        ({"criterion": "nll"}, "criterion is 'nll'"),
        ({"data": (X[:0], LABELS[:0])}, "data holds inputs of shape"),
        ({"data": []}, "data holds no batches"),
        ({"data": iter([(X, LABELS)])}, "data is a list_iterator, which can be read only once"),
        ({"data": (X[:, :3], LABELS)}, "data: the model cannot take inputs of shape"),
        (
            {"data": (X[:5], LABELS[:5]), "batch_size": 4, "mode": "train"},
            "the model cannot take a batch of 1: Expected mo",
        ),
        ({"b": {}}, "b has no parameters; expected at least one"),
        ({"b": {"0.weight": X}}, "a has '0.bias' and b has not"),
    ],
)
def test_bad_input_is_refused(options, message):
    model = batchnorm_network()
    a = randomized(model, torch.Generator().manual_seed(1))
    given = {"a": a, "b": a, "data": (X, LABELS)} | options
    with pytest.raises(InputError, match=message):
        fit_curve(model, given.pop("a"), given.pop("b"), given.pop("data"), **given)


def test_inputs_take_the_type_of_the_weights():
    model = nn.Linear(4, 2)
    a, b = (randomized(model, torch.Generator().manual_seed(seed)) for seed in range(2))
    a, b = ({name: tensor.float() for name, tensor in end.items()} for end in (a, b))
    wide = fit_curve(model, a, b, (X, LABELS), steps=3)
    single = fit_curve(model, a, b, (X.float(), LABELS), steps=3)
    assert wide.history == single.history


def test_a_model_without_anything_to_train_is_refused():
    model = batchnorm_network().requires_grad_(False)
    a = randomized(model, torch.Generator().manual_seed(1))
    with pytest.raises(InputError, match="model has no parameter that requires gradients"):
        fit_curve(model, a, a, (X, LABELS))


def test_divergence_is_told():
    model = nn.Linear(4, 2).double()
    a = randomized(model, torch.Generator().manual_seed(1))
    with pytest.raises(DivergenceError, match=r"the loss is (nan|inf) at step \d+, τ = .*; a lower learning_rate may"):
        fit_curve(model, a, a, (X, X[:, :2]), criterion="mse", learning_rate=1e200, steps=20)
