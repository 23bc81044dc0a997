"""``fit_flow`` and ``Flow``: the contract of distributions, equivariance, densities, files, refusals."""

import dataclasses

import pytest
import torch
from flow_spaces import generator, normal, plane, sphere
from torch import nn

from architectures import made, randomized
from coset.canonical import canonicalize
from coset.distribution import MeanField, Samples, load_distribution
from coset.errors import InputError
from coset.flow import Flow, FlowRecipe, Solver, Space, fit_flow, load_flow, save_flow, task_loss, transport
from coset.geometry import Manifold
from coset.models import MLP, build
from coset.symmetry import discover
from coset.symmetry.stacks import act_stack, random_stack
from coset.train import DivergenceError
from discoveries import shared
from distribution.contract import Contract

QUICK = FlowRecipe(steps=6, every=3, batch_size=8)
TINY = {"hidden": 8, "layers": 1}


def networks(name="mlp, layer norm", count=24, spread=0.3):
    """A stack of networks around one."""
    model, sym, _ = made(name)
    start, noise = randomized(model, generator()), generator(1)
    return sym, {
        n: t + spread * torch.randn(count, *t.shape, generator=noise, dtype=t.dtype)
        if t.is_floating_point()
        else t.expand((count, *t.shape))
        for n, t in start.items()
    }


def relu():
    model = MLP(4, [5, 3], 2).double()
    sym = shared("flow: relu", model, lambda: discover(model, torch.zeros(2, 4, dtype=torch.float64)))
    start = {n: t.detach() for n, t in model.state_dict().items()}
    return model, sym, {n: t + 0.3 * normal(24, *t.shape, seed=k) for k, (n, t) in enumerate(start.items())}


def fitted(points, recipe=QUICK, **options):
    options = {"show": False, "solver": Solver(steps=4), **options}
    if options.get("field", "mlp") == "mlp":
        options.setdefault("field_options", TINY)
    return fit_flow(points, recipe, **options).posterior


class TestContract(Contract):
    """A flow over some of the parameters of any architecture, in float64."""

    saved = False

    def make(self, params, names, seeds):
        tied = {name: one for name, one in Samples.stack([params])._first.items() if name != one}
        fixed = tuple(name for name in params if name not in names and name not in tied)
        space = Space(Manifold((), {name: tuple(params[name].shape) for name in names}, tied, fixed), params)
        stack = {
            name: params[name] + 0.1 * torch.randn(8, *params[name].shape, generator=seeds, dtype=params[name].dtype)
            for name in names
        }
        whole = {
            n: stack[tied.get(n, n)] if tied.get(n, n) in stack else t.expand((8, *t.shape)) for n, t in params.items()
        }
        recipe = FlowRecipe(steps=1, every=1, batch_size=8)
        return fitted(whole, recipe, space=space, solver=Solver("euler", 2), field_options={"hidden": 2, "layers": 1})

    def check_entropy(self, moved, q, volume):
        with pytest.raises(InputError, match="no entropy in closed form; estimate it by the mean of −log_prob"):
            q.entropy()


@pytest.mark.parametrize("geometry", ["euclidean", "normalized", "geometric"])
@pytest.mark.parametrize("field", ["relational", "pna"])
def test_fields_that_read_networks_move_with_their_units(geometry, field):
    """v(t, g·x) = g·v(t, x) for permutations, one of every network, at all times, where the field's network speaks."""
    _, sym, stack = relu()
    options = {"channels": 8, "layers": 2}
    flow = fitted(stack, sym=sym, geometry=geometry, order="given", field=field, field_options=options)
    with torch.no_grad():
        flow.field.network.gate.fill_(1.0)
    flow.field.double()
    space, finite = flow.frame.space, sym.restrict(scales=False, signs=False)
    x = space.project(flow.source.sample(6, generator(2)))
    elements = random_stack(finite, 6, generator(3))

    def moved(rows):
        return space.rows(act_stack(finite, elements, space.points(rows)))

    velocity = flow.velocity()
    for t in (0.0, 0.4, 1.0):
        time = torch.tensor(t, dtype=torch.float64)
        torch.testing.assert_close(velocity(time, moved(x)), moved(velocity(time, x)), rtol=1e-9, atol=1e-9)
    with torch.no_grad():
        assert (
            float(
                (velocity(time, x) - flow.field.baseline.velocity(0 * x, *_parts(flow, x), 0 * x[:, 0] + 1)).abs().max()
            )
            > 1e-3
        )


