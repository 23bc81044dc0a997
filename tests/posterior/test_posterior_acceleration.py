"""Functions of tensors, recorded and compiled: the same numbers, the way kept, and reasons where it fails."""

import pytest
import torch
from sampling_targets import LINEAR, regression

from coset.models import MLP
from coset.posterior import FanIn, Named, NoiseParameter, fit_hmc, fit_mclmc, fit_sgmcmc
from coset.posterior.inference import acceleration
from coset.posterior.inference.acceleration import Accelerator, choose, recorded
from coset.posterior.inference.chains import joint_density
from coset.posterior.problem import pose


def problem(prior=1.0, dtype=torch.float64):
    torch.manual_seed(0)
    x = torch.randn(30, 3, dtype=dtype)
    model = NoiseParameter(MLP(3, [5, 4], 1, activation="tanh").to(dtype))
    return pose(model, (x, x[:, :1].sin()), "learned-noise", prior, 0.7)


@pytest.mark.parametrize(
    "prior",
    [
        0.5, FanIn(1.5), Named({"log_noise": (-1.0, 0.3)}, FanIn()),
        lambda params: -sum(tensor.abs().sum() for tensor in params.values()),
    ],
)  # fmt: skip
@pytest.mark.parametrize("rows", [None, 7])
def test_a_recorded_density_gives_the_same_numbers(prior, rows):
    posed = problem(prior)
    target = joint_density(posed, rows)
    states = posed.start + torch.randn(4, posed.layout.size, dtype=torch.float64)
    graph = recorded(target.function, (states, *target.data))
    for moved in (states, 2 * states):
        for found, expected in zip(graph(moved, *target.data), target(moved), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)
        leaf = moved.clone().requires_grad_()
        value = sum(posed.log_joint(flat, posed.x, posed.y) for flat in leaf) / posed.temperature
        torch.testing.assert_close(graph(moved, *target.data)[1], torch.autograd.grad(value, leaf)[0])


def test_a_graph_fits_other_data():
    posed = problem()
    target = joint_density(posed)
    states = posed.start.expand(2, -1)
    x, y = posed.x + 1, posed.y - 1
    graph = recorded(target.function, (states, *target.data))
    torch.testing.assert_close(graph(states, x, y), target.function(states, x, y))


def test_what_depends_on_values_is_run_as_it_is_written():
    def branching(x):
        return (x + 1 if float(x.detach().sum()) > 3 else x - 1,)

    choice = choose(branching, (torch.ones(4),), 10, False)
    assert choice.way == "plain"
    assert "gradients are computed as they are written" in choice.note


def test_short_runs_are_never_compiled_and_long_ones_are_measured(monkeypatch):
    called = []

    def fake(graph, inputs):
        called.append(graph)
        return lambda *values: (values[0] * 2,)

    monkeypatch.setattr(acceleration, "compiled", fake)

    def slow(x):
        for _ in range(300):
            x = x + 1 - 1
        return (x * 2,)

    inputs = (torch.ones(2, 3),)
    assert choose(slow, inputs, 10, "auto").way == "plain"
    assert choose(slow, inputs, 600, "auto").way == "recorded"
    assert not called
    choice = choose(slow, inputs, 10**9, "auto")
    assert choice.way == "compiled"
    assert "in place of" in choice.note
    assert choose(slow, inputs, 10**9, False).way == "recorded"


def test_long_runs_take_one_thread_where_that_is_faster(monkeypatch):
    monkeypatch.setattr(acceleration, "_seconds", lambda *_: float(torch.get_num_threads()))
    monkeypatch.setattr(acceleration, "compiled", lambda graph, inputs: graph)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        choice = choose(lambda x: (2 * x,), (torch.ones(3),), 1000, "auto")
        assert (choice.way, choice.threads) == ("recorded", 1)
        run = Accelerator("auto", 1000)
        run.ready("double", lambda x: (2 * x,), (torch.ones(3),))
        with run.running():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_compiling_that_fails_falls_back_and_says_why(monkeypatch):
    def broken(graph, inputs):
        raise RuntimeError("no C++ compiler\nand more")

    monkeypatch.setattr(acceleration, "compiled", broken)
    settings = {"draws": 3, "warmup": 25, "chains": 2, "seed": 0, **LINEAR}
    model, data = regression()
    fit = fit_mclmc(model, data, compile=True, **settings)
    assert any("gradients are not compiled: RuntimeError: no C++ compiler" in note for note in fit.notes)
    plain = fit_mclmc(model, data, compile=False, **settings)
    for name, tensor in fit.posterior.params.items():
        assert torch.equal(tensor, plain.posterior.params[name])


def test_the_way_is_part_of_the_state():
    first = Accelerator(False, 10)
    first.ready("double", lambda x: (2 * x,), (torch.ones(3),))
    assert first.state.tolist() == [1, torch.get_num_threads()]
    second = Accelerator("auto", 10**12)
    second.state.copy_(first.state)
    (found,) = second.ready("double", lambda x: (2 * x,), (torch.ones(3),))(torch.ones(3))
    assert found.tolist() == [2, 2, 2]
    assert second.state.tolist() == first.state.tolist()


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        (fit_hmc, {"warmup": 10, "leapfrog_steps": 3}),
        (fit_sgmcmc, {"burn_in": 10, "step_size": 1e-4, "batch_size": 8}),
    ],
)
def test_recording_changes_draws_by_rounding_only(method, settings, monkeypatch):
    model, data = regression()
    fits = []
    for way in ("recorded", "plain"):
        if way == "plain":
            monkeypatch.setattr(acceleration, "recorded", lambda *_: (_ for _ in ()).throw(ValueError("no")))
        fits.append(method(model, data, draws=3, chains=2, compile=False, **settings, **LINEAR))
    assert any("as they are written" in note for note in fits[1].notes)
    for name, tensor in fits[0].posterior.params.items():
        torch.testing.assert_close(tensor, fits[1].posterior.params[name], rtol=1e-8, atol=1e-10)
