"""The claims of the study of MLPs' barriers: judged by its table, able to fail, and as its page tells them."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from coset.study import Scalar, Table, Verdict, show_study, studies

DOCS = Path(__file__).parents[2] / "docs" / "studies"
COLUMNS = ("data", "path", "train barrier, nats", "± train", "test barrier, nats", "± test")


def judged(*rows: tuple[Scalar, ...]) -> dict[str, Verdict]:
    """The verdicts on MNIST by what a claim measures, for a table of barriers with these rows."""
    results = SimpleNamespace(numbers={}, tables={"barriers": Table(COLUMNS, rows)})
    found = [claim.judge(results) for claim in studies()["rossi-barriers"].claims]
    return {
        item.claim.statistic.removeprefix("MNIST: "): item.verdict
        for item in found
        if item.claim.statistic.startswith("MNIST: ")
    }


NAIVE = "naive barrier, nats, the smaller of train and test"
TRAIN, TEST = (f"aligned barrier as a share of the naive one, {split}" for split in ("train", "test"))
SMALLER = "train barrier less test barrier, nats, the smaller of naive and aligned"


@pytest.mark.parametrize(
    ("naive", "aligned", "verdicts"),
    [
        ((1.0, 0.01, 0.9, 0.01), (0.05, 0.001, 0.01, 0.001), ("holds", "holds", "holds", "holds")),
        ((0.1, 0.01, 0.2, 0.01), (0.09, 0.001, 0.1, 0.001), ("fails", "fails", "fails", "fails")),
        ((1.0, 0.01, 0.24, 0.01), (0.1, 0.001, 0.024, 0.001), ("cannot tell", "cannot tell", "cannot tell", "holds")),
        ((1.0, 0.01, 0.9, 0.01), (0.05, 0.02, 0.04, 0.02), ("holds", "holds", "holds", "cannot tell")),
        # Nothing is a share of no barrier.
        ((0.0, 0.01, 0.0, 0.01), (0.0, 0.0, 0.0, 0.0), ("fails", "cannot tell", "cannot tell", "cannot tell")),
        ((1.0, None, 0.9, None), (0.05, None, 0.01, None), ("cannot tell",) * 4),
    ],
)
def test_claims_can_hold_and_fail(
    naive: tuple[Scalar, ...], aligned: tuple[Scalar, ...], verdicts: tuple[str, ...]
) -> None:
    found = judged(("MNIST", "naive", *naive), ("MNIST", "aligned", *aligned))
    assert found == dict(zip((NAIVE, TRAIN, TEST, SMALLER), verdicts, strict=True))


def test_what_was_not_measured_cannot_be_told() -> None:
    assert set(judged(("digits", "naive", 1.0, 0.1, 1.0, 0.1)).values()) == {Verdict.CANNOT_TELL}


def test_one_claim_of_the_published_page_fails() -> None:
    failed = [item.claim.statistic for item in show_study("rossi-barriers", DOCS).verdicts if item.verdict != "holds"]
    assert failed == ["CIFAR-10: aligned barrier as a share of the naive one, train"]