def _parts(flow, x):
    _, z, rest = flow.field.baseline.reads(x, 0 * x[:, 0] + 1)
    return z, rest


@pytest.mark.parametrize("geometry", ["euclidean", "normalized", "geometric"])
@pytest.mark.parametrize("order", ["given", "canonical", "aligned"])
def test_draws_are_networks_of_the_frame(geometry, order):
    """Canonical draws are on their spheres; bringing draws into the frame again changes nothing where it is unique."""
    model, sym, stack = relu()
    flow = fitted(stack, sym=sym, geometry=geometry, order=order, classifier=geometry != "euclidean")
    drawn = flow.sample(5, generator(2))
    assert {n: tuple(t.shape[1:]) for n, t in drawn.items()} == {
        n: tuple(t.shape) for n, t in model.state_dict().items()
    }
    if geometry != "euclidean":
        assert flow.frame.space.manifold.check(flow.frame.with_logits(drawn, flow.frame.factor))
        for weight in ("layers.0.weight", "layers.1.weight"):
            torch.testing.assert_close(
                drawn[weight].norm(dim=2), torch.ones(drawn[weight].shape[:2], dtype=torch.float64)
            )
    x = normal(3, 4)
    given = flow.canonical(stack)
    outputs = [torch.vmap(lambda p: torch.func.functional_call(model, p, (x,)))(s) for s in (stack, given)]
    if geometry == "euclidean":
        torch.testing.assert_close(outputs[0], outputs[1])
    else:
        # Up to the size of logits, which all networks then share.
        ratio = outputs[1] / outputs[0]
        torch.testing.assert_close(ratio, ratio[:, :1, :1].expand_as(ratio))
    torch.testing.assert_close(flow.canonical(given), given)


def test_where_matrices_act_frames_are_those_of_canonical_forms():
    """Also of the Euclidean geometry, which keeps scales elsewhere: rotations and maps of heads go, by alignment."""
    options = {"vocabulary": 5, "context": 3, "dim": 4, "depth": 1, "heads": 2, "mlp_ratio": 1}
    model = build("transformer", seed=0, **options).double()
    x = torch.tensor([[0, 3, 1], [4, 2, 2]])
    sym = shared("flow: transformer", model, lambda: discover(model, x))
    assert {item.kind for item in sym.continuous.values()} == {"centred", "general"}
    stack = {n: t.detach() + 0.3 * normal(2, *t.shape, seed=k) for k, (n, t) in enumerate(model.state_dict().items())}
    flow = fitted(stack, FlowRecipe(steps=1, every=1, batch_size=2), sym=sym, order="aligned")
    formed, found = canonicalize(sym, stack, flow.frame.reference), flow.canonical(stack)
    assert formed.element.matrices
    torch.testing.assert_close(found, dict(formed.params))
    moved = act_stack(sym, random_stack(sym, 2, generator(3)), stack)
    torch.testing.assert_close(found, flow.canonical(moved))
    for number in range(2):
        ends = [{name: tensor[number] for name, tensor in networks.items()} for networks in (stack, found)]
        torch.testing.assert_close(*(torch.func.functional_call(model, end, (x,)) for end in ends))


