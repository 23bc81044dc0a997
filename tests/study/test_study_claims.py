"""Claims: what an interval decides, what is refused, and what results.json and the page say of them."""

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coset.errors import InputError
from coset.store import Store
from coset.study import (
    Claim,
    Context,
    Estimate,
    Findings,
    Judgement,
    StudyRun,
    Table,
    Verdict,
    render_study,
    run_study,
    show_study,
    studies,
    study,
)
from coset.study._study import REGISTRY

numbers = st.floats(-1e6, 1e6)


@st.composite
def estimates(draw: st.DrawFn) -> Estimate:
    low, value, high = sorted(draw(st.tuples(numbers, numbers, numbers)))
    return Estimate(value, low, high)


def claim(**change: Any) -> Claim:
    parts: dict[str, Any] = {
        "paper": "It grows.",
        "source": "fig. 1",
        "statistic": "slope, nats",
        "direction": "above",
        "threshold": 0.5,
        "reason": "Less is not seen.",
        "interval": "Two standard errors.",
        "estimate": lambda results: None,
    }
    return Claim(**parts | change)


def _is_true(kind: Claim, value: float) -> bool:
    """The definition, written apart from the code."""
    if kind.direction == "above":
        return value > kind.threshold
    if kind.direction == "below":
        return value < kind.threshold
    if kind.direction == "between":
        return kind.threshold[0] < value < kind.threshold[1]
    return abs(value - kind.published) < kind.threshold


@st.composite
def claims(draw: st.DrawFn) -> Claim:
    direction = draw(st.sampled_from(["above", "below", "between", "equal within"]))
    if direction == "between":
        low, high = sorted(draw(st.lists(numbers, min_size=2, max_size=2, unique=True)))
        return claim(direction=direction, threshold=(low, high))
    if direction == "equal within":
        # So that the ends of the region are exact.
        published, tolerance = draw(st.integers(-1000, 1000)), draw(st.integers(1, 1000))
        return claim(direction=direction, threshold=float(tolerance), published=float(published))
    return claim(direction=direction, threshold=draw(numbers))


@given(claims(), estimates(), st.floats(0, 1))
def test_a_verdict_is_true_of_every_value_in_the_interval(kind: Claim, estimate: Estimate, share: float) -> None:
    inside = min(max(estimate.low + share * (estimate.high - estimate.low), estimate.low), estimate.high)
    verdict = kind.verdict(estimate)
    if verdict == "holds":
        assert all(_is_true(kind, value) for value in (estimate.low, inside, estimate.value, estimate.high))
    if verdict == "fails":
        assert not any(_is_true(kind, value) for value in (estimate.low, inside, estimate.value, estimate.high))


@given(claims(), estimates())
def test_an_interval_across_or_at_a_threshold_cannot_tell(kind: Claim, estimate: Estimate) -> None:
    ends = [end for end in kind.region if math.isfinite(end)]
    across = any(estimate.low <= end <= estimate.high for end in ends)
    assert (kind.verdict(estimate) == Verdict.CANNOT_TELL) == across


@given(numbers, estimates())
def test_above_holds_where_below_fails(threshold: float, estimate: Estimate) -> None:
    above, below = (claim(direction=direction, threshold=threshold) for direction in ("above", "below"))
    opposite = {"holds": "fails", "fails": "holds", "cannot tell": "cannot tell"}
    assert below.verdict(estimate) == opposite[above.verdict(estimate)]


@given(claims(), estimates(), st.floats(0, 1e3))
def test_a_wider_interval_never_reverses_a_verdict(kind: Claim, estimate: Estimate, more: float) -> None:
    wider = Estimate(estimate.value, estimate.low - more, estimate.high + more)
    assert kind.verdict(wider) in (kind.verdict(estimate), "cannot tell")


