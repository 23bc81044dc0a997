"""The framework of studies: what a run writes, what a failure leaves, and what a second run repeats."""

import csv
import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.image
import numpy as np
import pytest
import torch
from matplotlib.lines import Line2D

from coset.errors import InputError
from coset.store import Store
from coset.study import Context, Findings, StudyRun, Table, run_study, show_study, studies, study
from coset.study._study import REGISTRY

TRAINED: list[int] = []


@dataclass(frozen=True)
class Config:
    members: int
    widths: tuple[int, ...] = (2, 3)


def _no_failure(stage: str) -> None:
    return None


HOOK: dict[str, Callable[[str], None]] = {"fail": _no_failure}
PANELS: list[str] = []
"""Titles of panels in the toy's figure; texts take long to lay out, and few tests look at them."""


def _toy(config: Config, context: Context) -> Findings:
    """Train a few 'networks' through the store and report their means."""
    means = []
    with context.progress("training", config.members) as bar:
        for member in range(config.members):
            HOOK["fail"](f"train {member}")

            def make(member: int = member) -> dict[str, torch.Tensor]:
                TRAINED.append(member)
                return {"w": torch.randn(50, generator=context.generator(f"member {member}"))}

            address = {"kind": "toy", "seed": context.seed, "member": member}
            means.append(float(context.store.get_or_make(address, make).params["w"].mean()))
            bar.advance()

    def figure() -> Any:
        from coset.figures import label_panel, new_figure

        HOOK["fail"]("figure")
        made = new_figure(4.0, 3.0)
        made.add_artist(Line2D(range(len(means)), means))
        for title in PANELS:
            axes = made.add_subplot()
            axes.plot(means, label="mean")
            axes.legend()
            label_panel(axes, "a", title)
        return made

    rows = [(member, mean, mean > 0, f'a|b, "{member}"', None) for member, mean in enumerate(means)]
    return Findings(
        numbers={"members": config.members, "mean": sum(means) / len(means), "absent": None},
        tables={
            "means": Table(("member", "mean", "positive", "note", "nothing"), rows, "The means."),
            "empty": Table("ab", []),
        },
        outcome="""
            Over {members} members
            the mean is {mean:.4f}.

            That is all.
            """,
        figure=figure,
        caption="Means of members.",
    )


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Register the toy study for one test only."""
    known = dict(studies())
    monkeypatch.setitem(HOOK, "fail", _no_failure)
    TRAINED.clear()
    presets = {"quick": Config(3), "small": Config(4), "paper": Config(5)}
    study(name="toy", title="A toy", reference="Nobody 2020, fig. 1", paper="They found\nnothing.", presets=presets)(
        _toy
    )
    yield
    REGISTRY.clear()
    REGISTRY.update(known)


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., StudyRun]:
    def run_toy(preset: str = "quick", out: str = "out", **settings: Any) -> StudyRun:
        return run_study("toy", preset, tmp_path / out, store=Store(tmp_path / "store"), **settings)

    return run_toy


@pytest.fixture
def panel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy's figure has axes, a legend and a title."""
    monkeypatch.setattr(sys.modules[__name__], "PANELS", ["Means"])


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def test_a_run_writes_results_tables_figure_and_page(run: Callable[..., StudyRun], tmp_path: Path) -> None:
    made = run()
    names = {"results.json", "means.csv", "empty.csv", "figure.png", "figure.svg"}
    assert set(_files(tmp_path / "out")) == {f"toy/{name}" for name in names} | {"toy.md"}
    results = json.loads((made.folder / "results.json").read_text(encoding="utf-8"), parse_constant=_refuse)
    assert results["study"] == "toy"
    assert (results["preset"], results["seed"], results["device"]) == ("quick", 0, "cpu")
    assert results["config"] == {"members": 3, "widths": [2, 3]}
    assert results["numbers"] == dict(made.numbers)
    assert results["outcome"] == f"Over 3 members the mean is {made.numbers['mean']:.4f}.\n\nThat is all."
    assert results["paper"] == "They found nothing."
    assert results["versions"]["torch"] == torch.__version__
    assert results["times"]["seconds"] >= 0
    with (made.folder / "means.csv").open(newline="", encoding="utf-8") as file:
        head, *rows = csv.reader(file)
    assert tuple(head) == made.tables["means"].columns
    assert [(int(row[0]), float(row[1]), row[2], row[3], row[4]) for row in rows] == [
        (member, mean, str(positive), note, "") for member, mean, positive, note, _ in made.tables["means"].rows
    ]
    assert (made.folder / "empty.csv").read_text() == "a,b\n"


