"""Studies of sampled networks for digits: their parts on cases that are known."""

import pytest
import torch

import coset
from coset.flow import FlowRecipe, fit_flow
from coset.models import build, example_input
from coset.store import Store
from coset.study import Context
from coset.symmetry.stacks import act_stack, random_stack
from coset_studies.flows import _sampled, _stored_flows, mnist_fields, mnist_wide
from coset_studies.flows._zoos import Networks

MODEL = build("mlp", seed=0, in_features=5, widths=[4], out_features=3).double().eval()
SYM = coset.discover(MODEL, example_input(MODEL).double())
FIELD = {"channels": 8, "layers": 1, "heads": 2, "pairs": 2}


def generator(seed):
    return torch.Generator().manual_seed(seed)


def networks(count, seed=0):
    draw = generator(seed)
    return {n: torch.randn(count, *t.shape, generator=draw, dtype=t.dtype) for n, t in MODEL.state_dict().items()}


def outputs(stack, x, model=MODEL):
    return torch.stack(
        [torch.func.functional_call(model, {n: t[k] for n, t in stack.items()}, (x,)) for k in range(len(x[:3]))]
    )


@pytest.fixture(scope="module")
def flow():
    inputs = torch.randn(50, 5, generator=generator(1), dtype=torch.float64)
    kind = _sampled.unit_kind(FIELD, 4, 2, coupling="independent", by_inputs=True)
    return kind.fitted(SYM, networks(30), 2, 8, 0, inputs)


def test_networks_with_no_error_are_themselves(flow):
    own = networks(3, 7)
    for options in ({"relative": 0.0}, {"relative": 0.6}, {"components": 4}, {"components": 0}):
        found = _sampled.disturbed(flow, own, generator(0), **options)
        near = max(float((found[n] - own[n]).abs().max()) for n in own)
        assert (near < 1e-9) == (options == {"relative": 0.0}), options
    # All that components read is kept, and all that no unit carries.
    baseline = flow.field.baseline
    found = _sampled.disturbed(flow, own, generator(0), components=4)
    rows = [baseline.units.split((flow.frame.rows(one) - baseline.m0) / baseline.s0) for one in (own, found)]
    (key,) = baseline.turned
    torch.testing.assert_close(*(baseline.along(key, one[key]) for one in rows), atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(found["layers.1.bias"], own["layers.1.bias"], atol=1e-9, rtol=1e-9)


def test_relative_errors_keep_the_spread_of_units(flow):
    drawn = flow.source.sample(4000, generator(3))
    own = flow.frame.networks(drawn)
    found = flow.frame.rows(_sampled.disturbed(flow, own, generator(4), relative=0.6))
    centre = flow.source.mean
    units = flow.field.baseline.units.places[flow.field.baseline.turned[0]].flatten()
    both = [(one - centre)[:, units] for one in (drawn, found)]
    torch.testing.assert_close(both[1].std(0), both[0].std(0), rtol=0.08, atol=0)
    agreement = (both[0] * both[1]).sum() / both[0].square().sum()
    assert abs(float(agreement) - 0.8) < 0.01


def test_networks_of_components_answer_alike_where_inputs_lie_in_them():
    plane = torch.randn(2, 5, generator=generator(5), dtype=torch.float64)
    x = torch.randn(300, 2, generator=generator(6), dtype=torch.float64) @ plane
    basis = mnist_fields.components(x, 2)
    torch.testing.assert_close((x @ basis).square().mean(0), torch.ones(2, dtype=torch.float64))
    small, _ = mnist_fields.reduced({"in_features": 5, "widths": [4], "out_features": 3}, 2)
    stack = networks(3)
    torch.testing.assert_close(
        outputs(mnist_fields.turned(stack, basis), x @ basis, small.double()), outputs(stack, x), atol=1e-9, rtol=1e-9
    )


def test_networks_in_the_span_of_others_are_their_nearest_points_in_it():
    stack = networks(6)
    part = type("Part", (), {"x": torch.randn(40, 5, generator=generator(8), dtype=torch.float32)})()
    part.y = torch.arange(40) % 3
    single = {n: t.float() for n, t in stack.items()}
    target = {n: t[0] for n, t in single.items()}
    model = build("mlp", seed=0, in_features=5, widths=[4], out_features=3).eval()
    rows = mnist_wide.spanned(
        SYM, model, part, single, {n: t[2:4] for n, t in single.items()}, "itself", target, (1.0,)
    )
    accuracy = {str(row[2]): row[3] for row in rows}
    assert accuracy["held-out networks, nearest in the span"] == accuracy["held-out networks"]
    whole = float(_sampled.accuracies(model, part, single).mean())
    assert accuracy["training networks, 1 of the way from the mean"] == pytest.approx(whole, abs=1e-12)


def test_the_mean_of_copies_is_one_of_them_whatever_their_order():
    one = {n: t[0] for n, t in networks(1).items()}
    copies = {n: t.expand(5, *t.shape).clone() for n, t in one.items()}
    moved = act_stack(SYM.restrict(scales=False), random_stack(SYM.restrict(scales=False), 5, generator(9)), copies)
    mean = mnist_wide.mean_of_aligned(SYM, moved, 0)
    x = torch.randn(6, 5, generator=generator(10), dtype=torch.float64)
    torch.testing.assert_close(
        torch.func.functional_call(MODEL, mean, (x,)), torch.func.functional_call(MODEL, one, (x,))
    )


def test_a_flow_is_fitted_once(tmp_path, monkeypatch):
    context = Context(0, torch.device("cpu"), Store(tmp_path), show=False)
    zoo = Networks("mlp", {}, {}, {}, 20)
    kind = _sampled.Kind({"order": "given", "field": "mlp", "field_options": {"hidden": 4}}, {})
    flow, last = _stored_flows.stored_flow(context, zoo, kind, SYM, networks(20), 3, 8)
    direct = fit_flow(
        networks(20), FlowRecipe(steps=3, batch_size=8, every=1), sym=SYM, order="given", field_options={"hidden": 4},
        solver=kind.solver, show=False,
    )  # fmt: skip
    first = direct.posterior.sample(2, generator(0))
    assert all(torch.equal(tensor, first[n]) for n, tensor in flow.sample(2, generator(0)).items())
    assert last["loss"] == direct.trace[-1]["loss"]
    monkeypatch.setattr("coset_studies.flows._sampled.fit_flow", None)  # nothing is fitted again
    again, other = _stored_flows.stored_flow(context, zoo, kind, SYM, networks(20), 3, 8)
    assert all(torch.equal(tensor, first[n]) for n, tensor in again.sample(2, generator(0)).items())
    assert other["loss"] == last["loss"]
    assert not [path for path in tmp_path.rglob("*") if "checkpoint" in path.name and path.is_file()]
