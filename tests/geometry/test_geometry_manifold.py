"""The manifold of canonical weights: against geoopt, in single precision, for every kind of layout."""

import math
import sys
from pathlib import Path

import geoopt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coset import discover
from coset.canonical import canonicalize
from coset.distribution import normalize_scales
from coset.errors import InputError
from coset.geometry import Manifold, _blocks, manifold
from coset.models import MLP
from coset.symmetry import Symmetry

sys.path.insert(0, str(Path(__file__).parent.parent / "canonical"))

from form_networks import setting

NETWORKS = [
    "declared: batchnorm+depthwise",
    "declared: concatenation",
    "declared: tied embeddings",
    "declared: grouped-query attention",
    "declared: rotary",
    "declared: grouped+groupnorm",
    "discovered: fused attention, h,3,d",
    "discovered: u-net, transposed",
    "discovered: shuffle unit",
    "mixing: bottleneck",
    "turning: sin behind norms",
]


def generator(seed):
    return torch.Generator().manual_seed(seed)


def network(widths=(4, 5, 3), dtype=torch.float64):
    model = MLP(widths[0], list(widths[1:-1]), widths[-1]).to(dtype)
    return dict(model.state_dict()), discover(model, torch.zeros(2, widths[0], dtype=dtype), verify=False)


def close(one, two, atol=1e-12):
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=0, atol=atol)


def spread_points(space, params, seed, count=None, std=0.3):
    x = space.uniform(generator(seed), count, params)
    return x, space.wrapped_normal(x, std, generator(seed + 1))


def test_what_it_is_made_of():
    params, sym = network((4, 5, 6, 3))
    plain = manifold(sym)
    # 5 units of 4 and 6 of 5 weights; biases and the last layer.
    assert plain.dimension == 5 * 3 + 6 * 4 + 5 + 6 + 21
    assert plain.euclidean_dimension == 5 + 6 + 21
    assert repr(plain) == "Manifold(5 spheres S^3, 6 spheres S^4, Euclidean 32; 71 in all)"
    inside = manifold(sym, bias="inside")
    assert inside.dimension == 5 * 4 + 6 * 5 + 21
    weight, bias = list(params)[-2:]
    last = manifold(sym, classifier=(weight, bias))
    assert last.dimension == 70
    assert "1 sphere S^17 of radius 1.732" in repr(last)
    point = last.uniform(generator(0), None, params)
    assert float(point[weight].norm()) == pytest.approx(math.sqrt(3))


@pytest.mark.parametrize("name", NETWORKS)
def test_canonical_weights_are_on_it(name):
    _, sym, params, _ = setting(name)
    space = manifold(sym)
    assert space.check(canonicalize(sym, params).params)
    assert space.check(params) == (not space.spheres)
    every = manifold(sym.monomial)
    assert every.check(normalize_scales(sym.monomial, params)[0])
    assert len(every.spheres) > 0


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("bias", ["outside", "inside"])
def test_maps_on_every_layout(name, bias):
    """exp and log undo each other, transport is an isometry that carries log_x(y) to −log_y(x), speed is constant."""
    _, sym, params, _ = setting(name)
    space = manifold(sym.monomial, bias=bias)
    x, y = spread_points(space, params, 1, count=3)
    assert space.check(x)
    assert space.check(y)
    v = space.log(x, y)
    back = space.exp(x, v)
    for key in v:
        torch.testing.assert_close(back[key], y[key], rtol=0, atol=1e-11)
    torch.testing.assert_close(space.distance(x, y), space.norm(x, v))
    angles = space.angles(x, y)
    assert [len(item.units) for item in space.spheres] == [angle.shape[-1] for angle in angles.values()]
    w = space.tangent(x, space.uniform(generator(5), 3, params))
    close(space.tangent(x, w), w)
    carried = space.transport(x, y, w)
    close(space.tangent(y, carried), carried, atol=1e-10)
    torch.testing.assert_close(space.inner(y, carried, space.transport(x, y, v)), space.inner(x, w, v))
    close(space.transport(x, y, v), {k: -t for k, t in space.log(y, x).items()}, atol=1e-10)
    at = torch.tensor([0.2, 0.5, 0.9], dtype=torch.float64)
    torch.testing.assert_close(space.distance(x, space.geodesic(x, y, at)), at * space.distance(x, y))
    pieces = [space.geodesic(x, y, t) for t in (0.0, 0.25, 0.7, 1.0)]
    torch.testing.assert_close(space.length(pieces), space.distance(x, y))
    stacked = {key: torch.stack([piece[key] for piece in pieces]) for key in x}
    torch.testing.assert_close(space.length(stacked), space.distance(x, y))
    close(space.mean([x, y], [0.7, 0.3]), space.geodesic(x, y, 0.3), atol=1e-11)