@pytest.mark.usefixtures("panel")
def test_the_figure_is_a_valid_png_and_svg_without_dates(run: Callable[..., StudyRun]) -> None:
    folder = run().folder
    assert matplotlib.image.imread(folder / "figure.png").shape[:2] == (600, 800)
    root = ElementTree.parse(folder / "figure.svg").getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert b"dc:date" not in (folder / "figure.svg").read_bytes()
    assert b"matplotlib" not in (folder / "figure.png").read_bytes().lower()


def test_the_page_has_the_command_and_links_that_lead_somewhere(run: Callable[..., StudyRun]) -> None:
    made = run(seed=7)
    page = made.page.read_text(encoding="utf-8")
    assert "coset study run toy --preset quick --seed 7 --out out\n" in page
    links = re.findall(r"\]\((.*?)\)", page)
    # What is not committed with a page is not linked to.
    assert links == ["toy/figure.png", "toy/results.json"]
    assert all((made.page.parent / link).is_file() for link in links)
    assert "| 0 | " in page
    assert 'a\\|b, "0"' in page


def test_the_command_tells_a_relative_folder_as_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    made = run_study("toy", "quick", "docs/my studies", store=Store("store"))
    assert made.command == "coset study run toy --preset quick --seed 0 --out 'docs/my studies'"
    assert (tmp_path / "docs" / "my studies" / "toy.md").is_file()


@pytest.mark.parametrize(
    ("preset", "device", "told"),
    [
        ("quick", "cpu", ""),
        ("small", "cuda", " --device cuda"),
        ("paper", "cpu", " --device cpu"),
        ("paper", "cuda:1", " --device cuda:1"),
    ],
)
def test_the_command_tells_a_device_that_another_machine_might_not_choose(
    run: Callable[..., StudyRun], preset: str, device: str, told: str
) -> None:
    made = replace(run(), preset=preset, device=device)
    assert made.command == f"coset study run toy --preset {preset} --seed 0{told} --out out"


@pytest.mark.usefixtures("panel")
def test_one_seed_gives_one_result(run: Callable[..., StudyRun], tmp_path: Path) -> None:
    run(out="one", seed=1)
    run_study("toy", "quick", tmp_path / "elsewhere" / "one", store=Store(tmp_path / "another store"), seed=1)
    one, two = _files(tmp_path / "one"), _files(tmp_path / "elsewhere" / "one")
    times = [json.loads(files.pop("toy/results.json")) for files in (one, two)]
    assert [set(result.pop("times")) for result in times] == [{"started", "seconds", "processor"}] * 2
    assert times[0] == times[1]
    assert one.pop("toy.md").splitlines()[:-1] == two.pop("toy.md").splitlines()[:-1]
    assert one == two
    assert run(out="other", seed=2).numbers["mean"] != times[0]["numbers"]["mean"]


@pytest.mark.usefixtures("panel")
def test_the_figure_ignores_the_readers_style_and_leaves_it(run: Callable[..., StudyRun]) -> None:
    plain = (run(out="plain").folder / "figure.png").read_bytes()
    with matplotlib.rc_context({"font.size": 30.0, "axes.facecolor": "red", "xtick.direction": "in"}):
        assert (run(out="styled").folder / "figure.png").read_bytes() == plain
        assert matplotlib.rcParams["font.size"] == 30.0


def _fail_at(stage: str, error: type[BaseException] = RuntimeError) -> Callable[[str], None]:
    def fail(reached: str) -> None:
        if reached == stage:
            raise error(stage)

    return fail


@pytest.mark.parametrize("stage", ["train 1", "figure"])
def test_a_failed_study_leaves_nothing(run: Callable[..., StudyRun], tmp_path: Path, stage: str) -> None:
    HOOK["fail"] = _fail_at(stage)
    with pytest.raises(RuntimeError, match=stage):
        run()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("stage", ["train 1", "figure"])
def test_a_failed_study_leaves_earlier_results_as_they_were(
    run: Callable[..., StudyRun], tmp_path: Path, stage: str
) -> None:
    run()
    before = _files(tmp_path / "out")
    HOOK["fail"] = _fail_at(stage)
    with pytest.raises(RuntimeError, match=stage):
        run("small", seed=3)
    assert _files(tmp_path / "out") == before


@pytest.mark.parametrize("full_at", range(6))
def test_a_full_disk_leaves_earlier_results_as_they_were(
    run: Callable[..., StudyRun], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full_at: int
) -> None:
    run()
    before = _files(tmp_path / "out")
    write_bytes, written = Path.write_bytes, []

    def until_full(path: Path, content: bytes) -> int:
        if path.parent.suffix == ".part" and path.is_relative_to(tmp_path / "out"):
            written.append(path)
            if len(written) > full_at:
                raise OSError("no space left")
        return write_bytes(path, content)

    monkeypatch.setattr(Path, "write_bytes", until_full)
    with pytest.raises(InputError, match="cannot be written: no space left"):
        run("small", seed=3)
    assert len(written) == full_at + 1
    assert _files(tmp_path / "out") == before


