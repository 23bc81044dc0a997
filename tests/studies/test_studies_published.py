"""The published pages: numbers are those of the runs, pages are what their results give, and all of it is small."""

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from coset.study import show_study, studies
from coset.study._report import page
from coset.study._results import results_text
from coset.study._run import rendered
from published_studies import DOCS, digests, noted, published

THINNED: dict[tuple[str, str], str] = {}
"""Tables of former results that the pages do without, and why."""


def test_every_published_study_has_noted_digests() -> None:
    assert set(noted()) == set(published())


@pytest.mark.parametrize("name", published())
def test_numbers_and_tables_are_those_of_the_last_run(name: str) -> None:
    now = digests(name)
    kept = {key: value for key, value in noted()[name].items() if (name, key.removeprefix("table ")) not in THINNED}
    # What is read off a run later is more, never less and nothing else.
    assert {key: now.get(key) for key in kept} == kept


@pytest.mark.parametrize("name", published())
def test_the_page_is_what_its_results_give(name: str) -> None:
    """Verdicts, text and tables: by the claims and the template of today."""
    run = show_study(name, DOCS)
    again = rendered(studies()[name], run)
    assert again.verdicts == run.verdicts
    assert run.page.read_text(encoding="utf-8") == page(replace(again, folder=Path("docs/studies") / name))
    assert (run.folder / "results.json").read_text(encoding="utf-8") == results_text(again)


def test_pages_link_to_what_is_committed_only() -> None:
    """Neither vector graphics nor tables in files of their own, which every run writes anew."""
    for path in DOCS.glob("*.md"):
        links = [link for link in re.findall(r"\]\(([^)#]*)", path.read_text(encoding="utf-8")) if "://" not in link]
        wrong = [link for link in links if link and not (path.parent / link).is_file()]
        assert not wrong, path.name
        assert all(link.endswith((".md", ".json", ".png")) for link in links if link), path.name


def test_published_studies_are_small() -> None:
    assert (DOCS / ".gitignore").read_text(encoding="utf-8").split() == ["*.csv", "*.svg"]
    committed = [path for path in DOCS.rglob("*") if path.suffix in (".md", ".json", ".png")]
    assert all(path.stat().st_size <= 80 * 1024 for path in committed if path.suffix == ".png")
    assert sum(path.stat().st_size for path in committed) < 5e6
    texts = [path for path in committed if path.suffix != ".png"]
    assert sum(path.read_text(encoding="utf-8").count("\n") for path in texts) < 15_000


def test_neither_vector_graphics_nor_csv_are_tracked() -> None:
    git = shutil.which("git")
    if git is None or not (DOCS.parents[1] / ".git").exists():
        pytest.skip("not a checkout")
    listed = subprocess.run(
        [git, "ls-files", "--", "docs/studies"], cwd=DOCS.parents[1], capture_output=True, text=True
    )
    assert listed.returncode == 0, listed.stderr
    assert [name for name in listed.stdout.splitlines() if name.endswith((".svg", ".csv"))] == []
