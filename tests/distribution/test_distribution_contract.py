"""Every kind of distribution keeps the contract, and two that the library has never heard of do, too."""

from collections.abc import Mapping
from dataclasses import dataclass

import pytest
import torch
from contract import Box, Contract, Flow, gaussian, low_rank, mean_field, same, samples, seeded
from torch import Tensor, nn

import coset
from architectures import randomized
from coset.distribution import (
    Delta,
    Distribution,
    MeanField,
    Mixture,
    Samples,
    load_distribution,
    save_distribution,
    wasserstein2,
)
from coset.distribution.contract import Absent, require, rule_for
from coset.distribution.files import KINDS, Kind
from coset.distribution.ties import ties
from coset.errors import InputError
from coset.landscape import barrier, geodesic, linear, mixture, predictive_likelihood
from coset.models import MLP
from coset.posterior import elbo, fit_map, predictive


class TestDelta(Contract):
    dense, exact = False, True

    def make(self, params, names, generator):
        return Delta(params)


class TestMeanField(Contract):
    def make(self, params, names, generator):
        return mean_field(params, names, generator)


class TestGaussian(Contract):
    def make(self, params, names, generator):
        return gaussian(params, names, generator)


class TestLowRank(Contract):
    def make(self, params, names, generator):
        return low_rank(params, names, generator)


class TestSamples(Contract):
    dense, exact = False, True

    def make(self, params, names, generator):
        drawn = samples(params, generator)
        return type(drawn)({key: tensor.to(params[key].dtype) for key, tensor in drawn.params.items()})


class TestMixture(Contract):
    moves_mean = False

    def make(self, params, names, generator):
        """Of three kinds, around two networks."""
        other = {key: 1.1 * tensor if key in names else tensor for key, tensor in params.items()}
        tied = {key: other[one] for key, one in ties(params).items()}
        parts = mean_field(params, names, generator), low_rank(tied, names, generator), gaussian(tied, names, generator)
        return Mixture(parts, [0.3, 0.5, 0.2])

    def check_entropy(self, moved, q, volume):
        """There is no closed form."""


class TestBox(Contract):
    """From outside, with a density and a place in files."""

    @pytest.fixture(autouse=True)
    def _registered(self, monkeypatch):
        monkeypatch.setitem(KINDS, "box", Kind(Box, ("mean", "half")))

    def make(self, params, names, generator):
        return Box(params, mean_field(params, names, generator).std)


class TestFlow(Contract):
    """From outside, with draws and a mean alone."""

    dense, exact, saved = False, True, False

    def make(self, params, names, generator):
        return Flow(params, params)


@pytest.fixture(scope="module")
def setting():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = MLP(2, [6, 6], 3, activation="tanh").double().eval()
    x = torch.randn(30, 2, generator=seeded(), dtype=torch.float64)
    sym = coset.discover(model, x)
    params = randomized(model, seeded(1))
    return model, sym, (x, torch.arange(30) % 3), params


def box(params, width=0.05):
    return Box(params, {name: torch.full_like(tensor, width) for name, tensor in params.items()})


OUTSIDE = pytest.mark.parametrize("make", [box, lambda params: Flow(params, params)], ids=["box", "flow"])


@OUTSIDE
def test_predictions_and_barriers_need_only_draws(setting, make):
    """f(x; g·θ) = f(x; θ): the predictive is that of the moved draws, and mixtures of outside kinds are paths."""
    model, sym, (x, y), params = setting
    q = make(params)
    moved = sym.act(sym.random(seeded(2)), q)
    kept = predictive(model, q, x, samples=16)
    assert kept.probabilities.shape == (30, 3)
    if isinstance(q, Flow):
        # Draw j of the moved flow is g times draw j: exactly the same functions.
        torch.testing.assert_close(predictive(model, moved, x, samples=16).probabilities, kept.probabilities)
    profile = barrier(mixture(q, moved), predictive_likelihood(model, (x, y), samples=8), points=5)
    assert len(profile.values) == 5
    one, other = ({name: tensor[0] for name, tensor in end.sample(1, seeded(3)).items()} for end in (q, moved))
    assert barrier(linear(one, other), coset.landscape.loss(model, (x, y)), points=3).barrier >= 0


