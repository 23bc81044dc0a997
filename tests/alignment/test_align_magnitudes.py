"""Networks of any size: both multiplied by c, in every method, against the same networks as they are."""

import math
from functools import cache

import pytest
import torch

from coset.alignment import align, align_many, align_samples, mean, merge, spherical
from coset.alignment._agreement import agreement
from coset.alignment.merging.layer_statistics import moments as channel_moments
from coset.distribution import LowRank, MeanField, Samples
from coset.errors import InputError
from coset.models import MLP
from coset.running.moments import pair_moments_of as feature_moments
from declared import declared

SCALES = [
    *((torch.float32, c) for c in (1e-30, 1e-22, 1e22, 1e30)),
    *((torch.float64, c) for c in (1e-200, 1e-150, 1e150, 1e200)),
]
MODEL = MLP(3, [6, 4], 2)
SYM = declared(MODEL)


def network(seed, dtype, c=1.0):
    generator = torch.Generator().manual_seed(seed)
    shapes = {name: tensor.shape for name, tensor in MODEL.state_dict().items()}
    return {
        name: (torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).double() * c).to(dtype)
        for name, shape in shapes.items()
    }


def posterior(seed, dtype, c=1.0):
    return MeanField(network(seed, dtype, c), {n: t.abs() for n, t in network(seed + 100, dtype, c).items()})


def low_rank(seed, dtype, c=1.0):
    factors = {name: torch.stack([tensor, -0.5 * tensor]) for name, tensor in network(seed + 200, dtype, c).items()}
    spread = {name: tensor.abs() for name, tensor in network(seed + 100, dtype, c).items()}
    return LowRank(network(seed, dtype, c), spread, factors)


def settled(g):
    """An element as numbers."""
    return [*g.permutations.values(), *(s.double() for s in g.signs.values()), *(s.log() for s in g.scales.values())]


def units(result):
    return [*settled(result.element), torch.tensor([*result.agreement.values(), *result.before.values()])]


def steps(result):
    """What descent came to, and that it moved at all."""
    assert result.objective > result.history[0]
    return [*units(result), torch.tensor(result.history, dtype=torch.float64)]


# Without a unit: the same for c·θ as for θ.
INVARIANT = {
    "weights": lambda t, c: units(align(SYM, network(0, t, c), network(1, t, c))),
    "weights, other scales": lambda t, c: units(align(SYM, network(0, t, c), network(1, t))),
    "weights and scales": lambda t, c: units(align(SYM, network(0, t, c), network(1, t, c), scales=True)),
    "posteriors": lambda t, c: units(align(SYM, posterior(0, t, c), posterior(1, t, c))),
    "posteriors, kl": lambda t, c: units(align(SYM, posterior(0, t, c), posterior(1, t, c), divergence="kl")),
    "kl of means": lambda t, c: units(align(SYM, posterior(0, t, c), posterior(1, t, c), divergence="kl-means")),
    "low rank": lambda t, c: units(align(SYM, low_rank(0, t, c), low_rank(1, t, c))),
    "many": lambda t, c: [
        p for g in align_many(SYM, [network(s, t, c) for s in range(3)]).elements for p in settled(g)
    ],
    "draws": lambda t, c: [
        p for g in align_samples(SYM, Samples.stack([network(s, t, c) for s in range(3)])).elements for p in settled(g)
    ],
    "sinkhorn": lambda t, c: steps(
        align(SYM, network(0, t, c), network(1, t, c), "sinkhorn", steps=8, every=2, learning_rate=1.0)
    ),
    "straight-through": lambda t, c: steps(
        align(SYM, network(0, t, c), network(1, t, c), "ste", objective="l2", steps=8, every=2)
    ),
    "agreement": lambda t, c: [torch.tensor(list(agreement(SYM, network(0, t, c), network(1, t, c)).values()))],
}
# In the unit of the weights: c times what comes of θ.
EQUIVARIANT = {
    "mean": lambda t, c: mean([network(0, t, c), network(1, t, c)]),
    "spherical": lambda t, c: spherical(network(0, t, c), network(1, t, c), 0.3),
    "spherical of three": lambda t, c: merge(SYM, [network(s, t, c) for s in range(3)], average="spherical").params,
    "merge": lambda t, c: merge(SYM, [network(0, t, c), network(1, t, c)]).params,
}


@cache
def as_they_are(law, dtype):
    return {**INVARIANT, **EQUIVARIANT}[law](dtype, 1.0)


@pytest.mark.parametrize(("dtype", "c"), SCALES)
@pytest.mark.parametrize("law", INVARIANT)
def test_what_has_no_unit_is_the_same_for_networks_of_any_size(law, dtype, c):
    found, expected = INVARIANT[law](dtype, c), as_they_are(law, dtype)
    # Where a minimum is, its values tell to a root of rounding only.
    tolerance = 1e-4 if dtype == torch.float32 else 1e-6 if law == "weights and scales" else 1e-9
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other) if not one.is_floating_point() else True
        torch.testing.assert_close(one.double(), other.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("dtype", "c"), SCALES)
