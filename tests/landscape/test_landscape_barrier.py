"""Barriers against closed forms, by hand, and modulo symmetry."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import nn

from architectures import made, randomized
from coset.errors import InputError
from coset.landscape import Bezier, Functional, Profile, Profiles, accuracy, barrier, error, linear, loss, on
from coset.models import Tiny10

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(40, 4, generator=GENERATOR, dtype=torch.float64)


def scalar(value):
    return {"w": torch.tensor([value], dtype=torch.float64)}


def test_the_loss_of_a_linear_model_is_a_parabola_along_the_line():
    model = nn.Linear(4, 2).double()
    a, b = (randomized(model, torch.Generator().manual_seed(seed)) for seed in (1, 2))
    y = torch.randn(40, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    profile = barrier(linear(a, b), loss(model, (X, y), "mse", batch_size=7))
    ends = [float((X @ p["weight"].T + p["bias"] - y).square().mean()) for p in (a, b)]
    between = X @ (a["weight"] - b["weight"]).T + a["bias"] - b["bias"]
    curvature = float(between.square().mean())
    assert curvature > 0.1
    for tau, value, excess in zip(profile.taus, profile.values, profile.excess, strict=True):
        # Convex in the weights: below the chord by τ(1−τ) times the squared distance of the outputs.
        assert excess == pytest.approx(-tau * (1 - tau) * curvature, abs=1e-12)
        chord = (1 - tau) * ends[0] + tau * ends[1]
        assert value == pytest.approx(chord - tau * (1 - tau) * curvature, abs=1e-12)
    assert profile.barrier == 0
    assert profile.argmax in (0, 1)
    assert profile.midpoint.excess == pytest.approx(-curvature / 4, abs=1e-12)


@pytest.mark.parametrize("height", [0.0, 1.0, 3.5])
def test_a_hump_of_known_height(height):
    # f(w) = w/3 + height·sin²(πw): the chord is the first term.
    hump = Functional("hump", lambda p: p["w"] / 3 + height * torch.sin(math.pi * p["w"]) ** 2)
    profile = barrier(linear(scalar(0.0), scalar(1.0)), hump)
    assert profile.barrier == pytest.approx(height, abs=1e-12)
    assert profile.midpoint.value == pytest.approx(1 / 6 + height, abs=1e-12)
    assert profile.midpoint.excess == pytest.approx(height, abs=1e-12)
    if height:
        assert profile.argmax == 0.5
        worst = max(tau / 3 + height * math.sin(math.pi * tau) ** 2 for tau in profile.taus)
        assert profile.instability == pytest.approx(worst - 1 / 6, abs=1e-12)


def test_a_barrier_beside_the_middle_is_found_where_it_is():
    values = {0.0: 1.0, 0.25: 4.0, 0.5: 2.5, 0.75: 2.0, 1.0: 3.0}
    profile = barrier(linear(scalar(0.0), scalar(1.0)), lambda p: values[float(p["w"])], points=5)
    # By hand: the chord is 1, 1.5, 2, 2.5, 3.
    assert profile.taus == tuple(values)
    assert profile.values == tuple(values.values())
    assert profile.excess == (0.0, 2.5, 0.5, -0.5, 0.0)
    assert (profile.barrier, profile.argmax, profile.instability) == (2.5, 0.25, 2.0)
    assert (profile.midpoint.value, profile.midpoint.excess) == (2.5, 0.5)


def test_where_higher_is_better_a_barrier_is_a_drop():
    values = {0.0: 0.9, 0.5: 0.2, 1.0: 0.7}
    score = Functional("score", lambda p: values[float(p["w"])], better="higher")
    profile = barrier(linear(scalar(0.0), scalar(1.0)), score, points=3)
    assert profile.excess == pytest.approx((0, 0.6, 0))
    assert (profile.barrier, profile.instability) == pytest.approx((0.6, 0.6))
    flipped = barrier(linear(scalar(0.0), scalar(1.0)), lambda p: -values[float(p["w"])], points=3)
    assert (flipped.excess, flipped.barrier, flipped.argmax) == (profile.excess, profile.barrier, profile.argmax)


@given(
    values=st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=3), better=st.sampled_from(["lower", "higher"]),
)  # fmt: skip
def test_barriers_are_never_negative_and_never_above_the_instability_plus_half_the_gap(values, better):
    profile = Profile("f", (0.0, 0.5, 1.0), tuple(values), better)
    assert profile.barrier >= 0
    assert abs(profile.barrier - profile.instability) <= abs(values[0] - values[-1]) / 2 + 1e-9


# What is evaluated ------------------------------------------------------------------------------------------------


def seen_taus(**options):
    seen = []
    barrier(linear(scalar(0.0), scalar(1.0)), lambda p: seen.append(float(p["w"])) or 0.0, **options)
    return seen


def test_the_points_of_the_path():
    assert seen_taus() == [number / 24 for number in range(25)]
    assert seen_taus(points=2) == [0, 0.5, 1]
    assert seen_taus(points=4) == pytest.approx([0, 1 / 3, 0.5, 2 / 3, 1])
    assert seen_taus(taus=[0.7, 0.1, 0.7]) == pytest.approx([0, 0.1, 0.5, 0.7, 1])


def test_train_and_test_loss_and_error_at_once():
    model, _, _ = made("mlp, batch norm")
    a, b = (randomized(model, torch.Generator().manual_seed(seed)) for seed in (0, 1))
    y = (X.sum(1) > 0).long()
    profiles = barrier(linear(a, b), on(model, train=(X[:30], y[:30]), test=[(X[30:], y[30:])]), points=3)
    assert isinstance(profiles, Profiles)
    assert list(profiles) == ["train loss", "train error", "test loss", "test error"]
    middle = {name: (a[name] + b[name]) / 2 if a[name].is_floating_point() else a[name] for name in a}
    for split, part in (("train", slice(0, 30)), ("test", slice(30, 40))):
        for at, point in enumerate((a, middle, b)):
            logits = torch.func.functional_call(model, point, (X[part],))
            direct = float(nn.functional.cross_entropy(logits, y[part]).detach())
            assert profiles[f"{split} loss"].values[at] == pytest.approx(direct, rel=1e-12)
            wrong = float((logits.argmax(1) != y[part]).double().mean())
            assert profiles[f"{split} error"].values[at] == pytest.approx(wrong, abs=1e-12)
    assert profiles.taus == (0, 0.5, 1)
    assert profiles.barriers == {name: profile.barrier for name, profile in profiles.items()}


def test_the_hook_sees_every_point_and_replaces_it():
    seen = []

    def double(point, tau):
        seen.append(tau)
        return {"w": 2 * point["w"]}

    profile = barrier(Bezier([scalar(0.0), scalar(3.0), scalar(1.0)]), lambda p: p["w"], points=5, at=double)
    assert tuple(seen) == profile.taus
    expected = [2 * (6 * tau * (1 - tau) + tau**2) for tau in profile.taus]
    assert profile.values == pytest.approx(expected, abs=1e-12)


def test_any_path_will_do():
    profile = barrier(lambda tau: tau**2, lambda point: -point)
    assert profile.barrier == pytest.approx(0.25)


# Modulo symmetry --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["residual mlp", "mlp, batch norm", "grouped-query attention", "flatten"])
def test_a_network_and_its_permuted_copy_are_apart_until_they_are_aligned(name):
    model, sym, shape = made(name)
    sym = sym.restrict(scales=False, signs=False)
    generator = torch.Generator().manual_seed(4)
    a = randomized(model, generator)
    x = torch.randn(20, *shape, generator=generator, dtype=torch.float64)
    y = torch.func.functional_call(model, a, (x,)).detach()
    g = sym.random(generator)
    permuted = sym.act(g, a)
    functional = loss(model, (x, y), "mse")
    # a fits the targets exactly, and so does its copy.
    apart = barrier(linear(a, permuted), functional)
    assert apart.values[0] == 0
    assert apart.values[-1] < 1e-20
    assert apart.barrier > 1e-3
    aligned = barrier(linear(a, sym.act(sym.inverse(g), permuted)), functional)
    assert aligned.barrier == 0
    assert set(aligned.values) == {0.0}


# Numbers to keep --------------------------------------------------------------------------------------------------


def test_numbers_survive_as_json_and_csv():
    import csv
    import io
    import json

    f = {"a, b": lambda p: p["w"] / 3, "error": Functional("error", lambda p: p["w"] ** 2, unit="fraction")}
    profiles = barrier(linear(scalar(0.0), scalar(1.0)), f, points=7)
    rows = list(csv.reader(io.StringIO(profiles.to_csv())))
    assert rows[0] == ["tau", "a, b", "error"]
    assert [tuple(map(float, column)) for column in zip(*rows[1:], strict=True)] == [
        profiles.taus,
        profiles["a, b"].values,
        profiles["error"].values,
    ]
    kept = json.loads(json.dumps(profiles.to_dict()))
    assert tuple(kept["error"]["values"]) == profiles["error"].values
    assert kept["error"]["midpoint"] == {"value": 0.25, "excess": -0.25}
    assert "100.00 %" in str(profiles)
    header, _, row = str(profiles["error"]).splitlines()
    assert header.split() == ["τ", "=", "0", "τ", "=", "1/2", "τ", "=", "1", "barrier", "at", "τ"]
    assert row.split() == ["error", "0.00", "%", "25.00", "%", "100.00", "%", "0.00", "%", "0"]


# Refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("points", [1, 0, -3, 2.5, True])
def test_too_few_points(points):
    with pytest.raises(InputError, match=r"points is .*; expected a whole number of at least 2"):
        barrier(linear(scalar(0.0), scalar(1.0)), lambda p: p["w"], points=points)


@pytest.mark.parametrize("taus", [[-0.1], [0.2, 1.5], [float("nan")]])
def test_taus_outside(taus):
    with pytest.raises(InputError, match=r"tau is .*; expected a number from 0 to 1"):
        barrier(linear(scalar(0.0), scalar(1.0)), lambda p: p["w"], taus=taus)
    with pytest.raises(InputError, match="taus is empty"):
        barrier(linear(scalar(0.0), scalar(1.0)), lambda p: p["w"], taus=[])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_values_that_are_no_numbers_are_refused_with_their_place(bad):
    f = {"good": lambda p: 0.0, "bad": lambda p: bad if float(p["w"]) > 0.6 else 0.0}
    with pytest.raises(InputError, match=rf"'bad' is {bad} at τ = 0.75; expected a finite number"):
        barrier(linear(scalar(0.0), scalar(1.0)), f, points=5)


def test_a_network_with_nan_weights_is_refused_by_name():
    a, b = scalar(0.0), scalar(math.nan)
    with pytest.raises(InputError, match=r"'w' of the end has entries that are NaN or infinite \(1\)"):
        linear(a, b)
    with pytest.raises(InputError, match="'w' of control point 1 has entries that are NaN or infinite"):
        Bezier([a, b, a])


@pytest.mark.parametrize("measure", [error, accuracy, loss])
def test_outputs_that_are_no_numbers_are_no_answers(measure):
    model = nn.Linear(4, 2).double()
    data = X, torch.zeros(40, dtype=torch.long)
    large = lambda point, tau: {name: tensor * (1e308 if tau == 0.5 else 1) * 10 for name, tensor in point.items()}  # noqa: E731
    weights = model.state_dict()
    with pytest.raises(InputError, match=r"is (nan|inf) at τ = 0.5; expected a finite number"):
        barrier(linear(weights, weights), measure(model, data), points=3, at=large)


@pytest.mark.parametrize("taus", [(0.0, 1.0), (0.0, 0.5, 0.9), (-1.0, 0.0, 0.5, 1.0), (1.0, 0.5, 0.0)])
def test_a_profile_runs_from_end_to_end(taus):
    with pytest.raises(InputError, match=r"taus of 'f' are .*; expected them to rise from 0 over 1/2 to 1"):
        Profile("f", taus, taus)
    with pytest.raises(InputError, match="'f' has 2 values at 3 τ; expected one each"):
        Profile("f", (0.0, 0.5, 1.0), (1.0, 2.0))


def test_what_is_no_functional_is_refused():
    with pytest.raises(InputError, match="functional 'f' is a float; expected a function of a point"):
        barrier(linear(scalar(0.0), scalar(1.0)), {"f": 1.0})
    with pytest.raises(InputError, match="functional is an empty mapping"):
        barrier(linear(scalar(0.0), scalar(1.0)), {})


def test_what_is_no_path_is_refused():
    line = linear(scalar(0.0), scalar(1.0))
    with pytest.raises(InputError, match="path is a NoneType; expected a function of τ"):
        barrier(None, lambda p: p["w"])
    with pytest.raises(InputError, match="at is a str; expected a function of a point and τ"):
        barrier(line, lambda p: p["w"], at="x")
    with pytest.raises(InputError, match=r"taus is 0\.5; expected numbers from 0 to 1"):
        barrier(line, lambda p: p["w"], taus=0.5)


@pytest.mark.parametrize(
    ("value", "found"), [(torch.zeros(3), r"a tensor of shape \(3,\)"), (None, "NoneType"), ("a", "str")]
)
def test_functionals_that_give_no_number_are_refused(value, found):
    with pytest.raises(InputError, match=f"functional 'odd' gave {found}; expected one real number"):
        barrier(linear(scalar(0.0), scalar(1.0)), {"odd": lambda p: value})


def test_a_path_between_networks_of_another_model_is_refused():
    model = nn.Linear(4, 2).double()
    line = linear(*2 * [nn.Linear(4, 3).double().state_dict()])
    with pytest.raises(InputError, match=r"'weight' has shape \(3, 4\); the model expects \(2, 4\)"):
        barrier(line, accuracy(model, (X, torch.zeros(40, dtype=torch.long))))


# Real networks ----------------------------------------------------------------------------------------------------


def test_between_published_networks_there_is_a_barrier(checkpoint_folder, data_folder):
    a, b = (load_file(checkpoint_folder / f"tiny10-seed{seed}.safetensors") for seed in (0, 1))
    images = np.load(data_folder / "cifar10-slice.npz")
    mean = torch.tensor([0.4914, 0.4822, 0.4465]).view(3, 1, 1)
    deviation = torch.tensor([0.2023, 0.1994, 0.2010]).view(3, 1, 1)
    x, y = (torch.from_numpy(images[name]) for name in ("x_test", "y_test"))
    data = (x / 255 - mean) / deviation, y
    profile = barrier(linear(a, b), accuracy(Tiny10(), data), points=3)
    # 873 and 877 of these 1,000 images; two may turn on rounding. On all 10,000 the middle has 10.8 percent right.
    assert profile.values[0] == pytest.approx(0.873, abs=0.0021)
    assert profile.values[2] == pytest.approx(0.877, abs=0.0021)
    assert profile.midpoint.value == pytest.approx(0.108, abs=0.03)
    assert profile.barrier == pytest.approx(0.875 - 0.108, abs=0.03)