@OUTSIDE
def test_what_a_kind_lacks_is_refused_by_name(setting, make):
    model, _, data, params = setting
    q = make(params)
    kind = type(q).__name__
    with pytest.raises(InputError, match=f"q is a {kind}; expected a MeanField, a LowRank or a Gaussian"):
        elbo(model, q, data)
    with pytest.raises(InputError, match=f"q0 is a {kind} and q1 a {kind}; geodesics join"):
        geodesic(q, q)
    with pytest.raises(InputError, match=f"a {kind} cannot be saved"):
        save_distribution(q, "nowhere")
    with pytest.raises(InputError, match=f"wasserstein2 of a {kind} and a {kind} has no closed form"):
        wasserstein2(q, q)


def test_members_that_a_kind_may_leave_out(setting):
    model, _, data, params = setting
    flow, known = Flow(params, params), box(params)
    assert flow.random_names == tuple(params)
    assert not hasattr(flow, "std")
    with pytest.raises(Absent, match="a Flow has no 'std'"):
        _ = Mixture([flow, known]).std
    torch.testing.assert_close(
        wasserstein2(Delta(params), known).square(), sum(s.square().sum() for s in known.std.values())
    )
    # One centre, or none: where a descent may begin.
    settings = {"epochs": 1, "batch_size": 30, "learning_rate": 1e-3, "show": False}
    assert fit_map(model, data, start=known, **settings).trace
    with pytest.raises(InputError, match="start is a Flow; expected one network"):
        fit_map(model, data, start=flow, **settings)


def test_a_kind_in_files_is_read_by_its_name(setting, tmp_path, monkeypatch):
    q = Mixture([box(setting[-1]), Delta(setting[-1])], [0.5, 0.5])
    monkeypatch.setitem(KINDS, "box", Kind(Box, ("mean", "half")))
    save_distribution(q, tmp_path / "q")
    assert same(load_distribution(tmp_path / "q"), q)
    monkeypatch.delitem(KINDS, "box")
    with pytest.raises(InputError, match="its kind is 'box'; expected one of delta, mean-field"):
        load_distribution(tmp_path / "q")


@dataclass(frozen=True, eq=False)
class Weighted(Samples):
    """Draws with something of their own beside them, a name and two dicts with points in both."""

    weight: Mapping[str, Tensor]
    label: str


def test_every_field_of_a_kind_from_outside_is_kept(tmp_path, monkeypatch):
    monkeypatch.setitem(KINDS, "weighted", Kind(Weighted, ("params", "weight"), values=("label",), lead=2))
    point, drawn = torch.arange(3.0).expand(2, 4, 3), torch.randn(2, 4, 3, generator=seeded())
    q = Weighted({"a": drawn, "b": point}, {"a": (point[0, 0] + 1).expand(2, 4, 3), "b": drawn[..., :1]}, "one")
    save_distribution(q, tmp_path / "q")
    again = load_distribution(tmp_path / "q")
    assert same(again, q)
    assert again.label == "one"
    assert all(torch.equal(again.weight[key], tensor) for key, tensor in q.weight.items())
    assert again.params["b"].stride()[:2] == again.weight["a"].stride()[:2] == (0, 0)


def test_rules_are_found_by_kind_and_by_what_it_inherits():
    class Narrow(MeanField):
        pass

    q = Narrow({"a": torch.zeros(2)}, {"a": torch.ones(2)})
    assert rule_for({MeanField: "field", Distribution: "any"}, q) == "field"
    assert rule_for({(Distribution, MeanField): "pair"}, q, q) == "pair"
    assert rule_for({Delta: "point"}, q) is None
    assert float(wasserstein2(q, q)) == 0
    with pytest.raises(InputError, match="q is a Linear; expected a distribution"):
        require(nn.Linear(1, 1), Distribution, "q", "a distribution")
    with pytest.raises(TypeError, match="abstract"):
        Distribution()
