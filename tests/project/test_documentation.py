"""What the README and the docs print runs as printed; their links lead somewhere."""

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page):
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name)
def test_examples_run_as_printed(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "example"}
    for block in blocks(page):
        # What a block claims it asserts itself; here it is enough that it runs.
        exec(compile(block, page.name, "exec"), names)
    assert len(names) > 2


def test_the_readme_example_is_ten_lines_and_says_what_it_claims(capsys):
    (block,) = blocks(ROOT / "README.md")
    assert len(block.strip().splitlines()) == 10
    exec(compile(block, "README.md", "exec"), {})
    out = capsys.readouterr().out
    assert "about 10^787 elements); free positive scales: 1,232" in out
    difference = float(re.search(r"tensor\(([^,)]+)", out.splitlines()[-1]).group(1))
    assert difference < 1e-4


def test_links_lead_somewhere(capsys):
    done = runpy.run_path(str(ROOT / "docs" / "build.py"))["main"]()
    assert done == 0, capsys.readouterr().err
    assert (ROOT / "docs" / "_site" / "README.html").exists()


def test_benchmarks_run_in_their_small_form(capsys, monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--small", "--json"])
    runpy.run_module("benchmarks", run_name="__main__")
    results = json.loads(capsys.readouterr().out)
    weights = {"metanet", "represent", "zoo"}
    point = {"act", "align", "align_stack", "barrier", "canonicalize", "discover", "fit", "geometry"}
    posterior = {"chains", "predictive", "sampling", "symmetrized", "variational"}
    assert {result["what"].partition(",")[0] for result in results} == point | posterior | weights
    assert all(0 < result["spread"][0] <= result["ratio"] <= result["spread"][1] for result in results)


def test_the_project_speaks_only_of_itself():
    listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, cwd=ROOT, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    for name in listed.stdout.splitlines():
        path = ROOT / name
        if path.suffix in {".py", ".md", ".toml", ".json", ".sh", ""} and path.is_file():
            text = path.read_text(encoding="utf-8", errors="replace")
            assert not re.search(r"(?<![\w.])/(home|root|work|Users)/\w", text), f"{name} holds an absolute path"
