"""Penalties and their intervals, pairs of many models, options by cross-validation, trained networks."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from stitched_networks import AT_ONCE, labelled, moved, normal, seeded

from coset.errors import InputError
from coset.models import MLP, Tiny10
from coset.represent.stitching._stitch import StitchTraining, stitch
from coset.represent.stitching.pairs import ALPHAS, CROSS_VALIDATION, cross_validate, sample_pairs, stitch_pairs
from coset.represent.stitching.penalties import bootstrap_mean, correct, penalty_between, stitching_penalty


def test_the_penalty_is_the_mean_accuracy_less_that_of_the_stitched_network():
    model, other = seeded(lambda: MLP(5, [6], 3), 0), seeded(lambda: MLP(5, [6], 3), 1)
    x, y = labelled(seeded(lambda: MLP(5, [6], 3), 2), normal(200, 5))
    stitching = stitch(model, other, "activations.0", (x[:100], y[:100]), family="rank", rank=1, training=AT_ONCE)
    held_out = x[100:], y[100:]
    penalty = stitching_penalty(stitching, held_out)
    accuracies = [
        float((net(held_out[0]).argmax(1) == held_out[1]).double().mean()) for net in (model, other, stitching)
    ]
    assert penalty.value == pytest.approx((accuracies[0] + accuracies[1]) / 2 - accuracies[2])
    assert penalty.after == pytest.approx(accuracies[2])
    assert penalty.low <= penalty.value <= penalty.high
    assert penalty.count == 100


def test_bootstrap_intervals_are_normal_ones_for_many_values():
    values = normal(4000).square()
    interval = bootstrap_mean(values, level=0.9, draws=4000)
    half = 1.6449 * float(values.std()) / 4000**0.5
    assert interval.value == pytest.approx(float(values.mean()))
    assert interval.high - interval.low == pytest.approx(2 * half, rel=0.1)
    assert torch.equal(bootstrap_mean(values, level=0.9, draws=4000).draws, interval.draws)
    assert bootstrap_mean([0.25]).low == 0.25


def test_paired_resampling_has_no_width_where_every_example_loses_the_same():
    before, after = torch.tensor([1.0, 0.5, 1.0, 0.5]).double(), torch.tensor([0.5, 0.0, 0.5, 0.0]).double()
    penalty = penalty_between(before, after, 0.95, 100, 0)
    assert (penalty.value, penalty.low, penalty.high) == (0.5, 0.5, 0.5)


def test_pairs_are_uniform_over_different_models():
    pairs = sample_pairs(4, 12_000, seed=1)
    counts = {pair: pairs.count(pair) for pair in set(pairs)}
    assert set(counts) == {(i, j) for i in range(4) for j in range(4) if i != j}
    # Twelve equal shares of 12,000: a deviation is 30.
    assert all(abs(count - 1000) < 150 for count in counts.values())
    assert sample_pairs(4, 5, seed=1) == sample_pairs(4, 5, seed=1)


def test_penalties_of_pairs_from_a_list_of_models():
    model = seeded(lambda: MLP(5, [6], 3))
    x = normal(60, 5)
    models = [model, moved(model, x, 1), moved(model, x, 2)]
    data = labelled(model, x)
    found = stitch_pairs(models, "activations.0", data, data, pairs=4, training=AT_ONCE, seed=2)
    assert len(found.pairs) == len(found.penalties) == 4
    assert (found.interval.value, found.interval.low, found.interval.high) == (0, 0, 0)


def test_cross_validation_takes_the_value_with_the_best_accuracy_on_what_is_left_out():
    model, other = seeded(lambda: MLP(5, [6], 3), 0), seeded(lambda: MLP(5, [6], 3), 1)
    data = labelled(model, normal(50, 5))
    training = StitchTraining(epochs=1, head_start=0)
    choice = cross_validate(model, other, "activations.0", data, values=(1e-3, 10.0), training=training)
    assert set(choice.accuracies) == {1e-3, 10.0}
    assert choice.accuracies[choice.value] == max(choice.accuracies.values())
    # The oracle: the split and the stitching by hand.
    order = torch.randperm(50, generator=torch.Generator().manual_seed(0))
    share = tuple(part[order[:40]] for part in data)
    by_hand = stitch(model, other, "activations.0", share, training=training, alpha=choice.value)
    assert torch.equal(by_hand.matrix, choice.stitching.matrix)
    rest = tuple(part[order[40:]] for part in data)
    assert choice.accuracies[choice.value] == float(correct(by_hand, rest).mean())


def test_trained_networks_are_stitched_better_by_their_group_than_by_low_rank(checkpoint_folder, data_folder):
    """The order of fig. 1 on the Tiny10 networks, by the closed-form maps alone: full, then G_ReLU, then rank 1."""
    models = []
    for seed in (0, 1):
        models.append(Tiny10().eval())
        models[-1].load_state_dict(load_file(checkpoint_folder / f"tiny10-seed{seed}.safetensors"), strict=False)
    pictures = np.load(data_folder / "cifar10-slice.npz")
    center, spread = (torch.tensor(row).reshape(3, 1, 1) for row in ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.201)))
    data, held_out = (
        ((torch.tensor(pictures[f"x_{part}"][:200]) / 255 - center) / spread, torch.tensor(pictures[f"y_{part}"][:200]))
        for part in ("train", "test")
    )
    full, group, line = (
        stitching_penalty(stitch(*models, "relu7", data, family=family, training=AT_ONCE, **options), held_out)
        for family, options in (("full", {}), ("g-relu", {}), ("rank", {"rank": 1}))
    )
    assert full.before == group.before > 0.8
    assert full.high < group.low
    assert group.high < line.low


def test_the_settings_of_the_paper():
    assert ALPHAS == (1e-3, 1e-2, 1e-1, 1, 10)
    assert (CROSS_VALIDATION.epochs, CROSS_VALIDATION.head_start) == (5, 0)
    usual = StitchTraining()
    assert (usual.epochs, usual.batch_size, usual.learning_rate, usual.momentum) == (20, 32, 1e-3, 0.9)


def test_wrong_input_is_named():
    model = seeded(lambda: MLP(5, [6], 3))
    data = labelled(model, normal(20, 5))
    with pytest.raises(InputError, match=r"share is 1\.0 of 20 examples"):
        cross_validate(model, model, "activations.0", data, share=1.0)
    with pytest.raises(InputError, match="family is 'none'"):
        cross_validate(model, model, "activations.0", data, family="none")
    with pytest.raises(InputError, match="values is empty"):
        cross_validate(model, model, "activations.0", data, values=())
    for values in (3, "ab", (0.1, "b"), (0.1, float("nan"))):
        with pytest.raises(InputError, match=r"values is .*; expected a list of finite numbers"):
            cross_validate(model, model, "activations.0", data, values=values)
    with pytest.raises(InputError, match="share is 'a'; expected a number between 0 and 1"):
        cross_validate(model, model, "activations.0", data, share="a")
    with pytest.raises(InputError, match="models is 1"):
        sample_pairs(1, 3)
    with pytest.raises(InputError, match="pairs is 0"):
        sample_pairs(2, 0)
    with pytest.raises(InputError, match="level is 1"):
        bootstrap_mean([0.0], level=1)
    with pytest.raises(InputError, match="draws is 0"):
        bootstrap_mean([0.0], draws=0)
    with pytest.raises(InputError, match="held_out is a list"):
        correct(model, [data[0], data[1]])
