"""The command line in this process."""

import pytest

from coset.cli import main


@pytest.fixture
def here(capsys, monkeypatch, tmp_path):
    """Run ``coset`` in this process, in a folder of its own; returns code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COSET_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("COSET_DATA", raising=False)
    monkeypatch.delenv("COSET_STORE", raising=False)

    def run(*arguments):
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return stop.value.code or 0, out, err

    return run
