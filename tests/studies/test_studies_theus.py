"""The study of transformers on TinyShakespeare: its claims, its baseline, and what its page tells."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from coset.data import Dataset, Normalization, Split
from coset.study import Scalar, Table, Verdict, show_study, studies
from coset.study._report import page
from coset_studies.theus._pairs import LEARNED, METHODS, NAIVE, PERMUTED, WEIGHTS
from coset_studies.theus.shakespeare import character_pairs

DOCS = Path(__file__).parents[2] / "docs" / "studies"
NAME, SETTING = "theus-shakespeare", "LayerNorm, d = 128"
COLUMNS = ("setting", "pair", "method", "barrier, nats", "halfway, nats")


def judged(*pairs: Mapping[str, tuple[float, float]], known: Scalar = 2.5) -> tuple[str, ...]:
    """The verdicts on one setting, for barriers and losses halfway by method, one mapping for each pair."""
    rows = [
        (SETTING, str(number), method, *numbers)
        for number, pair in enumerate(pairs)
        for method, numbers in pair.items()
    ]
    results = SimpleNamespace(numbers={"character_pairs": known}, tables={"barriers": Table(COLUMNS, rows)})
    claims = [claim for claim in studies()[NAME].claims if claim.statistic.startswith(SETTING)]
    assert len(claims) == 4
    return tuple(str(claim.judge(results).verdict) for claim in claims)


def pair(naive: float, permuted: float, weights: float, learned: float, halfway: float) -> dict[str, Any]:
    barriers = {NAIVE: naive, WEIGHTS: weights, LEARNED: learned, **dict.fromkeys(PERMUTED, permuted)}
    return {method: (barrier, halfway) for method, barrier in barriers.items()}


GOOD, BAD = pair(2.0, 1.5, 1.0, 0.1, 1.9), pair(2.0, 0.3, 1.5, 0.5, 2.6)


def test_claims_can_hold_and_fail() -> None:
    assert judged(GOOD, GOOD) == ("holds",) * 4
    assert judged(BAD, BAD) == ("fails",) * 4
    # One pair of each kind tells nothing.
    assert judged(GOOD, BAD) == ("cannot tell",) * 4
    assert judged() == ("cannot tell",) * 4
    assert judged(GOOD, known=None) == ("holds", "holds", "holds", "cannot tell")
    # One of the ways to permute is enough to refute that none connects.
    assert judged({**GOOD, PERMUTED[1]: (0.1, 1.9)})[0] == "fails"
    # Nothing is a share of no barrier.
    assert judged({**GOOD, NAIVE: (0.0, 1.9)})[1] == "cannot tell"


def test_the_loss_of_character_pairs_is_that_of_their_counts() -> None:
    train = Split(torch.tensor([[0, 1, 0], [0, 1, 1]]), torch.tensor([[1, 0, 0], [1, 1, 1]]))
    test = Split(torch.tensor([[0, 1, 1], [1, 1, 1]]), torch.tensor([[1, 0, 1], [0, 0, 0]]))
    identity = Normalization((0.0,), (1.0,))
    data = Dataset("a text", "classification", train, test, ("a", "b"), identity, None, "")
    # After a: once a, twice b. After b: once a, twice b. One is added to all.
    expected = -(math.log(3 / 5) + math.log(2 / 5) + math.log(3 / 5)) / 3
    assert character_pairs(data, 1) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", [NAME, "theus-cifar"])
def test_a_quick_run_measures_every_method(name: str, quick_run: Callable[[str], Any]) -> None:
    run = quick_run(name).run
    table = run.tables["barriers"]
    assert [row[2] for row in table.rows] == list(METHODS)
    ends = [row[4] for row in table.rows]
    # Whatever the method, the aligned network is the same function.
    assert ends == pytest.approx([ends[0]] * len(ends), abs=1e-5)
    assert len({row[5] for row in table.rows}) == len(METHODS)
    assert {item.verdict for item in run.verdicts} == {Verdict.CANNOT_TELL}


def test_networks_write_as_many_characters_as_asked(quick_run: Callable[[str], Any]) -> None:
    run = quick_run(NAME).run
    assert [len(row[2].replace(" ⏎ ", "\n")) for row in run.tables["texts"].rows] == [40] * 3


@pytest.mark.parametrize("name", [NAME])
def test_the_page_is_what_its_results_give(name: str) -> None:
    run = show_study(name, DOCS)
    claims = studies()[name].claims
    assert tuple(claim.judge(run) for claim in claims) == run.verdicts
    assert run.page.read_text(encoding="utf-8") == page(replace(run, folder=Path("docs/studies") / name))
    stored = json.loads((DOCS / name / "results.json").read_text(encoding="utf-8"))
    assert [item["verdict"] for item in stored["verdicts"]] == [str(item.verdict) for item in run.verdicts]
    by_setting = {row[0] for row in run.tables["barriers"].rows}
    assert {claim.statistic.partition(":")[0] for claim in claims} == by_setting
