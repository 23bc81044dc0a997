"""A flow where a posterior is expected: predictions, scores, barriers, diagnoses, planes, elements of the group."""

import pytest
import torch
from flow_spaces import generator, normal

from coset.distribution import Mixture
from coset.flow import FlowRecipe, Solver, _drawn, fit_flow
from coset.flow._drawn import TOGETHER, block_of
from coset.landscape import barrier, geodesic, linear, loss, mixture, plane, predictive_likelihood
from coset.models import MLP
from coset.posterior import diagnose, predictive, score
from coset.posterior.prediction.draws import draws_of
from coset.symmetry import discover
from coset.train.randomness import stream
from discoveries import shared

N = 24


@pytest.fixture(scope="module")
def setting():
    """Networks around one, a flow on them, and data with labels."""
    model = MLP(3, [4], 2).double().eval()
    sym = shared("flow as posterior", model, lambda: discover(model, torch.zeros(2, 3, dtype=torch.float64)))
    start = {n: t.detach() for n, t in model.state_dict().items()}
    stack = {n: t + 0.3 * normal(N, *t.shape, seed=k) for k, (n, t) in enumerate(start.items())}
    flow = fit_flow(
        stack, FlowRecipe(steps=4, every=4, batch_size=8), sym=sym, field_options={"hidden": 8, "layers": 1},
        solver=Solver(steps=2), show=False,
    ).posterior  # fmt: skip
    x = normal(20, 3, seed=11)
    return model, sym, flow, x, (x[:, 0] > 0).long()


def test_predictions_and_scores_are_those_of_its_draws(setting):
    model, _, flow, x, y = setting
    drawn = flow.samples(16, generator(1))
    found = predictive(model, drawn, x, y=y)
    outputs = torch.vmap(lambda params: torch.func.functional_call(model, params, (x,)))(drawn.flat)
    expected = outputs.softmax(-1).mean(0)
    torch.testing.assert_close(found.probabilities, expected, rtol=1e-6, atol=1e-8)
    own = float(-expected[torch.arange(20), y].log().mean())
    assert score(found)["nll"] == pytest.approx(own, rel=1e-6)


@pytest.mark.parametrize("moved", [False, True])
def test_predictions_of_the_flow_itself_are_those_of_draws_by_number(setting, moved, monkeypatch):
    """Draw j is the one that its own stream gives alone, and to the bit the same however many there are."""
    model, sym, flow, x, _ = setting
    if moved:
        finite = sym.restrict(scales=False)
        flow = finite.act(finite.random(generator(4)), flow)
    carried = []
    integrated = _drawn.integrate
    monkeypatch.setattr(
        _drawn, "integrate", lambda *args, **kw: carried.append(len(args[2])) or integrated(*args, **kw)
    )
    many = draws_of(flow, 100, 3)
    ones = [many.draw(number) for number in range(100)]
    assert carried == [1, 1, 2, 4, 8, 16, 32, 64]
    for number in (0, 1, 5, 64, 99):
        alone = flow.sample(1, stream("predictive", 3, number))
        few = draws_of(flow, number + 1, 3).draw(number)
        for name, tensor in ones[number].items():
            torch.testing.assert_close(tensor, alone[name][0])
            assert torch.equal(tensor, few[name])
    found = predictive(model, flow, x, samples=100, seed=3)
    outputs = torch.stack([torch.func.functional_call(model, one, (x,)) for one in ones])
    torch.testing.assert_close(found.probabilities, outputs.softmax(-1).mean(0))


def test_draws_are_carried_in_blocks_that_their_number_tells():
    assert [block_of(number) for number in (0, 1, 3, 6, 63)] == [
        range(1),
        range(1, 2),
        range(2, 4),
        range(4, 8),
        range(32, 64),
    ]
    blocks = list(dict.fromkeys(block_of(number) for number in range(1000)))
    assert [number for block in blocks for number in block][:1000] == list(range(1000))
    assert max(map(len, blocks)) == TOGETHER
    assert all(set(block_of(number)) == set(block) for block in blocks for number in block)


def test_barriers_between_draws_and_between_flows(setting):
    model, sym, flow, x, y = setting
    drawn = flow.sample(2, generator(1))
    a, b = ({name: tensor[i] for name, tensor in drawn.items()} for i in (0, 1))
    straight = barrier(linear(a, b), loss(model, (x, y)), points=3)
    halfway = {name: (a[name] + b[name]) / 2 for name in a}
    logits = torch.func.functional_call(model, halfway, (x,))
    assert float(straight.values[1]) == pytest.approx(float(torch.nn.functional.cross_entropy(logits, y)))
    likelihood = predictive_likelihood(model, (x, y), samples=8)
    finite = sym.restrict(scales=False)
    moved = finite.act(finite.random(generator(4)), flow)
    between = barrier(mixture(flow, moved), likelihood, points=3)
    # The same functions at both ends, so that nothing is lost in between.
    assert between.values[0] == pytest.approx(between.values[-1], abs=1e-9)
    some = [flow.samples(8, generator(k)) for k in (1, 2)]
    assert len(barrier(geodesic(*some), likelihood, points=3).values) == 3
    assert set(Mixture([flow, moved]).sample(3, generator())) == set(flow.mean)


def test_chains_of_draws_have_mixed(setting):
    model, _, flow, x, _ = setting
    drawn = flow.samples(400, generator(2), chains=4)
    assert drawn.params["layers.0.weight"].shape == (4, 100, 4, 3)
    found = diagnose(drawn, model=model, x=x, show=False)
    assert found.weights.max_rhat < 1.05
    assert found.functions.max_rhat < 1.05
    assert found.weights.min_bulk_ess > 150
    apart = type(drawn)({name: tensor + 3 * torch.arange(4.0, dtype=tensor.dtype).reshape(4, *[1] * (tensor.ndim - 1))
                         for name, tensor in drawn.params.items()})  # fmt: skip
    assert diagnose(apart, show=False).weights.max_rhat > 1.5


def test_draws_are_projected_to_a_plane(setting):
    model, _, flow, x, y = setting
    drawn = flow.sample(5, generator(3))
    ones = [{name: tensor[i] for name, tensor in drawn.items()} for i in range(5)]
    found = plane(model, ones[:3], (x, y), samples=flow.samples(2, generator(5)), points=(3, 3), show=False)
    assert found.log_posterior.shape == (3, 3)
    assert len(found.distances) == 2
    assert float(found.distances.min()) > 0
