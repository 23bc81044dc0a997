"""Entries that somebody made up, with right checksums: refused in one line each, listed, and never waited for."""

import hashlib
import json
import os
from pathlib import Path

import pytest
import safetensors.torch
import torch

from coset.errors import InputError
from coset.store import DamagedEntryError, Store
from coset.store._address import key_of_json
from coset.store._entry import _digest

CONFIG = '{"kind":"mlp"}'
GOOD = {
    "schema": "1",
    "version": "0.1.0",
    "created": "2025-01-01T00:00:00.000000+00:00",
    "config": CONFIG,
    "info": "{}",
    "names": '{"w": "w"}',
}


def crafted(root: Path, **changed: str) -> Path:
    """An entry as another program would write it, with checksum and address as they should be."""
    fields = {**GOOD, **changed}
    tensors = {"w": torch.ones(2)}
    fields["digest"] = _digest(tensors, fields)
    key = key_of_json(fields["config"])
    path = root / key[:2] / f"{key}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    safetensors.torch.save_file(tensors, path, {f"coset.{name}": text for name, text in fields.items()})
    return path


def test_the_crafted_entry_itself_is_sound(tmp_path: Path) -> None:
    crafted(tmp_path, cost="1.5")
    entry = Store(tmp_path).get(json.loads(CONFIG))
    assert entry is not None
    assert (entry.cost, entry.config) == (1.5, {"kind": "mlp"})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"config": "[1, 2]"}, "its config is a list, expected a mapping"),
        ({"config": '"text"'}, "its config is a str, expected a mapping"),
        ({"config": "[" * 100_000}, "its config is not JSON: maximum recursion depth"),
        ({"config": '{"a":' + "[" * 500 + "]" * 500 + "}"}, "its config is nested more than 100 levels deep"),
        ({"config": '{ "kind": "mlp" }'}, "its configuration is not written as the store writes it"),
        ({"config": '{"kind":NaN}'}, "config['kind'] is nan; a configuration holds finite numbers only"),
        ({"info": "null"}, "its info is a NoneType, expected a mapping"),
        ({"info": "[" * 100_000 + "]" * 100_000}, "its info is not JSON: maximum recursion depth"),
        ({"info": '{"n": ' + "9" * 5000 + "}"}, "its info is not JSON: Exceeds the limit"),
        ({"names": "[]"}, "its names is a list, expected a mapping"),
        ({"names": '{"w": ["w"]}'}, "its names do not stand for tensors"),
        ({"names": '{"w": "v"}'}, "its content does not match its checksum"),
        ({"created": "2025-01-01T00:00:00"}, "its date 2025-01-01 00:00:00 has no time zone"),
        ({"created": "0001-01-01T00:00:00+14:00"}, "date value out of range"),
        ({"created": "yesterday"}, "Invalid isoformat string: 'yesterday'"),
        ({"cost": "nan"}, "its cost is nan"),
        ({"cost": "-1"}, "its cost is -1.0"),
        ({"cost": "much"}, "could not convert string to float: 'much'"),
    ],
)
def test_parts_of_the_wrong_kind(tmp_path: Path, changed: dict[str, str], message: str) -> None:
    path = crafted(tmp_path, **changed)
    good = Store(tmp_path).put({"kind": "sound"}, {"w": torch.zeros(1)})
    rows = {row.key: row for row in Store(tmp_path).entries(check=True)}
    row = rows[path.stem]
    assert row.damaged
    assert message in row.problem
    assert str(path) in row.problem
    assert len(row.problem.splitlines()) == 1
    assert not rows[good.key].problem
    assert path in {gone.path for gone in Store(tmp_path).prune(unreadable=True).entries}
    assert not path.exists()


def test_lines_in_what_the_header_says_are_not_lines_of_the_message(tmp_path: Path) -> None:
    crafted(tmp_path, schema="9\n9", version="x\ny\x85" * 100)
    with pytest.raises(InputError) as caught:
        Store(tmp_path).get(json.loads(CONFIG))
    assert not isinstance(caught.value, DamagedEntryError)
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("text", ["\\ud800", "\\u0000"])
def test_texts_that_cannot_be_written(tmp_path: Path, text: str) -> None:
    """JSON has halves of characters, which UTF-8 has not."""
    path = crafted(tmp_path)
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + size].replace(b'"0.1.0"', f'"{text}"'.encode())
    path.write_bytes(len(header).to_bytes(8, "little") + header + content[8 + size :])
    with pytest.raises(DamagedEntryError):
        Store(tmp_path).get(json.loads(CONFIG))
    assert [row.damaged for row in Store(tmp_path).entries(check=True)] == [True]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_what_is_no_regular_file_is_neither_waited_for_nor_removed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    names = [hashlib.sha256(word.encode()).hexdigest() for word in ("folder", "loop")]
    pipe = store.path({"kind": "pipe"})
    folder, loop = (tmp_path / name[:2] / f"{name}.safetensors" for name in names)
    for path in (pipe, folder, loop):
        path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(pipe)
    folder.mkdir()
    loop.symlink_to(loop)
    with pytest.raises(InputError, match="cannot be read: it is not a regular file"):
        store.get({"kind": "pipe"})
    with pytest.raises(InputError, match="cannot be read: it is not a regular file"):
        store.get_or_make({"kind": "pipe"}, lambda: pytest.fail("computed in vain"))
    assert len([row.problem for row in store.entries(check=True) if row.problem]) == 3
    store.prune(keep=0, unreadable=True)
    assert pipe.exists()
    assert folder.exists()
    assert loop.is_symlink()


def test_a_root_that_leads_to_itself(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    store = Store(loop)
    for act in (
        lambda: store.get({"kind": "mlp"}),
        lambda: store.put({"kind": "mlp"}, {"w": torch.ones(1)}),
        lambda: store.get_or_make({"kind": "mlp"}, lambda: pytest.fail("computed in vain")),
    ):
        with pytest.raises(InputError, match="Too many levels of symbolic links"):
            act()