@given(claims(), st.none() | estimates())
def test_a_judgement_is_the_same_after_json(kind: Claim, estimate: Estimate | None) -> None:
    judgement = Judgement(kind, estimate)
    content = json.loads(json.dumps(judgement.to_dict(), allow_nan=False))
    assert content["verdict"] in ("holds", "fails", "cannot tell")
    assert Judgement.from_dict(content) == judgement


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"threshold": -math.inf}, "cannot fail: no value from -inf to inf is not above -inf"),
        ({"threshold": math.inf}, "cannot hold: no value from -inf to inf is above inf"),
        ({"direction": "below", "threshold": math.inf}, "cannot fail"),
        ({"direction": "between", "threshold": (-math.inf, math.inf)}, "cannot fail"),
        ({"direction": "equal within", "threshold": math.inf, "published": 1.0}, "cannot fail"),
        ({"direction": "equal within", "threshold": 0.0, "published": 1.0}, "cannot hold"),
        ({"direction": "equal within", "threshold": 0.1}, "no published value to equal"),
        ({"threshold": 0.0, "possible": (0.0, math.inf)}, "cannot fail: no value from 0 to inf is not above 0"),
        ({"threshold": 1.0, "possible": (0.0, 1.0)}, "cannot hold: no value from 0 to 1 is above 1"),
        ({"direction": "between", "threshold": (-1.0, 2.0), "possible": (0.0, 1.0)}, "cannot fail"),
        ({"direction": "between", "threshold": (2.0, 1.0)}, "expected the smaller number first"),
        ({"direction": "between", "threshold": 1.0}, "threshold is 1.0, expected two numbers"),
        ({"threshold": math.nan}, "has the threshold nan, expected numbers"),
        ({"threshold": "much"}, "threshold is 'much', expected a number"),
        ({"threshold": True}, "threshold is True, expected a number"),
        ({"direction": "beside"}, "has the direction 'beside', expected one of above, below, between, equal within"),
        ({"reason": " "}, "reason of a claim is ' ', expected a text"),
    ],
)
def test_a_claim_that_says_nothing_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        claim(**change)


@pytest.mark.parametrize("parts", [(1, 2, 3), (3, 2, 1), (0, -math.inf, 1), (math.nan, 0, 1), ("1", 0, 2)])
def test_an_estimate_lies_in_its_finite_interval(parts: tuple[Any, ...]) -> None:
    with pytest.raises(InputError, match="expected"):
        Estimate(*parts)


def test_an_estimate_is_a_possible_value() -> None:
    share = claim(possible=(0.0, 1.0))
    assert Judgement(share, Estimate(0.9, 0.7, 1.1)).verdict == "holds"
    with pytest.raises(InputError, match=r"the estimate of 'slope, nats' is 1\.1, expected a possible value: 0 to 1"):
        Judgement(share, Estimate(1.1, 1.0, 1.2))
    with pytest.raises(InputError, match=r"is \(1, 0, 2\), expected an Estimate"):
        Judgement(share, (1, 0, 2))  # type: ignore[arg-type]


def test_a_cell_is_found_by_its_row() -> None:
    table = Table(("data", "path", "barrier"), [("a", "naive", 1.0), ("a", "aligned", 0.1), ("b", "naive", 2.0)])
    assert table.cell("barrier", {"data": "a", "path": "aligned"}) == 0.1
    assert table.cell("barrier", {"data": "c"}) is None
    with pytest.raises(InputError, match="2 rows of the table have"):
        table.cell("barrier", {"data": "a"})
    with pytest.raises(InputError, match="the table has no column 'loss'"):
        table.cell("loss", {})


@dataclass(frozen=True)
class Config:
    slope: float


def _run(config: Config, context: Context) -> Findings:
    from coset.figures import new_figure

    table = Table(("path", "slope"), [("naive", config.slope)])
    return Findings({"slope": config.slope}, {"slopes": table}, "{slope}", lambda: new_figure(1, 1), "A line.")


def _slope(results: Any) -> Estimate:
    value = results.tables["slopes"].cell("slope", {"path": "naive"})
    assert value == results.numbers["slope"]
    return Estimate(value, value - 0.1, value + 0.1)


@pytest.fixture
def grown(tmp_path: Path) -> Any:
    """A study with three claims, one of which is not measured, run in its quick preset."""
    known = dict(studies())
    presets = {"quick": Config(1.0), "small": Config(0.5), "paper": Config(0.0)}
    made = [
        claim(estimate=_slope, published=1.5),
        claim(direction="below", threshold=0.95, estimate=_slope),
        claim(statistic="other|slope"),
    ]
    study(name="grown", title="Growth", reference="A 2020", paper="It grows.", presets=presets, claims=made)(_run)
    yield run_study("grown", "quick", tmp_path / "out", store=Store(tmp_path / "store"))
    REGISTRY.clear()
    REGISTRY.update(known)