def steps(space, x, y, v):
    """Every step that goes through many networks, and the numbers of networks."""
    found = {
        "exp": space.exp(x, v),
        "log": space.log(x, y),
        "transport": space.transport(x, y, v),
        "tangent": space.tangent(x, y),
        "project": space.project({name: 2 * tensor for name, tensor in y.items()}),
    }
    numbers = {"distance": space.distance(x, y)}
    return {(what, name): tensor for what, point in found.items() for name, tensor in point.items()} | numbers


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("bias", ["outside", "inside"])
def test_networks_in_blocks_are_networks_alone(name, bias, monkeypatch):
    """Blocks of two networks or more, the last one smaller; and one point with all of many."""
    _, sym, params, _ = setting(name)
    space = manifold(sym.monomial, bias=bias)
    x, y = spread_points(space, params, 1, count=5)
    v = space.tangent(x, space.uniform(generator(5), 5, params))
    alone = [steps(space, *({key: t[i] for key, t in point.items()} for point in (x, y, v))) for i in range(5)]
    first = {key: tensor[0] for key, tensor in x.items()}
    near = space.wrapped_normal(first, 0.3, generator(6), 5)
    from_one = [space.distance(first, {key: t[i] for key, t in near.items()}) for i in range(5)]
    size = max(item.rows(x)[0].numel() for item in space.spheres)
    monkeypatch.setattr(_blocks, "_BLOCK", 2 * size)
    together = steps(space, x, y, v)
    for key, found in together.items():
        torch.testing.assert_close(found, torch.stack([one[key] for one in alone]), rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(space.distance(first, near), torch.stack(from_one), rtol=1e-14, atol=1e-14)
    close(space.log(first, near), space.log({k: t.expand(5, *t.shape) for k, t in first.items()}, near), atol=0)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("bias", ["outside", "inside"])
@pytest.mark.parametrize("block", [1, 2**40])
def test_a_step_into_memory_that_is_there(name, bias, block, monkeypatch):
    _, sym, params, _ = setting(name)
    space = manifold(sym.monomial, bias=bias)
    x, y = spread_points(space, params, 1, count=3)
    v = space.log(x, y)
    before = {key: tensor.clone() for key, tensor in x.items()}
    expected = space.exp(x, v)
    monkeypatch.setattr(_blocks, "_BLOCK", block)
    out = {
        key: torch.full_like(tensor, math.nan) if tensor.is_floating_point() else tensor for key, tensor in x.items()
    }
    found = space.exp(x, v, out=out)
    close(found, expected, atol=1e-15)
    for key in space.shapes:
        assert key not in found or not found[key].is_floating_point() or found[key] is out[key]
    close(dict(x), before, atol=0)
    own = {key: tensor.contiguous() for key, tensor in x.items()}
    close(space.exp(own, v, out=own), expected, atol=1e-15)
    close(own, expected, atol=1e-15)


def test_memory_that_does_not_fit_is_refused():
    params, sym = network()
    space = manifold(sym)
    x, y = spread_points(space, params, 1, count=3)
    v, name = space.log(x, y), next(iter(space.shapes))
    for out, message in (
        ({key: t[:2] for key, t in x.items()}, r"out has the leading axes \(2,\); expected \(3,\)"),
        ({**x, name: x[name].float()}, f"'{name}' of out is of torch.float32 on cpu; expected torch.float64"),
        ({**x, name: x[name][:1].expand(3, -1, -1)}, f"'{name}' of out has several entries in one place; expected"),
        ({**x, name: x[name].clone().requires_grad_()}, f"out is given and '{name}' requires a gradient"),
        ({key: t for key, t in x.items() if key != name}, f"out has no '{name}'"),
    ):
        with pytest.raises(InputError, match=message):
            space.exp(x, v, out=out)


def test_derivatives_follow_steps_of_many_networks(monkeypatch):
    monkeypatch.setattr(_blocks, "_BLOCK", 1)
    params, sym = network()
    space = manifold(sym)
    x, y = spread_points(space, params, 1, count=3)
    v = space.log(x, y)
    name = space.spheres[0].names[0]
    (given,) = torch.autograd.grad(
        space.distance(x, space.exp(x, {**v, name: (moved := v[name].clone().requires_grad_())})).sum(), moved
    )
    # d‖v‖/dv = v/‖v‖ among tangent vectors.
    size = space.norm(x, v).reshape(-1, 1, 1)
    torch.testing.assert_close(space.tangent(x, {**v, name: given})[name], v[name] / size)


def test_opposite_units_are_named_by_their_network_among_all(monkeypatch):
    monkeypatch.setattr(_blocks, "_BLOCK", 1)
    params, sym = network()
    space = manifold(sym)
    x = space.uniform(generator(0), 5, params)
    y = {key: tensor.clone() for key, tensor in x.items()}
    y[space.spheres[0].names[0]][3, 2] *= -1
    with pytest.raises(InputError, match=r"unit 2 of .* of network 3, in"):
        space.log(x, y)


@pytest.mark.parametrize("name", NETWORKS)
def test_distances_do_not_change_under_permutations_and_signs(name):
    _, sym, params, _ = setting(name)
    small = sym.monomial.restrict(scales=False)
    space = manifold(sym.monomial)
    x, y = spread_points(space, params, 2)
    g = small.random(generator(0))
    moved = [small.act(g, point) for point in (x, y)]
    torch.testing.assert_close(space.distance(*moved), space.distance(x, y))
    assert any(not torch.equal(moved[0][key], x[key]) for key in space.shapes)


@given(st.integers(0, 1000), st.sampled_from([0.01, 0.3, 0.6]))
@settings(max_examples=15, deadline=None)
def test_geoopt_says_the_same(seed, std):
    params, sym = network()
    space = manifold(sym)
    name, sphere = space.spheres[0].names[0], geoopt.Sphere()
    x, y = spread_points(space, params, seed, std=std)
    v = space.log(x, y)
    torch.testing.assert_close(v[name], sphere.logmap(x[name], y[name]), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(space.exp(x, v)[name], sphere.expmap(x[name], v[name]), rtol=0, atol=1e-12)
    raw = space.uniform(generator(seed), None, params)
    torch.testing.assert_close(space.tangent(x, raw)[name], sphere.proju(x[name], raw[name]), rtol=0, atol=1e-12)
    (angles,) = space.angles(x, y).values()
    torch.testing.assert_close(angles, sphere.dist(x[name], y[name]), rtol=0, atol=1e-7)
    doubled = {key: 2 * tensor for key, tensor in x.items()}
    torch.testing.assert_close(space.project(doubled)[name], sphere.projx(doubled[name]), rtol=0, atol=1e-12)


@given(st.integers(0, 1000))
@settings(max_examples=10, deadline=None)
def test_transport_is_that_of_geoopt_in_stereographic_coordinates(seed):
    """geoopt's sphere carries vectors by projection; its stereographic model of curvature 1 does in parallel."""
    params, sym = network()
    space = manifold(sym)
    name = space.spheres[0].names[0]
    x, y = spread_points(space, params, seed)
    w = space.tangent(x, space.uniform(generator(seed + 2), None, params))
    model = geoopt.SphereProjection(k=torch.tensor(1.0, dtype=torch.float64))

    def chart(p):
        return p[..., 1:] / (1 + p[..., :1])

    def pushed(p, u):
        return torch.func.jvp(chart, (p,), (u,))[1]

    found = pushed(y[name], space.transport(x, y, w)[name])
    expected = model.transp(chart(x[name]), chart(y[name]), pushed(x[name], w[name]))
    size = expected.norm(dim=-1, keepdim=True)
    torch.testing.assert_close(found / size, expected / size, rtol=0, atol=1e-7)


@pytest.mark.parametrize("angle", [*(10.0**-k for k in range(1, 7)), math.pi - 1e-1, math.pi - 1e-2, math.pi - 1e-3])
def test_single_precision_has_the_digits_that_its_points_have(angle):
    params, sym = network((50, 7, 3), torch.float32)
    space = manifold(sym)
    name = space.spheres[0].names[0]
    wide = {key: tensor.double() for key, tensor in params.items()}
    x = space.uniform(generator(3), None, wide)
    direction = space.tangent(x, space.uniform(generator(4), None, wide))
    v = {key: angle * t / t.norm(dim=-1, keepdim=True) if key == name else 0 * t for key, t in direction.items()}
    y = space.exp(x, v)
    single = [{key: tensor.float() for key, tensor in point.items()} for point in (x, y)]
    # The points that single precision holds, in double precision: what is lost after them is the arithmetic's.
    exact = [space.project({key: tensor.double() for key, tensor in point.items()}) for point in single]
    rounding = torch.finfo(torch.float32).eps
    allowed = 4 * rounding + (16 * rounding / (math.pi - angle) if angle > 2 else 0)
    (found,), (expected,) = (space.angles(*points).values() for points in (single, exact))
    torch.testing.assert_close(found.double(), expected, rtol=4 * rounding, atol=rounding)
    logs = [space.log(*points)[name].double() for points in (single, exact)]
    assert float((logs[0] - logs[1]).norm(dim=-1).max()) <= 4 * allowed
    assert float((space.exp(single[0], space.log(*single))[name] - single[1][name]).norm(dim=-1).max()) < 4 * allowed
    assert space.check(space.exp(single[0], space.log(*single)), tolerance=1e-5)


def test_one_point_and_opposite_points():
    params, sym = network()
    space = manifold(sym)
    name = space.spheres[0].names[0]
    x = space.uniform(generator(0), 2, params)
    assert all(bool((t == 0).all()) for t in space.log(x, x).values())
    close(space.geodesic(x, x, 0.3), x, atol=0)
    y = {key: tensor.clone() for key, tensor in x.items()}
    y[name][1, 2] *= -1
    (angles,) = space.angles(x, y).values()
    assert float(angles[1, 2]) == pytest.approx(math.pi)
    match = rf"unit 2 of .* of network 1, in '{name}', are opposite"
    for call in (space.log, lambda a, b: space.geodesic(a, b, 0.5), lambda a, b: space.transport(a, b, a)):
        with pytest.raises(InputError, match=match):
            call(x, y)
    with pytest.raises(InputError, match=rf"unit 2 of .*, in '{name}': points holds two that are opposite"):
        space.mean([x, y, x])


def test_at_the_mean_the_gradient_vanishes():
    params, sym = network()
    for space in (manifold(sym), manifold(sym, bias="inside")):
        x = space.uniform(generator(0), None, params)
        points = space.wrapped_normal(x, 0.4, generator(1), 7)
        weights = torch.rand(7, generator=generator(2), dtype=torch.float64)
        mean = space.mean(points, weights)
        assert space.check(mean)
        logs = space.log(mean, points)
        for tensor in logs.values():
            gradient = torch.tensordot(weights / weights.sum(), tensor, 1)
            assert float(gradient.abs().max()) < 1e-12
        single = space.mean({key: tensor.float() for key, tensor in points.items()}, weights)
        close({key: tensor.double() for key, tensor in single.items()}, mean, atol=1e-6)
    with pytest.raises(InputError, match=r"weights has shape \(2,\)"):
        space.mean(points, [1.0, 2.0])


@pytest.mark.parametrize("std", [0.2, 1.0, 2.5])
@pytest.mark.parametrize("inputs", [2, 3])
def test_densities_have_mass_one(inputs, std):
    """On S¹ and S², by quadrature over the angle to the centre, with windings where the deviation is large."""
    params, sym = network((inputs, 1, 1))
    space = manifold(sym, at=[{key: torch.ones_like(tensor) for key, tensor in params.items()}])
    name = space.spheres[0].names[0]
    count = 4000
    phi = (torch.arange(count, dtype=torch.float64) + 0.5) * math.pi / count
    base = {key: torch.zeros_like(tensor) for key, tensor in params.items()}
    base[name] = torch.eye(inputs, dtype=torch.float64)[:1]
    circle = {key: tensor.expand(count, *tensor.shape).clone() for key, tensor in base.items()}
    circle[name][:, 0, 0], circle[name][:, 0, 1] = phi.cos(), phi.sin()
    # Of all points at an angle φ: two on the circle, a circle of length 2π·sin φ on the sphere.
    ring = 2 * torch.ones_like(phi) if inputs == 2 else 2 * math.pi * phi.sin()
    flat = space.euclidean_dimension * 0.5 * math.log(2 * math.pi * std**2)
    density = (space.wrapped_normal_log_density(base, circle, std) + flat).exp()
    assert float((density * ring).sum() * math.pi / count) == pytest.approx(1, abs=1e-4)
    level = (space.uniform_log_density(circle, std=std) + flat).exp()
    assert float((level * ring).sum() * math.pi / count) == pytest.approx(1, abs=1e-6)


def test_draws_follow_their_densities():
    """E[q/p] under p is 1 for two densities, and so is every moment that symmetry fixes."""
    params, sym = network((4, 2, 1))
    space = manifold(sym, classifier=list(params)[-2])
    x = space.uniform(generator(0), None, params)
    assert space.spheres[-1].radius == 1
    draws = space.wrapped_normal(x, 0.9, generator(1), 40000)
    ratio = (space.wrapped_normal_log_density(x, draws, 0.8) - space.wrapped_normal_log_density(x, draws, 0.9)).exp()
    assert abs(float(ratio.mean()) - 1) < 5 * float(ratio.std()) / 200
    level = space.uniform(generator(2), 40000, params, std=0.7)
    assert space.check(level)
    name = space.spheres[0].names[0]
    assert float(level[name].square().mean((0, 1)).sub(0.25).abs().max()) < 0.005
    ratio = (space.uniform_log_density(level, std=0.6) - space.uniform_log_density(level, std=0.7)).exp()
    assert abs(float(ratio.mean()) - 1) < 5 * float(ratio.std()) / 200


def test_units_that_vanish():
    params, sym = network()
    x, y = (dict(normalize_scales(sym, manifold(sym).uniform(generator(k), None, params))[0]) for k in (0, 1))
    weight, bias = list(params)[:2]
    for point in (x, y):
        point[weight] = point[weight].clone().index_fill_(0, torch.tensor([0, 1]), 0.0)
        point[bias] = point[bias].clone().index_fill_(0, torch.tensor([0]), 1.0).index_fill_(0, torch.tensor([1]), 0.0)
    assert not manifold(sym).check(x)
    with pytest.raises(InputError, match=f"unit 0 of .*'{weight}', have norm 0; expected a positive number"):
        manifold(sym).project(x)
    space = manifold(sym, at=(x, y))
    assert space.check(x)
    assert space.spheres[0].units.tolist() == [0, 2, 3, 4]
    assert bool((space.geodesic(x, y, 0.5)[weight][:2] == 0).all())


def test_what_is_not_trained_comes_along():
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    model = model.double().eval()
    sym = discover(model, torch.zeros(2, 3, dtype=torch.float64))
    params = dict(model.state_dict())
    space = manifold(sym)
    assert "1.num_batches_tracked" in space.fixed
    assert "1.running_var" in space.shapes
    x, y = spread_points(space, params, 0, count=2)
    assert x["1.num_batches_tracked"].dtype == torch.long
    assert "1.num_batches_tracked" not in space.log(x, y)
    assert space.exp(x, space.log(x, y)).keys() == params.keys()
    # Declared from plain tensors nothing is known to be a buffer: whole numbers are left out all the same.
    declared = Symmetry.from_axes({"0.weight": "h -", "0.bias": "h", "3.weight": "- /h"}, params, scales="positive")
    x = {key: tensor[0] for key, tensor in x.items()}
    assert "1.num_batches_tracked" in manifold(declared).shapes
    assert "1.num_batches_tracked" not in manifold(declared, at=[x]).shapes
    space = manifold(declared)
    assert float(space.norm(x, space.log(x, space.exp(x, space.log(x, x))))) < 1e-12


def test_bad_points_are_named():
    params, sym = network()
    space = manifold(sym)
    x = space.uniform(generator(0), 2, params)
    first = next(iter(params))
    with pytest.raises(InputError, match=f"y has no '{first}'"):
        space.log(x, {key: tensor for key, tensor in x.items() if key != first})
    with pytest.raises(InputError, match="'extra' of x is not a parameter"):
        space.project(x | {"extra": torch.zeros(1)})
    with pytest.raises(InputError, match=f"'{first}' of x has shape"):
        space.project(x | {first: torch.zeros(3)})
    with pytest.raises(InputError, match=r"has the leading axes \(2,\); expected \(\)"):
        space.project(x | {first: x[first][0]})
    with pytest.raises(InputError, match="bias is 'both'"):
        manifold(sym, bias="both")
    with pytest.raises(InputError, match="classifier names 'head'"):
        manifold(sym, classifier="head")
    with pytest.raises(InputError, match="t is None"):
        space.geodesic(x, x, None)
    assert isinstance(space, Manifold)


@pytest.mark.parametrize("name", ["declared: concatenation", "declared: grouped-query attention"])
def test_projection_can_be_differentiated(name):
    """Of r·x/‖x‖ nothing is left along x: norms, too, are functions of x."""
    _, sym, params, _ = setting(name)
    space = manifold(sym)
    start = {n: t.double() if t.is_floating_point() else t for n, t in params.items()}
    key = space.spheres[0].names[0]

    def projected(x):
        found = space.project({**start, key: x})
        return tuple(found[n] for n in space.spheres[0].names)

    assert torch.autograd.gradcheck(projected, start[key].clone().requires_grad_())
