"""Studies from outside: a distribution with an entry point, and one that is broken."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from coset.cli import main
from coset.errors import InputError
from coset.study import broken_studies, studies
from coset.study._discovery import OWN, _load, find_study
from coset.study._study import REGISTRY

HOMES = ("coset", "coset_studies")

STUDY = """
from dataclasses import dataclass

from coset.study import Claim, Estimate, Findings, study


@dataclass(frozen=True)
class Config:
    count: int


def figure():
    from coset.figures import new_figure

    return new_figure(1.0, 1.0)


claim = Claim(
    paper="There are many.", source="p. 1", statistic="count", direction="above", threshold=2.0, reason="Two are few.",
    interval="Counts are exact.", estimate=lambda results: Estimate(*3 * [float(results.numbers["count"])]),
)


@study(
    name="NAME", title="Counting", reference="A. Stranger 2030", paper="Many.", claims=[claim],
    presets={"quick": Config(3), "small": Config(4), "paper": Config(5)},
)
def run(config, context):
    return Findings({"count": config.count}, {}, "Here {count}.", figure, "Nothing.")
"""


def _install(folder: Path, name: str, entry_points: str, files: dict[str, str]) -> None:
    """What an installer leaves of a distribution: its modules and its metadata."""
    for file, text in {
        f"{name}-1.0.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{name}-1.0.dist-info/entry_points.txt": f"[coset.studies]\n{entry_points}\n",
        **files,
    }.items():
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


class Answer(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


Coset = Callable[..., Answer]


@pytest.fixture
def coset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Coset:
    """Run the command line where ``tmp_path`` is a folder of installed modules, each time as if in a new process."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COSET_STORE", str(tmp_path / "store"))

    def run(*arguments: str) -> Answer:
        own = _built_in()
        modules, known = set(sys.modules), dict(REGISTRY)
        REGISTRY.clear()
        REGISTRY.update({name: known[name] for name in own})
        _load.cache_clear()
        try:
            with pytest.raises(SystemExit) as stop:
                main(list(arguments))
        finally:
            REGISTRY.clear()
            REGISTRY.update(known)
            _load.cache_clear()
            for name in set(sys.modules) - modules:
                if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
                    del sys.modules[name]
        return Answer(int(stop.value.code or 0), *capsys.readouterr())

    return run


def _built_in() -> set[str]:
    """coset's own studies; other tests may have registered some in this process."""
    for name, value in OWN.items():
        _load(name, value)
    return {name for name, study in REGISTRY.items() if study.run.__module__.partition(".")[0] in HOMES}


def _named(name: str) -> str:
    return STUDY.replace("NAME", name)


def test_a_study_from_outside_is_listed_and_runs(coset: Coset, tmp_path: Path) -> None:
    package = {
        "strangers/__init__.py": "",
        "strangers/one.py": _named("stranger-one"),
        "strangers/below/__init__.py": "",
        "strangers/below/two.py": _named("stranger-two"),
        "strangers/_private.py": "raise RuntimeError('private')",
    }
    _install(tmp_path, "strangers", "strangers = strangers", package)
    _install(tmp_path, "single", "single = single_study", {"single_study.py": _named("stranger-three")})
    listed = coset("study", "list", "--json")
    assert (listed.returncode, listed.stderr) == (0, "")
    names = [item["name"] for item in json.loads(listed.stdout)]
    assert {"stranger-one", "stranger-two", "stranger-three", "rossi-barriers", "group-orders"} <= set(names)
    assert len(names) == len(set(names)) == len(_built_in()) + 3
    done = coset("study", "run", "stranger-two", "--out", "out")
    assert done.returncode == 0, done.stderr
    assert (
        "| count: above 2 | There are many. (p. 1) | 3 [3, 3] | holds |"
        in (tmp_path / "out/stranger-two.md").read_text()
    )
    again = coset("study", "render", "stranger-two", "--out", "out")
    assert again.returncode == 0, again.stderr


def test_a_process_finds_studies_from_outside_and_does_not_load_matplotlib(tmp_path: Path) -> None:
    _install(tmp_path, "single", "single = single_study", {"single_study.py": _named("stranger")})
    code = "import sys, coset.study; print(*coset.study.studies(), 'matplotlib' in sys.modules)"
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    *names, loaded = done.stdout.split()
    assert set(names) == {*_built_in(), "stranger"}
    assert len(names) == len(set(names))
    assert loaded == "False"


def test_broken_entry_points_are_one_line_each_and_hide_nothing(coset: Coset, tmp_path: Path) -> None:
    modules = {
        "torn/__init__.py": "",
        "torn/bad.py": _named("torn-bad") + "raise ValueError('two\\nlines')\n",
        "torn/good.py": _named("torn-good"),
        "thief.py": _named("group-orders"),
        "leaver.py": "raise SystemExit(3)",
    }
    points = "torn = torn\ngone = no_such_module\nodd = torn.good:run\nanother = thief\nleaver = leaver"
    _install(tmp_path, "torn", points, modules)
    listed = coset("study", "list", "--json")
    assert listed.returncode == 0
    found = {item["name"]: item["title"] for item in json.loads(listed.stdout)}
    assert set(found) == {*_built_in(), "torn-good"}
    assert found["group-orders"] != "Counting"
    what = "of the group coset.studies"
    assert sorted(listed.stderr.splitlines()) == [
        f"coset: the entry point another = 'thief' {what} cannot be loaded: InputError: two studies have the name "
        "'group-orders'",
        f"coset: the entry point gone = 'no_such_module' {what} cannot be loaded: ModuleNotFoundError: No module named "
        "'no_such_module'",
        f"coset: the entry point leaver = 'leaver' {what} cannot be loaded: SystemExit: 3",
        f"coset: the entry point odd = 'torn.good:run' {what} does not name a module",
        f"coset: the entry point torn = 'torn' {what} cannot be loaded (torn.bad): ValueError: two lines",
    ]
    run = coset("study", "run", "torn-bad")
    assert run.returncode == 2
    assert run.stderr.startswith("coset: there is no study 'torn-bad'; there are: ")
    assert "(torn.bad): ValueError: two lines" in run.stderr
    assert "Traceback" not in run.stderr
    assert coset("study", "run", "torn-good", "--out", "out").returncode == 0


def test_help_does_not_look_for_studies(coset: Coset, tmp_path: Path) -> None:
    _install(tmp_path, "loud", "loud = loud", {"loud.py": "print('imported')"})
    for arguments in (["--help"], ["study", "--help"]):
        shown = coset(*arguments)
        assert shown.returncode == 0
        assert "imported" not in shown.stdout
    assert "imported" in coset("study", "list").stdout


def test_own_studies_are_all_there() -> None:
    assert broken_studies() == ()
    homes = {study.run.__module__.partition(".")[0] for study in studies().values()}
    assert homes >= {"coset_studies"}
    with pytest.raises(InputError, match="there is no study 'nothing'; there are: barriers-of-samples, "):
        find_study("nothing")


def test_the_project_names_the_same_entry_points() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    section = text[text.index('[project.entry-points."coset.studies"]') :].split("\n\n")[0].splitlines()[1:]
    assert dict(line.replace('"', "").split(" = ") for line in section) == OWN


def test_own_entry_points_of_yesterday_are_not_asked(tmp_path: Path, coset: Coset) -> None:
    """An installation from a source tree keeps the metadata of the day when it was made."""
    _install(tmp_path, "coset", "coset = coset.gone", {})
    listed = coset("study", "list")
    assert (listed.returncode, listed.stderr) == (0, "")
