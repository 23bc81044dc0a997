"""Bootstrap intervals and permutation tests."""

import dataclasses

import pytest
import torch
from feature_pairs import pair

from coset.errors import InputError
from coset.represent import Part, UnitGroup, cka, cka_interval, hsic, procrustes, procrustes_interval
from coset.represent.similarity import cka_test, procrustes_test
from coset.represent.similarity._procrustes import CrossMoments, cross_moments, procrustes_of_moments
from coset.represent.similarity.procrustes_resampling import (
    MatchedSums,
    resampled_distances,
    sums_by_batch,
    sums_by_example,
)
from coset.represent.similarity.resampling import _kernels, _weights, u_centred


def test_u_centred_kernels_give_the_unbiased_hsic_as_a_sum():
    x, y = pair(0, positions=())
    k, l = (u_centred(z @ z.T) for z in (x, y))  # noqa: E741
    torch.testing.assert_close(k.sum(0), torch.zeros(12, dtype=torch.float64))
    assert float((k * l).sum()) / (12 * 9) == pytest.approx(hsic(x @ x.T, y @ y.T), abs=1e-12)


@pytest.mark.parametrize("estimator", ["unbiased", "biased"])
@pytest.mark.parametrize("group", ["orthogonal", "permutation"])
def test_resamples_by_weights_are_resamples_by_copies(estimator, group):
    x, y = pair(1, n=15)
    found = cka_interval(x, y, seed=3, group=group, estimator=estimator, draws=6)
    weights = _weights(15, 6, torch.Generator().manual_seed(3))
    k, l = _kernels(x, y, group, None, estimator)  # noqa: E741
    for w, value in zip(weights, found.draws, strict=True):
        copies = torch.arange(15).repeat_interleave(w.long())
        a, b = (m[copies][:, copies] for m in (k, l))
        expected = (
            hsic(a, b, estimator=estimator) / (hsic(a, a, estimator=estimator) * hsic(b, b, estimator=estimator)) ** 0.5
        )
        assert float(value) == pytest.approx(expected, abs=1e-12)
    if estimator == "biased" and group == "orthogonal":
        assert float(value) == pytest.approx(cka(x[copies], y[copies], estimator="biased"), abs=1e-12)


def test_intervals_hold_the_value_shrink_with_examples_and_repeat():
    wide, narrow = (cka_interval(*pair(2, n=n), seed=0, group="permutation", draws=300) for n in (30, 300))
    for found in (wide, narrow):
        assert found.low < found.value < found.high
    assert narrow.high - narrow.low < 0.6 * (wide.high - wide.low)
    again = cka_interval(*pair(2, n=30), seed=0, group="permutation", draws=300)
    assert torch.equal(again.draws, wide.draws)
    assert not torch.equal(cka_interval(*pair(2, n=30), seed=1, group="permutation", draws=300).draws, wide.draws)
    less = cka_interval(*pair(2, n=30), seed=0, group="permutation", draws=300, level=0.5)
    assert wide.low < less.low < less.high < wide.high


def test_intervals_cover_the_cka_of_the_population():
    """Two linear features with covariances A, B, C: CKA → ‖C‖²/(‖A‖‖B‖); 90 % intervals hold it about so often."""
    generator = torch.Generator().manual_seed(0)
    mix = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    u, v = mix[:, :2], mix[:, 2:]
    truth = float((u.T @ v).square().sum() / ((u.T @ u).norm() * (v.T @ v).norm()))
    held = 0
    for trial in range(60):
        z = torch.randn(80, 6, generator=generator, dtype=torch.float64)
        found = cka_interval(z @ u, z @ v, seed=trial, draws=200, level=0.9)
        held += found.low <= truth <= found.high
    # A binomial of 60 at 0.9 is between 46 and 60 but for one chance in a thousand.
    assert 46 <= held <= 60


def test_copies_of_an_example_do_not_pass_for_similar_examples():
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(60, 8, generator=generator, dtype=torch.float64) for _ in range(2))
    value = cka(x, y)
    plain = torch.tensor([cka(x[i], y[i]) for i in torch.randint(60, (100, 60), generator=generator)])
    assert float(plain.mean()) > value + 0.08
    assert float(cka_interval(x, y, seed=0, draws=400).draws.mean()) == pytest.approx(value, abs=0.01)


BLOCKS = (Part(2, permutes=True, scales=True, inside=(Part(2),)), Part(1))
STILL = (Part(2, scales=True, inside=(Part(2),)), Part(1))


@pytest.mark.parametrize(
    ("group", "still"),
    [
        ("orthogonal", "trivial"),
        ("permutation", UnitGroup((Part(5, scales=True),))),
        ("signed-permutation", UnitGroup((Part(5, scales=True),))),
        ("rigid-signed-permutation", "trivial"),
        (UnitGroup(BLOCKS), UnitGroup(STILL)),
        (UnitGroup(BLOCKS, order=(4, 0, 2, 3, 1)), UnitGroup(STILL, order=(4, 0, 2, 3, 1))),
    ],
)
def test_procrustes_resamples_are_copies_matched_as_all_examples_are(group, still):
    x, y = pair(0, n=10)
    found = procrustes_interval(x, y, seed=4, group=group, draws=5)
    whole = procrustes(x, y, group=group)
    assert found.value == whole.distance
    if whole.rotation is not None:
        matched = torch.einsum("dc,ndp->ncp", whole.rotation, y)
    else:
        matched = y[:, whole.order] * whole.signs[:, None]
    generator = torch.Generator().manual_seed(4)
    for value in found.draws:
        copies = torch.arange(10).repeat_interleave(_weights(10, 1, generator)[0].long())
        # What is matched stands in its place, and nothing else may move.
        assert float(value) == pytest.approx(procrustes(x[copies], matched[copies], group=still).distance, abs=1e-9)