@pytest.mark.parametrize("law", EQUIVARIANT)
def test_averages_scale_with_the_networks(law, dtype, c):
    found, expected = EQUIVARIANT[law](dtype, c), as_they_are(law, dtype)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-11
    for name, tensor in found.items():
        torch.testing.assert_close(tensor.double() / c, expected[name].double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("dtype", "c"), SCALES)
def test_planted_elements_are_found_at_any_size(dtype, c):
    reference = network(0, dtype, c)
    g = SYM.restrict(scales=False).random(torch.Generator().manual_seed(1))
    planted = SYM.element(g.permutations, signs=g.signs)
    found = align(SYM, reference, SYM.act(SYM.inverse(planted), reference))
    assert found.element == planted
    assert found.agreement == pytest.approx(dict.fromkeys(found.agreement, 1.0))


def test_the_objective_is_reported_in_its_own_unit():
    at_one, small = (align(SYM, network(0, torch.float64, c), network(1, torch.float64, c)) for c in (1.0, 2.0**-480))
    assert small.objective == math.ldexp(at_one.objective, -960)
    assert small.history == tuple(math.ldexp(value, -960) for value in at_one.history)


def test_powers_of_two_change_no_digit():
    at_one, small = (align(SYM, network(0, torch.float32, c), network(1, torch.float32, c)) for c in (1.0, 2.0**-70))
    assert small.element == at_one.element
    assert dict(small.agreement) == dict(at_one.agreement)


@pytest.mark.parametrize(("dtype", "c", "what"), [(torch.float32, 1e-22, "underflows"), (torch.float32, 1e22, "over")])
def test_a_gauge_in_which_a_layer_is_no_longer_a_number_is_refused(dtype, c, what):
    with pytest.raises(InputError, match=f"'layers.2.(weight|bias)' {what}.* torch.float32 without its scales"):
        align(SYM, network(0, dtype, c), network(1, dtype, c), gauge="normalized")


def matched_by_activations(dtype, c):
    """The element planted, and the one found."""
    inputs = torch.randn(40, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64).to(dtype)
    reference = network(0, dtype, c)
    g = SYM.restrict(scales=False).random(torch.Generator().manual_seed(1))
    planted = SYM.element(g.permutations, signs=g.signs)
    other = SYM.act(SYM.inverse(planted), reference)
    return planted, align(SYM, reference, other, "activations", model=MODEL, data=inputs)


@pytest.mark.parametrize(("dtype", "c"), [(torch.float32, 1e-30), (torch.float32, 1e-22)])
def test_activations_are_matched_and_where_they_are_no_numbers_the_weights_are(dtype, c):
    planted, found = matched_by_activations(dtype, c)
    assert found.element == planted
    assert found.notes == (
        "the units of 'h2' do not vary on these data",
        "no contraction shows the units of 'h2': they were matched on the weights",
    )


@pytest.mark.parametrize(
    ("dtype", "c", "why"),
    [
        (torch.float32, 1e22, "'h2' in the reference, .* are NaN, infinite, too small or too large to be squared"),
        (torch.float32, 1e30, "'h2' in the reference, .* are NaN, infinite, too small or too large to be squared"),
        (torch.float64, 1e150, "'h2' in the reference, .* are NaN, infinite, too small or too large to be squared"),
        (torch.float64, 1e-200, "'h1' in the reference, .* are NaN, infinite, too small or too large to be squared"),
        (torch.float64, 1e-150, "'h1' in the reference, .* are NaN, infinite, too small or too large to be squared"),
        (torch.float64, 1e200, "'h1' in the reference, .* are NaN, infinite, too small or too large to be squared"),
    ],
)
def test_activations_that_are_no_numbers_are_refused(dtype, c, why):
    with pytest.raises(InputError, match=why):
        matched_by_activations(dtype, c)


@pytest.mark.parametrize("c", [1e-30, 1e-22, 1.0, 1e18])
def test_deviations_of_channels_in_float32(c):
    """Those of one channel, as small as it may be, beside channels of ordinary size."""
    values = torch.randn(30, 3, 4, generator=torch.Generator().manual_seed(3))
    values[:, 1] *= c
    found = channel_moments(values, 1)
    expected = values.double().std((0, 2), correction=0)
    torch.testing.assert_close(found.deviation, expected, rtol=1e-5, atol=0)


def test_channels_that_vary_by_what_cannot_be_squared_are_refused_and_constant_ones_are_not():
    values = torch.randn(30, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    with pytest.raises(InputError, match=r"the outputs of 'w' are as small as .* whose squares float64 does not hold"):
        channel_moments(1e-200 * values, 1, "the outputs of 'w'")
    assert channel_moments(torch.full((5, 2), 1e-3), 1).deviation.tolist() == [0.0, 0.0]
    assert channel_moments(torch.zeros(5, 2), 1).deviation.tolist() == [0.0, 0.0]


def test_units_that_vary_by_what_cannot_be_squared_are_not_dead():
    x = torch.randn(2, 30, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    x[1] *= 1e-180
    assert feature_moments(x, x).squares.isnan().tolist() == [[False, True], [False, True]]
    still = torch.full((2, 30), 1e-3, dtype=torch.float64)
    assert not feature_moments(still, still).squares.isnan().any()
