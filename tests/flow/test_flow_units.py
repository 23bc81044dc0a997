"""Flows whose field has units as tokens: its equivariance, its Gaussian case, files, and other widths."""

import math

import pytest
import torch
from flow_spaces import generator

import coset
from coset.errors import InputError
from coset.flow import FlowRecipe, Solver, fit_flow, for_architecture, load_flow, save_flow
from coset.flow._unit_baseline import UnitBaseline
from coset.flow._units import units_of
from coset.models import build, example_input
from coset.symmetry.stacks import act_stack, random_stack

SMALL_FIELD = {"channels": 8, "layers": 2, "heads": 2, "pairs": 2}
RECIPE = FlowRecipe(steps=3, batch_size=8, every=3, balance=0.5, weight_decay=0.1, optimizer="adamw", coupling="orbit")


def model(*widths):
    made = build("mlp", seed=0, in_features=3, widths=list(widths), out_features=2).double()
    return made, coset.discover(made, example_input(made).double())


def networks(made, count, seed=0):
    draw = generator(seed)
    return {
        name: torch.randn(count, *t.shape, generator=draw, dtype=t.dtype) * (0.5 + 0.1 * len(name)) + 0.3
        for name, t in made.state_dict().items()
    }


def fitted(widths=(4,), count=24, recipe=RECIPE, **changes):
    made, sym = model(*widths)
    options = {"order": "given", "field": "units", "field_options": SMALL_FIELD, "source": "units", "show": False}
    options = {**options, "projection": "pca", "components": 3, "solver": Solver("midpoint", 3), **changes}
    return fit_flow(networks(made, count), recipe, sym=sym, **options).posterior


@pytest.mark.parametrize("widths", [(4,), (4, 3)])
@pytest.mark.parametrize("source", ["units", "gaussian"])
def test_permutations_of_units_move_the_velocity(widths, source):
    flow = fitted(widths, source=source)
    sym, space = flow.frame.symmetry.restrict(scales=False), flow.frame.space
    with torch.no_grad():
        for parameter in flow.field.network.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator(1)))
    rows = torch.randn(5, space.size, generator=generator(2), dtype=torch.float64)
    t = torch.linspace(0.05, 0.95, 5, dtype=torch.float64)
    elements = random_stack(sym, 5, generator(3))

    def moved(x):
        return space.rows(act_stack(sym, elements, space.points(x)))

    there = flow.field(t, rows)
    assert float((moved(rows) - rows).abs().max()) > 0.1
    torch.testing.assert_close(flow.field(t, moved(rows)), moved(there), atol=1e-10, rtol=1e-10)


def test_every_coordinate_is_of_the_units_it_carries():
    _, sym = model(4, 3)
    space = fitted((4, 3)).frame.space
    units = units_of(space, sym)
    sizes = sorted(tuple(shape) for shape in units.sizes.values())
    # Alone: 3 weights in and a bias; a bias and 2 weights out; 12 pairs; the 2 biases of outputs.
    assert sizes == [(2,), (3, 3), (3, 4, 1), (4, 4)]
    rows = torch.randn(2, space.size, generator=generator(0), dtype=torch.float64)
    assert torch.equal(units.join(units.split(rows)), rows)
    (pair,) = (key for key in units.places if len(key) == 2)
    assert torch.equal(units.split(rows)[pair][..., 0], space.points(rows)["layers.1.weight"])


def test_without_a_network_units_have_the_covariance_of_the_data():
    """The field of the baseline alone carries independent units to the Gaussian of all units, weights in with out."""
    _, sym = model(4)
    draw = generator(4)
    shared = torch.randn(6, 6, generator=draw, dtype=torch.float64)
    tokens = torch.randn(300, 4, 6, generator=draw, dtype=torch.float64) @ shared + 0.5
    stack = {
        "layers.0.weight": tokens[..., :3], "layers.0.bias": tokens[..., 3],
        "layers.1.weight": tokens[..., 4:].mT,
        "layers.1.bias": torch.randn(300, 2, generator=draw, dtype=torch.float64),
    }  # fmt: skip
    recipe = FlowRecipe(steps=1, batch_size=8, learning_rate=1e-12, every=1)
    flat = tokens.flatten(0, 1)
    expected = torch.cov(flat.T, correction=0)
    for source in ("gaussian", "units"):
        flow = fit_flow(
            stack, recipe, sym=sym, order="given", field="units", field_options=SMALL_FIELD, source=source,
            solver=Solver("rk4", 10), show=False,
        ).posterior  # fmt: skip
        drawn = flow.sample(2000, generator(5))
        own = torch.cat([drawn["layers.0.weight"], drawn["layers.0.bias"][..., None], drawn["layers.1.weight"].mT], -1)
        own = own.flatten(0, 1)
        size = expected.diagonal().sqrt()
        # 8,000 units: covariances have relative errors of up to 0.016, means of 0.011; five of them are allowed.
        assert float(((torch.cov(own.T) - expected) / (size[:, None] * size)).abs().max()) < 0.08
        assert float(((own.mean(0) - flat.mean(0)) / size).abs().max()) < 0.056