@pytest.mark.parametrize("group", ["orthogonal", "permutation"])
def test_the_distance_lies_in_the_middle_of_its_interval_where_resamples_matched_anew_are_closer(group):
    x, y = (torch.randn(60, 20, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) for seed in (0, 1))
    found = procrustes_interval(x, x + 2 * y, seed=0, group=group, draws=200)
    assert found.low < found.value < found.high
    resamples = torch.randint(60, (20, 60), generator=torch.Generator().manual_seed(2))
    anew = [procrustes(x[chosen], (x + 2 * y)[chosen], group=group).distance for chosen in resamples]
    gap = found.value - sum(anew) / len(anew)
    assert gap > 0.005
    assert abs(float(found.draws.mean()) - found.value) < gap / 2


@pytest.mark.parametrize("group", ["orthogonal", "permutation"])
def test_procrustes_intervals_cover_the_distance_of_the_population(group):
    """Of x = zU and y = zV, with z of unit covariance, the products are UᵀV; resampled by examples and by batches."""
    generator = torch.Generator().manual_seed(0)
    mix = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    u, v = mix, (mix + 0.7 * torch.randn(6, 3, generator=generator, dtype=torch.float64))[:, [2, 0, 1]]
    moments = CrossMoments(u.T @ v, u.square().sum(0), v.square().sum(0), u.abs().amax(0), v.abs().amax(0))
    truth = procrustes_of_moments(moments, group).distance
    held = {1: 0, 10: 0}
    ends = torch.tensor([0.05, 0.95], dtype=torch.float64)
    for _ in range(60):
        z = torch.randn(400, 6, generator=generator, dtype=torch.float64)
        x, y = (z @ u)[..., None], (z @ v)[..., None]
        whole = procrustes(x, y, group=group)
        sums = dataclasses.astuple(sums_by_example(x, y, whole))
        for batch in held:
            batches = MatchedSums(*(part.unflatten(0, (-1, batch)).sum(1) for part in sums))
            draws = resampled_distances(_weights(400 // batch, 200, generator), batches, whole)
            low, high = draws.quantile(ends).tolist()
            held[batch] += low <= truth <= high
    # A binomial of 60 at 0.9 is between 46 and 60 but for one chance in a thousand.
    assert all(46 <= count <= 60 for count in held.values()), held


def test_batches_of_one_example_are_examples():
    x, y = (part.flatten(2) for part in pair(0, n=9))
    for group, other in (("orthogonal", y), ("signed-permutation", y), ("permutation", y[:, :3])):
        found = procrustes(x, other, group=group)
        batches = [cross_moments([pieces]) for pieces in zip(x.split(1), other.split(1), strict=True)]
        for one, two in zip(
            dataclasses.astuple(sums_by_example(x, other, found)),
            dataclasses.astuple(sums_by_batch(batches, found)),
            strict=True,
        ):
            torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-12)


def test_fewer_channels_have_intervals():
    x, y = pair(0, n=30)
    found = procrustes_interval(x, y[:, :3], seed=0, draws=50)
    assert found.low < found.value < found.high
    swapped = procrustes_interval(y[:, :3], x, seed=0, draws=50)
    torch.testing.assert_close(swapped.draws, found.draws, rtol=1e-12, atol=1e-12)


def test_related_features_are_told_from_unrelated_ones():
    x, y = pair(0, n=40)
    unrelated = pair(9, n=40)[0]
    for group in ("orthogonal", "permutation"):
        assert cka_test(x, y, seed=0, group=group, draws=99).p_value == 0.01
        assert cka_test(x, unrelated, seed=0, group=group, draws=99).p_value > 0.05
        assert procrustes_test(x, y, seed=0, group=group, draws=19).p_value == 0.05
    assert procrustes_test(x, unrelated, seed=0, draws=39).p_value > 0.05


@pytest.mark.parametrize("estimator", ["unbiased", "biased"])
def test_draws_of_a_test_are_ckas_of_shuffled_examples(estimator):
    x, y = pair(0, n=9)
    found = cka_test(x, y, seed=2, group="permutation", estimator=estimator, draws=4)
    generator = torch.Generator().manual_seed(2)
    for value in found.draws:
        order = torch.randperm(9, generator=generator)
        assert float(value) == pytest.approx(cka(x, y[order], group="permutation", estimator=estimator), abs=1e-12)


def test_p_values_are_uniform_where_nothing_is_related():
    generator = torch.Generator().manual_seed(0)
    small = 0
    for trial in range(100):
        x, y = (torch.randn(8, 3, generator=generator, dtype=torch.float64) for _ in range(2))
        small += cka_test(x, y, seed=trial, group="permutation", draws=19).p_value <= 0.1
    # A binomial of 100 at 0.1 is between 2 and 21 but for two chances in a thousand.
    assert 2 <= small <= 21


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"draws": 0}, "draws is 0"),
        ({"level": 1.0}, "level is 1.0"),
        ({"estimator": "mean"}, "estimator is 'mean'"),
    ],
)
def test_bad_input_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        cka_interval(*pair(0), seed=0, **options)


def test_too_few_examples_to_resample_are_refused():
    with pytest.raises(InputError, match="a resample of the 4 examples does not tell them apart"):
        cka_interval(*pair(0, n=4, positions=()), seed=0, draws=200)
