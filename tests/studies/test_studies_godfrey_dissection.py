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
from coset.study import Context
from coset_studies.godfrey.dissection._measured import (
    Found,
    Pictures,
    Subject,
    Turning,
    annotated,
    examined,
    with_classes,
)
from coset_studies.godfrey.dissection._report import Curve, Estimate, concepts_table, curve, difference, estimate
from coset_studies.godfrey.dissection.interpretable_units import (
    AFTER,
    BEFORE,
    PRESETS,
    WITH,
    WITHOUT,
    _caption,
    _contrast,
    _contrasts,
    _fall,
    _no_fall,
    _panels,
    _rise,
    _setting,
    _weakness,
)

CONCEPTS = (Concept("cat", "class"), Concept("red", "colour"), Concept("blue", "colour"), Concept("checks", "texture"))


def values(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def test_intervals_are_those_of_student_and_welch() -> None:
    one, other = values(1.0, 2.5, 4.0, 3.0), values(0.5, 0.0, 2.0)
    found = estimate(one)
    assert (found.low, found.high) == pytest.approx(stats.ttest_1samp(one, 0.0).confidence_interval(0.95))
    between = difference(one, other)
    expected = stats.ttest_ind(one, other, equal_var=False).confidence_interval(0.95)
    assert (between.low, between.high) == pytest.approx(tuple(expected))
    assert found.sign == 1
    assert between.sign == 0
    assert str(found) == f"{one.mean():.1f} [{found.low:.1f}, {found.high:.1f}]"
    # Not "-0.0", which says nothing.
    assert str(Estimate(-7.2, -14.34, -0.04)) == "-7.2 [-14.34, -0.04]"
    assert str(Estimate(1.0, 0.003, 2.0)) == "1.0 [0.003, 2.000]"
    assert str(Estimate(0.0, 0.0, 0.0)) == "0.0 [0.0, 0.0]"


def test_networks_that_agree_and_single_ones() -> None:
    assert estimate(values(-2.0, -2.0)) == estimate(values(-2.0, -2.0, -2.0))
    assert estimate(values(-2.0, -2.0)).sign == -1
    assert estimate(values(0.0, 0.0)).sign == 0
    alone = estimate(values(5.0))
    assert (alone.low, alone.sign, str(alone)) == (None, 0, "5.0")
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


def test_verdicts_follow_the_intervals() -> None:
    down, up, open_ = changing(-5, -6, -5.5), changing(5, 6, 5.5), changing(-5, 6, 0)
    assert _fall("here", down) == "Away from the basis of units the share falls here, as in the paper."
    assert _fall("here", up).endswith("rises here, unlike in the paper.")
    assert "changes by no more than networks differ here, where it falls in the paper" in _fall("here", open_)
    assert _no_fall("here", down) == "It falls here, unlike in the paper."
    assert _no_fall("here", open_).endswith("and no fall is seen, as in the paper.")
    assert _rise("here", up) == "It rises here, as in the paper."
    assert _rise("here", down).endswith("unlike in the paper.")
    told = _contrast("k", "here", "there", difference(down.change, up.change))
    assert told == "The change here is lower than there (difference {k_difference} points)."
    near = estimate(down.change - changing(-5, -6.5, -5).change)
    assert "is not told apart from that there" in _contrast("k", "here", "there", near)


def test_changes_are_compared_within_a_network_and_between_kinds_of_networks() -> None:
    # Networks differ by much, and each changes by about 2 points less behind a ReLU.
    curves = {
        AFTER: changing(-12, 3, 8),
        BEFORE: changing(-10, 5.2, 9.9),
        WITH: changing(-12, 3),
        WITHOUT: changing(-10, 5),
    }
    found = _contrasts(curves)
    assert found["plain"].sign == -1
    assert found["plain"].value == pytest.approx(-(2 + 2.2 + 1.9) / 3)
    assert found["outputs"] == difference(values(-12, 3), values(-10, 5))
    assert found["outputs"].sign == 0


def test_a_study_without_residual_networks_says_so() -> None:
    config = PRESETS["quick"]
    subjects = config.subjects()
    assert list(subjects) == ["plain", "with", "without"]
    assert dict(subjects["without"].zoo.options)["final_activation"] is False
    assert subjects["with"].places[0] == (WITH, ("stages.0.0",))
    assert "2 of either kind, with 4 channels" in _setting(config)
    plain = replace(config, residual=None)
    assert list(plain.subjects()) == ["plain"]
    assert "left to the preset paper" in _setting(plain)
    few = {AFTER: changing(-1, -2), BEFORE: changing(1, 2)}
    assert _panels(few) == [("plain networks", [AFTER, BEFORE])]
    assert _caption(few).startswith("(a) Units with")
    assert "(b)-(c) Different" in _caption(few)
    more = few | {WITH: changing(0, 1), WITHOUT: changing(0, 1)}
    assert "(c)-(f) Different" in _caption(more)


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


def test_weak_residual_networks_are_called_so() -> None:
    (told,) = _weakness({"plain_accuracy": 87.0, "with_accuracy": 53.0, "without_accuracy": 55.0})
    assert told.startswith("The residual networks are weak, 32.0 points or more below the plain ones")
    assert _weakness({"plain_accuracy": 87.0, "with_accuracy": 53.0, "without_accuracy": 77.0}) == []
    assert _weakness({"plain_accuracy": 87.0}) == []


def test_the_table_of_concepts_has_shares_and_ceilings() -> None:
    found = found_of([[0, 1], [-1, 1]])
    rows = concepts_table({"here": {"a": (found,)}}).rows
    assert [list(row) for row in rows[:2]] == [["cat", "class", 10, 0.05, 0.5, 0.5], ["red", "colour", 10, 0.05, 1, 1]]
