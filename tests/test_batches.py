"""Data as batches: how they are cut and counted, and what is refused."""

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from coset._batches import Repeated, check_repeatable, count_batches, input_batches, labelled_batches
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


def test_batches_are_the_data_in_order():
    for reader in (input_batches((X, Y), 3), input_batches(X, 3)):
        parts = list(reader)
        assert [len(part) for part in parts] == [3, 3, 1]
        assert torch.equal(torch.cat(parts), X)
    pairs = list(labelled_batches((X, Y), 3))
    assert torch.equal(torch.cat([x for x, _ in pairs]), X)
    assert torch.equal(torch.cat([y for _, y in pairs]), Y)
    assert [len(x) for x, _ in labelled_batches((X, Y))] == [7]


def test_of_what_a_loader_gives_the_first_parts_are_taken():
    """Inputs, targets, and whatever comes behind; tuples or lists; a batch that is a tensor is inputs."""
    rows = [(X[:2], Y[:2], "name"), [X[2:], Y[2:]]]
    assert torch.equal(torch.cat(list(input_batches(rows))), X)
    assert torch.equal(torch.cat([y for _, y in labelled_batches(rows)]), Y)
    assert torch.equal(torch.cat(list(input_batches([X[:2], X[2:]]))), X)


def test_a_generator_is_read_once_and_only_as_far_as_asked():
    read = []

    def endless():
        number = 0
        while True:
            read.append(number)
            yield X + number
            number += 1

    batches = input_batches(endless())
    assert torch.equal(next(batches), X)
    assert torch.equal(next(batches), X + 1)
    assert len(read) <= 3


@pytest.mark.parametrize("reader", [input_batches, labelled_batches])
@pytest.mark.parametrize("data", [[], iter([]), DataLoader(TensorDataset(X[:0], Y[:0]), 3)])
def test_no_batches(reader, data):
    with pytest.raises(InputError, match="data holds no batches; expected at least one"):
        next(reader(data))


@pytest.mark.parametrize("data", [X[:0], torch.tensor(1.0)], ids=["empty", "a number"])
def test_no_inputs(data):
    with pytest.raises(InputError, match=r"data is a tensor of shape .*; expected at least one input"):
        next(input_batches(data))


def test_what_is_no_data():
    with pytest.raises(InputError, match="data is a int; expected tensors or an iterable of batches"):
        next(input_batches(3))
    with pytest.raises(InputError, match="batch 1 of data is a str; expected a tensor of inputs first"):
        list(input_batches([X, "more"]))
    with pytest.raises(InputError, match="batch 0 of data is a tuple; expected a tensor of inputs first"):
        list(input_batches([()]))
    for batch in (X, (X,), (X, "label"), {"x": X}):
        with pytest.raises(InputError, match=r"batch 0 of data is a .*; expected tensors \(inputs, targets\)"):
            next(labelled_batches([batch]))


def test_a_tensor_alone_has_no_targets():
    """Its rows are taken for batches of a loader, of which none has targets."""
    with pytest.raises(InputError, match=r"batch 0 of data is a Tensor; expected tensors \(inputs, targets\)"):
        next(labelled_batches(X))


def test_what_is_read_again_and_again_does_not_end():
    for data in ((X, Y), [X], Repeated(lambda: iter([X]))):
        check_repeatable(data, "data")
        assert len(list(data)) == len(list(data)) > 0
    with pytest.raises(InputError, match=r"^x is a list_iterator, which can be read only once; expected tensors"):
        check_repeatable(iter([X]), "x")