def test_variances_of_batch_norms_are_positive_and_have_the_density_of_their_logarithms():
    """Networks go through rows unchanged; the density of a flow that stands still is that of its source, by var + ε."""
    model, sym, _ = made("mlp, batch norm")
    start = randomized(model, generator())
    stack = {n: t.expand((12, *t.shape)).clone() for n, t in start.items()}
    variances = [name for name in start if name.endswith("running_var")]
    for number, name in enumerate(variances):
        stack[name] = stack[name] * (2 * normal(12, *start[name].shape, seed=number)).exp()
    flow = fitted(stack, sym=sym, order="given")
    assert set(flow.frame.offsets) == set(variances)
    for name, tensor in flow.frame.networks(flow.frame.rows(stack)).items():
        torch.testing.assert_close(tensor, stack[name])
    drawn = flow.sample(50, generator(1))
    for name in variances:
        assert bool((drawn[name] + flow.frame.offsets[name] > 0).all())
    still = dataclasses.replace(flow, field=Still())
    rows = flow.frame.back(drawn)
    logs = sum((drawn[name] + flow.frame.offsets[name]).log().sum(1) for name in variances)
    torch.testing.assert_close(still.log_prob(drawn), flow.source.log_density(rows) - logs)
    with pytest.raises(InputError, match="a variance that is negative even with its ε"):
        flow.canonical({**stack, variances[0]: stack[variances[0]] - 1e3})


class Still(nn.Module):
    def forward(self, t, x, condition=None):
        return 0 * x


def test_the_average_of_a_long_fit_learns_two_points():
    """A flow from N(0, 1) to two points of a line ends at one of them, as often at each."""
    ends = torch.tensor([-1.0, 1.0], dtype=torch.float64).repeat(64)[:, None]
    recipe = FlowRecipe(steps=300, every=100, batch_size=128, learning_rate=5e-3, ema=0.98)
    flow = fitted({"x": ends}, recipe, solver=Solver(steps=32), field_options={"hidden": 32, "layers": 2})
    drawn = flow.sample(500, generator(3))["x"]
    assert float((drawn.abs() - 1).abs().median()) < 0.1
    assert 0.4 < float((drawn > 0).double().mean()) < 0.6


def test_conditions_and_guidance():
    """Labels tell the two points apart; guidance 0 forgets them, 1 is the conditional velocity."""
    labels = torch.tensor([0, 1]).repeat(64)
    ends = (2.0 * labels - 1)[:, None].double()
    recipe = FlowRecipe(steps=300, every=100, batch_size=128, learning_rate=5e-3, ema=0.98, untold=0.2)
    flow = fitted(
        {"x": ends}, recipe, conditions=labels, solver=Solver(steps=16), field_options={"hidden": 32, "layers": 2}
    )
    for label, sign in ((0, -1), (1, 1)):
        drawn = flow.sample(100, generator(3), condition=label)["x"]
        assert float((drawn * sign > 0).double().mean()) > 0.95
    told, x, t = torch.zeros(4, dtype=torch.long), normal(4, 1), torch.tensor(0.5, dtype=torch.float64)
    plain, with_label = flow.velocity()(t, x), flow.velocity(condition=told)(t, x)
    torch.testing.assert_close(flow.velocity(condition=told, guidance=0.0)(t, x), plain)
    torch.testing.assert_close(flow.velocity(condition=told, guidance=2.0)(t, x), 2 * with_label - plain)
    with pytest.raises(InputError, match="condition is 2; expected labels from 0 to 1"):
        flow.sample(2, generator(), condition=2)
    numbers = fitted({"x": ends}, conditions=torch.linspace(0, 1, 128))
    assert numbers.sample(3, generator(), condition=0.5)["x"].shape == (3, 1)
    with pytest.raises(InputError, match="condition is given, and the flow was trained without"):
        fitted({"x": ends}).sample(2, generator(), condition=0)


def test_guidance_by_a_loss_lowers_it():
    model, sym, stack = relu()
    x, y = normal(20, 4), normal(20, 2, seed=9)

    loss = task_loss(model, (x, y), "mse")
    outputs = torch.vmap(lambda p: torch.func.functional_call(model, p, (x,)))(stack)
    torch.testing.assert_close(loss(stack), (outputs - y).square().mean((1, 2)))

    for geometry in ("euclidean", "geometric"):
        flow = fitted(stack, sym=sym, geometry=geometry)
        plain, guided = (flow.sample(8, generator(1), loss=by, strength=0.2) for by in (None, loss))
        assert bool((loss(guided) < loss(plain)).all())
        assert geometry == "euclidean" or flow.frame.space.manifold.check(guided)
    with pytest.raises(InputError, match=r"loss gives \(\) for 8 networks; expected one number each, \(8,\)"):
        flow.sample(8, generator(1), loss=lambda params: loss(params).sum())


