"""What a study declares for its page: text, tables and a figure, filled from results and made again from them."""

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from coset.errors import InputError
from coset.store import Store
from coset.study import (
    Context,
    Findings,
    Results,
    StudyRun,
    Table,
    render_study,
    run_study,
    show_study,
    studies,
    study,
)
from coset.study._picture import small_png
from coset.study._results import results_text
from coset.study._study import REGISTRY


@dataclass(frozen=True)
class Config:
    slope: float = 1.5


def _run(config: Config, context: Context) -> Findings:
    table = Table(("x", "y"), [(x, config.slope * x) for x in range(3)], "Of the run.")
    return Findings({"slope": config.slope}, {"points": table, "others": Table(("n",), [])})


def _figure(results: Results) -> Any:
    from coset.figures import new_figure

    figure = new_figure(2.0, 1.5)
    figure.add_subplot().plot([row[1] for row in results.tables["points"].rows])
    return figure


DECLARED: dict[str, Any] = {
    "title": "A line",
    "reference": "Nobody 2020",
    "paper": "Lines.",
    "presets": dict.fromkeys(("quick", "small", "paper"), Config()),
    "text": {"small": "Of slope\n{slope:.2f}:\n- it ends at {points[2][y]:g}."},
    "tables": {"points": "Points on\nit."},
    "figure": _figure,
    "caption": "The line.",
}


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    known = dict(studies())
    study(name="line", **DECLARED)(_run)
    yield
    REGISTRY.clear()
    REGISTRY.update(known)


def made(folder: Path, preset: str = "small", **options: Any) -> StudyRun:
    return run_study("line", preset, folder / "out", store=Store(folder / "store"), show=False, **options)


def test_a_page_is_filled_from_the_results(tmp_path: Path) -> None:
    run = made(tmp_path)
    page = run.page.read_text(encoding="utf-8")
    assert "## What came out here\n\nOf slope 1.50:\n- it ends at 3.\n\n![The line.]" in page
    assert "## Table: points\n\nPoints on it.\n\n| x | y |" in page
    assert "others" not in page
    assert set(run.tables) == {"points", "others"}
    assert show_study("line", run.folder.parent) == run
    assert (run.folder / "others.csv").exists()


@pytest.mark.parametrize(("preset", "seed"), [("quick", 0), ("small", 1)])
def test_a_text_belongs_to_the_run_that_it_was_written_of(tmp_path: Path, preset: str, seed: int) -> None:
    page = made(tmp_path, preset, seed=seed).page.read_text(encoding="utf-8")
    assert "## What came out here\n\n![The line.]" in page
    assert "it ends at" not in page


def test_a_text_of_all_runs_stands_on_every_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REGISTRY, "line", replace(REGISTRY["line"], text="Of slope {slope}."))
    assert made(tmp_path, "quick", seed=3).outcome == "Of slope 1.5."


def test_rendering_takes_what_is_declared_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = made(tmp_path)
    files = {path.name: path.read_bytes() for path in run.folder.iterdir()}
    for path in run.folder.iterdir():
        if path.name != "results.json":
            path.unlink()
    again = render_study("line", run.folder.parent)
    assert {path.name: path.read_bytes() for path in run.folder.iterdir()} == files
    assert again == run

    def other(results: Results) -> Any:
        figure = _figure(results)
        figure.axes[0].set_xlabel("x")
        return figure

    changed = replace(REGISTRY["line"], text={"small": "Slope {slope:g}."}, figure=other, tables={"others": "None."})
    monkeypatch.setitem(REGISTRY, "line", replace(changed, run=lambda *_: pytest.fail("computed")))
    again = render_study("line", run.folder.parent)
    assert (again.outcome, again.shown) == ("Slope 1.5.", ("others",))
    assert (again.numbers, again.tables["points"].rows) == (run.numbers, run.tables["points"].rows)
    assert (run.folder / "figure.png").read_bytes() != files["figure.png"]


def test_a_field_that_results_lack_names_study_and_field(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REGISTRY, "line", replace(REGISTRY["line"], text="{sloop}"))
    message = "the text of the study line has the field {sloop}, which is not among its numbers; the nearest are slope"
    with pytest.raises(InputError, match=message):
        made(tmp_path)
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_shown_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REGISTRY, "line", replace(REGISTRY["line"], tables={"points": "", "lines": ""}))
    with pytest.raises(InputError, match="the study line shows the table 'lines', which its findings do not have"):
        made(tmp_path)
    monkeypatch.setitem(REGISTRY, "line", replace(REGISTRY["line"], tables=None, figure=None))
    with pytest.raises(InputError, match="the study line has no figure, neither declared nor in its findings"):
        made(tmp_path)
    with pytest.raises(InputError, match=r"the study odd has texts of \['big'\]"):
        study(name="odd", **DECLARED | {"text": {"big": "x"}})(_run)


def test_results_have_a_record_in_every_line_and_are_read_back(tmp_path: Path) -> None:
    run = made(tmp_path)
    text = (run.folder / "results.json").read_text(encoding="utf-8")
    assert text == results_text(run)
    assert '"numbers": {\n"slope": 1.5\n},\n' in text
    assert '"rows": [\n[0, 0.0],\n[1, 1.5],\n[2, 3.0]\n]' in text
    assert '"rows": []' in text
    # Files of before, which had several lines a record, are read and written anew.
    (run.folder / "results.json").write_text(json.dumps(json.loads(text), indent=2), encoding="utf-8")
    assert show_study("line", run.folder.parent) == run
    render_study("line", run.folder.parent)
    assert (run.folder / "results.json").read_text(encoding="utf-8") == text


def _png(pixels: np.ndarray) -> bytes:
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, format="PNG")
    return content.getvalue()


def test_pictures_have_few_colours_and_few_bytes() -> None:
    plain = np.zeros((60, 90, 4), np.uint8)
    plain[:, :30] = (200, 30, 30, 255)
    image = Image.open(io.BytesIO(small := small_png(_png(plain))))
    assert (image.mode, image.size) == ("P", (90, 60))
    seen = np.asarray(image.convert("RGB"))
    assert (seen[:, :30] == (200, 30, 30)).all()
    assert (seen[:, 30:] == 255).all()  # what is clear is paper
    assert small_png(small) == small
    noise = np.random.default_rng(0).integers(0, 256, (900, 1200, 3), dtype=np.uint8)
    made = small_png(_png(noise), limit=200_000)
    assert len(made) <= 200_000
    width, height = Image.open(io.BytesIO(made)).size
    assert 400 <= width < 1200
    assert width / height == pytest.approx(4 / 3, rel=0.01)
    with pytest.raises(InputError, match="the picture of 1200×900 pixels is larger than 1000 bytes at any size"):
        small_png(_png(noise), limit=1000)
