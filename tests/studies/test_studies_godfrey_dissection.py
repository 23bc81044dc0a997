"""The study of dissection: intervals against SciPy, units counted by hand, images and verdicts."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from scipy import stats
from torch import Tensor

from coset.data import Split
from coset.represent import dissect
from coset.represent.dissection import Concept
from coset.represent.dissection.images import checked_batches
from coset.store import Store
from coset.study import Context, Findings
from coset_studies.godfrey.dissection._measured import (
    Found,
    Pictures,
    Subject,
    Turning,
    annotated,
    examined,
    with_classes,
)
from coset_studies.godfrey.dissection._report import Curve, Mean, concepts_table, curve, difference, mean_of
from coset_studies.godfrey.dissection.interpretable_units import (
    AFTER,
    BEFORE,
    CLAIMS,
    PRESETS,
    WITH,
    WITH_INSIDE,
    WITHOUT,
    WITHOUT_INSIDE,
    _contrasts,
    _numbers,
)

CONCEPTS = (Concept("cat", "class"), Concept("red", "colour"), Concept("blue", "colour"), Concept("checks", "texture"))


def values(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def test_intervals_are_those_of_student_and_welch() -> None:
    one, other = values(1.0, 2.5, 4.0, 3.0), values(0.5, 0.0, 2.0)
    found = mean_of(one)
    assert (found.low, found.high) == pytest.approx(stats.ttest_1samp(one, 0.0).confidence_interval(0.95))
    between = difference(one, other)
    expected = stats.ttest_ind(one, other, equal_var=False).confidence_interval(0.95)
    assert (between.low, between.high) == pytest.approx(tuple(expected))
    assert found.low is not None
    assert found.low > 0
    assert str(found) == f"{one.mean():.1f} [{found.low:.1f}, {found.high:.1f}]"
    # Not "-0.0", which says nothing.
    assert str(Mean(-7.2, -14.34, -0.04)) == "-7.2 [-14.34, -0.04]"
    assert str(Mean(1.0, 0.003, 2.0)) == "1.0 [0.003, 2.000]"
    assert str(Mean(0.0, 0.0, 0.0)) == "0.0 [0.0, 0.0]"


def test_networks_that_agree_and_single_ones() -> None:
    assert mean_of(values(-2.0, -2.0)) == mean_of(values(-2.0, -2.0, -2.0))
    alone = mean_of(values(5.0))
    assert (alone.low, str(alone)) == (None, "5.0")
    assert difference(values(1.0, 2.0), values(5.0)).low is None


def found_of(best: list[list[int]]) -> Found:
    """For each rotation and unit (one power) the number of its concept, −1 for none."""
    iou = torch.full((len(best), 1, len(best[0]), len(CONCEPTS)), 0.01, dtype=torch.float64)
    for rotation, units in enumerate(best):
        for unit, concept in enumerate(units):
            if concept >= 0:
                iou[rotation, 0, unit, concept] = 0.3
    return Found(CONCEPTS, iou, (0.1,) * 4, (0.05,) * 4, 0.0)


def test_units_and_concepts_are_counted() -> None:
    small, large = found_of([[0, 1], [-1, -1]]), found_of([[1, 2, 1, -1], [3, 3, -1, -1]])
    item = curve({"a": (small, small), "b": (large, found_of([[-1] * 4] * 2))}, (0.0,))
    # Rotations have 5 and 2 of the 6 units in the first network, 2 and 0 in the second.
    assert item.percent[:, 0].tolist() == pytest.approx([100 * 7 / 12, 100 * 2 / 12])
    assert item.units == 6
    # Colours: red in one of two rotations of layer a; red and blue in one of layer b.
    assert item.unique["colour"][:, 0].tolist() == [(0.5 + 1.0) / 2, 0.25]
    assert item.unique["texture"][:, 0].tolist() == [0.25, 0.0]
    assert item.unique["shape"][:, 0].tolist() == [0.0, 0.0]


def changing(*changes: float) -> Curve:
    percent = torch.stack([torch.full((len(changes),), 50.0).double(), 50 + values(*changes)], 1)
    return Curve((0.0, 1.0), percent, {}, 1)


def test_changes_are_compared_within_a_network_and_between_kinds_of_networks() -> None:
    # Networks differ by much, and each changes by about 2 points less behind a ReLU.
    curves = {
        AFTER: changing(-12, 3, 8),
        BEFORE: changing(-10, 5.2, 9.9),
        WITH: changing(-12, 3),
        WITHOUT: changing(-10, 5),
    }
    found = _contrasts(curves)
    assert found["plain"].high is not None
    assert found["plain"].high < 0
    assert found["plain"].value == pytest.approx(-(2 + 2.2 + 1.9) / 3)
    assert found["outputs"] == difference(values(-12, 3), values(-10, 5))


def test_a_study_may_have_no_residual_networks() -> None:
    config = PRESETS["quick"]
    subjects = config.subjects()
    assert list(subjects) == ["plain", "with", "without"]
    assert dict(subjects["without"].zoo.options)["final_activation"] is False
    assert subjects["with"].places[0] == (WITH, ("stages.0.0",))
    assert list(replace(config, residual=None).subjects()) == ["plain"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([(-5, -6, -5.5), (-5, -6, -5.5), (1, 2, 1.5), (4, 5, 6), (4, 5, 6)], ["holds", "holds", "holds", "holds"]),
        ([(5, 6, 5.5), (5, 6, 5.5), (-1, -2, -1.5), (4, 5, 6), (-4, -5, -6)], ["fails", "fails", "fails", "fails"]),
        ([(-5, 6, 0), (-5, 6, 0), (-5, 6, 0), (4, 5, 6), (-4, 5, 0)], ["cannot tell"] * 4),
        ([(-5,), (-5,), (5,), (5,), (5,)], ["cannot tell"] * 4),
    ],
)
def test_claims_follow_the_intervals(changes: list[tuple[float, ...]], expected: list[str]) -> None:
    labels = (AFTER, WITH, WITHOUT, WITH_INSIDE, WITHOUT_INSIDE)
    curves = {label: changing(*each) for label, each in zip(labels, changes, strict=True)}
    results = Findings(_numbers(curves | {BEFORE: curves[AFTER]}), {})
    assert [str(claim.judge(results).verdict) for claim in CLAIMS] == expected


def test_classes_cover_their_images() -> None:
    part = Split(torch.rand(5, 1, 3, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 2, 1, 2, 0]))
    data = with_classes(part, ("a", "b", "c"), 2)
    assert [concept.category for concept in data.concepts] == ["class"] * 3
    images, masks = (torch.cat(each) for each in zip(*data.batches, strict=True))
    assert images.shape == (5, 3, 3, 4)
    assert torch.equal(masks.all((2, 3)), torch.nn.functional.one_hot(part.y).bool())
    assert torch.equal(masks.any((2, 3)), masks.all((2, 3)))


def test_what_is_stored_is_the_dissection(tmp_path: Path) -> None:
    context = Context(0, torch.device("cpu"), Store(tmp_path), show=False)
    config = PRESETS["quick"]
    zoo, pictures, how = config.plain, Pictures(20, 20, batch_size=20), Turning((0.0, 1.0), 2)
    subject = Subject(zoo, (("outputs", ("stages.0.0",)),), anchored=False)
    places, networks = examined(context, subject, pictures, how)
    again, _ = examined(context, subject, pictures, how)
    data = annotated(context, zoo, pictures)
    x, masks, known = next(checked_batches(data))
    assert x.shape == (20, 1, 8, 8)
    assert masks.shape[2:] == (8, 8)
    # Natural images come first: classes and colours are annotated on them, shapes and textures are not.
    assert dict(zip(data.categories, known.all(0).tolist(), strict=True)) == {
        "class": True, "shape": False, "texture": False, "colour": True,
    }  # fmt: skip
    for number, module in networks.modules.items():
        one = places["outputs"]["stages.0.0"][number]
        direct = dissect(module, "stages.0.0", data)["neurons"]
        assert one.concepts == data.concepts
        assert one.iou.shape == (2, 2, 4, len(data.concepts))
        for rotation in range(2):
            assert torch.equal(one.iou[rotation, 0], direct.iou)
        assert not torch.equal(one.iou[0, 1], one.iou[1, 1])
        assert one.shares == pytest.approx(direct.concept_shares.tolist())
        assert one.ceilings == pytest.approx(list(direct.ceilings.values()))
        assert torch.equal(again["outputs"]["stages.0.0"][number].iou, one.iou)
    assert math.isclose(sum(places["outputs"]["stages.0.0"][0].shares[:10]), 1)


def test_the_table_of_concepts_has_shares_and_ceilings() -> None:
    found = found_of([[0, 1], [-1, 1]])
    rows = concepts_table({"here": {"a": (found,)}}).rows
    assert [list(row) for row in rows[:2]] == [["cat", "class", 10, 0.05, 0.5, 0.5], ["red", "colour", 10, 0.05, 1, 1]]