# Densities ------------------------------------------------------------------------------------------------------------


def test_the_density_of_a_line_and_of_a_sphere_integrate_to_one():
    line = fitted({"x": normal(64, 1)}, solver=Solver("rk4", 40))
    grid = torch.linspace(-9, 9, 2001, dtype=torch.float64)[:, None]
    assert float(line.log_prob({"x": grid}).exp().sum() * (grid[1] - grid[0])) == pytest.approx(1, abs=1e-4)
    space = sphere()
    ball = fitted({"x": space.project(normal(64, 3) + 1)}, geometry="geometric", space=space, solver=Solver("rk4", 20))
    height, turn = torch.meshgrid(
        (torch.arange(40, dtype=torch.float64) + 0.5) / 20 - 1,
        torch.arange(60, dtype=torch.float64) / 30 * torch.pi,
        indexing="ij",
    )
    wide = (1 - height.square()).sqrt()
    there = torch.stack([wide * turn.cos(), wide * turn.sin(), height], -1).reshape(-1, 3)
    density = ball.log_prob({"x": there}).exp()
    assert float(density.mean()) * 4 * torch.pi == pytest.approx(1, abs=5e-3)
    assert float(density.max() / density.min()) > 2


def test_draws_have_the_density_they_are_scored_with():
    """E over draws of log p by two traces; of the moved flow; of normalized flows there is none."""
    _, sym, stack = relu()
    flow = fitted(stack, sym=sym, geometry="geometric", solver=Solver("rk4", 6))
    drawn = flow.sample(4, generator(1))
    exact = flow.log_prob(drawn)
    probed = torch.stack([flow.log_prob(drawn, trace="hutchinson", probes=40, seed=k) for k in range(4)])
    assert ((probed.mean(0) - exact).abs() < 5 * probed.std(0) / 2 + 1e-6).all()
    options = {"trace": "hutchinson", "probes": 2, "seed": 1}
    normal_ones = flow.log_prob(drawn, noise="gaussian", **options)
    assert not torch.equal(normal_ones, flow.log_prob(drawn, **options))
    assert (normal_ones - exact).abs().max() < 20
    with pytest.raises(InputError, match="noise is 'white'"):
        flow.log_prob(drawn, noise="white", **options)
    single = flow.log_prob({name: tensor[1] for name, tensor in drawn.items()})
    torch.testing.assert_close(single, exact[1])
    with pytest.raises(InputError, match="a normalized flow has no density"):
        fitted(stack, sym=sym, geometry="normalized").log_prob(drawn)
    with pytest.raises(InputError, match="not on the spheres"):
        flow.log_prob({name: 2 * tensor for name, tensor in drawn.items()})


# Training -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("coupling", ["independent", "optimal-transport", "orbit"])
def test_an_interrupted_fit_goes_on_to_the_same_bits(coupling, tmp_path):
    _, sym, stack = relu()
    recipe = dataclasses.replace(QUICK, coupling=coupling, sigma=0.01, times="beta")
    options = {"sym": sym, "geometry": "geometric", "validation": 0.2, "seed": 3}
    whole = fitted(stack, recipe, **options)
    path = tmp_path / "fit"
    again = {**options, "checkpoint": path, "checkpoint_seconds": 0.0}
    fitted(stack, recipe, **again, callback=lambda one: one.number == 0)
    resumed = fitted(stack, recipe, **again)
    for name, tensor in whole.field.state_dict().items():
        assert torch.equal(tensor, resumed.field.state_dict()[name]), name
    other = fitted(stack, recipe, **{**options, "seed": 4})
    assert not torch.equal(other.field.network.first.weight, whole.field.network.first.weight)
    with pytest.raises(InputError, match="belongs to another run: seed is 3 there and 4 here"):
        fitted(stack, recipe, **{**again, "seed": 4})


def test_the_trace_and_the_callback():
    _, sym, stack = relu()
    seen = []
    fit = fit_flow(
        stack,
        QUICK,
        sym=sym,
        validation=0.25,
        field_options=TINY,
        callback=lambda one: seen.append(one.number),
        show=False,
    )
    assert fit.trace.columns[:2] == ("loss", "held out")
    assert seen == [0, 1]
    assert len(fit.trace) == 2
    assert repr(fit.posterior) == "Flow(euclidean, aligned, field 'mlp', coupling 'independent', 51 coordinates)"


