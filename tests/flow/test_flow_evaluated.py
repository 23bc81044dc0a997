"""``evaluate_flow``: what is compared with what, in which frame, and by which likelihoods."""

import pytest
import torch
from flow_spaces import generator, normal

from coset.canonical import canonicalize
from coset.errors import InputError
from coset.flow import (
    FlowRecipe,
    Solver,
    evaluate_flow,
    fit_flow,
    fitted_gaussian,
    measure_zoo,
    score_against,
    soups,
)
from coset.models import MLP
from coset.symmetry import discover
from coset.symmetry.stacks import act_stack, random_stack
from coset.train.randomness import stream
from discoveries import shared

QUICK = {"samples": 6, "permutations": 20, "seed": 2, "show": False}


@pytest.fixture(scope="module")
def setting():
    """Networks near one, each at another place of its orbit, and labels of that one."""
    model = MLP(3, [4], 2).double().eval()
    sym = shared("flow evaluated", model, lambda: discover(model, torch.zeros(2, 3, dtype=torch.float64)))
    start = {n: normal(*t.shape, seed=k) for k, (n, t) in enumerate(model.state_dict().items())}
    near = {n: t + 0.05 * normal(24, *t.shape, seed=k + 9) for k, (n, t) in enumerate(start.items())}
    finite = sym.restrict(scales=False)
    stack = act_stack(finite, random_stack(finite, 24, generator(3)), near)
    x = normal(60, 3, seed=30)
    y = torch.func.functional_call(model, start, (x,)).argmax(-1)
    parts = [{n: t[part] for n, t in stack.items()} for part in (slice(16), slice(16, None))]
    return model, sym, finite, *parts, (x, y)


def fitted(networks, sym, **options):
    return fit_flow(
        networks, FlowRecipe(steps=2, every=2, batch_size=8), sym=sym, field_options={"hidden": 8, "layers": 1},
        solver=Solver(steps=2), show=False, **options,
    ).posterior  # fmt: skip


def test_it_is_made_of_its_parts(setting):
    model, sym, finite, seen, unseen, data = setting
    flow = fitted(seen, sym)
    found = evaluate_flow(flow, model, seen, data, held_out=unseen, generators=("soup", "gaussian"), **QUICK)
    zoo = measure_zoo(model, sym, seen, data, held_out=unseen, seed=2, show=False)
    bar = float(zoo.evaluation.measures.quantile(0.05))
    drawn = flow.sample(6, stream("samples of a flow", 2, 0))
    own = score_against(zoo, drawn, bar=bar, permutations=20, show=False)
    assert found.scores["flow"].bar == pytest.approx(bar)
    assert found.scores["flow"].novel_and_performant == own.novel_and_performant
    torch.testing.assert_close(found.scores["flow"].nearest, own.nearest)
    # The networks that the cheap generators get are aligned by hand here.
    aligned = canonicalize(finite, seen, {name: tensor[0] for name, tensor in seen.items()}).params
    soup = soups(aligned, count=8).sample(6, stream("cheap soup", 2, 0))
    torch.testing.assert_close(found.scores["soup"].nearest, score_against(zoo, soup, bar=bar, show=False).nearest)
    there = flow.canonical(unseen)
    for name, logs in (("flow", flow.log_prob(there, trace="hutchinson", seed=2)),
                       ("gaussian", fitted_gaussian(aligned).log_prob(there))):  # fmt: skip
        assert found.scores[name].log_likelihood.value == pytest.approx(float(logs.mean()) / 26), name
    assert found.scores["soup"].log_likelihood is None


@pytest.mark.parametrize("geometry", ["euclidean", "normalized", "geometric"])
def test_cheap_generators_are_aligned_whatever_the_order(setting, geometry):
    """Soups of a flow of networks as they stand are as good as networks, which soups of unaligned ones are not."""
    model, sym, _, seen, unseen, data = setting
    flow = fitted(seen, sym, geometry=geometry, order="given", classifier=geometry != "euclidean")
    found = evaluate_flow(flow, model, seen, data, held_out=unseen, generators=("soup",), **QUICK)
    scores = found.scores["soup"]
    assert float(scores.evaluation.measures.min()) > 0.9
    # Units as they stand are another frame than that of soups: no likelihood of anything else beside that of the flow.
    assert (found.scores["flow"].log_likelihood is None) == (geometry == "normalized")
    raw = measure_zoo(model, sym, seen, data, show=False)
    unaligned = score_against(raw, soups(seen, count=8).sample(6, generator()), bar=0.5, show=False)
    assert float(unaligned.evaluation.measures.max()) < float(scores.evaluation.measures.min())


def test_refusals(setting):
    model, sym, _, seen, _, data = setting
    points = fit_flow({"x": normal(20, 2)}, FlowRecipe(steps=1, batch_size=8), show=False).posterior
    with pytest.raises(InputError, match="the flow is of points without a symmetry; expected one of networks"):
        evaluate_flow(points, model, seen, data)
    with pytest.raises(InputError, match="flow is a dict; expected a Flow"):
        evaluate_flow(seen, model, seen, data)
    with pytest.raises(InputError, match="samples is 0; expected a whole number ≥ 1"):
        evaluate_flow(fitted(seen, sym), model, seen, data, samples=0)
