"""The command line in this process, and networks for it."""

import pytest
import torch
from aligned_files import looking, network, shuffled
from safetensors.torch import save_file

from coset.alignment import METHODS
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


@pytest.fixture
def methods(monkeypatch):
    monkeypatch.setitem(METHODS, "shuffled", shuffled)
    monkeypatch.setitem(METHODS, "looking", looking)


@pytest.fixture
def ab(tmp_path):
    """A and B on disk, in the folder where ``here`` runs."""
    a, b = network(1), network(2)
    save_file(a, tmp_path / "a.safetensors")
    torch.save({"epoch": 1, "state_dict": b}, tmp_path / "b.pt")
    return a, b
