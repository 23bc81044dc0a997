"""The published datasets themselves, where they are at hand: counts, labels and moments that are common knowledge."""

import numpy as np
import pytest
import torch

from coset.data import NAMES, available, check, load

MNIST_TRAIN = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
MNIST_TEST = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


@pytest.fixture
def at_hand(data_folder, request):
    """The folder, if it has the dataset that the test asks for."""
    name = request.param
    if next(row for row in available(data_folder) if row.name == name).found is None:
        pytest.skip(f"{name} is not in COSET_DATA")
    return data_folder


def counts(labels: torch.Tensor) -> list[int]:
    return torch.bincount(labels).tolist()


@pytest.mark.parametrize("at_hand", ["mnist"], indirect=True)
def test_mnist(at_hand):
    data = load("mnist", root=at_hand)
    assert data.train.x.shape == (60_000, 1, 28, 28)
    assert data.test.x.shape == (10_000, 1, 28, 28)
    assert counts(data.train.y) == MNIST_TRAIN
    assert counts(data.test.y) == MNIST_TEST
    assert data.train.y[:5].tolist() == [5, 0, 4, 1, 9]
    assert data.x_normalization.mean[0] == pytest.approx(0.1307, abs=5e-5)
    assert data.x_normalization.std[0] == pytest.approx(0.3081, abs=5e-5)
    bytes_again = data.x_normalization.undo(data.test.x) * 255
    assert (bytes_again - bytes_again.round()).abs().max() < 1e-3
    assert data.train.x.double().mean().abs() < 1e-6
    assert data.train.x.double().std() == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("at_hand", ["fashion-mnist"], indirect=True)
def test_fashion_mnist(at_hand):
    data = load("fashion-mnist", root=at_hand)
    assert counts(data.train.y) == [6000] * 10
    assert counts(data.test.y) == [1000] * 10
    assert [data.classes[label] for label in data.train.y[:3]] == ["Ankle boot", "T-shirt/top", "T-shirt/top"]
    assert data.x_normalization.mean[0] == pytest.approx(0.2860, abs=5e-5)
    assert data.x_normalization.std[0] == pytest.approx(0.3530, abs=5e-5)


@pytest.mark.parametrize("at_hand", ["cifar10"], indirect=True)
def test_cifar10(at_hand):
    data = load("cifar10", root=at_hand)
    assert data.train.x.shape == (50_000, 3, 32, 32)
    assert counts(data.train.y) == [5000] * 10
    assert counts(data.test.y) == [1000] * 10
    assert [data.classes[label] for label in data.train.y[:3]] == ["frog", "truck", "truck"]
    assert data.x_normalization.mean == pytest.approx((0.4914, 0.4822, 0.4465), abs=5e-5)
    assert data.x_normalization.std == pytest.approx((0.2470, 0.2435, 0.2616), abs=5e-5)


@pytest.mark.parametrize("at_hand", ["cifar100"], indirect=True)
def test_cifar100(at_hand):
    data = load("cifar100", root=at_hand)
    assert counts(data.train.y) == [500] * 100
    assert counts(data.test.y) == [100] * 100
    assert data.x_normalization.mean == pytest.approx((0.5071, 0.4865, 0.4409), abs=5e-5)


@pytest.mark.parametrize("at_hand", ["cifar10-slice"], indirect=True)
def test_cifar10_slice(at_hand):
    data = load("cifar10-slice", root=at_hand)
    assert data.train.x.shape == (2000, 3, 32, 32)
    assert counts(data.train.y) == [202, 191, 203, 195, 214, 183, 207, 199, 203, 203]
    assert counts(data.test.y) == [103, 89, 100, 103, 90, 86, 112, 102, 106, 109]
    assert [data.classes[label] for label in data.train.y[:3]] == ["frog", "truck", "truck"]


@pytest.mark.parametrize("at_hand", ["snelson"], indirect=True)
def test_snelson(at_hand):
    data = load("snelson", root=at_hand, normalize=False, dtype=torch.float64)
    assert (len(data.train), len(data.test)) == (200, 0)
    assert data.train.x[:2, 0].tolist() == [5.7007757, 1.3868311]
    assert data.unlabelled is not None
    np.testing.assert_allclose(data.unlabelled[:, 0], np.linspace(-3, 10, 301), atol=5e-8)


@pytest.mark.parametrize(
    ("at_hand", "rows", "features"),
    [("uci/bostonHousing", 506, 13), ("uci/concrete", 1030, 8), ("uci/energy", 768, 8), ("uci/yacht", 308, 6)],
    indirect=["at_hand"],
)
def test_uci_splits_are_the_canonical_ones(at_hand, rows, features):
    name = {506: "uci/bostonHousing", 1030: "uci/concrete", 768: "uci/energy", 308: "uci/yacht"}[rows]
    table = np.loadtxt(at_hand / name / "data.txt")
    # The recipe by which the splits were made: one stream of permutations, the first nine tenths to train on.
    random = np.random.RandomState(1)
    for split in range(20):
        order = random.choice(range(rows), rows, replace=False)
        data = load(name, split=split, root=at_hand, normalize=False, dtype=torch.float64)
        train = round(rows * 0.9)
        assert data.shape == (features,)
        np.testing.assert_array_equal(data.train.x, table[order[:train], :features])
        np.testing.assert_array_equal(data.train.y, table[order[:train], features:])
        np.testing.assert_array_equal(data.test.x, table[order[train:], :features])
        np.testing.assert_array_equal(data.test.y, table[order[train:], features:])


@pytest.mark.parametrize(("at_hand", "name"), [(name, name) for name in NAMES], indirect=["at_hand"])
def test_contents_have_the_known_checksums(at_hand, name):
    report = check(name, at_hand)
    assert report.problem is None
    assert report.ok
    assert all(part.state == "ok" for part in report.parts)