@pytest.mark.parametrize("moved", range(6))
def test_a_failing_move_leaves_no_results_that_vouch_for_a_mixture(
    run: Callable[..., StudyRun], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved: int
) -> None:
    run()
    before = _files(tmp_path / "out")
    replace_file, done = Path.replace, []

    def until(part: Path, target: Path) -> Path:
        if target.is_relative_to(tmp_path / "out"):
            done.append(target.name)
            if len(done) > moved:
                raise OSError("the disk is gone")
        return replace_file(part, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", until)
        with pytest.raises(InputError, match="cannot be written: the disk is gone"):
            run("small", seed=3)
    assert len(done) == moved + 1
    after = _files(tmp_path / "out")
    assert set(after) == set(before) - {"toy/results.json"}
    with pytest.raises(InputError, match="has no results in"):
        show_study("toy", tmp_path / "out")
    again = run("small", seed=3)
    assert show_study("toy", tmp_path / "out") == again


def test_results_come_last(run: Callable[..., StudyRun], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_file, targets = Path.replace, []

    def noted(part: Path, target: Path) -> Path:
        targets.append(target.name)
        return replace_file(part, target)

    monkeypatch.setattr(Path, "replace", noted)
    made = run()
    mine = [name for name in targets if (made.folder / name).exists() or name == made.page.name]
    assert mine[-1] == "results.json"
    assert len(mine) == 6


def test_tables_of_an_earlier_run_go_and_other_files_stay(run: Callable[..., StudyRun], tmp_path: Path) -> None:
    folder = run().folder
    (folder / "notes.csv").write_text("mine")
    results = json.loads((folder / "results.json").read_text())
    # A name that no study can give its table is not the name of a file to remove.
    results["tables"] |= dict.fromkeys(("old", "../../precious"), results["tables"]["means"])
    (folder / "results.json").write_text(json.dumps(results))
    for path in (folder / "old.csv", tmp_path / "precious.csv"):
        path.write_text("")
    run()
    names = {"results.json", "means.csv", "empty.csv", "figure.png", "figure.svg", "notes.csv"}
    assert {path.name for path in folder.iterdir()} == names
    assert (tmp_path / "precious.csv").exists()
    # What an unreadable results.json names is not known.
    (folder / "results.json").write_text("{")
    (folder / "old.csv").write_text("")
    run()
    assert {path.name for path in folder.iterdir()} == names | {"old.csv"}


def test_an_interrupted_study_goes_on_where_it_stopped(run: Callable[..., StudyRun]) -> None:
    HOOK["fail"] = _fail_at("train 2", KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        run()
    assert TRAINED == [0, 1]
    HOOK["fail"] = _no_failure
    resumed = run()
    assert TRAINED == [0, 1, 2]
    again = run()
    assert TRAINED == [0, 1, 2]
    assert again.numbers == resumed.numbers


def test_show_gives_what_run_gave(run: Callable[..., StudyRun], tmp_path: Path) -> None:
    made = run(seed=4)
    shown = show_study("toy", tmp_path / "out")
    assert shown == made
    text = str(shown)
    for part in ("A toy", "Nobody 2020, fig. 1", "They found nothing.", "Over 3 members", "The means.", made.command):
        assert part in text
    assert shown.results() == json.loads((made.folder / "results.json").read_text(encoding="utf-8"))


def test_show_says_how_to_run_what_was_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    expected = "no results in out; run: coset study run toy --preset quick --seed 0 --out out"
    with pytest.raises(InputError, match=expected):
        show_study("toy", "out")


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"schema": 1}', '{"schema": 1, "tables": {}, "study": "toy"}', "\xff"]
)
def test_show_refuses_a_damaged_file(run: Callable[..., StudyRun], tmp_path: Path, content: str) -> None:
    made = run()
    (made.folder / "results.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(InputError, match=r"results.json does not hold the results of a study"):
        show_study("toy", tmp_path / "out")


def test_show_refuses_results_of_another_version(run: Callable[..., StudyRun], tmp_path: Path) -> None:
    path = run().folder / "results.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema": 2}))
    with pytest.raises(InputError, match="was written by another version of coset"):
        show_study("toy", tmp_path / "out")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "toi"}, "there is no study 'toi'; there are: .*godfrey-gelu-defect.*toy"),
        ({"preset": "huge"}, "the study toy has no preset 'huge'; there are: quick, small, paper"),
        ({"seed": -1}, "seed must be an integer from 0 .* found -1"),
        ({"seed": "1"}, "seed must be an integer from 0 .* found '1'"),
        ({"seed": 1.5}, "seed must be an integer from 0 .* found 1.5"),
        ({"seed": True}, "seed must be an integer from 0 .* found True"),
        ({"device": "abacus"}, "the device 'abacus' cannot be used"),
        ({"device": "meta"}, "the device 'meta' cannot be used: its tensors have no values"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    arguments = {
        "name": "toy",
        "preset": "quick",
        "out": tmp_path / "out",
        "store": Store(tmp_path / "store"),
    } | settings
    with pytest.raises(InputError, match=message):
        run_study(**arguments)
    assert TRAINED == []
    assert not (tmp_path / "out").exists()
    with pytest.raises(InputError, match="there is no study"):
        show_study("toi", tmp_path)


def test_an_out_that_is_a_file_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InputError, match="out must be a folder, found the file"):
            run_study("toy", "quick", out, store=Store(tmp_path / "store"))
    assert TRAINED == []


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs a folder that nobody can write to")
def test_an_out_that_cannot_be_written_to_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="out /proc/coset cannot be written to"):
        run_study("toy", "quick", "/proc/coset", store=Store(tmp_path / "store"))
    assert TRAINED == []