def test_a_source_of_units_has_the_density_of_its_gaussian():
    flow = fitted(components=2)
    source, space = flow.source, flow.frame.space
    rows = source.sample(3, generator(0))
    columns = source.sample(20_000, generator(1)) - source.mean
    baseline = flow.field.baseline
    units = baseline.units
    covariance = torch.zeros(space.size, space.size, dtype=torch.float64)
    for key, numbers in units.places.items():
        variances = baseline.of("variances", key)
        for unit in numbers.reshape(-1, numbers.shape[-1]):
            block = variances.diag()
            if len(key) == 1:
                basis = baseline.of("basis", key)
                rest = torch.eye(len(unit), dtype=torch.float64) - basis @ basis.T
                block = basis @ block @ basis.T + baseline.of("rest", key) * rest
            covariance[unit[:, None], unit] = block
    covariance = baseline.s0[:, None] * covariance * baseline.s0
    exact = torch.distributions.MultivariateNormal(source.mean, covariance).log_prob(rows)
    torch.testing.assert_close(source.log_density(rows), exact)
    torch.testing.assert_close(source.std, covariance.diagonal().sqrt())
    empirical = columns.T @ columns / len(columns)
    scale = source.std[:, None] * source.std
    assert float(((empirical - covariance) / scale).abs().max()) < 5 / math.sqrt(len(columns)) * math.sqrt(2)


def test_balanced_errors_count_by_deviations():
    """With p = 1 errors of one deviation of the data along any direction weigh alike; with 0 nothing changes."""
    flow = fitted(components=3)
    baseline = flow.field.baseline
    assert isinstance(baseline, UnitBaseline)
    rows = torch.randn(4, flow.frame.space.size, generator=generator(0), dtype=torch.float64)
    assert baseline.balanced(rows, 0.0) is rows
    twice = baseline.balanced(baseline.balanced(rows, 0.5), 0.5)
    torch.testing.assert_close(baseline.balanced(rows, 1.0), twice)
    drawn = flow.source.sample(4000, generator(1)) - flow.source.mean
    sizes = (baseline.balanced(drawn, 1.0) / baseline.s0).square().mean(0)
    assert float((sizes - 1).abs().max()) < 5 * math.sqrt(2 / 4000)


def test_flows_of_units_in_files(tmp_path):
    for source in ("units", "gaussian"):
        flow = fitted((4, 3), source=source)
        save_flow(flow, tmp_path / "one.flow")
        again = load_flow(tmp_path / "one.flow")
        first, second = (one.sample(3, generator(7)) for one in (flow, again))
        assert all(torch.equal(first[name], second[name]) for name in first)
        some = {name: tensor[:2] for name, tensor in first.items()}
        assert torch.equal(flow.log_prob(some), again.log_prob(some))


@pytest.mark.parametrize("source", ["units", "gaussian"])
def test_other_widths(source):
    flow = fitted((4, 3), source=source)
    made, sym = model(4, 3)
    same = for_architecture(flow, sym, made.state_dict())
    first, second = (one.sample(3, generator(7)) for one in (flow, same))
    for name in first:
        torch.testing.assert_close(first[name], second[name])
    wider, other = model(6, 5)
    found = for_architecture(flow, other, wider.state_dict()).sample(2, generator(8))
    assert {name: t.shape[1:] for name, t in found.items()} == {n: t.shape for n, t in wider.state_dict().items()}
    assert all(bool(t.isfinite().all()) for t in found.values())


