"""Parts of the studies of residual networks and transformers: layers, contrasts of penalties, claims."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from coset.data import Split
from coset.models import build
from coset.running import layer_names
from coset.store import Store
from coset.study import Claim, Context, Findings, Results, Verdict
from coset_studies.godfrey import leaky_slopes, residual_similarity, transformer
from coset_studies.godfrey._penalties import average, contrast, minus, penalty_table, points
from coset_studies.godfrey._residual import RESNET18_PLACES, RESNET20_PLACES, Places, resnet18, resnet20
from coset_studies.godfrey._similarity import MEASURES, Similarities
from coset_studies.godfrey._similarity_report import tables_of
from coset_studies.godfrey._stitching import Penalties, pair_weights, resampled
from coset_studies.godfrey._zoo import Networks
from coset_studies.godfrey.leaky_slopes import Slope, deviation, deviation_difference, end_drop
from coset_studies.godfrey.leaky_slopes import numbers_of as leaky_numbers
from coset_studies.godfrey.residual_similarity import correlation, inside_less_outside
from coset_studies.godfrey.residual_stitching import resnets
from coset_studies.godfrey.residual_stitching._starts import (
    AT_RANDOM,
    UNTRAINED,
    Starts,
    dead_units,
    matched_to_dead,
    start_numbers,
    start_table,
)
from coset_studies.godfrey.residual_stitching.resnets import FAMILIES, contrasts_of, last_inside, numbers_of
from coset_studies.godfrey.transformer import FAMILIES as TRANSFORMER_FAMILIES
from coset_studies.godfrey.transformer import numbers_of as transformer_numbers
from coset_studies.godfrey.transformer import share_lost

HOLDS, FAILS, OPEN = Verdict.HOLDS, Verdict.FAILS, Verdict.CANNOT_TELL


PLACES = Places(stages=1, depth=2, blocks=(0, 1))
N, PAIRS = 400, 2


def _penalties(table: Tensor, layers: tuple[str, ...], families: tuple[str, ...], accuracy: float = 0.9) -> Penalties:
    """Penalties (layers, families) that are met exactly, by images of which so many are lost in every pair."""
    lost = (torch.arange(N) < (N * table).round()[..., None, None]).double().expand(-1, -1, PAIRS, -1)
    draws = resampled(lost, torch.Generator().manual_seed(0), 200, over_pairs=pair_weights)
    pairs = ((0, 1), (1, 0))
    zeros = torch.zeros(*lost.shape[:3])
    return Penalties(layers, families, pairs, lost, draws, zeros, accuracy, zeros.long())


def _residual(outside: list[float], inside: list[float]) -> Penalties:
    """Penalties of each family outside and inside of blocks, the same at all such layers."""
    labels = tuple(PLACES.labels().values())
    rows = [inside if label.endswith("*") else outside for label in labels]
    return _penalties(torch.tensor(rows, dtype=torch.float64), labels, FAMILIES)


@pytest.mark.parametrize(("zoo", "places"), [(resnet20, RESNET20_PLACES), (resnet18, RESNET18_PLACES)])
def test_layers_are_layers_of_the_networks(zoo, places) -> None:  # type: ignore[no-untyped-def]
    for preset, chosen in places.items():
        known = zoo(preset)
        names = layer_names(build(known.model, **dict(known.options)))
        assert set(chosen.labels()) <= set(names)
        assert len(chosen.inside) + len(chosen.outside) == len(chosen.labels())


def test_layers_are_numbered_by_their_convolutions() -> None:
    """The number of a layer is that of the convolutions on the way to it, those of shortcuts left out."""
    names = layer_names(build("resnet20"))
    ways = [name for name in names if name.endswith(("stem.conv", ".conv1", ".conv2"))]
    labels = Places().labels()
    assert len(ways) == len(labels) == 19
    for number, (layer, label) in enumerate(labels.items(), 1):
        assert label == (f"{number}*" if layer.endswith("activation1") else f"{number}")
        assert ways[number - 1].startswith(layer.removesuffix(".activation1"))


def test_contrasts_are_differences_of_means_with_intervals_of_one_resample() -> None:
    table = torch.tensor([[0.1, 0.3], [0.2, 0.5], [0.6, 0.7]], dtype=torch.float64)
    found = _penalties(table, ("a", "b", "c"), ("full", "G_ReLU"))
    one = contrast(found, minus(average(("a", "b"), "G_ReLU"), average(("c",), "full")))
    assert one.value == pytest.approx(0.4 - 0.6)
    assert one.low < one.value < one.high
    single = contrast(found, minus(average(("a",), "G_ReLU"), average(("a",), "full")))
    assert (single.value, single.low) == (
        pytest.approx(found.difference("a", "G_ReLU", "full").value),
        pytest.approx(single.low),
    )
    same = contrast(found, minus(average(("b",), "full"), average(("b",), "full")))
    assert (same.value, same.low, same.high) == (0, 0, 0)


def _starts(gain: float, random: float) -> Starts:
    """Maps whose training changes the penalty of 0.3 by ``gain``, and another start it by ``random``."""
    layers = ("a", "b")
    found = _penalties(torch.tensor([[0.3 + gain, 0.3]] * 2), layers, ("G_ReLU", UNTRAINED))
    other = _penalties(torch.tensor([[0.3 + gain, 0.3 + gain + random]]), layers[1:], ("G_ReLU", AT_RANDOM))
    return Starts(found, other, torch.tensor([[0.5, 0.25], [0.0, 0.25]]), torch.tensor([[1, 0], [0, 2]]), 32)


def test_units_matched_to_dead_ones_are_counted() -> None:
    """Output 0 reads input 2, 1 reads 0, 2 reads 1."""
    matrix = torch.tensor([[0, 0, 0.5], [2, 0, 0], [0, 1e-7, 0]])
    alive = torch.zeros(3, dtype=torch.bool)
    assert matched_to_dead(matrix, alive, alive) == 0
    assert matched_to_dead(matrix, torch.tensor([True, False, False]), alive) == 1
    assert matched_to_dead(matrix, torch.tensor([True, False, False]), torch.tensor([False, True, True])) == 2


def test_dead_units_are_zero_on_all_images_and_positions(tmp_path: Path) -> None:
    context = Context(seed=0, device=torch.device("cpu"), store=Store(tmp_path), show=False)
    network = torch.nn.Sequential(torch.nn.Conv2d(1, 3, 1), torch.nn.ReLU())
    with torch.no_grad():
        network[0].weight.copy_(torch.tensor([1.0, -1.0, 1.0]).reshape(3, 1, 1, 1))
        network[0].bias.copy_(torch.tensor([0.0, 0.0, -2.0]))
    x = torch.rand(600, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    part = Split(x, torch.arange(600) % 2)
    networks = Networks({0: network}, {0: "name"}, part, part, 2, "images")
    assert dead_units(context, networks, ["1"], None)[0]["1"].tolist() == [False, True, True]
    x[-1, 0, 1, 1] = 3.0
    networks = Networks({0: network}, {0: "name"}, part, part, 2, "other images")
    assert dead_units(context, networks, ["1"], None)[0]["1"].tolist() == [False, True, False]


def _slope(penalties: list[float], accuracies: tuple[float, float]) -> Slope:
    table = torch.tensor(penalties, dtype=torch.float64)[:, None]
    found = _penalties(table, tuple("abcd"), ("G_ReLU",), sum(accuracies) / 200)
    return Slope(accuracies, 0.1, found)


def _noisy_slope(true: list[float], noise: float, seed: int, room: float = 0.5) -> Slope:
    """Penalties that are met up to independent noise, and resamples that have the same noise once more."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.tensor(true, dtype=torch.float64)
    means = rows + noise * torch.randn(len(true), generator=generator, dtype=torch.float64)
    draws = means[:, None] + noise * torch.randn(len(true), 300, generator=generator, dtype=torch.float64)
    found = Penalties(tuple(map(str, range(len(true)))), ("G_ReLU",), ((0, 1),), means[:, None, None, None],
                      draws[:, None], None, room + 0.1)  # fmt: skip
    return Slope((60.0, 60.0), 0.1, found)


