"""Mixup and CutMix against direct calculation."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch.nn import functional

from coset.train.augment import Mix, beta_quantile, cut_box, draw_mixes, mix_inputs, mix_values

unit = st.floats(0, 1, exclude_max=True)


@given(weight=unit, row=unit, column=unit, height=st.integers(1, 9), width=st.integers(1, 9))
def test_the_weight_is_the_exact_share_of_own_pixels(
    weight: float, row: float, column: float, height: int, width: int
) -> None:
    mix = cut_box(weight, (row, column), height, width)
    own, other = torch.zeros(1, 1, height, width), torch.ones(1, 1, height, width)
    mixed = mix_inputs(torch.cat((own, other)), mix)
    taken = float(mixed[0].sum())
    assert mix.weight == pytest.approx(1 - taken / (height * width), abs=1e-12)
    # Boxes are only ever cut smaller: never more than the share asked for.
    assert taken <= (1 - weight) * height * width + 1e-9


def test_an_uncut_box_has_the_share_asked_for() -> None:
    mix = cut_box(0.75, (0.5, 0.5), 8, 8)
    assert mix == Mix(0.75, (2, 6, 2, 6))


def test_cutmix_pastes_the_box_of_the_neighbour() -> None:
    images = torch.arange(3 * 2 * 4 * 4.0).reshape(3, 2, 4, 4)
    mixed = mix_inputs(images, Mix(0.0, (1, 3, 0, 2)))
    for b in range(3):
        for i in range(4):
            for j in range(4):
                source = (b - 1) % 3 if 1 <= i < 3 and j < 2 else b
                assert torch.equal(mixed[b, :, i, j], images[source, :, i, j])


def test_mixup_interpolates_with_the_neighbour_and_leaves_its_input() -> None:
    inputs = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    before = inputs.clone()
    mixed = mix_inputs(inputs, Mix(0.7))
    for b in range(4):
        assert torch.allclose(mixed[b], 0.7 * inputs[b] + 0.3 * inputs[b - 1], rtol=1e-14, atol=0)
    assert torch.equal(inputs, before)


def test_the_mixed_loss_is_the_loss_of_mixed_soft_labels() -> None:
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(5, 3, dtype=torch.float64, generator=generator)
    targets = torch.tensor([0, 2, 1, 1, 0])
    found = mix_values(lambda y: functional.cross_entropy(outputs, y, label_smoothing=0.1), targets, Mix(0.3))
    hard = functional.one_hot(targets, 3).double()
    soft = 0.3 * hard + 0.7 * hard.roll(1, 0)
    smooth = 0.9 * soft + 0.1 / 3
    expected = -(smooth * outputs.log_softmax(1)).sum(1).mean()
    assert float(found) == pytest.approx(float(expected), rel=1e-12)


def test_weights_follow_the_beta_distribution() -> None:
    mixes = draw_mixes(2000, 0.4, 0.0, (3,), torch.Generator().manual_seed(0))
    assert mixes is not None
    weights = [mix.weight for mix in mixes]
    assert all(0 <= weight <= 1 and mix.box is None for weight, mix in zip(weights, mixes, strict=True))
    assert stats.kstest(weights, stats.beta(0.4, 0.4).cdf).pvalue > 0.01


def test_the_quantile_of_the_uniform_case_is_the_draw() -> None:
    assert [beta_quantile(1.0, u) for u in (0.0, 0.25, 0.9)] == pytest.approx([0.0, 0.25, 0.9])


def test_both_kinds_alternate_at_random() -> None:
    mixes = draw_mixes(1000, 0.8, 1.0, (3, 8, 8), torch.Generator().manual_seed(0))
    assert mixes is not None
    cut = sum(mix.box is not None for mix in mixes)
    # Four standard deviations of a fair coin.
    assert abs(cut - 500) < 4 * 1000**0.5 / 2


def test_cutmix_alone_always_cuts_and_nothing_is_none() -> None:
    mixes = draw_mixes(50, 0.0, 1.0, (3, 8, 8), torch.Generator().manual_seed(0))
    assert mixes is not None
    assert all(mix.box is not None for mix in mixes)
    assert draw_mixes(50, 0.0, 0.0, (3,), torch.Generator()) is None
