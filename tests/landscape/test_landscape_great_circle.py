"""Great circles: unit norms are kept, angles grow evenly, and small angles are right in single precision."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from architectures import CASES, made, randomized
from coset import discover
from coset.distribution import Delta, normalize_scales
from coset.errors import InputError
from coset.landscape import great_circle, linear
from coset.models import MLP
from coset.symmetry import Symmetry

TAUS = (0.1, 0.37, 0.5, 0.9)


def generator(seed):
    return torch.Generator().manual_seed(seed)


def two_layers(inputs=4, dtype=torch.float64):
    """A ReLU network and its symmetry: three hidden units, each with a free positive scale."""
    model = MLP(inputs, [3], 2).to(dtype)
    return model, discover(model, torch.zeros(2, inputs, dtype=dtype))


def normalized(sym, model, seed, dtype=torch.float64):
    params = {n: torch.randn(t.shape, generator=generator(seed), dtype=dtype) for n, t in model.state_dict().items()}
    return normalize_scales(sym, params)[0]


def rows(model, params):
    return params[next(iter(model.state_dict()))]


@pytest.mark.parametrize("name", [name for name in CASES if "linear stream" not in name])
def test_every_point_of_the_path_is_in_the_gauge_without_scales(name):
    model, sym, _ = made(name)
    if not sym.scaling:
        pytest.skip("no free scales")
    ends = []
    for seed in (0, 1):
        params = randomized(model, generator(seed))
        # A gain alone has two directions only; ends of one sign can be joined.
        ends.append({n: t.abs() if t.ndim == 1 and t.is_floating_point() else t for n, t in params.items()})
    a, b = (normalize_scales(sym, end)[0] for end in ends)
    path = great_circle(a, b, sym)
    assert path(0) == dict(a)
    assert path(1) == dict(b)
    straight = linear(a, b)
    worst = 0.0
    for tau in (0.3, 0.5):
        scales = normalize_scales(sym, path(tau))[1].scales
        assert scales.keys() == set(sym.scaling)
        for scale in scales.values():
            torch.testing.assert_close(scale, torch.ones_like(scale), rtol=0, atol=1e-12)
        left = normalize_scales(sym, straight(tau))[1].scales
        worst = max(worst, *(float((scale - 1).abs().max()) for scale in left.values()))
    # The line leaves the spheres: the test above can fail.
    assert worst > 1e-3


def test_constant_speed_and_the_closed_form_in_a_plane():
    model, sym = two_layers(inputs=2)
    angles = torch.tensor([[0.3, 1.0, -2.0], [1.5, -0.7, -1.9]], dtype=torch.float64)
    a, b = (normalized(sym, model, seed) for seed in (0, 1))
    first, *others = model.state_dict()
    a, b = (
        dict(end) | {first: torch.stack([theta.cos(), theta.sin()], 1)}
        for end, theta in zip((a, b), angles, strict=True)
    )
    path = great_circle(a, b, sym)
    for tau in TAUS:
        point, theta = path(tau), torch.lerp(angles[0], angles[1], tau)
        # In two dimensions the great circle is the rotation by τ of the angle between the ends.
        torch.testing.assert_close(point[first], torch.stack([theta.cos(), theta.sin()], 1), rtol=0, atol=1e-15)
        for name in others:
            assert torch.equal(point[name], torch.lerp(a[name], b[name], tau))
    steps = [rows(model, path(index / 10)) for index in range(11)]
    chords = torch.stack([(later - earlier).norm(dim=1) for earlier, later in pairwise(steps)])
    expected = 2 * ((angles[1] - angles[0]).abs() / 20).sin()
    torch.testing.assert_close(chords, expected.expand_as(chords), rtol=1e-12, atol=0)


def test_agrees_with_the_exponential_map_in_many_dimensions():
    model, sym = two_layers(inputs=7)
    a, b = (normalized(sym, model, seed) for seed in (2, 3))
    x, y = rows(model, a), rows(model, b)
    omega = (x * y).sum(1, keepdim=True).arccos()
    tangent = y - (x * y).sum(1, keepdim=True) * x
    tangent = omega * tangent / tangent.norm(dim=1, keepdim=True)
    for tau in TAUS:
        expected = (tau * omega).cos() * x + (tau * omega).sin() * tangent / omega
        torch.testing.assert_close(rows(model, great_circle(a, b, sym)(tau)), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("angle", [1e-3, 1e-5, 1e-7])
def test_small_angles_in_single_precision(angle):
    model, sym = two_layers(inputs=2, dtype=torch.float32)
    base = normalized(sym, model, 0, torch.float32)
    first = next(iter(base))

    def turned(theta):
        theta = torch.tensor([0.0, theta, theta / 2], dtype=torch.float64)
        return dict(base) | {first: torch.stack([theta.cos(), theta.sin()], 1).float()}

    path = great_circle(turned(0.0), turned(angle), sym)
    sines = path(0.25)[first][:, 1].double()
    torch.testing.assert_close(sines, torch.tensor([0.0, angle / 4, angle / 8], dtype=torch.float64), rtol=2e-7, atol=0)
    # Units that do not move are given back to the last bit.
    assert torch.equal(path(0.25)[first][0], base[first].new_tensor([1.0, 0.0]))
    assert torch.equal(great_circle(base, base, sym)(0.3)[first], base[first])


def test_dead_units_are_measured_by_their_bias_or_stay():
    model, sym = two_layers()
    weight, bias = list(model.state_dict())[:2]
    ends = [dict(normalized(sym, model, seed)) for seed in (0, 1)]
    for end in ends:
        end[weight] = end[weight].clone().index_fill_(0, torch.tensor([0, 1]), 0.0)
        end[bias] = torch.tensor([1.0, 0.0, end[bias][2]], dtype=torch.float64)
    point = great_circle(*ends, sym)(0.5)
    assert torch.equal(point[bias][:2], torch.tensor([1.0, 0.0], dtype=torch.float64))
    assert torch.equal(point[weight][:2], torch.zeros(2, 4, dtype=torch.float64))
    assert float(point[weight][2].norm()) == pytest.approx(1, abs=1e-15)


def test_deltas():
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.ReLU(), nn.Linear(3, 2, bias=False)).double()
    sym = Symmetry.from_axes({"0.weight": "h -", "2.weight": "- /h"}, model, scales="positive")
    a, b = (Delta(normalized(sym, model, seed)) for seed in (0, 1))
    point = great_circle(a, b, sym)(0.5)
    torch.testing.assert_close(point["0.weight"].norm(dim=1), torch.ones(3, dtype=torch.float64), rtol=0, atol=1e-15)
    assert great_circle(a, b, sym)(1)["0.weight"] is b.params["0.weight"]


def test_what_is_not_on_the_spheres_is_refused():
    model, sym = two_layers()
    a, b = (dict(normalized(sym, model, seed)) for seed in (0, 1))
    weight = next(iter(a))
    long = a | {weight: torch.cat([a[weight][:2], 2.5 * a[weight][2:]])}
    with pytest.raises(InputError, match=rf"unit 2 of .*'{weight}', have norm 2.5 at the end.*normalize_scales"):
        great_circle(b, long, sym)
    opposite = a | {weight: torch.cat([-a[weight][:1], b[weight][1:]])}
    with pytest.raises(InputError, match=f"unit 0 of .*'{weight}', are opposite"):
        great_circle(a, opposite, sym)
    with pytest.raises(InputError, match="no free scales"):
        great_circle(a, b, sym.restrict(scales=False))
    with pytest.raises(InputError, match=r"tau is 1\.5"):
        great_circle(a, b, sym)(1.5)
    nearly = a | {weight: a[weight] * (1 + 1e-3)}
    with pytest.raises(InputError, match=r"expected 1 within 0\.0001"):
        great_circle(nearly, b, sym)
    middle = great_circle(nearly, b, sym, tolerance=0.01)(0.5)[weight].norm(dim=1)
    torch.testing.assert_close(middle, torch.full_like(middle, 1 + 5e-4), rtol=1e-14, atol=0)
