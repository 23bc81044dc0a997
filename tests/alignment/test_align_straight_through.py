"""The straight-through estimator: its derivative, planted networks brought back, guarantees, and a real pair."""

import math

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from architectures import made, randomized
from coset.alignment import align
from coset.alignment.matching.losses import Setting, objective_of
from coset.alignment.matching.sinkhorn_operator import matrix_of
from coset.alignment.matching.straight_through import _straight_through, match_straight_through
from coset.errors import InputError
from coset.models import MLP, build
from coset.symmetry import discover


def rings(seed, count=120):
    """Two rings around the origin, in float64, labelled."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % 2
    angle = 6.3 * torch.rand(count, generator=generator, dtype=torch.float64)
    radius = 1 + y + 0.1 * torch.randn(count, generator=generator, dtype=torch.float64)
    return torch.stack([radius * torch.cos(angle), radius * torch.sin(angle)], 1), y


@pytest.fixture(scope="module")
def network():
    """A trained MLP with batch norm and its symmetry."""
    x, y = rings(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = MLP(2, [8], 2, norm="batch").double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    for _ in range(150):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    model.eval()
    return model, discover(model, x[:4]), {key: tensor.clone() for key, tensor in model.state_dict().items()}


def moved(sym, params, seed, **parts):
    """The same function under a random element, of which only some parts."""
    g = sym.restrict(**parts).random(torch.Generator().manual_seed(seed))
    return sym.act(sym.element(g.permutations, g.scales, g.signs), params)


def test_forward_is_the_assignment_and_backward_the_identity():
    matrix = torch.randn(3, 5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    hard = _straight_through(matrix)
    assert torch.equal(hard.sum(-1), torch.ones(3, 5, dtype=torch.float64))
    assert torch.equal(hard.argmax(-1).sort(-1).values, torch.arange(5).expand(3, 5))
    assert set(hard.detach().unique().tolist()) == {0.0, 1.0}
    upstream = torch.randn(3, 5, 5, dtype=torch.float64)
    (gradient,) = torch.autograd.grad((hard * upstream).sum(), matrix)
    assert torch.equal(gradient, upstream)
    eye = matrix_of(torch.arange(4), torch.float64)
    assert torch.equal(_straight_through(eye), eye)


@pytest.mark.parametrize("name", ["residual mlp", "grouped-query attention", "concatenation"])
def test_planted_permutations_are_recovered_by_the_distance(name):
    model, sym, _ = made(name)
    reference = randomized(model, torch.Generator().manual_seed(0))
    other = moved(sym, reference, 1, scales=False, signs=False)
    result = match_straight_through(
        sym, reference, other, objective="l2", scales=False, steps=400, learning_rate=0.05, every=5
    )
    assert result.method == "ste"
    assert result.history[0] < -0.01
    assert result.objective == 0.0
    for key, tensor in reference.items():
        assert torch.equal(result.params[key], tensor)


def test_the_midpoint_loss_falls_and_is_what_is_reported(network):
    model, sym, a = network
    b, data = moved(sym, a, 1), rings(1)
    options = {"model": model, "data": data, "batch_size": 120, "examples": 120, "every": 5, "steps": 100}
    result = match_straight_through(sym, a, b, learning_rate=0.02, **options)
    loss = objective_of("midpoint", Setting(sym, a, b, model, "cross-entropy"))
    assert result.history[0] == pytest.approx(-float(loss.value(a, b, data)), rel=1e-9)
    assert result.objective == pytest.approx(-float(loss.value(a, result.params, data)), rel=1e-6)
    assert -result.objective < 0.5 * -result.history[0]
    assert list(result.history) == sorted(result.history)
    # A member of the group: the same function as before.
    x = rings(2)[0]
    before, after = (torch.func.functional_call(model, dict(p), (x,)) for p in (b, result.params))
    torch.testing.assert_close(after, before, rtol=1e-9, atol=1e-9)
    for key, tensor in model.state_dict().items():
        assert torch.equal(tensor, a[key])


def test_scales_alone_are_brought_back_by_the_midpoint_loss(network):
    """Scales hurt the midpoint even of one and the same function; the descent finds them, permutations at rest."""
    model, sym, a = network
    b = moved(sym, a, 3, permutations=False, signs=False)
    options = {"model": model, "data": rings(1), "batch_size": 120, "examples": 120, "learning_rate": 1e-6}
    learned = match_straight_through(sym, a, b, steps=150, **options)
    free = match_straight_through(sym, a, b, steps=150, balanced=False, **options)
    kept = match_straight_through(sym, a, b, steps=5, scales=False, **options)
    assert kept.objective == kept.history[0] < learned.objective
    for key, d in kept.element.scales.items():
        assert torch.equal(d, torch.ones_like(d))
        assert not torch.equal(learned.element.scales[key], d)
        assert float(learned.element.scales[key].log().mean()) == pytest.approx(0, abs=1e-9)
        assert float(learned.element.scales[key].log().abs().max()) <= math.log(2) + 1e-12
    assert any(abs(float(d.log().mean())) > 1e-3 for d in free.element.scales.values())


def test_the_start_is_kept_where_nothing_is_better(network):
    """The start brings the network back exactly; whatever a wild descent tries is not better by the distance."""
    _, sym, a = network
    g = sym.random(torch.Generator().manual_seed(5))
    b = sym.act(sym.inverse(g), a)
    result = match_straight_through(
        sym, a, b, objective=lambda r, p, batch: _gap(r, p), start=g, learning_rate=2.0, steps=40, every=1
    )
    assert result.objective == result.history[0] > -1e-20
    assert result.element == g


def _gap(a, b):
    return torch.stack([(a[key] - b[key]).square().sum() for key in a if "weight" in key]).sum()


def test_a_start_composes_with_what_is_found():
    """Half of the way by the start, the other half by the descent."""
    model, sym, _ = made("grouped-query attention")
    a = randomized(model, torch.Generator().manual_seed(0))
    b = moved(sym, a, 1, scales=False, signs=False)
    g = sym.random(torch.Generator().manual_seed(2))
    start = sym.element(g.permutations)
    result = match_straight_through(
        sym, a, b, objective="l2", scales=False, start=start, steps=600, learning_rate=0.05, every=5
    )
    assert result.element != start
    assert result.objective == 0.0
    for key, tensor in a.items():
        assert torch.equal(result.params[key], tensor)


def test_loaders_and_iterators_are_gone_through_as_often_as_needed(network):
    model, sym, a = network
    b = moved(sym, a, 1)
    x, y = rings(1)
    batches = [(x[:60], y[:60]), (x[60:], y[60:])]
    options = {"model": model, "steps": 9, "every": 3, "examples": 120}
    listed = match_straight_through(sym, a, b, data=batches, **options)
    iterated = match_straight_through(sym, a, b, data=iter(batches), **options)
    assert listed.history == iterated.history
    assert listed.element == iterated.element


def test_a_callback_stops_with_the_best_so_far(network):
    model, sym, a = network
    b = moved(sym, a, 1)
    options = {"model": model, "data": rings(1), "steps": 50, "every": 2}
    result = match_straight_through(sym, a, b, callback=lambda step: step.number == 6, **options)
    assert result.stopped
    assert len(result.history) == 4
    assert result.objective == max(result.history)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "model is not given; the objective 'midpoint' is a loss on data"),
        ({"objective": "barrier"}, "objective is 'barrier'"),
        ({"model": "its own"}, "data are not given"),
        ({"model": "its own", "data": []}, "data holds no batches"),
        ({"model": "its own", "data": (torch.zeros(0, 2), torch.zeros(0))}, "at least one"),
        ({"model": "its own", "data": (torch.zeros(9, 2), torch.zeros(4))}, "expected as many of each"),
        ({"model": "its own", "data": (torch.zeros(9, 5), torch.zeros(9).long())}, "the model does not run on data"),
        ({"model": MLP(2, [3], 2), "data": (torch.zeros(9, 2), torch.zeros(9).long())}, "of model"),
        ({"start": 5}, "start is a int"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0"),
        ({"examples": 0}, "examples is 0"),
    ],
)
def test_refusals_name_the_option(network, options, message):
    model, sym, a = network
    if options.get("model") == "its own":
        options = {**options, "model": model}
    with pytest.raises(InputError, match=message):
        match_straight_through(sym, a, a, **options)


def test_a_shuffling_loader_gives_the_same_result_twice(network):
    model, sym, a = network
    b = moved(sym, a, 1)
    x, y = rings(1)
    loader = DataLoader(TensorDataset(x, y), batch_size=40, shuffle=True)
    state = torch.get_rng_state()
    one, two = (align(sym, a, b, method="ste", model=model, data=loader, steps=6, seed=4) for _ in range(2))
    assert one.objective == two.objective
    assert one.element == two.element
    assert torch.equal(torch.get_rng_state(), state)


def test_signs_that_are_not_searched_are_told():
    model = MLP(2, [4], 2, activation="tanh").double().eval()
    sym = discover(model, torch.zeros(2, 2, dtype=torch.float64), verify=False)
    a = dict(model.state_dict())
    assert "signs were not searched" in match_straight_through(sym, a, a, objective="l2", steps=2).notes[0]


def test_a_single_example_has_no_statistics(network):
    model, sym, a = network
    x, y = rings(0)
    with pytest.raises(InputError, match="larger batch_size"):
        match_straight_through(sym, a, a, model=model, data=(x, y), batch_size=1)


def test_published_networks_meet_halfway(checkpoint_folder):
    """A few steps on random inputs lower the distillation loss of the midpoint of two real networks a great deal."""
    files = [checkpoint_folder / f"tiny10-seed{seed}.safetensors" for seed in (0, 1)]
    if not all(path.is_file() for path in files):
        pytest.skip("the Tiny10 checkpoints are absent")
    a, b = (load_file(path) for path in files)
    model = build("tiny10").eval()
    x = torch.randn(64, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    sym = discover(model, x[:2])
    y = torch.func.functional_call(model, a, (x,)).softmax(-1).detach()
    result = match_straight_through(
        sym, a, b, model=model, data=(x, y), criterion=nn.functional.cross_entropy, batch_size=64, steps=15, every=5
    )
    assert result.objective > result.history[0] + 0.05
