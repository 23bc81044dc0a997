"""Differentiable re-basin: planted permutations recovered, losses lowered, guarantees kept, bad input refused."""

from functools import lru_cache

import pytest
import torch
from torch import nn

from architectures import made, randomized
from coset.alignment.matching.losses import BatchStatistics, Setting, between, objective_of
from coset.alignment.matching.sinkhorn import match_sinkhorn
from coset.errors import InputError
from coset.models import MLP, ResidualMLP
from coset.symmetry import discover
from declared import declared


def planted(model, sym, seed):
    """A network and a permuted copy of it."""
    reference = randomized(model, torch.Generator().manual_seed(seed))
    g = sym.restrict(scales=False, signs=False).random(torch.Generator().manual_seed(seed + 100))
    return reference, sym.act(sym.element(g.permutations), reference)


def built(build):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build().double().eval()
    return model, declared(model)


def spirals(seed, count=120):
    """Two classes of points that wind around each other, in float64."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % 2
    radius = 2 * torch.rand(count, generator=generator, dtype=torch.float64)
    angle = 2 * radius + torch.pi * y
    x = torch.stack([radius * torch.cos(angle), radius * torch.sin(angle)], 1)
    return x + 0.05 * torch.randn(count, 2, generator=generator, dtype=torch.float64), y


@lru_cache
def trained(norm="none"):
    """A small MLP that has learned the spirals."""
    x, y = spirals(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = MLP(2, [10, 10], 2, norm=norm).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    for _ in range(200):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model.eval()


RECOVERED = {
    "mlp": lambda: built(lambda: MLP(6, [8, 8], 3)),
    "residual mlp": lambda: built(lambda: ResidualMLP(5, 3, width=6, inner=8)),
    "grouped-query attention": lambda: made("grouped-query attention")[:2],
    "grouped+groupnorm": lambda: made("grouped+groupnorm")[:2],
    "mlp, batch norm": lambda: made("mlp, batch norm")[:2],
}


@pytest.mark.parametrize("name", RECOVERED)
def test_planted_permutations_are_recovered_exactly(name):
    model, sym = RECOVERED[name]()
    for seed in range(2):
        reference, other = planted(model, sym, seed)
        result = match_sinkhorn(sym, reference, other)
        assert result.objective == 0.0
        assert result.history[0] < -0.05
        assert min(result.agreement.values()) > 1 - 1e-12
        for key, tensor in reference.items():
            assert torch.equal(result.params[key], tensor)
            assert torch.equal(sym.act(result.element, other)[key], tensor)


def test_the_objective_is_minus_the_loss_and_never_falls():
    """Independent networks: history, objective and result tell the same ‖a − gb‖²/(‖a‖² + ‖b‖²)."""
    model, sym = built(lambda: MLP(4, [6, 6], 3))
    a, _ = planted(model, sym, 0)
    _, b = planted(model, sym, 1)
    result = match_sinkhorn(sym, a, b, steps=100)
    gap = sum(float((a[key] - result.params[key]).square().sum()) for key in a)
    size = sum(float(a[key].square().sum() + b[key].square().sum()) for key in a)
    assert result.objective == pytest.approx(-gap / size, rel=1e-12)
    assert list(result.history) == sorted(result.history)
    assert result.history[-1] == result.objective > result.history[0]
    assert set(result.seconds) == {"measuring", "descent"}


def test_scales_are_learned_where_asked():
    """The copy differs by positive scales only: learned they bring it back, kept they stay."""
    model, sym = built(lambda: MLP(4, [6], 3))
    a = randomized(model, torch.Generator().manual_seed(0))
    scales = sym.restrict(permutations=False).random(torch.Generator().manual_seed(1)).scales
    b = sym.act(sym.element(scales=scales), a)
    learned = match_sinkhorn(sym, a, b, scales=True, balanced=False, largest_scale=None, temperature=0.05)
    kept = match_sinkhorn(sym, a, b, steps=20)
    assert learned.objective > -1e-6 > 1000 * kept.objective
    for key, d in scales.items():
        torch.testing.assert_close(learned.element.scales[key] * d, torch.ones_like(d), rtol=2e-2, atol=0)
        assert torch.equal(kept.element.scales[key], torch.ones_like(d))


def test_buffers_do_not_count_and_move_along():
    model = MLP(3, [5], 2, norm="batch").double().eval()
    sym = discover(model, torch.zeros(2, 3, dtype=torch.float64), verify=True)
    reference, other = planted(model, sym, 0)
    names = [name for name in reference if "running" in name]
    assert names
    for name in names:
        other[name] = other[name] + 5
    result = match_sinkhorn(sym, reference, other)
    assert result.objective == 0.0
    for name in names:
        torch.testing.assert_close(result.params[name], reference[name] + 5, rtol=0, atol=1e-14)


@pytest.mark.parametrize("objective", ["midpoint", "random"])
@pytest.mark.parametrize("norm", ["none", "batch"])
def test_task_losses_fall_and_are_what_is_reported(objective, norm):
    model = trained(norm)
    sym = discover(model, torch.zeros(4, 2, dtype=torch.float64))
    a = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    g = sym.element(sym.restrict(scales=False, signs=False).random(torch.Generator().manual_seed(1)).permutations)
    b, data = sym.act(g, a), spirals(1)
    options = {"objective": objective, "model": model, "data": data, "batch_size": 60, "examples": 120, "every": 5}
    result = match_sinkhorn(sym, a, b, steps=60, temperature=0.2, **options)
    assert -result.objective < 0.9 * -result.history[0]
    loss = objective_of(objective, Setting(sym, a, b, model, "cross-entropy"))
    before = float(loss.value(a, b, data))
    after = float(loss.value(a, result.params, data))
    # Without a norm the value on 120 examples is that of two batches of 60.
    if norm == "none":
        assert result.objective == pytest.approx(-after, rel=1e-9)
        assert result.history[0] == pytest.approx(-before, rel=1e-9)
    for key, tensor in model.state_dict().items():
        assert torch.equal(tensor, a[key])


def test_any_loss_on_the_permuted_parameters_will_do():
    """A loss that sees one bias only, −⟨a, Xb⟩, is lowest where b is sorted like a."""
    model, sym = built(lambda: MLP(4, [6], 3))
    a, b = (randomized(model, torch.Generator().manual_seed(seed)) for seed in (0, 1))
    bias = next(name for name in sym.parameters if name.endswith("bias") and sym.parameters[name].moves)
    seen = []

    def loss(reference, permuted, batch):
        seen.append(batch)
        return -(reference[bias] @ permuted[bias])

    result = match_sinkhorn(sym, a, b, objective=loss, steps=200)
    best = a[bias].sort().values @ b[bias].sort().values
    assert result.objective == pytest.approx(float(best), rel=1e-12)
    assert result.history[0] < result.objective
    assert seen[0] is None
    match_sinkhorn(sym, a, b, objective=loss, data=spirals(0), steps=1)
    assert seen[-1][0].shape[1:] == (2,)


def test_never_worse_than_the_start_whose_scales_and_signs_stay():
    """A start that is the answer, signs and scales included, is kept, though the descent is made to wander."""
    model, sym = built(lambda: MLP(4, [6, 5], 3, activation="tanh"))
    a = randomized(model, torch.Generator().manual_seed(0))
    g = sym.random(torch.Generator().manual_seed(1))
    b = sym.act(sym.inverse(g), a)
    assert g.signs
    result = match_sinkhorn(
        sym, a, b, objective=lambda r, p, _: _gap(r, p) + 0 * _gap(r, p), start=g, learning_rate=1.0
    )
    assert result.objective == result.history[0]
    assert result.element == g


def _gap(a, b):
    return torch.stack([(a[key] - b[key]).square().sum() for key in a]).sum()


def test_a_callback_sees_the_steps_and_stops():
    model, sym = built(lambda: MLP(4, [6, 6], 3))
    a, b = (randomized(model, torch.Generator().manual_seed(seed)) for seed in (0, 1))
    steps = []

    def stop(step):
        steps.append(step)
        return step.number >= 8

    result = match_sinkhorn(sym, a, b, steps=100, every=4, callback=stop)
    assert [step.number for step in steps] == [4, 8]
    assert [step.objective for step in steps] == list(result.history[1:])
    assert result.stopped
    assert not match_sinkhorn(sym, a, b, steps=4, callback=lambda step: None).stopped


def test_batch_statistics_are_those_of_the_batch_and_nothing_is_kept():
    """Equal to the training mode of batch norm, with dropout off and every buffer and mode as before."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2)).double()
    model[1].eval()
    x, y = torch.randn(9, 3, dtype=torch.float64), torch.arange(9) % 2
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    sym = discover(model.eval(), x)
    model.train()
    model[1].eval()
    loss = objective_of("midpoint", Setting(sym, before, before, model, "cross-entropy"))
    found = loss.value(before, before, (x, y))
    assert [module.training for module in model] == [True, False, True, True]
    for key, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[key])
    h = x @ before["0.weight"].T + before["0.bias"]
    h = (h - h.mean(0)) / torch.sqrt(h.var(0, unbiased=False) + model[1].eps)
    out = (h * before["1.weight"] + before["1.bias"]) @ before["3.weight"].T + before["3.bias"]
    torch.testing.assert_close(found, nn.functional.cross_entropy(out, y), rtol=1e-12, atol=0)
    with BatchStatistics(), pytest.raises(InputError, match="1 values per channel"):
        model.eval()(x[:1])


