"""The numbers of the study of group orders, against counts done by hand."""

import math

import pytest
import torch

from coset.models import example_input
from coset.store import Store
from coset.study import Context
from coset.symmetry import discover
from coset_studies.symmetry.group_orders import ARCHITECTURES, Size, _measured, _orders, _seeded, _size, _swept


@pytest.fixture(scope="module")
def run(quick_run):
    return quick_run("group-orders").run


@pytest.fixture(scope="module")
def larger(run, tmp_path_factory):
    """The architectures that the quick preset leaves out, as the others measure them."""
    context = Context(0, torch.device("cpu"), Store(tmp_path_factory.mktemp("store")))
    left = [label for label in ARCHITECTURES if label not in {row[0] for row in run.tables["orders"].rows}]
    assert "CCT-6/3×1" in left
    made = {label: _measured(_seeded(ARCHITECTURES[label][1], context).eval(), 4, context) for label in left}
    return _orders({label: size for label, (size, _) in made.items()}, {label: made[label][1] for label in left})


def log10_factorial(n):
    return math.lgamma(n + 1) / math.log(10)


@pytest.fixture(scope="module")
def rows(run, larger):
    return {
        row[0]: dict(zip(table.columns, row, strict=True))
        for table in (run.tables["orders"], larger)
        for row in table.rows
    }


def test_every_group_was_verified(run, rows):
    assert run.numbers["largest_error"] < 1e-12
    assert set(rows) == set(ARCHITECTURES)
    assert all(row["error"] < 1e-12 for row in rows.values())


@pytest.mark.parametrize(
    ("label", "weights", "units", "scales"),
    [
        ("MLP 784-5-10", 3985, [5], 5),
        ("MLP 784-512-512-512-10", 932362, [512] * 3, 1536),
        ("MLP 30-16-16-2", 802, [16, 16], 32),
        ("Myrtle CNN", 1556106, [64, 128, 256, 512], 960),
        ("Myrtle CNN, BatchNorm", 1557066, [64, 128, 256, 512], 1920),
        # One stream a stage and one class in each of the three blocks of a stage.
        ("ResNet20, BatchNorm", 272474, [16] * 4 + [32] * 4 + [64] * 4, None),
        ("ResNet18, BatchNorm", 2777674, [64] * 3 + [128] * 3 + [256] * 3, None),
    ],
)
def test_permutations_by_hand(rows, label, weights, units, scales):
    row = rows[label]
    assert row["weights D"] == weights
    assert row["log₁₀ permutations"] == pytest.approx(sum(map(log10_factorial, units)))
    if scales is not None:
        assert row["scales"] == scales


def test_scales_of_resnet20_by_hand(rows):
    """One positive scale per unit (448), and one non-zero one before each norm: stem, two a block, two shortcuts."""
    units = 4 * (16 + 32 + 64)
    before = 16 + 6 * 16 + 6 * 32 + 6 * 64 + 32 + 64
    assert rows["ResNet20, BatchNorm"]["scales"] == units + before
    signs = before * math.log10(2)
    row = rows["ResNet20, BatchNorm"]
    assert row["log₁₀ with signs"] - row["log₁₀ permutations"] == pytest.approx(signs)


def test_the_transformer_by_hand(rows):
    """Six blocks: 4 heads of 64, inside each head q/k and v/o units; 512 in the MLP; one stream of 256."""
    block = log10_factorial(4) + 2 * 4 * log10_factorial(64) + log10_factorial(512)
    row = rows["CCT-6/3×1"]
    assert row["log₁₀ permutations"] == pytest.approx(6 * block + log10_factorial(256))
    # q/k and v/o: 256 each; two LayerNorms a block and the last one: 256 each; all with signs.
    assert row["scales"] == 6 * (2 * 256 + 2 * 256) + 256
    assert row["log₁₀ with signs"] - row["log₁₀ permutations"] == pytest.approx(row["scales"] * math.log10(2))


def _swept_row(kind, width, model):
    """A row of the sweep as the study makes it."""
    size = _size(model, discover(model, example_input(model, 2), verify=False))
    return kind, width, size.weights, size.log10_permutations, size.scales, size.ratio


@pytest.mark.parametrize(
    ("kind", "units"),
    [("MLP, three layers of 32×width", [32] * 3), ("ResNet20, FRN", [16] * 4 + [32] * 4 + [64] * 4)],
)
def test_the_sweep_by_hand(run, kind, units):
    """The sweep is what the widths say, and theorem 3.1 says nothing at any width, also of the other presets."""
    found = {
        row[1]: dict(zip(run.tables["widths"].columns, row, strict=True))
        for row in run.tables["widths"].rows
        if row[0] == kind
    }
    assert set(found) == {1}
    with torch.device("meta"):
        wider = _swept(4)[kind]().eval()
    found[4] = dict(zip(run.tables["widths"].columns, _swept_row(kind, 4, wider), strict=True))
    for width in (1, 2, 4, 8, 16, 32, 64):
        with torch.device("meta"):
            weights = sum(parameter.numel() for parameter in _swept(width)[kind]().parameters())
        size = Size(weights, sum(log10_factorial(width * count) for count in units), 0.0, 0)
        assert size.ratio < 1
        if width in found:
            assert found[width]["weights D"] == weights
            assert found[width]["log₁₀ permutations"] == pytest.approx(size.log10_permutations)
            assert found[width]["log|P|/D"] == pytest.approx(size.ratio)


def test_the_bound_of_theorem_3_1_is_vacuous(run, rows):
    """MNIST with 100 units: 2·D/log|G| = 2·79510/log(100!)."""
    assert run.numbers["bound_of_100_units"] == pytest.approx(2 * 79510 / math.lgamma(101))
    assert round(run.numbers["bound_of_100_units"]) == 437
    assert run.numbers["largest_ratio"] < 1
    assert all(row["log|P|/D"] < 1 for row in rows.values())