@pytest.mark.parametrize("file", ["toy.md", "toy/results.json", "toy/figure.png", "toy/figure.svg"])
def test_a_folder_in_place_of_a_file_is_refused_before_anything_runs(
    run: Callable[..., StudyRun], tmp_path: Path, file: str
) -> None:
    (tmp_path / "out" / file).mkdir(parents=True)
    with pytest.raises(InputError, match=f"{Path(file).name} is a folder, expected a file or nothing"):
        run()
    assert TRAINED == []
    assert _files(tmp_path / "out") == {}


def test_a_folder_in_place_of_a_table_is_refused_before_anything_is_written(
    run: Callable[..., StudyRun], tmp_path: Path
) -> None:
    (tmp_path / "out" / "toy" / "means.csv").mkdir(parents=True)
    with pytest.raises(InputError, match=r"means\.csv is a folder, expected a file or nothing"):
        run()
    assert _files(tmp_path / "out") == {}


def test_what_cannot_be_registered_is_refused() -> None:
    presets = {"quick": Config(1), "small": Config(2), "paper": Config(3)}
    good: dict[str, Any] = {"name": "new", "title": "", "reference": "", "paper": "", "presets": presets}
    for change, message in (
        ({"name": "New Study"}, "must be lower-case words joined by hyphens"),
        ({"presets": {"quick": Config(1)}}, r"has the presets \['quick'\], expected \['quick', 'small', 'paper'\]"),
        ({"presets": dict.fromkeys(presets, 3)}, "must be dataclasses"),
        ({"name": "toy"}, "two studies have the name 'toy'"),
    ):
        with pytest.raises(InputError, match=message):
            study(**good | change)(_toy)
    study(**good)(_toy)
    assert "new" in studies()


def test_findings_hold_plain_finite_values_only() -> None:
    assert Table(("a", "b"), [[np.float32(0.5), np.int64(3)]]).rows == ((0.5, 3),)
    assert [type(cell) for cell in Table("ab", [[np.float32(0.5), np.int64(3)]]).rows[0]] == [float, int]
    with pytest.raises(InputError, match="row 0 has 1 cells, expected 2"):
        Table(("a", "b"), [(1,)])
    with pytest.raises(InputError, match="row 1, column 'b' is nan"):
        Table(("a", "b"), [(1, 2), (1, float("nan"))])
    with pytest.raises(InputError, match="row 0, column 'a' is a Tensor"):
        Table(("a",), [(torch.ones(()),)])  # type: ignore[list-item]
    findings = Findings({}, {}, "", lambda: pytest.fail("drawn"), "")
    with pytest.raises(InputError, match="loss is inf"):
        replace(findings, numbers={"loss": float("inf")})
    with pytest.raises(InputError, match="the table name 'My Table'"):
        replace(findings, tables={"My Table": Table((), [])})


def test_streams_of_random_numbers_are_independent_and_repeatable() -> None:
    def first(seed: int, stream: str) -> int:
        generator = Context(seed, torch.device("cpu"), Store("unused")).generator(stream)
        return int(torch.randint(2**62, (), generator=generator))

    assert first(0, "a") == first(0, "a")
    assert len({first(seed, stream) for seed in (0, 1, 2) for stream in ("", "a", "b")}) == 9