def test_what_a_user_may_get_wrong_is_one_line():
    _, sym, stack = relu()
    norms_sym, norms = networks()
    without = norms_sym.restrict(scales=False)
    straight = fitted(stack, sym=sym)
    round_ = fitted(stack, sym=sym, geometry="geometric")
    nan = {**stack, "layers.0.weight": stack["layers.0.weight"].clone()}
    nan["layers.0.weight"][3, 0, 0] = torch.nan
    cases = [
        (lambda: fitted(stack, sym=sym, geometry="round"), "geometry is 'round'; expected one of euclidean, "),
        (lambda: fitted(stack, FlowRecipe(batch_size=25), sym=sym), "there are 24 networks and batch_size is 25"),
        (lambda: fitted({k: t[0] for k, t in stack.items()}, sym=sym), "the networks are a single one"),
        (lambda: fitted(stack, sym=sym, classifier=True), "geometry is 'euclidean', which keeps weights"),
        (lambda: fitted(norms, sym=without, geometry="geometric"), "has no scale symmetry, so that no unit"),
        (lambda: fitted(stack, sym=sym, field="transformer"), "field is 'transformer'; expected one of mlp, "),
        (lambda: fitted(stack, sym=sym, field_options={"depth": 3}), "field_options do not fit the field 'mlp'"),
        (lambda: fitted(stack, sym=sym, projection="pca", components=24), "components is 24; expected 1 to 23"),
        (lambda: fitted(nan, sym=sym), "NaN or infinite"),
        (lambda: fitted(nan, sym=sym, order="given"), "network 3 has weights that are NaN or infinite"),
        (lambda: fitted(stack, sym=sym, conditions=torch.zeros(3)), "there are 3 conditions and 24 networks"),
        (lambda: fitted(stack, sym=sym, validation=2.0), "validation is 2.0; expected a share between 0 and 1"),
        (lambda: fitted(stack, dataclasses.replace(QUICK, coupling="orbit")), "coupling is 'orbit', and there is"),
        (lambda: fitted(stack, field="relational"), "field is 'relational', which reads networks, and"),
        (lambda: FlowRecipe(ema=1.0), "ema is 1.0; expected a number from 0 to below 1"),
        (lambda: straight.sample(2, generator(), noise=0.5, solver=Solver("rk4")), None),
        (lambda: round_.sample(2, generator(), noise=0.5), "noise is 0.5, which is for straight"),
        (lambda: fitted("zoo"), "networks is a str; expected a Zoo, Samples, or a stack"),
    ]  # fmt: skip
    for call, message in cases:
        if message is None:
            assert call()["layers.0.weight"].shape == (2, 5, 4)
            continue
        with pytest.raises(InputError, match=message) as caught:
            call()
        assert "\n" not in str(caught.value)


def test_training_that_diverges_says_where():
    _, sym, stack = relu()
    recipe = FlowRecipe(steps=40, every=20, batch_size=8, learning_rate=1e9, clip=None, schedule="constant")
    with pytest.raises(DivergenceError, match=r"in epoch \d, step \d+ of 20; the last finite value was"):
        fitted(stack, recipe, sym=sym)


# Files and other sources ----------------------------------------------------------------------------------------------


