"""What a reading of the code against its word has found: each a case that was wrong, or was taken without a word."""

import dataclasses

import pytest
import torch
from flow_spaces import generator, normal, plane
from torch import nn

from architectures import made, randomized
from coset.errors import InputError
from coset.flow import FlowRecipe, Path, Solver, fit_flow, load_flow, save_flow
from coset.flow._baseline import entry_flips, make_baseline
from coset.models import MLP
from coset.symmetry import discover
from discoveries import shared

RECIPE = FlowRecipe(steps=6, every=3, batch_size=8)
TINY = {"hidden": 8, "layers": 1}


def networks(activation="relu", widths=(5, 3)):
    model = MLP(4, list(widths), 2, activation=activation).double()
    x = torch.zeros(2, 4, dtype=torch.float64)
    sym = shared(f"flow faults: {activation} {widths}", model, lambda: discover(model, x))
    state = {n: t.detach() for n, t in model.state_dict().items()}
    return sym, {n: t + 0.3 * normal(24, *t.shape, seed=k) for k, (n, t) in enumerate(state.items())}


def fit(points, recipe=RECIPE, **options):
    options = {"show": False, "solver": Solver(steps=4), **options}
    if options.get("field", "mlp") == "mlp":
        options.setdefault("field_options", TINY)
    return fit_flow(points, recipe, **options)


def test_noise_along_paths_is_in_the_baseline():
    """Around one point with sigma the exact field between Gaussians is the baseline: nothing is left to be learned."""
    data = torch.tensor([1.0, -2.0], dtype=torch.float64) + 0.01 * normal(4000, 2)
    m0, s0 = torch.zeros(2, dtype=torch.float64), torch.full((2,), 1.5, dtype=torch.float64)
    for sigma in (0.0, 0.1):
        baseline = make_baseline(
            data, m0, s0, orbits=None, projection="none", components=None, generator=generator(), sigma=sigma
        )
        x0 = s0 * normal(4000, 2, seed=1)
        t = torch.rand(4000, generator=generator(2), dtype=torch.float64)
        place, target = Path(plane(), sigma).between(x0, data, t, generator(3))
        read, z, rest = baseline.reads(place, t)
        silent = baseline.velocity(torch.zeros_like(read), z, rest, t)
        unit = baseline.velocity(torch.ones_like(read), z, rest, t) - silent
        left = (target - silent) / unit
        assert abs(float(left.square().mean()) - 1) < 0.1
        assert abs(float(read.square().mean()) - 1) < 0.1


def test_entries_that_signs_flip():
    sym, stack = networks("tanh")
    flow = fit(stack, dataclasses.replace(RECIPE, coupling="orbit"), sym=sym).posterior
    flips = flow.frame.space.coordinates(entry_flips(flow.frame.space, sym))
    assert all(bool(flips[name].all()) for name in ("layers.0.weight", "layers.0.bias", "layers.2.weight"))
    assert not bool(flips["layers.2.bias"].any())
    mu = flow.frame.space.coordinates(flow.field.baseline.mu)
    assert bool((mu["layers.0.bias"] == 0).all())
    assert bool((mu["layers.2.bias"] != 0).all())


class Dropping(nn.Module):
    """A network that drops out, and keeps statistics of what it has seen."""

    def __init__(self, size):
        super().__init__()
        self.norm, self.map, self.drop = nn.BatchNorm1d(size), nn.Linear(size, size), nn.Dropout(0.5)

    def forward(self, rows, clock):
        return self.drop(self.map(self.norm(rows)))


def test_networks_that_draw_and_keep_statistics_resume_to_the_same_bits(tmp_path):
    sym, stack = networks()
    torch.manual_seed(0)
    field = Dropping(51)
    whole, again = (fit(stack, sym=sym, field=field).posterior for _ in range(2))
    path = {"checkpoint": tmp_path / "fit", "checkpoint_seconds": 0.0}
    fit(stack, sym=sym, field=field, callback=lambda one: one.number == 0, **path)
    resumed = fit(stack, sym=sym, field=field, **path).posterior
    assert int(whole.field.network.norm.num_batches_tracked) == 6
    for other in (again, resumed):
        for name, tensor in whole.field.state_dict().items():
            assert torch.equal(tensor, other.field.state_dict()[name]), name


def test_a_checkpoint_of_another_source_projection_or_condition_is_refused(tmp_path):
    sym, stack = networks()
    known = torch.linspace(0, 1, 24)
    begun = {"sym": sym, "checkpoint": tmp_path / "fit", "conditions": known, "projection": "pca", "components": 3}
    fit(stack, callback=lambda one: one.number == 0, checkpoint_seconds=0.0, **begun)
    for change in ({"source": "kaiming"}, {"source_std": 3.0}, {"conditions": 1 - known}, {"projection": "random"}):
        with pytest.raises(InputError, match="belongs to another run"):
            fit(stack, **{**begun, **change})


def test_the_schedule_ends_with_the_last_step_whatever_a_record_is():
    sym, stack = networks()
    found = [
        fit(stack, dataclasses.replace(RECIPE, steps=10, every=every), sym=sym).posterior.field.network.last[1].weight
        for every in (5, 10, 50)
    ]
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[1], found[2])


