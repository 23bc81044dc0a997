"""Averages against closed forms, and merging of networks that are known to be copies."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from architectures import CASES, evaluate, made, randomized
from coset.alignment import METHODS
from coset.alignment._result import Alignment, Step
from coset.alignment.averages import average, mean, normalized_weights, spherical
from coset.alignment.merging._merge import merge
from coset.distribution import Delta, MeanField
from coset.errors import InputError
from coset.models import MLP
from coset.symmetry import discover


def generator(seed):
    return torch.Generator().manual_seed(seed)


def networks(name, count):
    model, sym, shape = made(name)
    return model, sym, shape, [randomized(model, generator(seed)) for seed in range(count)]


def test_the_mean_is_the_weighted_sum_and_what_counts_is_the_first_networks():
    a = {"w": torch.tensor([1.0, 2.0]), "n": torch.tensor(3), "h": torch.tensor([1.0], dtype=torch.float16)}
    b = {"w": torch.tensor([3.0, -2.0]), "n": torch.tensor(9), "h": torch.tensor([2.0], dtype=torch.float16)}
    plain = mean([a, b])
    assert plain["w"].tolist() == [2.0, 0.0]
    assert int(plain["n"]) == 3
    assert plain["h"].dtype == torch.float16
    assert plain["h"].item() == 1.5
    assert mean([a, b], [3, 1])["w"].tolist() == [1.5, 1.0]
    assert isinstance(mean([Delta(a), Delta(b)]), Delta)
    assert a["w"].tolist() == [1.0, 2.0]


def test_half_types_are_summed_in_double_precision():
    many = [{"w": torch.full((1,), 1 + step / 1024, dtype=torch.float16)} for step in range(1000)]
    exact = sum(float(network["w"].double()) for network in many) / 1000
    assert mean(many)["w"].item() == torch.tensor(exact, dtype=torch.float64).half().item()


def test_means_and_deviations_of_posteriors_are_averaged():
    a = MeanField({"w": torch.tensor([0.0, 4.0]), "v": torch.tensor([1.0])}, {"w": torch.tensor([1.0, 2.0])})
    b = MeanField({"w": torch.tensor([2.0, 0.0]), "v": torch.tensor([3.0])}, {"w": torch.tensor([3.0, 0.0])})
    for kind in ("mean", "spherical"):
        q = average([a, b], [1, 3], kind=kind)
        assert q.std["w"].tolist() == [2.5, 0.5]
        assert q.std.keys() == {"w"}
    assert mean([a, b], [1, 3]).mean["w"].tolist() == [1.5, 1.0]


def test_tied_weights_stay_tied_and_count_once():
    def tied(value):
        shared = torch.tensor([value, 1.0], dtype=torch.float64)
        return {"a": shared, "b": torch.tensor([value], dtype=torch.float64), "c": shared}

    both = mean([tied(2.0), tied(4.0)])
    assert both["a"] is both["c"]
    once = [{name: tensor for name, tensor in tied(value).items() if name != "c"} for value in (2.0, 4.0)]
    assert torch.equal(spherical(tied(2.0), tied(4.0), 0.3)["a"], spherical(*once, 0.3)["a"])


def flat(params):
    return torch.cat([params[name].reshape(-1) for name in ("x", "y")])


def split(vector):
    return {"x": vector[:2].reshape(1, 2), "y": vector[2:]}


@given(seed=st.integers(0, 10**6), t=st.floats(-0.5, 1.5), spread=st.sampled_from([1e-9, 1e-4, 1.0, 50.0]))
def test_spherical_is_the_great_circle_with_a_linear_norm(seed, t, spread):
    base, off = torch.randn(2, 6, generator=generator(seed), dtype=torch.float64)
    a, b = base, 2 * base + spread * off
    found = flat(spherical(split(a), split(b), t))
    length = (1 - t) * a.norm() + t * b.norm()
    unit_a, unit_b = a / a.norm(), b / b.norm()
    angle = 2 * torch.atan2((unit_a - unit_b).norm(), (unit_a + unit_b).norm())
    # By Gram-Schmidt, not by the formula under test: cos(tφ)·â + sin(tφ)·ê with ê normal to â.
    across = unit_b - (unit_a @ unit_b) * unit_a
    across = across - (unit_a @ across) * unit_a
    expected = length * ((t * angle).cos() * unit_a + (t * angle).sin() * across / across.norm())
    # The direction across is known to 1e-16/φ of its own length, and contributes φ times that.
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-13 * float(1 + a.norm() + b.norm()))


def test_buffers_take_no_part_in_the_angle():
    a = {"w": torch.tensor([1.0, 0.0]), "running": torch.tensor([100.0])}
    b = {"w": torch.tensor([0.0, 1.0]), "running": torch.tensor([300.0])}
    half = spherical(a, b, 0.5, buffers=["running"])
    torch.testing.assert_close(half["w"], torch.full((2,), math.sqrt(0.5)))
    assert half["running"].item() == 200


def test_the_mean_of_many_on_the_sphere_is_where_the_logarithms_cancel():
    vectors = torch.randn(4, 6, generator=generator(3), dtype=torch.float64) + 1
    weights = [0.1, 0.2, 0.3, 0.4]
    found = flat(average([split(v) for v in vectors], weights, kind="spherical"))
    lengths = vectors.norm(dim=1)
    torch.testing.assert_close(found.norm(), (torch.tensor(weights, dtype=torch.float64) * lengths).sum())
    m = found / found.norm()
    logarithms = []
    for v in vectors / lengths[:, None]:
        angle = 2 * torch.atan2((v - m).norm(), (v + m).norm())
        tangent = v - (v @ m) * m
        logarithms.append(angle * tangent / tangent.norm())
    total = sum(w * log for w, log in zip(weights, logarithms, strict=True))
    assert float(total.norm()) < 1e-13
    # Two of three with all the weight are a great circle.
    pair = flat(average([split(v) for v in vectors[:3]], [0.3, 0.7, 0.0], kind="spherical"))
    torch.testing.assert_close(pair, flat(spherical(split(vectors[0]), split(vectors[1]), 0.7)))


def test_one_direction_has_itself_as_its_mean():
    v = split(torch.arange(1.0, 7.0, dtype=torch.float64))
    for count in (2, 3):
        torch.testing.assert_close(flat(average([v] * count, kind="spherical")), flat(v), rtol=1e-15, atol=0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda a, b: mean([]), "networks is empty"),
        (lambda a, b: mean([a, b], [1]), "weights has 1 entries; expected one for each of the 2 networks"),
        (lambda a, b: mean([a, b], [1, -1]), "finite numbers with a positive sum"),
        (lambda a, b: mean([a, b], [1, math.nan]), "finite numbers with a positive sum"),
        (lambda a, b: mean([a, {**b, "z": b["x"]}]), "network 1 has 'z' and network 0 has not"),
        (lambda a, b: mean([a, {**b, "x": b["y"]}]), "'x' has shape"),
        (lambda a, b: mean([a, MeanField(b, {})]), "a point and a posterior"),
        (lambda a, b: average([a, b], kind="median"), "average is 'median'"),
        (lambda a, b: average([a, b], kind=["mean"]), r"average is \['mean'\]"),
        (lambda a, b: spherical(a, b, "a"), "t is 'a'; expected a finite number"),
        (lambda a, b: spherical(a, b, math.inf), "t is inf; expected a finite number"),
        (lambda a, b: spherical(a, {name: -2 * tensor for name, tensor in a.items()}), "opposite to each other"),
        (lambda a, b: spherical(a, {name: 0 * tensor for name, tensor in a.items()}), "only weights that are 0"),
    ],
)
def test_what_cannot_be_averaged_is_refused(call, message):
    a, b = (split(torch.randn(6, generator=generator(seed), dtype=torch.float64)) for seed in range(2))
    with pytest.raises(InputError, match=message):
        call(a, b)


def test_directions_that_cancel_have_no_mean():
    corners = [torch.tensor([math.cos(k), math.sin(k)]) for k in (0.0, 2 * math.pi / 3, 4 * math.pi / 3)]
    with pytest.raises(InputError, match="cancel"):
        average([{"w": corner.double()} for corner in corners], kind="spherical")


def test_weights_are_normalised():
    assert normalized_weights(None, 4) == [0.25] * 4
    assert normalized_weights([2, 6], 2) == [0.25, 0.75]


@pytest.mark.parametrize("name", CASES)
def test_merging_copies_in_one_frame_gives_the_network_itself(name):
    _, sym, _, (params,) = networks(name, 1)
    copies = [params, {key: tensor.clone() for key, tensor in params.items()}]
    if len({id(tensor) for tensor in params.values()}) < len(params):
        copies[1] = {key: copies[1][next(k for k in params if params[k] is params[key])] for key in params}
    merged = merge(sym, copies, align=False)
    assert all(torch.equal(merged.params[key], tensor) for key, tensor in params.items())
    assert merged.params.keys() == params.keys()
    assert merged.notes == ()
    assert all(element == sym.identity() for element in merged.elements)


def planted(sym, element):
    """A method that finds the element it is told."""

    def method(sym, reference, other, *, seed=0, callback=None, show=None, model=None):
        aligned = sym.act(element, other)
        return Alignment(sym, "planted", element, aligned, 1.0, (0.0, 1.0), {}, {}, {}, notes=(f"model {model}",))

    return method


@pytest.mark.parametrize("name", ["flatten", "residual mlp", "grouped-query attention", "resnet20, batch"])
@pytest.mark.parametrize("average", ["mean", "spherical"])
def test_a_network_and_its_moved_copy_merge_to_the_network(monkeypatch, name, average):
    model, sym, shape, (params,) = networks(name, 1)
    g = sym.random(generator(4))
    monkeypatch.setitem(METHODS, "planted", planted(sym, sym.inverse(g)))
    moved = sym.act(g, params)
    merged = merge(sym, [params, moved, moved], method="planted", average=average, weights=[1, 2, 1], model="m")
    for key, tensor in params.items():
        torch.testing.assert_close(merged.params[key], tensor, rtol=1e-10, atol=1e-10)
    assert merged.elements[0] == sym.identity()
    assert merged.elements[1] == sym.inverse(g)
    assert merged.histories == ((0.0, 1.0), (0.0, 1.0))
    assert merged.notes == ("model m", "model m")
    assert merged.weights == (0.25, 0.5, 0.25)
    # Not aligned, they do not.
    x = torch.randn(3, *shape, generator=generator(5), dtype=torch.float64)
    naive = merge(sym, [params, moved], align=False)
    assert not torch.allclose(evaluate(model, dict(naive.params), x), evaluate(model, params, x))


@pytest.mark.parametrize("count", [2, 4])
def test_moved_copies_are_aligned_by_default(count):
    _, sym, _, (params,) = networks("residual mlp", 1)
    finite = sym.restrict(scales=False)
    moved = [finite.act(finite.random(generator(seed)), params) for seed in range(count - 1)]
    steps = []
    merged = merge(sym, [params, *moved], callback=lambda step: steps.append(step) and None)
    for key, tensor in params.items():
        torch.testing.assert_close(merged.params[key], tensor, rtol=1e-12, atol=1e-12)
    assert len(merged.elements) == count
    assert merged.elements[0] == sym.identity()
    assert steps
    assert len(merged.histories) == 1


def test_points_and_posteriors_keep_their_type(monkeypatch):
    _, sym, _, (a, b) = networks("flatten", 2)
    g = sym.random(generator(1))
    monkeypatch.setitem(METHODS, "planted", planted(sym, g))
    assert isinstance(merge(sym, [Delta(a), Delta(b)], method="planted").network, Delta)
    std = {name: tensor.abs() for name, tensor in b.items()}
    posterior = merge(sym, [MeanField(a, std), MeanField(b, std)], method="planted").network
    expected = sym.act(g, MeanField(b, std))
    for name in a:
        torch.testing.assert_close(posterior.mean[name], (a[name] + expected.mean[name]) / 2)
        torch.testing.assert_close(posterior.std[name], (std[name] + expected.std[name]) / 2)


def test_deviations_of_a_posterior_follow_the_folded_factors():
    model, sym, shape, (a, b) = networks("flatten", 2)
    std = {name: tensor.abs() for name, tensor in a.items()}
    x = torch.randn(20, *shape, generator=generator(2), dtype=torch.float64)
    done = merge(sym, [MeanField(a, std), MeanField(b, std)], align=False, renormalize="rescale", model=model, data=x)
    plain = merge(sym, [a, b], align=False)
    assert done.renormalized.rescaled == ("conv.weight", "conv2.weight")
    for name in ("conv.weight", "conv.bias"):
        factor = done.network.mean[name] / plain.params[name]
        torch.testing.assert_close(done.network.std[name], std[name] * factor)
    torch.testing.assert_close(done.network.std["fc.weight"], std["fc.weight"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"networks": 1}, "networks holds 1 networks; expected two or more"),
        ({"weights": [1]}, "weights has 1 entries"),
        ({"average": "median"}, "average is 'median'"),
        ({"renormalize": "pray"}, "renormalize is 'pray'; expected one of none, refresh, repair, rescale, data-free"),
        ({"renormalize": "repair"}, "model is None; renormalize='repair' runs the model"),
        ({"renormalize": "refresh", "model": nn.Identity()}, "data is None; renormalize='refresh' measures"),
        ({"renormalize_options": {"size": 3}}, "renormalize='none' has no option 'size'"),
        ({"method": "magic"}, "method is 'magic'"),
        ({"networks": 3, "options": {"speed": 3}}, "aligned together, which has no option 'speed'"),
        ({"options": {"speed": 3}}, "the method 'weights' has no option 'speed'"),
        ({"align": False, "method": "magic"}, "method is 'magic'"),
        ({"align": False, "options": {"speed": 3}}, "options has 'speed', but with align=False there is no alignment"),
        ({"data": torch.zeros(2, 2)}, "neither the alignment nor renormalize='none' reads any"),
        ({"align": False, "method": "activations", "data": torch.zeros(2, 2)}, "neither the alignment nor renormalize"),
        ({"weights": ["a", 1]}, r"weights is \['a', 1\]; expected one number for each of the 2 networks"),
        ({"weights": 3}, "weights is 3; expected one number for each"),
        ({"average": ["mean"]}, r"average is \['mean'\]"),
        ({"renormalize": ["repair"]}, r"renormalize is \['repair'\]"),
        ({"renormalize": "data-free", "model": "x"}, "model is a str; expected the torch.nn.Module"),
        ({"renormalize": "data-free", "model": nn.Linear(2, 2)}, r"which model \(Linear\) has not"),
    ],
)
def test_what_cannot_be_merged_is_refused(options, message):
    _, sym, _, params = networks("flatten", 3)
    options = dict(options)
    count = options.pop("networks", 2)
    with pytest.raises(InputError, match=message):
        merge(sym, params[:count], **options)


def test_a_dict_in_place_of_a_list_of_networks_is_refused():
    _, sym, _, (params,) = networks("flatten", 1)
    with pytest.raises(InputError, match="networks holds one network"):
        merge(sym, params)


def test_networks_of_another_model_are_refused():
    _, sym, _, params = networks("flatten", 1)
    other = networks("concatenation", 1)[3]
    with pytest.raises(InputError, match=r"network 1 has 'a\.weight', which this symmetry does not know"):
        merge(sym, [*params, *other], align=False)


def test_a_model_of_other_widths_is_refused_before_anything_is_aligned(monkeypatch):
    sym = discover(MLP(4, [5], 2).double().eval(), torch.zeros(2, 4, dtype=torch.float64))
    params = [randomized(MLP(4, [5], 2).double(), generator(seed)) for seed in range(2)]
    monkeypatch.setitem(METHODS, "weights", lambda *a, **k: pytest.fail("aligned"))
    message = r"'layers\.0\.weight' of model \(MLP\) has shape \(6, 4\); the symmetry expects \(5, 4\)"
    for renormalize in ("repair", "data-free"):
        data = torch.zeros(3, 4) if renormalize == "repair" else None
        with pytest.raises(InputError, match=message):
            merge(sym, params, renormalize=renormalize, model=MLP(4, [6], 2).double(), data=data)


def test_the_seed_reaches_the_noise():
    model, sym, shape, params = networks("flatten", 2)
    options = {"align": False, "renormalize": "data-free", "model": model}
    options["renormalize_options"] = {"example": torch.zeros(1, *shape, dtype=torch.float64), "count": 30}
    first, again, other = (merge(sym, params, seed=seed, **options).params["conv.weight"] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("method", ["refresh", "repair"])
def test_a_renormalisation_that_changes_nothing_says_so(method):
    model = nn.Linear(3, 2).double().eval() if method == "repair" else MLP(3, [4], 2).double().eval()
    x = torch.randn(6, 3, generator=generator(0), dtype=torch.float64)
    sym = discover(model, x[:2])
    params = [randomized(model, generator(seed)) for seed in range(2)]
    merged = merge(sym, params, align=False, renormalize=method, model=model, data=x)
    assert merged.notes == (f"renormalize='{method}' changed nothing: the network has {NOTHING[method]}",)


NOTHING = {"refresh": "no batch norm", "repair": "no layer that it could correct, and no batch norm"}


@pytest.mark.parametrize("method", ["weights", "planted"])
def test_a_callback_stops_all_alignments(monkeypatch, method):
    _, sym, _, params = networks("residual mlp", 4)
    calls = []

    def one_step(sym, reference, other, *, seed=0, callback=None, show=None):
        stopped = bool(callback(Step(1, 0.0, "planted")))
        return Alignment(sym, "planted", sym.identity(), other, 0.0, (0.0,), {}, {}, {}, stopped)

    monkeypatch.setitem(METHODS, "planted", one_step)
    merged = merge(sym, params, method=method, callback=lambda step: calls.append(step) or True)
    assert merged.stopped
    assert len(calls) == 1
    assert len(merged.elements) == 4
    if method == "planted":
        assert merged.elements[2:] == (sym.identity(), sym.identity())
        assert merged.notes == tuple(f"network {n} was not aligned: the callback stopped" for n in (2, 3))
    assert not merge(sym, params[:2], method=method, callback=lambda step: False).stopped