def test_page_results_and_text_carry_the_verdicts(grown: StudyRun) -> None:
    verdicts = ["holds", "cannot tell", "cannot tell"]
    assert [judgement.verdict for judgement in grown.verdicts] == verdicts
    results = json.loads((grown.folder / "results.json").read_text())
    assert [item["verdict"] for item in results["verdicts"]] == verdicts
    assert results["verdicts"][0]["estimate"] == [1.0, 0.9, 1.1]
    page = grown.page.read_text()
    head = page[: page.index("## What the paper found")]
    assert "| slope, nats: above 0.5 | It grows. (fig. 1): 1.5 | 1 [0.9, 1.1] | holds |" in head
    assert "| other\\|slope: above 0.5 | It grows. (fig. 1) | not measured | cannot tell |" in head
    assert head.count("- above 0.5: Less is not seen.") == 1
    assert head.count("Two standard errors.") == 1
    assert "1 [0.9, 1.1]" in str(grown)
    assert show_study("grown", grown.folder.parent) == grown


def test_rendering_judges_an_earlier_run_by_new_claims(grown: StudyRun, monkeypatch: pytest.MonkeyPatch) -> None:
    others = {path.name: path.read_bytes() for path in grown.folder.iterdir() if path.name != "results.json"}
    changed = replace(REGISTRY["grown"], title="Decay", claims=(claim(direction="below", estimate=_slope),))
    monkeypatch.setitem(REGISTRY, "grown", replace(changed, run=lambda *_: pytest.fail("computed")))
    again = render_study("grown", grown.folder.parent)
    assert [judgement.verdict for judgement in again.verdicts] == ["fails"]
    assert again.page.read_text().startswith("# Decay\n")
    assert "| fails |" in again.page.read_text()
    assert show_study("grown", grown.folder.parent) == again
    assert (again.numbers, again.tables, again.times) == (grown.numbers, grown.tables, grown.times)
    assert {path.name: path.read_bytes() for path in grown.folder.iterdir() if path.name != "results.json"} == others


def test_rendering_what_was_not_run_is_refused(grown: StudyRun, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no results in"):
        render_study("grown", tmp_path / "elsewhere")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"verdict": "fails"}, "a verdict is 'fails', and its interval says 'holds'"),
        ({"estimate": [1.0, 2.0]}, "expected 3 numbers"),
        ({"estimate": "1"}, "expected 3 numbers"),
        ({"estimate": [1.0, 2.0, 3.0]}, "expected finite numbers"),
        ({"possible": None}, "expected 2 numbers"),
        ({"direction": "up"}, "has the direction 'up'"),
        ({"paper": 3}, "paper of a claim is 3, expected a text"),
        ({"more": 1}, "a verdict does not have the parts"),
    ],
)
def test_verdicts_that_were_changed_are_refused(grown: StudyRun, change: dict[str, Any], message: str) -> None:
    path = grown.folder / "results.json"
    results = json.loads(path.read_text())
    results["verdicts"][0] |= change
    path.write_text(json.dumps(results))
    with pytest.raises(InputError, match=f"results.json does not hold the results of a study: .*{message}"):
        show_study("grown", grown.folder.parent)


def test_results_without_verdicts_still_open(grown: StudyRun) -> None:
    path = grown.folder / "results.json"
    results = json.loads(path.read_text())
    del results["verdicts"]
    path.write_text(json.dumps(results))
    assert show_study("grown", grown.folder.parent) == replace(grown, verdicts=())
    path.write_text(json.dumps(results | {"verdicts": {}}))
    with pytest.raises(InputError, match=r"verdicts is \{\}, expected list"):
        show_study("grown", grown.folder.parent)


def test_claims_of_a_study_are_claims_and_differ(grown: StudyRun) -> None:
    parts: dict[str, Any] = {"name": "new", "title": "", "reference": "", "paper": ""}
    parts["presets"] = REGISTRY["grown"].presets
    with pytest.raises(InputError, match=r"the study new makes one claim twice: 'slope, nats', above 0\.5"):
        study(**parts, claims=[claim(), claim()])
    with pytest.raises(InputError, match="claim 0 of the study new is a str, expected a Claim"):
        study(**parts, claims=["it grows"])  # type: ignore[list-item]
