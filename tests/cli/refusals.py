"""How a command refuses: in one line, before anything long is computed, and nothing stays."""

from pathlib import Path

import pytest

MODEL = ["--model", "mlp", "--option", "in_features=64", "--option", "widths=[4]"]


def command(name, *more, a="a.pt", b="b.pt", data="digits"):
    """A command that compares two perceptrons on digits."""
    return [name, a, b, *MODEL, "--data", data, *more]


def check_refused(here, monkeypatch, arguments, message):
    """Raise unless ``arguments`` get one line with this message, without a search for a symmetry, and leave nothing."""
    monkeypatch.setattr("coset.symmetry.discover", lambda *a, **k: pytest.fail("looked for a symmetry"))
    before = sorted(Path().rglob("*"))
    code, out, err = here(*arguments)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert message in err
    assert sorted(Path().rglob("*")) == before
