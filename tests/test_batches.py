"""Data as batches: how they are cut and counted, and what is refused."""

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from coset.batches import count_batches, input_batches, labelled_batches
from coset.errors import InputError

X, Y = torch.arange(14.0).reshape(7, 2), torch.arange(7)


class _Endless(IterableDataset[Tensor]):
    """A dataset that does not say how long it is."""

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(X)


@pytest.mark.parametrize(
    "data", [X, (X, Y), [X[:3], X[3:]], DataLoader(TensorDataset(X, Y), 3)], ids=["tensor", "pair", "list", "loader"]
)
def test_as_many_batches_are_counted_as_come(data):
    assert count_batches(data, 3) == len(list(input_batches(data, 3)))


def test_a_pair_is_not_two_batches():
    """A pair (inputs, targets) has a length of 2, which is not the number of its batches."""
    assert count_batches((X, Y), 7) == 1
    assert count_batches((X, Y), 2) == 4 == len(list(labelled_batches((X, Y), 2)))


@pytest.mark.parametrize("data", [iter([X]), DataLoader(_Endless(), 3)], ids=["iterator", "loader"])
def test_what_has_no_length_is_not_guessed(data):
    assert count_batches(data, 3) is None


@pytest.mark.parametrize("size", [True, 0, -1, 2.0, "3", None])
def test_a_batch_size_is_a_whole_number(size):
    for reader in (input_batches, labelled_batches):
        with pytest.raises(InputError, match=r"batch_size is .*; expected a whole number ≥ 1"):
            next(reader((X, Y), size))
    with pytest.raises(InputError, match="batch_size"):
        count_batches((X, Y), size)


def test_inputs_and_targets_are_as_many():
    with pytest.raises(InputError, match=r"inputs of shape \(7, 2\) and targets of shape \(5,\)"):
        next(labelled_batches((X, Y[:5])))