def test_files_leave_the_module_that_is_given_alone(tmp_path):
    sym, stack = networks()
    torch.manual_seed(0)
    field = nn.Sequential(nn.Linear(51, 51))

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = field

        def forward(self, rows, clock):
            return self.inner(rows)

    flow = fit(stack, sym=sym, field=Own()).posterior
    save_flow(flow, tmp_path / "flow")
    given = Own()
    before = {name: tensor.clone() for name, tensor in given.state_dict().items()}
    again = load_flow(tmp_path / "flow", field=given)
    assert all(torch.equal(tensor, before[name]) for name, tensor in given.state_dict().items())
    drawn, there = (one.sample(2, generator()) for one in (flow, again))
    assert all(torch.equal(tensor, there[name]) for name, tensor in drawn.items())
    with pytest.raises(InputError, match="its field is another network than the one that is given"):
        load_flow(tmp_path / "flow", field=nn.Linear(3, 3))


def test_held_out_networks_are_not_in_the_frame():
    """The reference is a network that is learned, whatever the order of the held-out ones."""
    sym, stack = networks()
    flow = fit(stack, sym=sym, validation=0.5).posterior
    order = torch.randperm(24, generator=torch.Generator().manual_seed(0))
    assert flow.frame.reference is not None
    matches = [
        all(torch.equal(stack[name][number], tensor) for name, tensor in flow.frame.reference.items())
        for number in order.tolist()
    ]
    assert sum(matches) == 1


def test_moved_flows_of_batch_norms_have_the_density_of_each_network():
    """By the Jacobian of the action itself, at variances at which a gain makes up for some."""
    model, sym, _ = made("mlp, batch norm")
    start = randomized(model, generator())
    stack = {
        n: t * (1 + 0.1 * normal(12, *t.shape, seed=k)) if t.is_floating_point() else t.expand((12, *t.shape))
        for k, (n, t) in enumerate(start.items())
    }
    flow = fit(stack, sym=sym, order="given", solver=Solver("euler", 2)).posterior
    g = sym.random(generator(4), spread=0.2)
    drawn = flow.sample(2, generator(5))
    moved = sym.act(g, flow)
    space = flow.frame.space

    def acted(row):
        whole = {**{n: t[0] for n, t in drawn.items()}, **space.coordinates(row)}
        return space._rows(sym.act(g, whole))

    point = space._rows({n: t[0] for n, t in drawn.items()})
    jacobian = torch.autograd.functional.jacobian(acted, point)
    expected = flow.log_prob(drawn)[0] - torch.linalg.slogdet(jacobian)[1]
    torch.testing.assert_close(moved.log_prob(sym.act(g, drawn))[0], expected, rtol=1e-9, atol=1e-7)


def test_what_was_taken_without_a_word_is_one_line():
    sym, stack = networks()
    thin_sym, thin = networks(widths=(1, 3))
    labels = torch.tensor([0, 1]).repeat(12)
    never = fit(stack, dataclasses.replace(RECIPE, untold=0.0), sym=sym, conditions=labels).posterior
    two = fit(stack, sym=sym, conditions=normal(24, 2)).posterior
    plain = fit(stack, sym=sym).posterior
    orbit = dataclasses.replace(RECIPE, coupling="orbit")
    nan = {"x": torch.tensor([[0.0], [torch.nan]], dtype=torch.float64).repeat(8, 1)}
    g = generator()
    cases = [
        (lambda: fit(stack, sym=sym, geometry="geometric", source="gaussian"), "source is 'gaussian', a Gaussian"),
        (lambda: fit(stack, orbit, sym=sym, projection="pca"), "coupling 'orbit' moves networks out of what it spans"),
        (lambda: fit(stack, sym=sym, components=3), "components is 3, and projection is 'none'"),
        (lambda: fit(stack, sym=sym, field="units", projection="pca", components=0), "components is 0; expected 1 to"),
        (lambda: fit(stack, classifier=True), "order, classifier or a reference is given, and there is no symmetry"),
        (lambda: fit(thin, sym=thin_sym, geometry="geometric"), "a unit has a single incoming weight"),
        (lambda: fit(stack, sym=sym, field=nn.Bilinear(51, 64, 1)), r"the field gives \(8, 1\) for numbers of shape"),
        (lambda: fit(nan), "network 1 has weights that are NaN or infinite in 'x'"),
        (lambda: never.sample(2, g), "was trained with untold=0"),
        (lambda: plain.sample(2, g, guidance=2.0), "guidance is 2.0, and there is no condition"),
        (lambda: two.sample(2, g, condition=0.5), r"condition has shape \(\); expected 2 finite numbers"),
        (lambda: never.sample(5, g, condition=[0, 1, 1]), r"condition has shape \(3,\); expected one label, or 5"),
        (lambda: never.sample(5, g, condition="a"), "condition is 'a'; expected labels or numbers"),
        (lambda: plain.samples(4, g, chains=0), "chains is 0; expected a whole number"),
    ]  # fmt: skip
    for call, message in cases:
        with pytest.raises(InputError, match=message) as caught:
            call()
        assert "\n" not in str(caught.value)
    assert never.sample(2, g, condition=1)["layers.0.bias"].shape == (2, 5)
    assert never.log_prob(never.sample(2, g, condition=1), condition=1).shape == (2,)
