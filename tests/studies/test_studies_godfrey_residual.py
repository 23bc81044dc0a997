"""Parts of the studies of residual networks and transformers: layers, contrasts of penalties, what is said of them."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from coset.models import build
from coset.represent import Interval, layer_names
from coset.studies._godfrey_contrasts import average, contrast, listed, minus, points, sign, told
from coset.studies._godfrey_residual import RESNET18_PLACES, RESNET20_PLACES, Places, resnet18, resnet20
from coset.studies._godfrey_residual_similarity import correlation, inside_less_outside, judge_blocks, judge_procrustes
from coset.studies._godfrey_residual_stitching import (
    FAMILIES,
    at_layers,
    contrasts_of,
    judge_inside,
    judge_outside,
    numbers_of,
)
from coset.studies._godfrey_residual_stitching import judge_blocks as judge_penalties
from coset.studies._godfrey_setting import interval_sentence, sentence, stitching_differences, zoo_differences
from coset.studies._godfrey_similarity import MEASURES, Similarities
from coset.studies._godfrey_stitching import Penalties, resampled
from coset.studies.godfrey_leaky_slopes import Slope, end_drop, judge_accuracy, judge_end, judge_evenness, spread
from coset.studies.godfrey_leaky_slopes import numbers_of as leaky_numbers
from coset.studies.godfrey_resnet18_stitching import judge_last
from coset.studies.godfrey_resnet20_stitching import PRESETS
from coset.studies.godfrey_transformer import FAMILIES as TRANSFORMER_FAMILIES
from coset.studies.godfrey_transformer import PRESETS as TRANSFORMERS
from coset.studies.godfrey_transformer import judge, judge_rotations, share_lost
from coset.studies.godfrey_transformer import numbers_of as transformer_numbers

PLACES = Places(stages=1, depth=2, blocks=(0, 1))
N, PAIRS = 400, 2


def _penalties(table: Tensor, layers: tuple[str, ...], families: tuple[str, ...], accuracy: float = 0.9) -> Penalties:
    """Penalties (layers, families) that are met exactly, by images of which so many are lost in every pair."""
    lost = (torch.arange(N) < (N * table).round()[..., None, None]).double().expand(-1, -1, PAIRS, -1)
    draws = resampled(lost, torch.Generator().manual_seed(0), draws=200)
    pairs = ((0, 1), (1, 0))
    return Penalties(layers, families, pairs, lost, draws, torch.zeros(*lost.shape[:3]), accuracy)


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


def test_signs_and_words_of_intervals() -> None:
    def interval(low: float, high: float) -> Interval:
        return Interval((low + high) / 2, low, high, 0.95, torch.zeros(0))

    assert [sign(interval(*ends)) for ends in ((0.1, 0.2), (-0.1, 0.1), (-0.2, -0.1))] == [1, 0, -1]
    assert told("gap").format(**points("gap", interval(0.1, 0.3))) == "20.0 [10.0, 30.0]"
    assert [listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"])] == ["a", "a and b", "a, b and c"]


def test_verdicts_of_stitching_follow_the_penalties() -> None:
    places = PLACES
    as_there = _residual(outside=[0.05, 0.1, 0.25, 0.5, 0.2], inside=[0.2, 0.25, 0.3, 0.5, 0.7])
    compared = contrasts_of(as_there, places)
    numbers = numbers_of(as_there, compared, places)
    assert numbers["full_excess"] == pytest.approx(15)
    assert numbers["less_rank_1_outside"] == pytest.approx(-30)
    assert numbers["g_relu_inside"] == pytest.approx(70)
    blocks, outside, inside = (
        text.format(**numbers)
        for text in (judge_penalties(compared), judge_outside(compared, places), judge_inside(compared))
    )
    assert "As in the paper, full maps cost more inside" in blocks
    assert "rank 1 costs as much" in blocks
    assert "As in the paper, G_ReLU beats rank 1 outside of blocks on average, and consistently" in outside
    assert "of 3 layers G_ReLU's is lower at 3 and higher at 0" in outside
    assert "all 3 layers" in outside
    assert "worst of all families" in inside
    assert "As in the paper" in inside

    other = _residual(outside=[0.3, 0.3, 0.3, 0.3, 0.6], inside=[0.1, 0.1, 0.2, 0.6, 0.2])
    compared = contrasts_of(other, places)
    numbers = numbers_of(other, compared, places)
    assert "Unlike in the paper, full maps cost less inside" in judge_penalties(compared).format(**numbers)
    assert "rank 1 beats G_ReLU" in judge_outside(compared, places).format(**numbers)
    assert "at none of the 3" in judge_outside(compared, places).format(**numbers)
    inside = judge_inside(compared).format(**numbers)
    assert "worse than full and rank 4, not told apart from rank 2, better than rank 1" in inside
    assert numbers["shift"] == pytest.approx(-70)
    assert "does better inside than outside" in inside


def test_some_layers_are_taken_out() -> None:
    found = _residual(outside=[0.1] * 5, inside=[0.2] * 5)
    part = at_layers(found, PLACES.inside)
    assert part.layers == ("2*", "4*")
    assert torch.equal(part.mean("4*", "full").draws, found.mean("4*", "full").draws)
    assert contrast(part, average(part.layers, "rank 2")).value == pytest.approx(0.2)


def test_the_last_layer_inside_is_compared_with_the_others_inside() -> None:
    found = _residual(outside=[0.1] * 5, inside=[0.2] * 5)
    assert "not told apart" in judge_last(found, PLACES)[0]
    lost = found.lost.clone()
    lost[found.layers.index(PLACES.inside[-1])] = 1.0
    worse = replace(found, lost=lost, draws=resampled(lost, torch.Generator().manual_seed(0), draws=100))
    text, numbers = judge_last(worse, PLACES)
    assert "As in the paper" in text
    assert numbers["last_inside"] == pytest.approx(80)


def test_differences_to_the_paper_are_told_where_there_are_some() -> None:
    paper, small = PRESETS["paper"], PRESETS["small"]
    assert zoo_differences(paper.zoo, paper.zoo) == []
    text = sentence(zoo_differences(small.zoo, paper.zoo))
    for part in ("squares of 2×2", "width 0.5", "(there 100)", "6 epochs"):
        assert part in text
    maps = sentence(stitching_differences(small.training, paper.training, small.pairs, paper.pairs))
    for part in ("2 ordered pairs are stitched (there 16)", "least-squares"):
        assert part in maps
    assert sentence([]) == ""
    transformers = sentence(zoo_differences(TRANSFORMERS["small"].zoo, TRANSFORMERS["paper"].zoo))
    assert "without mixup, CutMix, label smoothing" in transformers
    found = _residual(outside=[0.1] * 5, inside=[0.2] * 5)
    assert "of pairs" in interval_sentence(found)
    assert "of one pair" in interval_sentence(replace(found, pairs=((0, 1),)))


def _slope(penalties: list[float], accuracies: tuple[float, float]) -> Slope:
    table = torch.tensor(penalties, dtype=torch.float64)[:, None]
    found = _penalties(table, tuple("abcd"), ("G_ReLU",), sum(accuracies) / 200)
    return Slope(accuracies, 0.1, found)


def test_verdicts_of_slopes_follow_the_penalties() -> None:
    steep, even = _slope([0.5, 0.6, 0.1, 0.1], (70.0, 72.0)), _slope([0.3, 0.3, 0.3, 0.3], (40.0, 41.0))
    assert spread(steep.found).value == pytest.approx(float(torch.tensor([0.5, 0.6, 0.1, 0.1]).std(correction=0)))
    assert spread(even.found).value == pytest.approx(0)
    assert end_drop(steep.found).value == pytest.approx(0.45)
    slopes = {0.01: steep, 1.0: even}
    numbers = leaky_numbers(slopes)
    assert numbers["s_1_share"] == pytest.approx(100 * 0.3 / (0.405 - 0.1))
    texts = [text.format(**numbers) for text in (judge_accuracy(slopes), judge_evenness(slopes), judge_end(slopes))]
    assert all("As in the paper" in text or "as in the paper" in text for text in texts)
    turned = {0.01: even, 1.0: steep}
    numbers = leaky_numbers(turned)
    texts = [text.format(**numbers) for text in (judge_accuracy(turned), judge_evenness(turned), judge_end(turned))]
    assert all("nlike in the paper" in text for text in texts)


def test_verdicts_of_transformers_follow_the_penalties() -> None:
    layers = ("blocks.0", "blocks.1")
    table = torch.tensor([[0.1, 0.2, 0.6], [0.1, 0.3, 0.7]], dtype=torch.float64)
    found = _penalties(table, layers, TRANSFORMER_FAMILIES, accuracy=0.9)
    share = share_lost(found, classes=10)
    assert share.value == pytest.approx(0.65 / 0.8)
    numbers = transformer_numbers(found, share)
    text = f"{judge(found, share)} {judge_rotations(found)}".format(**numbers)
    for part in (
        "As in the paper, G_ReLU costs more",
        "Behind 2 of 2",
        "here it is more than 50 %",
        "rotations cost less",
    ):
        assert part in text
    other = _penalties(table.flip(1), layers, TRANSFORMER_FAMILIES, accuracy=0.9)
    share = share_lost(other, classes=10)
    text = f"{judge(other, share)} {judge_rotations(other)}".format(**transformer_numbers(other, share))
    for part in (
        "Unlike in the paper, G_ReLU costs less",
        "Behind 0 of 2",
        "here it is less than 50 %",
        "rotations cost more",
    ):
        assert part in text


def _similarities(values: dict[str, list[float]]) -> Similarities:
    layers = ("1", "2*", "3")
    tables = {measure: torch.tensor([values[measure]], dtype=torch.float64) for measure in MEASURES}
    noise = 0.01 * torch.randn(1, 3, 100, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    draws = {measure: table[..., None] + noise for measure, table in tables.items()}
    return Similarities(layers, ((0, 1),), tables, draws, {})


def test_verdicts_of_similarities_follow_the_values() -> None:
    falling, dipped = [0.9, 0.6, 0.5], [0.9, 0.3, 0.8]
    found = _similarities(dict.fromkeys(MEASURES, dipped))
    assert correlation(found).value == pytest.approx(1)
    assert "qualitatively similar, as in the paper" in judge_procrustes(correlation(found))
    blocks = {measure: inside_less_outside(found, measure) for measure in MEASURES}
    assert blocks["G_ReLU CKA"].value == pytest.approx(0.3 - 0.85)
    assert judge_blocks(blocks).count("lower modulo") == 4
    turned = _similarities({measure: falling if "G_ReLU" in measure else falling[::-1] for measure in MEASURES})
    assert correlation(turned).value < 0
    assert "while the paper" in judge_procrustes(correlation(turned))