def test_a_wider_baseline_has_the_moments_of_a_unit():
    flow = fitted((4,), recipe=FlowRecipe(steps=1, batch_size=8, learning_rate=1e-12, every=1))
    wider, other = model(9)
    wide = for_architecture(flow, other, wider.state_dict())
    narrow_rows, wide_rows = flow.sample(1500, generator(0)), wide.sample(1500, generator(1))
    for name in ("layers.0.weight", "layers.1.weight"):
        dims = (0, 1) if name == "layers.0.weight" else (0, 2)
        one, two = narrow_rows[name], wide_rows[name]
        spread = one.std(dims)
        # 6,000 and 13,500 units: their difference has a deviation of 0.016.
        assert float(((one.mean(dims) - two.mean(dims)) / spread).abs().max()) < 0.08
        assert float((two.std(dims) / spread - 1).abs().max()) < 0.08


def test_what_does_not_suit_units_is_refused():
    made, sym = model(4)
    stack = networks(made, 12)
    options = {"sym": sym, "order": "given", "show": False}
    recipe = FlowRecipe(steps=1, batch_size=4, every=1)
    with pytest.raises(InputError, match="source is 'units', which is for the field 'units'"):
        fit_flow(stack, recipe, field="mlp", source="units", **options)
    with pytest.raises(InputError, match="projection is 'random', and the field is 'units'"):
        fit_flow(stack, recipe, field="units", projection="random", components=2, **options)
    with pytest.raises(InputError, match="field is 'units', which reads networks, and there is no symmetry"):
        fit_flow({"x": torch.randn(8, 2)}, recipe, field="units", show=False)
    with pytest.raises(InputError, match="the field of the flow is 'mlp'"):
        for_architecture(fit_flow(stack, recipe, **options).posterior, sym, made.state_dict())
    deeper, other = model(4, 3)
    with pytest.raises(InputError, match="differs in the number of units alone"):
        for_architecture(fitted((4,)), other, deeper.state_dict())


def _metric(rank, seed=5):
    """Second moments of inputs (3,) that span so many directions."""
    seen = (
        torch.randn(40, rank, generator=generator(seed), dtype=torch.float64) @ torch.eye(3, dtype=torch.float64)[:rank]
    )
    return seen.T @ seen / 40


@pytest.mark.parametrize("widths", [(4,), (4, 3)])
def test_with_a_metric_the_source_has_the_covariance_of_units(widths):
    made, sym = model(*widths)
    stack = networks(made, 24)
    flow = fitted(widths, metric={"layers.0.weight": _metric(3)})
    space = flow.frame.space
    units = units_of(space, sym)
    (key,) = (key for key in units.places if len(key) == 1 and units.sizes[key] == flow_key_size(widths))
    tokens = units.split(space.rows(stack))[key].flatten(0, 1)
    centred = tokens - tokens.mean(0)
    drawn = units.split(flow.source.sample(40_000, generator(1)))[key].flatten(0, 1)
    wanted = centred.T @ centred / len(centred)
    torch.testing.assert_close(drawn.mean(0), tokens.mean(0), atol=0.02, rtol=0)
    torch.testing.assert_close(torch.cov(drawn.T), wanted, atol=0.03 * float(wanted.diagonal().max()), rtol=0)
    # Its density is the normal one with that covariance.
    rows = flow.source.sample(3, generator(2))
    other = rows.clone()
    other[:, units.places[key][0]] += 0.1 * torch.randn(3, tokens.shape[1], generator=generator(3), dtype=rows.dtype)
    normal = torch.distributions.MultivariateNormal(tokens.mean(0), wanted)
    first = [units.split(part)[key][:, 0] for part in (rows, other)]
    found = flow.source.log_density(other) - flow.source.log_density(rows)
    torch.testing.assert_close(found, normal.log_prob(first[1]) - normal.log_prob(first[0]), atol=1e-8, rtol=1e-8)


def flow_key_size(widths):
    return (widths[0], 6) if len(widths) == 1 else (widths[0], 4)


def test_by_a_metric_components_are_what_inputs_see():
    """Weights of an input that is always 0 vary most, and no component reads them; draws have their variance."""
    made, sym = model(4)
    stack = networks(made, 200)
    stack["layers.0.weight"][..., 2] *= 30
    options = {"order": "given", "field": "units", "field_options": SMALL_FIELD, "source": "units", "show": False}
    metric = {"layers.0.weight": _metric(2)}
    flow = fit_flow(
        stack, RECIPE, sym=sym, projection="pca", components=5, metric=metric, solver=Solver("midpoint", 3), **options
    ).posterior
    baseline = flow.field.baseline
    (key,) = baseline.turned
    moved = torch.zeros(1, 4, 6, dtype=torch.float64)
    places = baseline.units.places[key]
    unseen = torch.zeros(len(flow.source.mean), dtype=torch.bool)
    start = flow.frame.space.names.index("layers.0.weight")
    first = sum(flow.frame.space.sizes[:start])
    unseen[first + 2 : first + 12 : 3] = True
    moved[:, unseen[places]] = 1.0
    assert float(baseline.along(key, moved).abs().max()) < 0.01
    assert baseline.of("variances", key).shape == (5,)
    drawn = flow.sample(500, generator(0))["layers.0.weight"][..., 2]
    assert abs(float(drawn.std() / stack["layers.0.weight"][..., 2].std()) - 1) < 0.05
    # What components read of a network, and the rest, are the network.
    rows = flow.source.sample(4, generator(1))
    parts = baseline.units.split((rows - baseline.m0) / baseline.s0)
    z = baseline.along(key, parts[key])
    torch.testing.assert_close(baseline.along(key, baseline.back(key, z)), z, atol=1e-9, rtol=1e-9)


