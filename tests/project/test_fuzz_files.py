"""Damaged files of every format are refused or read as they were; and the fuzzer sees each kind of fault."""

import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from coset.errors import InputError

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the fuzzer forks")


@pytest.fixture
def fuzzer(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    import fuzz.files

    return fuzz.files


def test_some_hundred_damaged_files(fuzzer, capfd):
    assert fuzzer.run(1.5, 1_000_000)
    out, err = capfd.readouterr()
    summary = re.fullmatch(
        r"files: ([\d,]+) cases of \d+ formats from seed 1000000: ([\d,]+) refused, ([\d,]+) unchanged, ([\d,]+) other "
        r"content without a checksum, 0 failures, \d+ s\n",
        out,
    )
    assert summary is not None, out
    cases, *parts = (int(number.replace(",", "")) for number in summary.groups())
    assert cases == sum(parts) >= 300
    assert err == ""


def test_a_seed_decides_what_is_done(fuzzer, tmp_path):
    (tmp_path / "originals").mkdir()
    known = fuzzer.formats(tmp_path / "originals")
    first, second = ([fuzzer.case(known, tmp_path / "case", seed) for seed in range(60)] for _ in range(2))
    assert first == second
    assert len({what for what, _ in first}) == 3


def planted(fuzzer, monkeypatch, read, sealed=False):
    """Fuzz one format whose reader is ``read``, a function of the content of its file."""
    content = json.dumps({"a": [1, 2]}).encode()

    def read_file(folder):
        return read((folder / "x.json").read_bytes(), content)

    form = fuzzer.Format("planted", {"x.json": content}, read_file, sealed)
    monkeypatch.setattr(fuzzer, "formats", lambda folder: [form])
    return fuzzer.run(0.05, 5)


def test_a_sound_reader_passes(fuzzer, monkeypatch):
    def read(found, content):
        if found != content:
            raise InputError("x.json is damaged")
        return found

    assert planted(fuzzer, monkeypatch, read, sealed=True)


def let_out(found, content):
    return json.loads(found)


def leave(found, content):
    raise SystemExit(0)


def two_lines(found, content):
    raise InputError("x.json is\ndamaged")


def no_name(found, content):
    raise InputError("it is damaged")


def anything(found, content):
    return found


def dies(found, content):
    os.kill(os.getpid(), signal.SIGKILL)


def waits(found, content):
    time.sleep(60)


def fills(found, content):
    kept = bytearray(os.urandom(1)) * 400_000_000
    raise InputError(f"x.json is damaged: {len(kept)}")


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (let_out, "JSONDecodeError: "),
        (leave, "SystemExit: 0"),
        (two_lines, "a message of 2 lines: "),
        (no_name, "a message that does not name the file: 'it is damaged'"),
        (anything, "other content was read in spite of its checksum"),
        (dies, "the process ended with code -9"),
        (waits, "no answer within 0 s"),
        (fills, " MB of memory were used"),
    ],
)
def test_faults_that_are_planted_are_found(fuzzer, monkeypatch, capfd, read, message):
    monkeypatch.setattr(fuzzer, "HANG", 0.3 if read is waits else 10.0)
    assert not planted(fuzzer, monkeypatch, read, sealed=True)
    out, _ = capfd.readouterr()
    failure = next(line for line in out.splitlines() if message in line)
    seed = re.match(r"seed (\d+): ", failure)
    assert seed is not None
    assert failure.endswith(f"(again: ./dev fuzz files --minutes 0 --seed {seed[1]})")
    assert not re.search(r" 0 failures, ", out.splitlines()[-1])


def test_a_reader_of_coset_that_lets_an_exception_out_is_found(fuzzer, monkeypatch, capfd):
    monkeypatch.setattr("coset.symmetry.storage.parse_json", lambda text, what: json.loads(text))
    assert not fuzzer.run(0.7, 0)
    assert "symmetry, sym.json: JSONDecodeError: " in capfd.readouterr()[0]


def test_a_checksum_of_coset_that_is_not_compared_is_found(fuzzer, monkeypatch, capfd):
    monkeypatch.setattr("coset._files.sealed._check_tensors", lambda *arguments: None)
    # One case in six hundred changes nothing but numbers of a sealed file: from a seed that does.
    assert not all(fuzzer.run(0.0, seed) for seed in (8023, 8733, 8907))
    assert "other content was read in spite of its checksum" in capfd.readouterr()[0]
