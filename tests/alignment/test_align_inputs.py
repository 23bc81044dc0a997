"""What goes in and what comes out: types, ties, gradients and buffers kept; what is wrong is told by name."""

import math

import pytest
import torch
from torch import nn

from architectures import made, randomized
from coset._values import Frozen
from coset.alignment import align
from coset.alignment.inputs import check_network, check_pair
from coset.distribution import Delta, MeanField
from coset.errors import InputError
from coset.models import MLP
from coset.symmetry import discover


@pytest.fixture(scope="module")
def normed():
    """A network with counted batches, its symmetry, and two sets of weights in float32."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = MLP(4, [6, 5], 3, norm="batch").eval()
        other = MLP(4, [6, 5], 3, norm="batch").eval()
    sym = discover(model, torch.zeros(2, 4), verify=False)
    return sym, dict(model.state_dict()), dict(other.state_dict())


def planted(sym, params, seed=0):
    finite = sym.restrict(scales=False)
    return finite.act(finite.random(torch.Generator().manual_seed(seed)), params)


# What is kept --------------------------------------------------------------------------------------------------------


def test_counted_batches_are_left_alone(normed):
    sym, a, b = normed
    b = {**b, "norms.0.num_batches_tracked": torch.tensor(17)}
    result = align(sym, a, b)
    assert result.params["norms.0.num_batches_tracked"].item() == 17
    assert result.params["norms.0.num_batches_tracked"].dtype == torch.long
    assert list(result.params) == list(b)


def test_what_does_not_move_may_be_absent(normed):
    sym, a, b = normed
    fixed = [name for name, parameter in sym.parameters.items() if not parameter.moves]
    assert "norms.0.num_batches_tracked" in fixed
    less = [{name: t for name, t in part.items() if name not in fixed} for part in (a, b)]
    assert align(sym, *less).element == align(sym, a, b).element


@pytest.mark.parametrize("kind", [dict, Delta, Frozen])
def test_the_type_of_the_other_network_comes_back(normed, kind):
    sym, a, b = normed
    result = align(sym, kind(a), kind(b))
    assert isinstance(result.aligned, Delta if kind is Delta else dict)
    assert result.params == (result.aligned.params if kind is Delta else result.aligned)


def test_networks_that_are_being_trained(normed):
    """Parameters that ask for gradients, as ``named_parameters`` gives them: matched, and connected to the result."""
    sym, a, b = normed
    training = {name: t.clone().requires_grad_(t.is_floating_point()) for name, t in b.items()}
    result = align(sym, a, training)
    assert result.element == align(sym, a, b).element
    loss = sum(result.params[name].sum() for name in sym.structures if not sym.parameters[name].buffer)
    loss.backward()
    assert torch.equal(training["layers.0.weight"].grad, torch.ones(6, 4))


def test_inference_tensors(normed):
    sym, a, b = normed
    with torch.inference_mode():
        inside = {name: tensor.clone() for name, tensor in b.items()}
        assert align(sym, a, inside).element == align(sym, a, b).element


def test_tied_weights_stay_one_tensor():
    model, sym, _ = made("tied embeddings")
    params = randomized(model, torch.Generator().manual_seed(0))
    assert params["embed.weight"] is params["head.weight"]
    result = align(sym, params, planted(sym, params))
    assert result.params["embed.weight"].data_ptr() == result.params["head.weight"].data_ptr()
    assert torch.equal(result.params["embed.weight"], params["embed.weight"])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_with_scales(dtype):
    """Matched in float32, returned as it came."""
    model = MLP(4, [8, 8], 3).eval()
    sym = discover(model, torch.zeros(2, 4), verify=False)
    generator = torch.Generator().manual_seed(0)
    a = {name: torch.randn(t.shape, generator=generator).to(dtype) for name, t in model.state_dict().items()}
    b = planted(sym, a)
    for gauge in ("given", "normalized"):
        result = align(sym, a, b, gauge=gauge, scales=True)
        assert {tensor.dtype for tensor in result.params.values()} == {dtype}
        for name, tensor in a.items():
            torch.testing.assert_close(result.params[name], tensor, rtol=2 * torch.finfo(dtype).eps, atol=0)


def test_networks_of_different_precision(normed):
    sym, a, _ = normed
    wide = {name: t.double() if t.is_floating_point() else t for name, t in planted(sym, a).items()}
    result = align(sym, a, wide)
    assert result.params["layers.0.weight"].dtype == torch.float64
    assert all(torch.equal(result.params[name].to(a[name].dtype), a[name]) for name in a)


def test_tensors_that_are_not_contiguous(normed):
    sym, a, b = normed
    strided = {name: t.T.contiguous().T if t.ndim == 2 else t for name, t in b.items()}
    assert not strided["layers.1.weight"].is_contiguous()
    assert align(sym, a, strided).element == align(sym, a, b).element


def test_nothing_is_changed_in_place(normed):
    sym, a, b = normed
    copies = [{name: tensor.clone() for name, tensor in part.items()} for part in (a, b)]
    align(sym, a, b, scales=True, gauge="normalized", restarts=2)
    align(sym, a, b, scales=True)
    for part, copy in zip((a, b), copies, strict=True):
        assert all(torch.equal(part[name], copy[name]) for name in copy)


def test_the_result_does_not_share_memory_with_what_was_given(normed):
    sym, a, _ = normed
    result = align(sym, a, a)
    own = {tensor.data_ptr() for tensor in result.params.values()}
    assert own.isdisjoint({tensor.data_ptr() for tensor in a.values()})


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_device(normed):
    sym, a, b = normed
    there = [{name: tensor.cuda() for name, tensor in part.items()} for part in (a, b)]
    for options in ({}, {"scales": True}, {"gauge": "normalized", "scales": True}):
        result = align(sym, *there, **options)
        assert {tensor.device.type for tensor in result.params.values()} == {"cuda"}
        expected = align(sym, a, b, **options).params
        for name in a:
            torch.testing.assert_close(result.params[name].cpu(), expected[name])


def test_what_a_result_says_of_itself(normed):
    sym, a, b = normed
    result = align(sym, a, b)
    assert set(result.agreement) == set(result.before) == set(sym.permuting)
    assert all(-1 - 1e-6 <= value <= 1 + 1e-6 for value in result.agreement.values())
    assert set(result.seconds) >= {"scores", "assignment"}
    assert all(seconds >= 0 for seconds in result.seconds.values())
    assert repr(result).startswith("Alignment(weights: objective ")
    same = align(sym, a, a)
    assert all(value == pytest.approx(1) for value in same.agreement.values())


# What is refused -----------------------------------------------------------------------------------------------------


def test_a_symmetry_of_another_model(normed):
    _, a, b = normed
    with torch.random.fork_rng():
        torch.manual_seed(0)
        deep = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).eval()
    other = discover(deep, torch.zeros(2, 4), verify=False)
    with pytest.raises(InputError, match=r"the reference has '.*', which this symmetry does not know: it is the symm"):
        align(other, a, b)


def test_a_symmetry_of_another_width(normed):
    _, a, b = normed
    wide = discover(MLP(4, [7, 5], 3, norm="batch").eval(), torch.zeros(2, 4), verify=False)
    with pytest.raises(InputError, match=r"'layers.0.weight' of the reference has shape \(6, 4\); this symmetry expec"):
        align(wide, a, b)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("which", ["the reference", "the other network"])
def test_numbers_that_are_none(normed, value, which):
    sym, a, b = normed
    broken = {**a, "norms.1.bias": torch.tensor([0, value, 0, 0, value])}
    pair = (broken, b) if which == "the reference" else (a, broken)
    with pytest.raises(InputError, match=f"'norms.1.bias' of {which} has 2 entries that are NaN or infinite"):
        align(sym, *pair)


def test_numbers_in_buffers_are_checked_too(normed):
    sym, a, b = normed
    broken = {**b, "norms.0.running_var": torch.full((6,), math.nan)}
    with pytest.raises(InputError, match=r"'norms.0.running_var' of the other network has 6 entries that are NaN"):
        align(sym, a, broken)


def test_numbers_too_large_to_be_multiplied_in_their_type_are_matched():
    model = MLP(3, [4], 2)
    sym = discover(model, torch.zeros(2, 3), verify=False)
    large = {name: tensor * 1e25 for name, tensor in model.state_dict().items()}
    for network in (large, {name: tensor.double() for name, tensor in large.items()}):
        assert align(sym, network, planted(sym, network)).agreement["layers.0"] == pytest.approx(1)


def test_a_parameter_whose_products_vanish_beside_the_others_is_refused_by_name():
    """In float32 all are multiplied in float64; where that is not enough the class would be matched by nothing."""
    model = MLP(3, [4, 5], 2)
    sym = discover(model, torch.zeros(2, 3), verify=False)
    params = model.state_dict()
    far = {"layers.1.weight", "layers.1.bias", "layers.2.weight", "layers.2.bias"}
    small = {name: tensor * 1e-30 if name in far else tensor for name, tensor in params.items()}
    assert align(sym, small, planted(sym, small)).agreement["layers.1"] == pytest.approx(1)
    smaller = {name: tensor.double() * 1e-160 if name in far else tensor.double() for name, tensor in params.items()}
    with pytest.raises(InputError, match=r"the products of 'layers.1.weight' underflow torch.float64 beside those"):
        align(sym, smaller, smaller)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"speed": 3},
            r"the method 'weights' has no option 'speed'; it has divergence, gauge, scales, relax, restarts",
        ),
        ({"method": "weight"}, "method is 'weight'; expected one of weights, activations, sinkhorn, ste"),
        ({"method": None}, "method is None; expected one of"),
        ({"gauge": "free"}, "gauge is 'free'; expected one of given, normalized"),
        ({"restarts": 1.5}, "restarts is 1.5; expected a whole number ≥ 0"),
        ({"restarts": True}, "restarts is True; expected a whole number ≥ 0"),
        ({"divergence": "w2"}, "divergence is 'w2'; expected one of wasserstein, kl, kl-means"),
        ({"seed": -1}, "seed is -1; expected a whole number"),
        ({"start": {}}, "start is a dict; expected an Element"),
    ],
)
def test_options(normed, options, message):
    sym, a, b = normed
    with pytest.raises(InputError, match=message):
        align(sym, a, b, **options)


def test_a_start_of_another_group(normed):
    sym, a, b = normed
    with pytest.raises(InputError, match=r"the scale of '.*' is missing"):
        align(sym, a, b, start=sym.restrict(scales=False).identity())


def test_points_and_posteriors_do_not_mix(normed):
    sym, a, b = normed
    std = {name: torch.ones_like(tensor) for name, tensor in b.items() if tensor.is_floating_point()}
    for pair, message in (
        ((a, MeanField(b, std)), "the reference is a point and the other network a posterior"),
        ((MeanField(a, std), Delta(b)), "the reference is a posterior and the other network a point"),
    ):
        with pytest.raises(InputError, match=message):
            align(sym, *pair)
    less = {name: tensor for name, tensor in std.items() if name != "layers.1.bias"}
    with pytest.raises(
        InputError, match=r"the reference has a deviation of 'layers.1.bias' and the other network has n"
    ):
        align(sym, MeanField(a, std), MeanField(b, less))


def test_names(normed):
    sym, a, b = normed
    less = {name: tensor for name, tensor in b.items() if name != "norms.0.num_batches_tracked"}
    with pytest.raises(
        InputError, match=r"the reference has 'norms.0.num_batches_tracked' and the other network has not"
    ):
        check_pair(sym, a, less)
    with pytest.raises(
        InputError, match=r"this one lacks 'layers.0.weight', which moves under this symmetry \(it has n"
    ):
        check_network(sym, {}, "this one")
    with pytest.raises(InputError, match=r"this one has a list under 'layers.0.bias'; expected a tensor"):
        check_network(sym, {**a, "layers.0.bias": [0.0] * 6}, "this one")
    with pytest.raises(
        InputError,
        match=r"this one is a MLP; expected a dict of parameters, a Delta, a MeanField, a Gaussian or a LowRank",
    ):
        check_network(sym, MLP(4, [6, 5], 3), "this one")