class Own(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.map = nn.Linear(size, size)

    def forward(self, rows, clock):
        return self.map(rows) * clock.mean(-1, keepdim=True)


@pytest.mark.parametrize(
    "options",
    [
        {"geometry": "euclidean", "source": "kaiming", "projection": "random", "components": 5},
        {"geometry": "geometric", "classifier": True, "field": "relational", "field_options": {"channels": 8}},
        {"geometry": "normalized", "source": "wrapped-normal", "source_std": 0.3, "order": "canonical"},
        {"field": Own(51), "order": "given"},
    ],
    ids=["kaiming", "relational", "wrapped", "own"],
)  # fmt: skip
def test_files_keep_every_bit(options, tmp_path):
    _, sym, stack = relu()
    own = isinstance(options.get("field"), nn.Module)
    flow = fit_flow(stack, QUICK, sym=sym, show=False, solver=Solver(steps=2), **options).posterior
    save_flow(flow, tmp_path / "flow")
    again = load_flow(tmp_path / "flow", sym=sym, field=Own(51) if own else None)
    for drawn, there in zip(*(one.sample(3, generator()).values() for one in (flow, again)), strict=True):
        assert torch.equal(drawn, there)
    torch.testing.assert_close(again.canonical(stack), flow.canonical(stack), rtol=0, atol=0)
    assert (again.recipe, again.spec, again.solver) == (flow.recipe, flow.spec, flow.solver)
    with pytest.raises(InputError, match="belongs to the symmetry with fingerprint"):
        load_flow(tmp_path / "flow", sym=made("mlp, layer norm")[1], field=Own(51) if own else None)
    if own:
        with pytest.raises(InputError, match="its field is 'own'; expected field=, the network it was made with"):
            load_flow(tmp_path / "flow")
    with pytest.raises(InputError):
        load_distribution(tmp_path / "flow")


def test_damaged_files_are_refused(tmp_path):
    _, sym, stack = relu()
    flow = fitted(stack, sym=sym)
    save_flow(flow, path := tmp_path / "flow")
    content = path.read_bytes()
    for place in (20, len(content) // 2, len(content) - 3):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(InputError, match=str(path)):
            load_flow(path)
    with pytest.raises(InputError, match="is not a file"):
        load_flow(tmp_path / "other")
    with pytest.raises(InputError, match="the flow was moved by an element"):
        save_flow(sym.act(sym.random(generator()), flow), tmp_path / "moved")


def test_transport_by_a_field_begins_at_the_prior():
    _, sym, stack = relu()
    prior = MeanField(
        {n: torch.zeros_like(t[0]) for n, t in stack.items()}, {n: torch.ones_like(t[0]) for n, t in stack.items()}
    )
    draws = Samples({name: tensor[None] for name, tensor in stack.items()})
    fit = transport(prior, draws, way="field", recipe=QUICK, sym=sym, order="given", field_options=TINY, show=False)
    flow = fit.posterior
    assert isinstance(flow, Flow)
    x = flow.frame.space.rows(prior.sample(3, generator()))
    torch.testing.assert_close(flow.source.log_density(x), prior.log_prob(flow.frame.space.points(x)))
    assert torch.equal(flow.source.sample(3, generator()), x)


def test_points_without_a_symmetry_need_a_stack():
    with pytest.raises(InputError, match="geometry is 'geometric', and no coordinates are on spheres"):
        fitted({"x": normal(20, 2)}, geometry="geometric")
    with pytest.raises(InputError, match="the points are not on the spheres of the space"):
        fitted({"x": normal(20, 3)}, geometry="geometric", space=sphere())
    assert fitted({"x": normal(20, 2)}, space=plane()).sample(2, generator())["x"].shape == (2, 2)


def test_a_field_without_a_baseline_begins_at_the_source():
    """With a network that says nothing: the moments of the data with the baseline, those of the source without."""
    stack = {"x": 3 + 0.1 * normal(64, 5)}
    source = MeanField({"x": -torch.ones(5, dtype=torch.float64)}, {"x": 2 * torch.ones(5, dtype=torch.float64)})
    recipe = FlowRecipe(steps=1, batch_size=64, learning_rate=1e-12)
    data = stack["x"].mean(0), stack["x"].std(0, correction=0)
    for baseline, (mean, std) in ((True, data), (False, (source.mean["x"], source.std["x"]))):
        flow = fitted(stack, recipe, source=source, baseline=baseline, solver=Solver("dopri5"))
        drawn = flow.sample(4000, generator(1))["x"]
        assert float(((drawn.mean(0) - mean) / std).abs().max()) < 5 / 4000**0.5
        assert float((drawn.std(0) / std - 1).abs().max()) < 5 / 8000**0.5
    with pytest.raises(InputError, match="leaves all other directions to the baseline"):
        fitted(stack, recipe, projection="pca", baseline=False)
