"""Parts of the studies of residual networks and transformers: layers, contrasts of penalties, what is said of them."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from coset.data import Split
from coset.models import build
from coset.represent import Interval
from coset.running import layer_names
from coset.store import Store
from coset.study import Context
from coset_studies.godfrey._contrasts import average, contrast, listed, minus, points, sign, told
from coset_studies.godfrey._residual import RESNET18_PLACES, RESNET20_PLACES, Places, resnet18, resnet20
from coset_studies.godfrey._setting import interval_sentence, sentence, stitching_differences, zoo_differences
from coset_studies.godfrey._similarity import MEASURES, Similarities
from coset_studies.godfrey._starts import (
    AT_RANDOM,
    UNTRAINED,
    Starts,
    dead_units,
    judge_starts,
    matched_to_dead,
    start_numbers,
    start_table,
)
from coset_studies.godfrey._stitching import Penalties, pair_weights, resampled
from coset_studies.godfrey._zoo import Networks
from coset_studies.godfrey.leaky_slopes import (
    Slope,
    end_drop,
    judge_accuracy,
    judge_end,
    judge_evenness,
    spread,
    spread_difference,
)
from coset_studies.godfrey.leaky_slopes import numbers_of as leaky_numbers
from coset_studies.godfrey.residual_similarity import correlation, inside_less_outside, judge_blocks, judge_procrustes
from coset_studies.godfrey.residual_stitching import (
    FAMILIES,
    at_layers,
    contrasts_of,
    judge_inside,
    judge_outside,
    numbers_of,
)
from coset_studies.godfrey.residual_stitching import judge_blocks as judge_penalties
from coset_studies.godfrey.resnet18_stitching import judge_last
from coset_studies.godfrey.resnet20_stitching import PRESETS
from coset_studies.godfrey.transformer import FAMILIES as TRANSFORMER_FAMILIES
from coset_studies.godfrey.transformer import PRESETS as TRANSFORMERS
from coset_studies.godfrey.transformer import judge, judge_rotations, share_lost
from coset_studies.godfrey.transformer import numbers_of as transformer_numbers

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
        for text in (judge_penalties(compared), judge_outside(compared, places), judge_inside(compared, PLACES))
    )
    assert "As in the paper, full maps cost more inside" in blocks
    assert "rank 1 costs as much" in blocks
    assert "As in the paper, G_ReLU beats rank 1 outside of blocks on average, and consistently" in outside
    assert "of 3 layers G_ReLU's is lower at 3 and higher at 0" in outside
    assert "all 3 layers" in outside
    assert "worst of all families" in inside
    assert "As in the paper" in inside

    table = torch.tensor([[0.1, 0.2, 0.3, 0.5, 0.2]] * 4 + [[0.1, 0.2, 0.3, 0.5, 0.5]], dtype=torch.float64)
    part = contrasts_of(_penalties(table, tuple(places.labels().values()), FAMILIES), places)
    assert "on average; that it does so consistently is not told at every layer" in judge_outside(part, places)

    other = _residual(outside=[0.3, 0.3, 0.3, 0.3, 0.6], inside=[0.1, 0.1, 0.2, 0.6, 0.2])
    compared = contrasts_of(other, places)
    numbers = numbers_of(other, compared, places)
    assert "Unlike in the paper, full maps cost less inside" in judge_penalties(compared).format(**numbers)
    assert "rank 1 beats G_ReLU" in judge_outside(compared, places).format(**numbers)
    assert "at none of the 3" in judge_outside(compared, places).format(**numbers)
    inside = judge_inside(compared, PLACES).format(**numbers)
    assert "worse than full and rank 4, not told apart from rank 2, better than rank 1" in inside
    assert numbers["shift"] == pytest.approx(-70)
    assert "does better inside than outside" in inside


def test_some_layers_are_taken_out() -> None:
    found = _residual(outside=[0.1] * 5, inside=[0.2] * 5)
    part = at_layers(found, PLACES.inside)
    assert part.layers == ("2*", "4*")
    assert torch.equal(part.mean("4*", "full").draws, found.mean("4*", "full").draws)
    assert contrast(part, average(part.layers, "rank 2")).value == pytest.approx(0.2)
    assert part.sparsity is not None
    assert part.faint is not None
    assert part.faint.shape == part.sparsity.shape == part.values.shape


def test_the_last_layer_inside_is_compared_with_the_others_inside() -> None:
    found = _residual(outside=[0.1] * 5, inside=[0.2] * 5)
    assert "not told apart" in judge_last(found, PLACES)[0]
    lost = found.lost.clone()
    lost[found.layers.index(PLACES.inside[-1])] = 1.0
    worse = replace(
        found, lost=lost, draws=resampled(lost, torch.Generator().manual_seed(0), 100, over_pairs=pair_weights)
    )
    text, numbers = judge_last(worse, PLACES)
    assert "As in the paper" in text
    assert numbers["last_inside"] == pytest.approx(80)


def test_differences_to_the_paper_are_told_where_there_are_some() -> None:
    paper, small = PRESETS["paper"], PRESETS["small"]
    assert zoo_differences(paper.zoo, paper.zoo) == []
    text = sentence(zoo_differences(small.zoo, paper.zoo))
    for part in ("squares of 2×2", "width 0.5", "(there 100)", "3 networks", "8 epochs"):
        assert part in text
    maps = sentence(stitching_differences(small.training, paper.training, small.pairs, paper.pairs))
    for part in ("6 ordered pairs are stitched (there 16)", "least-squares"):
        assert part in maps
    assert sentence([]) == ""
    transformers = sentence(zoo_differences(TRANSFORMERS["small"].zoo, TRANSFORMERS["paper"].zoo))
    assert "without mixup, CutMix, label smoothing" in transformers
    found = _residual(outside=[0.1] * 5, inside=[0.2] * 5)
    assert "of these 2 pairs they say nothing about other networks" in interval_sentence(found)
    assert "Student's over pairs" in interval_sentence(replace(found, pairs=((0, 1), (1, 2), (2, 0))))
    assert "of one pair" in interval_sentence(replace(found, pairs=((0, 1),)))


def _starts(gain: float, random: float) -> Starts:
    """Maps whose training changes the penalty of 0.3 by ``gain``, and another start it by ``random``."""
    layers = ("a", "b")
    found = _penalties(torch.tensor([[0.3 + gain, 0.3]] * 2), layers, ("G_ReLU", UNTRAINED))
    other = _penalties(torch.tensor([[0.3 + gain, 0.3 + gain + random]]), layers[1:], ("G_ReLU", AT_RANDOM))
    return Starts(found, other, torch.tensor([[0.5, 0.25], [0.0, 0.25]]), torch.tensor([[1, 0], [0, 2]]), 32)


def test_what_training_does_to_the_start_is_told() -> None:
    words = {(0.1, 0.2): ("raises", "less than that"), (-0.1, -0.1): ("lowers", "more than that"),
             (0.0, 0.0): ("not told apart from 0", "not told apart from that")}  # fmt: skip
    for (gain, random), (of_training, of_start) in words.items():
        starts = _starts(gain, random)
        numbers = start_numbers(starts)
        assert numbers["gain"] == pytest.approx(100 * gain)
        assert numbers["random_loss"] == pytest.approx(-100 * random)
        text = judge_starts(starts, {"b": "7"}).format(**numbers)
        for part in (of_training, of_start, "25 % of the units", "at layer 7 is", "Of 32 units", "3 are dead"):
            assert part in text
        rows = start_table(starts, {"a": "1", "b": "7"}).rows
        assert [row[0] for row in rows] == ["1", "7"]
        assert (rows[0][-1], rows[1][-3]) == (None, 2)


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


def test_verdicts_of_slopes_follow_the_penalties() -> None:
    steep, even = _slope([0.5, 0.6, 0.1, 0.1], (70.0, 72.0)), _slope([0.3, 0.3, 0.3, 0.3], (40.0, 41.0))
    assert spread(even).value == pytest.approx(0)
    assert end_drop(steep.found).value == pytest.approx(0.45)
    slopes = {0.01: steep, 1.0: even}
    numbers = leaky_numbers(slopes)
    assert numbers["s_1_share"] == pytest.approx(100 * 0.3 / (0.405 - 0.1))
    texts = [text.format(**numbers) for text in (judge_accuracy(slopes), judge_evenness(slopes), judge_end(slopes))]
    assert all("As in the paper" in text or "as in the paper" in text for text in texts)
    turned = {0.01: even, 1.0: steep}
    numbers = leaky_numbers(turned)
    texts = [text.format(**numbers) for text in (judge_accuracy(turned), judge_evenness(turned), judge_end(turned))]
    assert all("nlike in the paper" in text for text in texts[:2])
    assert "not told apart from those before them, lower in the paper" in texts[2]


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
    spreads = [spread(one) for one in found]
    assert sum(one.value**2 for one in spreads) / len(spreads) == pytest.approx(level**2, abs=4e-4)
    assert sum(one.low <= level <= one.high for one in spreads) >= 16


def test_evenness_is_judged_by_what_there_is_to_lose() -> None:
    """A smaller deviation in points, of networks that have even less to lose."""
    layers = [0.1, 0.3] * 4
    one, other = _noisy_slope(layers, 1e-3, 0), _noisy_slope([0.6 * part for part in layers], 1e-3, 1, room=0.1)
    assert spread_difference(one, other).low > 0
    assert spread_difference(one, other, relative=True).high < 0
    slopes = {0.01: one, 1.0: other}
    text = judge_evenness(slopes).format(**leaky_numbers(slopes))
    assert "As in the paper, penalties are more constant" in text
    assert "which is what there is to lose and falls with the slope, they are less constant" in text
    assert spread(other, relative=True).value == pytest.approx(spread(other).value / 0.1)


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
    assert "above 0.8, a bound that is ours and not the paper's" in judge_procrustes(correlation(found))
    blocks = {measure: inside_less_outside(found, measure) for measure in MEASURES}
    assert blocks["G_ReLU CKA"].value == pytest.approx(0.3 - 0.85)
    assert judge_blocks(blocks).count("lower modulo") == 4
    turned = _similarities({measure: falling if "G_ReLU" in measure else falling[::-1] for measure in MEASURES})
    assert correlation(turned).value < 0
    assert "while the paper" in judge_procrustes(correlation(turned))