@pytest.mark.parametrize("level", [0.0, 0.1])
def test_the_spread_over_layers_is_without_noise(level: float) -> None:
    """In the mean of the squares over many slopes; with the noise it would be 0.0125 or 0.0025."""
    true = [0.2 + level, 0.2 - level] * 20
    found = [_noisy_slope(true, 0.05, seed) for seed in range(20)]
    spreads = [deviation(one) for one in found]
    assert sum(one.value**2 for one in spreads) / len(spreads) == pytest.approx(level**2, abs=4e-4)
    assert sum(one.low <= level <= one.high for one in spreads) >= 16


def _similarities(values: dict[str, list[float]]) -> Similarities:
    layers = ("1", "2*", "3")
    tables = {measure: torch.tensor([values[measure]], dtype=torch.float64) for measure in MEASURES}
    noise = 0.01 * torch.randn(1, 3, 100, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    draws = {measure: table[..., None] + noise for measure, table in tables.items()}
    return Similarities(layers, ((0, 1),), tables, draws, {})


def verdicts(claims: Sequence[Claim], results: Results) -> list[Verdict]:
    return [claim.judge(results).verdict for claim in claims]


def _stitched(found: Penalties) -> Findings:
    compared = contrasts_of(found, PLACES)
    tables = {"penalties": penalty_table(found), "differences": resnets._difference_table(compared)}
    return Findings(numbers_of(found, compared, PLACES) | points("last_inside", last_inside(found, PLACES)), tables)


def test_claims_of_stitching_follow_the_penalties() -> None:
    as_there = _stitched(_residual(outside=[0.05, 0.1, 0.25, 0.5, 0.2], inside=[0.2, 0.25, 0.3, 0.6, 0.8]))
    assert as_there.numbers["full_excess"] == pytest.approx(15)
    assert as_there.numbers["less_rank_1_outside"] == pytest.approx(-30)
    assert as_there.numbers["g_relu_inside"] == pytest.approx(80)
    assert verdicts(resnets.BLOCKS, as_there) == [HOLDS, HOLDS, HOLDS, HOLDS, OPEN, HOLDS]
    other = _stitched(_residual(outside=[0.3, 0.3, 0.3, 0.3, 0.6], inside=[0.1, 0.1, 0.2, 0.6, 0.2]))
    assert verdicts(resnets.BLOCKS, other) == [FAILS, FAILS, FAILS, FAILS, FAILS, FAILS]
    assert other.numbers["shift"] == pytest.approx(-70)


def test_one_layer_decides_what_is_consistent() -> None:
    labels = tuple(PLACES.labels().values())
    rows = [[0.1, 0.2, 0.3, 0.5, 0.2] for _ in labels]
    rows[labels.index(PLACES.outside[-1])] = [0.1, 0.2, 0.3, 0.5, 0.7]
    mean, each = resnets.BLOCKS[2:4]
    found = _stitched(_penalties(torch.tensor(rows, dtype=torch.float64), labels, FAMILIES))
    assert verdicts([mean, each], found) == [HOLDS, FAILS]


def test_the_last_layer_inside_is_compared_with_the_others_inside() -> None:
    found = _residual(outside=[0.1] * 5, inside=[0.2] * 5)
    assert verdicts(resnets.LAST[-1:], _stitched(found)) == [OPEN]
    lost = found.lost.clone()
    lost[found.layers.index(PLACES.inside[-1])] = 1.0
    draws = resampled(lost, torch.Generator().manual_seed(0), 100, over_pairs=pair_weights)
    worse = _stitched(replace(found, lost=lost, draws=draws))
    assert worse.numbers["last_inside"] == pytest.approx(80)
    assert verdicts(resnets.LAST[-1:], worse) == [HOLDS]


def test_what_training_does_to_the_start_is_counted() -> None:
    starts = _starts(0.1, 0.2)
    numbers = start_numbers(starts)
    assert numbers["gain"] == pytest.approx(10)
    assert numbers["random_loss"] == pytest.approx(-20)
    assert (numbers["moved"], numbers["dead"], numbers["units"]) == (25, 3, 32)
    rows = start_table(starts, {"a": "1", "b": "7"}).rows
    assert [row[0] for row in rows] == ["1", "7"]
    assert (rows[0][-1], rows[1][-3]) == (None, 2)


def _of_slopes(slopes: dict[float, Slope]) -> Findings:
    labels = {layer: layer for one in slopes.values() for layer in one.found.layers}
    tables = {
        "accuracies": leaky_slopes._accuracy_table(slopes),
        "penalties": leaky_slopes._penalty_table(slopes, labels),
    }
    return Findings(leaky_numbers(slopes), tables)


def test_claims_of_slopes_follow_the_penalties() -> None:
    steep, even = _slope([0.5, 0.6, 0.1, 0.1], (70.0, 72.0)), _slope([0.3, 0.3, 0.3, 0.3], (40.0, 41.0))
    assert deviation(even).value == pytest.approx(0)
    assert end_drop(steep.found).value == pytest.approx(0.45)
    as_there = _of_slopes({0.01: steep, 1.0: even})
    assert as_there.numbers["s_1_share"] == pytest.approx(100 * 0.3 / (0.405 - 0.1))
    assert verdicts(leaky_slopes.CLAIMS, as_there) == [HOLDS] * 4
    turned = verdicts(leaky_slopes.CLAIMS, _of_slopes({0.01: even, 1.0: steep}))
    assert turned == [FAILS, FAILS, OPEN, FAILS]


def test_small_slopes_that_differ_leave_a_claim_open() -> None:
    steep, even = _slope([0.5, 0.6, 0.1, 0.1], (70.0, 72.0)), _slope([0.3, 0.3, 0.3, 0.3], (70.0, 71.0))
    middle = _slope([0.4, 0.4, 0.2, 0.2], (70.0, 72.0))
    found = _of_slopes({0.01: steep, 0.1: even, 1.0: middle})
    assert verdicts(leaky_slopes.CLAIMS, found) == [OPEN] * 4


def test_a_smaller_deviation_in_points_may_be_a_larger_share_of_what_there_is_to_lose() -> None:
    layers = [0.1, 0.3] * 4
    one, other = _noisy_slope(layers, 1e-3, 0), _noisy_slope([0.6 * part for part in layers], 1e-3, 1, room=0.1)
    assert deviation_difference(one, other).low > 0
    assert deviation_difference(one, other, relative=True).high < 0
    assert deviation(other, relative=True).value == pytest.approx(deviation(other).value / 0.1)


def test_claims_of_transformers_follow_the_penalties() -> None:
    layers = ("blocks.0", "blocks.1")
    table = torch.tensor([[0.1, 0.2, 0.6], [0.1, 0.3, 0.7]], dtype=torch.float64)
    for rows, expected in ((table, [HOLDS, HOLDS]), (table.flip(1), [FAILS, FAILS])):
        found = _penalties(rows, layers, TRANSFORMER_FAMILIES, accuracy=0.9)
        share = share_lost(found, classes=10)
        assert share.value == pytest.approx(float(rows[:, 2].mean()) / 0.8, abs=1e-3)
        results = Findings(transformer_numbers(found, share), {"penalties": penalty_table(found)})
        assert verdicts(transformer.CLAIMS, results) == expected


def _similarities(pairs: Sequence[dict[str, list[float]]]) -> Similarities:
    layers = ("1", "2*", "3")
    tables = {measure: torch.tensor([values[measure] for values in pairs], dtype=torch.float64) for measure in MEASURES}
    noise = 0.01 * torch.randn(len(pairs), 3, 100, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    draws = {measure: table[..., None] + noise for measure, table in tables.items()}
    numbers = tuple((0, number + 1) for number in range(len(pairs)))
    return Similarities(layers, numbers, tables, draws, {name: torch.zeros(1, 3, 3) for name in MEASURES[:2]})


def _compared(ours: list[float], other: list[float]) -> dict[str, list[float]]:
    return {measure: ours if "G_ReLU" in measure else other for measure in MEASURES}


def test_claims_of_similarities_follow_the_values() -> None:
    dipped, turned = [0.9, 0.3, 0.5], [0.5, 0.3, 0.9]
    found = _similarities([_compared(dipped, [0.9, 0.3, 0.8])])
    assert correlation(found).value > 0.8
    assert inside_less_outside(found, "G_ReLU CKA").value == pytest.approx(0.3 - 0.7)
    assert verdicts(residual_similarity.RESNET20, Findings({}, tables_of(found))) == [HOLDS, HOLDS]
    other = Findings({}, tables_of(_similarities([_compared(turned, dipped)])))
    assert verdicts(residual_similarity.RESNET20, other) == [FAILS, FAILS]
    both = Findings({}, tables_of(_similarities([_compared(dipped, [0.9, 0.3, 0.8]), _compared(turned, dipped)])))
    assert verdicts(residual_similarity.RESNET20, both) == [OPEN, OPEN]


def test_the_last_layer_inside_is_judged_by_both_kinds_of_cka() -> None:
    low, high = [0.9, 0.3, 0.8], [0.9, 0.85, 0.8]
    measured = {"G_ReLU CKA": low, "orthogonal CKA": low, "G_ReLU Procrustes": high, "orthogonal Procrustes": low}
    decay, *last = residual_similarity.RESNET18
    assert verdicts(last, Findings({}, tables_of(_similarities([measured])))) == [HOLDS, HOLDS]
    turned = measured | {"orthogonal CKA": high, "G_ReLU Procrustes": low, "orthogonal Procrustes": high}
    assert verdicts(last, Findings({}, tables_of(_similarities([turned])))) == [FAILS, FAILS]
    assert decay.judge(Findings({}, tables_of(_similarities([measured])))).verdict is FAILS
