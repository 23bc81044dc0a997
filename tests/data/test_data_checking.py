"""Reports: what is there, what is missing, what is damaged."""

import dataclasses
import json
from pathlib import Path

import pytest

from coset.data import NAMES, available, check
from coset.data._content import Part, checksum
from coset.data.catalog import CATALOG
from coset.errors import InputError


@pytest.fixture
def snelson(tmp_path, monkeypatch) -> Path:
    """A root with a curve of 200 points, registered with its checksums; nothing in the environment."""
    monkeypatch.delenv("COSET_DATA", raising=False)
    monkeypatch.setenv("COSET_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "root" / "snelson"
    folder.mkdir(parents=True)
    for name, count in (("train_inputs", 200), ("train_outputs", 200), ("test_inputs", 5)):
        (folder / f"{name}.dat").write_text("".join(f"{number / 7:.7e}\n" for number in range(count)))
    entry = CATALOG["snelson"]
    parts = tuple(dataclasses.replace(part, sha256=checksum(part, tmp_path / "root")) for part in entry.parts)
    monkeypatch.setitem(CATALOG, "snelson", dataclasses.replace(entry, parts=parts))
    return tmp_path / "root"


def test_right_dataset(snelson):
    report = check("snelson", snelson)
    assert report.ok
    assert report.problem is None
    assert report.folder == str(snelson)
    assert [part.state for part in report.parts] == ["ok"] * 3


def test_missing_file(snelson):
    (snelson / "snelson" / "test_inputs.dat").unlink()
    report = check("snelson", snelson)
    assert not report.ok
    assert report.problem == f"incomplete; run: coset data fetch snelson --root {snelson}"
    assert [part.state for part in report.parts] == ["ok", "ok", "missing"]
    assert report.parts[2].problem == f"snelson/test_inputs.dat not in {snelson}"


def test_different_content(snelson):
    path = snelson / "snelson" / "train_outputs.dat"
    path.write_text(path.read_text().replace("1.4285714e-01", "1.4285715e-01"))
    report = check("snelson", snelson)
    assert not report.ok
    assert report.problem == f"other content than published; run: coset data fetch snelson --root {snelson}"
    assert [part.state for part in report.parts] == ["ok", "different", "ok"]
    assert str(report.parts[1].problem).endswith(f"expected {CATALOG['snelson'].parts[1].sha256}")


def test_unreadable_content(snelson):
    (snelson / "snelson" / "train_inputs.dat").write_text("1\ntwo\n")
    report = check("snelson", snelson)
    assert not report.ok
    assert [part.state for part in report.parts] == ["unreadable", "ok", "ok"]
    assert "line 2" in str(report.parts[0].problem)
    assert "line 2" in str(report.problem)


def test_wrong_sizes(snelson):
    for name in ("train_inputs", "train_outputs"):
        path = snelson / "snelson" / f"{name}.dat"
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    report = check("snelson", snelson)
    sizes = "split 0 has sizes (train, test, input) (199, 0, (1,)), expected (200, 0, (1,))"
    assert report.problem == f"{sizes}; run: coset data fetch snelson --root {snelson}"


@pytest.mark.parametrize("name", ["digits", "digits-text", "breast-cancer"])
def test_embedded_datasets(name):
    report = check(name)
    assert report.ok
    assert report.folder == "scikit-learn"


def test_folder_is_searched_for(snelson, monkeypatch, tmp_path):
    assert check("snelson").folder == str(tmp_path / "cache" / "data")
    monkeypatch.setenv("COSET_DATA", str(snelson))
    assert check("snelson").ok
    monkeypatch.setenv("COSET_DATA", str(tmp_path / "empty"))
    monkeypatch.setenv("COSET_CACHE", str(tmp_path / "other"))
    (tmp_path / "other" / "data" / "snelson").mkdir(parents=True)
    (tmp_path / "other" / "data" / "snelson" / "train_inputs.dat").write_text("1\n")
    report = check("snelson")
    assert report.folder == str(tmp_path / "other" / "data")
    assert [part.state for part in report.parts] == ["different", "missing", "missing"]


def test_listing(snelson):
    rows = {row.name: row for row in available(snelson)}
    assert tuple(rows) == NAMES
    assert (rows["snelson"].found, rows["snelson"].command) == (str(snelson), None)
    assert (rows["digits"].found, rows["digits"].command) == ("scikit-learn", None)
    assert (rows["mnist"].found, rows["mnist"].command) == (None, f"coset data fetch mnist --root {snelson}")
    assert {row.name: row.command for row in available()}["uci/yacht"] == "coset data fetch uci/yacht"
    assert (rows["cifar100"].outputs, rows["uci/yacht"].outputs) == (100, 1)
    assert rows["cifar10"].shape == (3, 32, 32)
    assert all(row.found is None for row in available() if row.name not in ("digits", "digits-text", "breast-cancer"))


def test_incomplete_dataset_is_listed(snelson, monkeypatch, tmp_path):
    def row():
        return next(row for row in available() if row.name == "snelson")

    assert (row().found, row().incomplete) == (None, None)
    monkeypatch.setenv("COSET_DATA", str(snelson))
    assert (row().found, row().incomplete) == (str(snelson), None)
    (snelson / "snelson" / "train_inputs.dat").unlink()
    assert (row().found, row().incomplete, row().command) == (None, str(snelson), "coset data fetch snelson")
    assert next(row for row in available() if row.name == "digits").incomplete is None


def test_reports_are_json(snelson):
    text = json.dumps([dataclasses.asdict(row) for row in (*available(snelson), check("snelson", snelson))])
    assert json.loads(text)[-1]["parts"][0] == {"files": ["snelson/train_inputs.dat"], "state": "ok", "problem": None}


def test_checksum_keeps_files_apart(tmp_path):
    """Moving a number from one table to the next changes the checksum of both together."""
    part = Part(("a", "b"), "numbers", "")
    sums = set()
    for first, second in (("1\n2\n", "3\n"), ("1\n", "2\n3\n"), ("1 2\n", "3\n")):
        (tmp_path / "a").write_text(first)
        (tmp_path / "b").write_text(second)
        sums.add(checksum(part, tmp_path))
    assert len(sums) == 3


def test_unknown_name_is_refused():
    with pytest.raises(InputError, match="dataset is 'imagenet'; expected one of"):
        check("imagenet")
