"""What every method of alignment must do: each row of ``CASES`` goes through the whole suite."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
import torch

from architectures import randomized
from coset.alignment import METHODS, Step, align, align_many, align_samples, mean, merge
from coset.alignment.averages import MADE
from coset.distribution import Delta, Gaussian, LowRank, MeanField, Normal, Samples
from coset.errors import InputError
from coset.models import MLP
from coset.symmetry import discover


@dataclass(frozen=True)
class Case:
    """A method, options with which it finds what was planted, and others with which it draws at random."""

    method: str
    options: dict[str, Any] = field(default_factory=dict)
    drawing: dict[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    seeded: bool = True
    """Whether another seed gives another course."""


DESCENT = {"model": ..., "data": ..., "batch_size": 20, "steps": 12, "every": 3}
CASES = {
    "weights": Case("weights", {}, {"restarts": 3}, seeded=False),
    "activations": Case("activations", {"model": ..., "data": ...}, {"batch_size": 16}, ("model", "data"), False),
    "sinkhorn": Case("sinkhorn", {"steps": 120}, DESCENT | {"objective": "random", "scales": True}),
    "ste": Case(
        "ste",
        {"objective": "l2", "scales": False, "steps": 200, "learning_rate": 0.05, "every": 5},
        DESCENT | {"objective": "midpoint", "scales": True, "learning_rate": 0.02},
    ),
}


@dataclass(frozen=True, eq=False)
class Logarithmic(Normal):
    """A kind from outside: independent Gaussians that hold the logarithms of their deviations."""

    independent: ClassVar[bool] = True

    centre: Mapping[str, torch.Tensor]
    logs: Mapping[str, torch.Tensor]

    @property
    def mean(self):
        return self.centre

    @property
    def std(self):
        return {key: tensor.exp() for key, tensor in self.logs.items()}

    @classmethod
    def of(cls, mean, std):
        return cls(mean, {key: tensor.log() for key, tensor in std.items()})

    def sample(self, n, generator):
        return MeanField(self.mean, self.std).sample(n, generator)

    def entropy(self):
        return MeanField(self.mean, self.std).entropy()

    def transformed(self, action, *, partial):
        return self.of(action(self.mean, partial=partial), action.spread(self.std, self.mean))


every_case = pytest.mark.parametrize("name", CASES)


class Setting:
    """A network with batch norm whose running statistics and mode nobody may touch, and two sets of weights."""

    def __init__(self):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.model = MLP(4, [6, 5], 3, norm="batch").double().eval()
        generator = torch.Generator().manual_seed(0)
        self.data = torch.randn(60, 4, generator=generator, dtype=torch.float64), torch.arange(60) % 3
        self.sym = discover(self.model, self.data[0][:4])
        self.a, self.b = randomized(self.model, generator), randomized(self.model, generator)
        g = self.sym.restrict(scales=False, signs=False).random(generator)
        self.g = self.sym.element(g.permutations)
        self.planted = self.sym.act(self.g, self.a)

    def run(self, name, a, b, drawing=False, **options):
        case = CASES[name]
        labelled = "objective" in case.drawing
        filled = {"model": self.model, "data": self.data if labelled else self.data[0]}
        chosen = case.options | (case.drawing if drawing else {})
        chosen = {key: filled[key] if value is ... else value for key, value in chosen.items()}
        return align(self.sym, a, b, case.method, **{"show": False, **chosen, **options})


@pytest.fixture(scope="module")
def at():
    return Setting()


def test_every_method_is_here():
    assert {case.method for case in CASES.values()} == set(METHODS)


@every_case
def test_what_was_planted_is_found_and_carried(name, at):
    """The element undoes the planted one, for points, deltas and posteriors, whose type comes back."""
    found = at.run(name, at.a, at.planted)
    assert found.method == CASES[name].method
    assert at.sym.compose(found.element, at.g) == at.sym.identity()
    for key, tensor in at.a.items():
        assert torch.equal(found.params[key], tensor)
        assert torch.equal(at.sym.act(found.element, at.planted)[key], tensor)
    assert found.objective > found.history[0]
    assert min(found.agreement.values()) > 1 - 1e-12
    trained = {key: at.a[key] for key, _ in at.model.named_parameters()}
    std = {key: tensor.abs() + 0.1 for key, tensor in trained.items()}
    spread = torch.cat([tensor.reshape(-1) for tensor in std.values()])
    rank = {key: torch.stack([tensor, -2 * tensor]) for key, tensor in trained.items()}
    posteriors = (
        Delta(at.a),
        MeanField(at.a, std),
        Gaussian(at.a, spread.square().diag(), tuple(std)),
        LowRank(at.a, std, rank),
        Logarithmic.of(at.a, std),
    )
    for q in posteriors:
        result = at.run(name, q, at.sym.act(at.g, q))
        assert type(result.aligned) is type(q)
        assert result.element == found.element
        for key, deviation in q.std.items():
            assert torch.equal(result.aligned.std[key], deviation)


@every_case
def test_same_seed_same_result_that_never_falls_and_no_traces(name, at):
    """Whatever the global state and the mode of the model, neither of which is changed, nor are its buffers."""
    before = {key: tensor.clone() for key, tensor in at.model.state_dict().items()}
    first = at.run(name, at.a, at.b, drawing=True, seed=5)
    with torch.random.fork_rng():
        torch.manual_seed(123)
        state = torch.random.get_rng_state()
        second = at.run(name, at.a, at.b, drawing=True, seed=5)
        assert torch.equal(torch.random.get_rng_state(), state)
    if CASES[name].method == "activations":
        at.model.train()
        assert at.run(name, at.a, at.b, drawing=True, seed=5).element == first.element
        assert at.model.training
        at.model.eval()
    assert first.element == second.element
    assert first.history == second.history
    assert list(first.history) == sorted(first.history)
    assert first.objective == pytest.approx(first.history[-1], rel=1e-12)
    assert all(torch.equal(tensor, before[key]) for key, tensor in at.model.state_dict().items())
    if CASES[name].seeded:
        assert at.run(name, at.a, at.b, drawing=True, seed=6).history != first.history


@every_case
def test_a_callback_sees_the_steps_and_stops(name, at):
    told: list[Step] = []
    quiet, heard = (at.run(name, at.a, at.b, True, callback=back) for back in (None, lambda step: told.append(step)))
    assert heard.element == quiet.element
    assert heard.history == quiet.history
    assert not heard.stopped
    assert [step.number for step in told] == sorted({step.number for step in told})
    assert all(isinstance(step.what, str) for step in told)
    early: list[Step] = []
    stopped = at.run(name, at.a, at.b, True, callback=lambda step: early.append(step) or True)
    assert stopped.stopped
    assert early == told[:1]
    assert stopped.objective == pytest.approx(max(stopped.history), rel=1e-12)


@every_case
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": -1}, "seed is -1; expected a whole number from 0"),
        ({"callback": 3}, "callback is a int; expected a function"),
        ({"nope": 1}, "has no option 'nope'; it has "),
    ],
)
def test_bad_options_are_named(name, at, options, message):
    with pytest.raises(InputError, match=message):
        at.run(name, at.a, at.b, **options)


@every_case
def test_bad_networks_are_named(name, at):
    key = "layers.0.weight"
    for b, message in [
        ({**at.b, key: at.b[key] * torch.nan}, f"'{key}' of the other network has 24 entries that are NaN"),
        ({**at.b, key: at.b[key][:3]}, f"'{key}' of the other network has shape"),
        ({name: tensor for name, tensor in at.b.items() if name != key}, f"the other network lacks '{key}'"),
        (MeanField(at.b, {}), "the reference is a point and the other network a posterior"),
        (3, "the other network is a int; expected a dict of parameters"),
    ]:
        with pytest.raises(InputError, match=message):
            at.run(name, at.a, b)
    for need in CASES[name].needs:
        with pytest.raises(InputError, match=f"{need} is not given; the method '{name}' needs it"):
            at.run(name, at.a, at.b, **{need: None})


def test_alignments_of_many_take_the_same_callbacks(at):
    networks = [at.a, at.planted, at.b]
    for run, given in ((align_many, networks), (align_samples, Samples.stack(networks))):
        told: list[Step] = []
        assert run(at.sym, given, callback=lambda step, told=told: told.append(step) or True).stopped
        assert len(told) == 1
        with pytest.raises(InputError, match="callback is a int; expected a function"):
            run(at.sym, given, callback=3)


@pytest.mark.parametrize("registered", [False, True])
def test_a_posterior_from_outside_is_averaged_and_merged(at, registered, monkeypatch):
    """As a ``MeanField`` of the same means and deviations; where the kind says how it is made, as one of its own."""
    if registered:
        monkeypatch.setitem(MADE, Logarithmic, Logarithmic.of)
    kind = Logarithmic if registered else MeanField
    trained = [key for key, _ in at.model.named_parameters()]
    plain = [
        MeanField(params, {key: params[key].abs() + 0.1 for key in trained}) for params in (at.a, at.b, at.planted)
    ]
    outside = [Logarithmic.of(q.mean, q.std) for q in plain]
    repaired = {"renormalize": "repair", "model": at.model, "data": at.data[0]}
    for run in (
        mean,
        lambda qs: align_many(at.sym, qs).mean,
        lambda qs: merge(at.sym, qs[:2]).network,
        lambda qs: merge(at.sym, qs, **repaired).network,
    ):
        expected, found = run(plain), run(outside)
        assert type(found) is kind
        for key in at.a:
            torch.testing.assert_close(found.mean[key], expected.mean[key], rtol=1e-9, atol=1e-12)
        for key in trained:
            torch.testing.assert_close(found.std[key], expected.std[key], rtol=1e-9, atol=1e-12)
    with pytest.raises(InputError, match="networks 0 and 1 are a point and a posterior; expected one kind"):
        mean([at.a, outside[0]])