def test_instance_norms_with_running_statistics_use_the_input():
    norm = nn.InstanceNorm1d(3, track_running_stats=True).double().eval()
    x = torch.randn(2, 3, 7, dtype=torch.float64)
    with BatchStatistics():
        found = norm(x)
    expected = (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, unbiased=False, keepdim=True) + norm.eps)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert int(norm.num_batches_tracked) == 0


def test_tied_parameters_are_run_whether_or_not_they_share_memory():
    model, sym, shape = made("tied embeddings")
    params = randomized(model, torch.Generator().manual_seed(0))
    copied = {key: tensor.clone() for key, tensor in params.items()}
    x = torch.rand(5, *shape, dtype=torch.float64)
    y = torch.rand(5, 6, 7, dtype=torch.float64)
    losses = [objective_of("midpoint", Setting(sym, p, p, model, "mse")).value(p, p, (x, y)) for p in (params, copied)]
    expected = nn.functional.mse_loss(torch.func.functional_call(model, params, (x,)), y)
    torch.testing.assert_close(torch.stack(losses), expected.expand(2), rtol=1e-12, atol=0)


def test_between_keeps_what_is_no_floating_number():
    a = {"w": torch.tensor([0.0, 2.0]), "n": torch.tensor(3)}
    b = {"w": torch.tensor([1.0, 4.0]), "n": torch.tensor(9)}
    point = between(a, b, 0.25)
    assert torch.equal(point["w"], torch.tensor([0.25, 2.5]))
    assert int(point["n"]) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": "l1"}, "objective is 'l1'; expected one of l2, midpoint, random"),
        ({"objective": "midpoint", "data": spirals(0)}, "model is not given; the objective 'midpoint'"),
        ({"objective": "random", "data": spirals(0), "model": "mlp"}, "model is a str"),
        ({"objective": "midpoint", "model": MLP(2, [3], 2)}, "data are not given; the objective 'midpoint'"),
        ({"objective": "midpoint", "model": MLP(2, [3], 2), "data": []}, "data holds no batches"),
        ({"objective": "midpoint", "model": MLP(2, [3], 2), "data": iter([])}, "data holds no batches"),
        (
            {"objective": "midpoint", "model": MLP(2, [3], 2), "data": spirals(0), "criterion": "hinge"},
            "criterion is 'hinge'; expected one of cross-entropy, mse",
        ),
        ({"temperature": 0.0}, "temperature is 0.0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"learning_rate": -1.0}, "learning_rate is -1.0"),
        ({"scale_rate": float("inf")}, "scale_rate is inf"),
        ({"steps": 0}, "steps is 0"),
        ({"every": 0}, "every is 0"),
        ({"batch_size": 2.5}, "batch_size is 2.5"),
        ({"objective": lambda a, b, batch: torch.zeros(())}, "does not depend on the permuted parameters"),
        ({"objective": lambda a, b, batch: torch.tensor(float("nan"))}, "the loss of the start is nan"),
    ],
)
def test_refusals_name_the_option(options, message):
    model, sym = built(lambda: MLP(2, [3], 2))
    a, b = (randomized(model, torch.Generator().manual_seed(seed)) for seed in (0, 1))
    with pytest.raises(InputError, match=message):
        match_sinkhorn(sym, a, b, **options)


def test_targets_of_another_shape_are_refused():
    model = trained()
    sym = discover(model, torch.zeros(4, 2, dtype=torch.float64))
    a = dict(model.state_dict())
    x, y = spirals(0)
    with pytest.raises(InputError, match=r"targets has shape \(120,\)"):
        match_sinkhorn(sym, a, a, objective="midpoint", model=model, data=(x, y.double()), criterion="mse")