def test_a_metric_that_does_not_fit_is_refused():
    for metric, told in (
        ({"layers.0.weight": torch.eye(4)}, r"\(4, 4\).*\(3, 3\)"),
        ({"layers.1.bias": torch.eye(2)}, "no unit of a class"),
        ({"layers.0.weight": torch.eye(3), "layers.1.weight": torch.eye(2)}, "already"),
        ({"nothing": torch.eye(3)}, "no parameter"),
        ({"layers.0.weight": -torch.eye(3)}, "below 0"),
        ({"layers.0.weight": torch.eye(3) + torch.eye(3).roll(1, 0)}, "symmetric"),
    ):
        with pytest.raises(InputError, match=told):
            fitted(metric=metric)
    with pytest.raises(InputError, match="metric is given"):
        fitted(metric={"layers.0.weight": torch.eye(3)}, source="gaussian")


def test_a_flow_with_a_metric_goes_through_a_file_and_to_other_widths(tmp_path):
    flow = fitted(metric={"layers.0.weight": _metric(2)})
    save_flow(flow, tmp_path / "flow.safetensors")
    again = load_flow(tmp_path / "flow.safetensors")
    first, second = (one.sample(3, generator(4)) for one in (flow, again))
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())
    own = flow.canonical(first)
    assert torch.equal(*(one.log_prob(own, solver=Solver("midpoint", 2)) for one in (flow, again)))
    wide, sym = model(7)
    drawn = for_architecture(flow, sym, wide.state_dict()).sample(2, generator(5))
    assert drawn["layers.0.weight"].shape == (2, 7, 3)


def _stirred(flow):
    """A flow whose network says something."""
    with torch.no_grad():
        for parameter in flow.field.network.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator(1)))
    return flow


def test_contrast_multiplies_what_the_network_adds_to_the_baseline():
    flow = _stirred(fitted())
    rows, t = flow.source.sample(5, generator(0)), torch.tensor(0.4, dtype=torch.float64)
    with torch.no_grad():
        none, one, two = (flow.velocity(contrast=c)(t, rows) for c in (0.0, 1.0, 2.0))
    assert float((one - none).abs().max()) > 0.01
    torch.testing.assert_close(two - none, 2 * (one - none), atol=1e-10, rtol=1e-10)
    # Without the network the flow is one between Gaussians, from the source of units to itself.
    read, z, rest = flow.field.baseline.reads(rows, t.expand(5))
    torch.testing.assert_close(none, flow.field.baseline.velocity(torch.zeros_like(read), z, rest, t.expand(5)))


def test_temperature_multiplies_deviations_of_the_source():
    flow = fitted(recipe=FlowRecipe(steps=1, batch_size=8, every=1, learning_rate=1e-12))
    cold, warm = (flow.rows(4000, generator(0), temperature=tau) for tau in (0.5, 1.0))
    # Nothing was learned: the flow is that of the baseline, which is linear.
    torch.testing.assert_close(cold.std(0), warm.std(0) / 2, atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(
        cold.mean(0), flow.source.mean + (warm.mean(0) - flow.source.mean) / 2, atol=1e-6, rtol=0
    )
    none = flow.rows(2, generator(0), temperature=0.0)
    torch.testing.assert_close(none[0], none[1], atol=1e-12, rtol=0)
    for wrong in (-1.0, float("nan")):
        with pytest.raises(InputError, match="temperature"):
            flow.rows(2, generator(0), temperature=wrong)
    sphere = fitted(source="uniform", geometry="geometric")
    with pytest.raises(InputError, match="Gaussian sources"):
        sphere.rows(2, generator(0), temperature=0.5)
