"""Cuts: disjoint, complete, reproducible, stratified."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coset.data import Split, split, subset
from coset.data.splitting import partition
from coset.errors import InputError


def numbered(count: int, classes: int = 3) -> Split:
    """Examples whose input is their number."""
    return Split(torch.arange(count, dtype=torch.float32)[:, None], torch.arange(count) % classes)


@given(st.integers(2, 60), st.floats(0.05, 0.95), st.integers(0, 2**31), st.booleans())
def test_parts_are_disjoint_and_complete(count, fraction, seed, stratify):
    part = numbered(count)
    held = round(fraction * count)
    if not 0 < held < count:
        with pytest.raises(InputError, match=f"{held} of {count} examples were to be drawn"):
            split(part, fraction, seed=seed, stratify=stratify)
        return
    train, validation = split(part, fraction, seed=seed, stratify=stratify)
    assert len(validation) == held
    assert sorted(train.x[:, 0].tolist() + validation.x[:, 0].tolist()) == list(range(count))
    for half in (train, validation):
        assert half.x[:, 0].tolist() == sorted(half.x[:, 0].tolist())
        assert torch.equal(half.y, half.x[:, 0].long() % 3)


@given(st.lists(st.integers(0, 4), min_size=2, max_size=80), st.data(), st.integers(0, 2**31))
def test_strata_keep_their_share(labels, data, seed):
    count = data.draw(st.integers(1, len(labels) - 1))
    kept, drawn = partition(torch.tensor(labels), count, seed=seed)
    assert len(drawn) == count
    assert len(kept) == len(labels) - count
    for label in set(labels):
        exact = count * labels.count(label) / len(labels)
        assert abs(sum(labels[index] == label for index in drawn) - exact) < 1


def test_seed_decides():
    part = numbered(100)
    first, again, other = (split(part, 0.3, seed=seed)[1].x[:, 0].tolist() for seed in (0, 0, 1))
    assert first == again
    assert first != other
    assert subset(part, 10, seed=3).x[:, 0].tolist() == subset(part, 10, seed=3).x[:, 0].tolist()


def test_every_example_is_drawn_equally_often():
    draws = torch.zeros(12)
    for seed in range(600):
        draws[partition(12, 4, seed=seed)[1]] += 1
    # 600 draws of probability 1/3: mean 200, standard deviation 11.5; five of them.
    assert (draws - 200).abs().max() < 58


def test_subset_is_stratified():
    part = Split(torch.zeros(100, 1), torch.tensor([0] * 80 + [1] * 20))
    drawn = subset(part, 25, seed=0, stratify=True)
    assert drawn.y.tolist() == [0] * 20 + [1] * 5


def test_global_generator_is_left_alone():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    split(numbered(10), 0.5, seed=1)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("seed", [2**63, 2**70, -1, "a", 1.5, None, True])
def test_seed_is_a_number_that_a_generator_takes(seed):
    for draw in (lambda: split(numbered(10), 0.5, seed=seed), lambda: subset(numbered(10), 3, seed=seed)):
        with pytest.raises(InputError, match=r"seed is .*, expected an integer from 0 to 2\^63 - 1"):
            draw()
    assert len(subset(numbered(10), 3, seed=2**63 - 1)) == 3


@pytest.mark.parametrize("count", ["a", 2.5, 0, 10])
def test_count_is_a_number_of_examples(count):
    with pytest.raises(InputError, match=f"{count!r} of 10 examples were to be drawn"):
        subset(numbered(10), count, seed=0)


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, 1.5, float("nan"), "a"])
def test_fraction_lies_between_zero_and_one(fraction):
    with pytest.raises(InputError, match="fraction is"):
        split(numbered(10), fraction, seed=0)


def test_what_cannot_be_cut_is_refused():
    with pytest.raises(InputError, match="10 of 10 examples were to be drawn, expected at least 1 and at most 9"):
        subset(numbered(10), 10, seed=0)
    with pytest.raises(InputError, match=r"stratify needs integer labels of shape \(N,\), got torch.float32 \(4, 1\)"):
        split(Split(torch.zeros(4, 1), torch.zeros(4, 1)), 0.5, seed=0, stratify=True)
    with pytest.raises(InputError, match=r"x \(3, 1\) and y \(4,\) differ in their number of examples"):
        Split(torch.zeros(3, 1), torch.zeros(4))
