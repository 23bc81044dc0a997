"""What is put into the store comes back exactly, and damage is never taken for an entry."""

import json
import math
import os
import struct
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from coset._files.locks import locked
from coset.errors import InputError
from coset.store import DamagedEntryError, Row, Store

CONFIG = {"kind": "mlp", "seed": 3, "widths": [2, 4]}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def _params() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(4, 6, generator=generator, dtype=torch.float64)
    return {
        "z.weight": noise.float(),
        "a.double": noise,
        "half": noise.half(),
        "bfloat": noise.bfloat16(),
        "steps": torch.tensor(7),
        "empty": torch.zeros(0, 3),
        "empty too": torch.zeros(0, 3),
        "mask": noise > 0,
        "bytes": torch.arange(5, dtype=torch.uint8),
        "int8": torch.tensor([-128, 127], dtype=torch.int8),
        "transposed": noise.T,
        "expanded": noise[:1].expand(3, 6),
        "part": noise[1:3, 2:],
        "special": torch.tensor([math.nan, math.inf, -math.inf, -0.0, 5e-324], dtype=torch.float64),
        "parameter": torch.nn.Parameter(noise.float() + 1),
    }


def _bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def test_params_round_trip_exactly(store: Store) -> None:
    params = _params()
    put = store.put(CONFIG, params)
    for entry in (put, store.get(CONFIG)):
        assert entry is not None
        assert list(entry.params) == list(params)
        for name, tensor in params.items():
            found = entry.params[name]
            assert (found.dtype, found.shape, _bits(found)) == (tensor.dtype, tensor.shape, _bits(tensor)), name
            assert not found.requires_grad


def test_config_and_info_round_trip(store: Store) -> None:
    info = {"loss": math.nan, "history": (0.1, 1e300, -0.0), "note": "λ ≥ 1\n", "steps": 10**30, "none": None}
    before = datetime.now(UTC)
    entry = store.put({**CONFIG, "betas": (0.9, 0.999)}, {}, info=info)
    assert entry.config == {**CONFIG, "betas": [0.9, 0.999]}
    assert math.isnan(entry.info.pop("loss"))
    assert entry.info == {"history": [0.1, 1e300, -0.0], "note": "λ ≥ 1\n", "steps": 10**30, "none": None}
    assert math.copysign(1, entry.info["history"][2]) == -1
    assert before <= entry.created <= datetime.now(UTC)
    assert entry.key == store.key(entry.config) == entry.path.stem


@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8"), min_size=1).filter(lambda name: name != "__metadata__"),
        st.lists(st.floats(width=32), max_size=4),
        max_size=4,
    )
)
def test_any_names_and_values_round_trip(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, list[float]]
) -> None:
    params = {name: torch.tensor(items, dtype=torch.float32) for name, items in values.items()}
    entry = Store(tmp_path_factory.mktemp("store")).put(CONFIG, params)
    assert {name: _bits(tensor) for name, tensor in entry.params.items()} == {n: _bits(t) for n, t in params.items()}
    assert list(entry.params) == list(params)


def test_tied_weights_stay_tied_and_are_stored_once(store: Store) -> None:
    weight = torch.arange(4096.0).reshape(64, 64)
    entry = store.put(CONFIG, {"embed": weight, "head": weight, "transposed": weight.T, "half": weight[:32]})
    assert entry.params["embed"] is entry.params["head"]
    assert torch.equal(entry.params["transposed"], weight.T)
    assert torch.equal(entry.params["half"], weight[:32])
    with safe_open(entry.path, "pt") as file:
        assert set(file.keys()) == {"embed", "transposed", "half"}
    # Only exactly tied names share memory: overlapping views come back as tensors of their own.
    entry.params["half"].zero_()
    assert torch.equal(entry.params["embed"], weight)


def test_a_loaded_entry_can_be_put_again(store: Store) -> None:
    first = store.put(CONFIG, _params())
    again = store.put({**CONFIG, "seed": 4}, first.params)
    assert {name: _bits(tensor) for name, tensor in again.params.items()} == {
        name: _bits(tensor) for name, tensor in first.params.items()
    }


def test_put_keeps_no_hold_of_the_callers_tensors(store: Store) -> None:
    weight = torch.ones(3)
    entry = store.put(CONFIG, {"w": weight})
    weight.zero_()
    assert torch.equal(entry.params["w"], torch.ones(3))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"w": torch.zeros(2, dtype=torch.complex128)}, r"params\['w'\] has dtype torch.complex128"),
        ({"w": torch.eye(2).to_sparse()}, r"params\['w'\] must be a dense tensor"),
        ({"w": torch.zeros(2, device="meta")}, r"params\['w'\] must be a dense tensor with data"),
        ({"w": [1.0]}, r"params\['w'\] must be a tensor, found list"),
        ({"__metadata__": torch.zeros(1)}, "a name must be a str other than"),
    ],
)
def test_what_cannot_be_stored_is_refused_and_leaves_nothing(store: Store, params: dict, message: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(InputError, match=message):
        store.put(CONFIG, params)
    assert not store.root.exists()


def test_an_unknown_config_gives_none(store: Store) -> None:
    assert store.get(CONFIG) is None
    assert store.entries() == []
    assert not store.root.exists()


def test_the_root_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("COSET_STORE", raising=False)
    monkeypatch.delenv("COSET_CACHE", raising=False)
    assert Store().root == tmp_path / ".cache" / "coset" / "store"
    monkeypatch.setenv("COSET_CACHE", str(tmp_path / "cache"))
    assert Store().root == tmp_path / "cache" / "store"
    monkeypatch.setenv("COSET_STORE", str(tmp_path / "mine"))
    assert Store().root == tmp_path / "mine"
    assert Store(tmp_path / "given").root == tmp_path / "given"


def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="must be a folder, found the file"):
        Store(tmp_path / "file")


def _rewrite(path: Path, **changes: str) -> None:
    """Write an entry's tensors again with some texts of its header changed."""
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    changed = metadata | {f"coset.{name}": text for name, text in changes.items()}
    path.write_bytes(safetensors.torch.save(safetensors.torch.load(path.read_bytes()), changed))


def _flip_last_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def _alter_header(path: Path) -> None:
    content = path.read_bytes()
    (size,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + size])
    del header["__metadata__"]["coset.config"]
    text = json.dumps(header).encode().ljust(size)
    path.write_bytes(struct.pack("<Q", size) + text + content[8 + size :])


_DAMAGE = {
    "empty": lambda path: path.write_bytes(b""),
    "short header": lambda path: path.write_bytes(path.read_bytes()[:40]),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "lengthened": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "not safetensors": lambda path: path.write_bytes(b"\xff" * 500),
    "one bit of a tensor": _flip_last_byte,
    "no config": _alter_header,
    "other config": lambda path: _rewrite(path, config='{"kind":"cnn"}'),
    "other info": lambda path: _rewrite(path, info='{"loss":0.0}'),
    "other names": lambda path: _rewrite(path, names='{"v":"w"}'),
    "no date": lambda path: _rewrite(path, created="yesterday"),
}
# The listing reads headers only, so it sees all damage but this.
_UNSEEN_IN_HEADERS = {"one bit of a tensor", "other info", "other names"}


@pytest.mark.parametrize("damage", _DAMAGE)
def test_damage_is_an_error_and_listed(store: Store, damage: str) -> None:
    path = store.put(CONFIG, {"w": torch.ones(8)}, info={"loss": 1.0}).path
    _DAMAGE[damage](path)
    with pytest.raises(DamagedEntryError, match=rf"the store entry .*{path.name} is damaged"):
        store.get(CONFIG)
    assert [bool(row.problem) for row in store.entries(check=True)] == [True]
    assert [bool(row.problem) for row in store.entries()] == [damage not in _UNSEEN_IN_HEADERS]


@pytest.mark.parametrize("damage", _DAMAGE)
def test_a_damaged_entry_is_made_again_with_a_warning(store: Store, damage: str) -> None:
    path = store.put(CONFIG, {"w": torch.ones(8)}).path
    _DAMAGE[damage](path)
    with pytest.warns(UserWarning, match="is damaged: .* computed again"):
        entry = store.get_or_make(CONFIG, lambda: {"w": torch.zeros(8)})
    assert torch.equal(entry.params["w"], torch.zeros(8))
    assert store.get(CONFIG) is not None


def test_an_entry_of_a_future_version_is_an_error_and_stays(store: Store) -> None:
    path = store.put(CONFIG, {"w": torch.ones(8)}).path
    _rewrite(path, schema="2", version="9.9")
    before = path.read_bytes()
    for read in (lambda: store.get(CONFIG), lambda: store.get_or_make(CONFIG, dict)):
        with pytest.raises(InputError, match=r"schema version 2 \(written by coset 9.9\), this coset reads version 1"):
            read()
    assert path.read_bytes() == before
    assert "schema version 2" in store.entries()[0].problem


def test_entries_are_listed_oldest_first(store: Store) -> None:
    configs = [{"kind": "mlp", "seed": seed} for seed in (5, 1, 3)] + [{"seed": 7}]
    for config in configs:
        store.put(config, {"w": torch.ones(10)}, info={"seed": config["seed"]})
    (store.root / "notes.txt").write_text("not the store's")
    (store.root / "ab").mkdir(exist_ok=True)
    (store.root / "ab" / "notes.safetensors").write_text("not the store's")
    rows = store.entries()
    assert [row.config for row in rows] == configs
    assert [row.kind for row in rows] == ["mlp", "mlp", "mlp", ""]
    assert [row.info["seed"] for row in rows] == [5, 1, 3, 7]
    assert all(row.size == row.path.stat().st_size and row.key == store.key(row.config) for row in rows)


@pytest.fixture
def five(store: Store) -> Store:
    for seed in range(5):
        store.put({"kind": "mlp" if seed % 2 else "cnn", "seed": seed}, {"w": torch.ones(seed)})
    return store


@pytest.mark.parametrize(
    ("conditions", "left"),
    [
        ({}, {0, 1, 2, 3, 4}),
        ({"keep": 0}, set()),
        ({"keep": 2}, {3, 4}),
        ({"keep": 9}, {0, 1, 2, 3, 4}),
        ({"kind": "mlp"}, {0, 2, 4}),
        ({"kind": "cnn", "keep": 1}, {1, 3, 4}),
        ({"predicate": lambda row: row.config["seed"] > 2}, {0, 1, 2}),
        ({"predicate": lambda row: row.config["seed"] > 2, "kind": "mlp"}, {0, 1, 2, 4}),
        ({"older_than": timedelta(hours=1)}, {0, 1, 2, 3, 4}),
        ({"older_than": timedelta(0)}, set()),
        ({"unreadable": True}, {0, 1, 2, 3, 4}),
    ],
)
def test_prune_removes_what_meets_every_condition(five: Store, conditions: dict, left: set[int]) -> None:  # type: ignore[type-arg]
    before = {row.key: row for row in five.entries()}
    tried = five.prune(**conditions, dry_run=True)
    assert {row.key for row in five.entries()} == set(before)
    pruned = five.prune(**conditions)
    after = five.entries()
    assert {row.config["seed"] for row in after} == left
    assert tried == pruned
    assert {row.key for row in pruned.entries} == set(before) - {row.key for row in after}
    assert pruned.size == sum(row.size for row in pruned.entries)


def test_prune_removes_unreadable_entries_only_when_asked(five: Store) -> None:
    victim, *others = five.entries()
    _flip_last_byte(five.entries()[4].path)
    victim.path.write_bytes(b"")
    five.prune(keep=4)
    assert victim.path.exists()
    assert len(five.prune(unreadable=True).entries) == 2
    assert [row.key for row in five.entries(check=True)] == [row.key for row in others[:3]]


def test_prune_removes_what_processes_left_behind_and_no_more(five: Store) -> None:
    path = five.path({"seed": 99})
    path.parent.mkdir(exist_ok=True)
    old, young = (path.with_name(f".{path.name}.{name}.part") for name in ("old_1234", "young_12"))
    free, held = path.with_name(f".{path.stem}.lock"), path.with_name(f".{'0' * 64}.lock")
    for leftover in (old, young, free):
        leftover.write_bytes(b"")
    hours_ago = time.time() - 7200
    os.utime(old, (hours_ago, hours_ago))
    with locked(held, "an entry"):
        assert set(five.prune(dry_run=True).leftovers) == {old, free}
        assert all(file.exists() for file in (old, young, free, held))
        assert set(five.prune().leftovers) == {old, free}
        assert [file.exists() for file in (old, young, free, held)] == [False, True, False, True]
    assert not held.exists()
    assert len(five.entries()) == 5


def test_prune_leaves_an_entry_that_was_repaired_meanwhile(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    path = store.put(CONFIG, {"w": torch.ones(8)}).path
    path.write_bytes(b"")
    entries = Store.entries

    def then_repaired(self: Store, *, check: bool = False) -> list[Row]:
        rows = entries(self, check=check)
        with pytest.warns(UserWarning, match="computed again"):
            Store(store.root).get_or_make(CONFIG, lambda: {"w": torch.ones(8)})
        return rows

    monkeypatch.setattr(Store, "entries", then_repaired)
    assert store.prune(unreadable=True).entries == ()
    assert store.get(CONFIG) is not None


def test_prune_leaves_an_entry_that_somebody_makes_again(store: Store) -> None:
    path = store.put(CONFIG, {"w": torch.ones(8)}).path
    path.write_bytes(b"")
    with locked(path.with_name(f".{path.stem}.lock"), "the entry"):
        assert store.prune(unreadable=True).entries == ()
        assert path.exists()
    assert len(store.prune(unreadable=True).entries) == 1
    assert not path.exists()


def test_prune_leaves_entries_of_another_version(store: Store) -> None:
    path = store.put(CONFIG, {"w": torch.ones(8)}).path
    _rewrite(path, schema="2", version="9.9")
    for conditions in ({"unreadable": True}, {"keep": 0, "unreadable": True}):
        assert store.prune(**conditions).entries == ()  # type: ignore[arg-type]
    assert path.exists()
    assert [(bool(row.problem), row.damaged) for row in store.entries()] == [(True, False)]


def test_prune_removes_entries_whose_notes_hold_nan(store: Store) -> None:
    store.put(CONFIG, {}, info={"loss": math.nan})
    assert len(store.prune(keep=0).entries) == 1
    assert store.entries() == []


def test_a_folder_in_place_of_an_entry_is_told_and_left(five: Store) -> None:
    path = five.path({"seed": 99})
    path.mkdir(parents=True)
    path.with_name(f".{path.stem}.lock").mkdir()
    with pytest.raises(InputError, match=rf"the store entry .*{path.name} cannot be read"):
        five.get({"seed": 99})
    with pytest.raises(InputError, match="cannot be read"):
        five.get_or_make({"seed": 99}, lambda: pytest.fail("computed in vain"))
    with pytest.raises(InputError, match="is a folder, expected a file"):
        five.put({"seed": 99}, {"w": torch.ones(1)})
    assert [row.path for row in five.entries(check=True) if row.problem] == [path]
    assert five.prune(unreadable=True).entries == ()
    assert path.is_dir()


def test_a_root_below_a_file_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file" / "below")
    with pytest.raises(InputError, match=r"the store entry .* cannot be read: Not a directory"):
        store.get(CONFIG)
    with pytest.raises(InputError, match="cannot be read"):
        store.get_or_make(CONFIG, lambda: pytest.fail("computed in vain"))
    with pytest.raises(InputError, match=r"\.safetensors cannot be written: Not a directory"):
        store.put(CONFIG, {"w": torch.ones(1)})
    assert store.entries() == []


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs a folder that nobody can write to")
def test_a_root_that_cannot_be_written_to_is_refused_before_anything_is_made() -> None:
    store = Store("/proc/coset")
    assert store.get(CONFIG) is None
    with pytest.raises(InputError, match=r"the store folder .* cannot be written to"):
        store.get_or_make(CONFIG, lambda: pytest.fail("computed in vain"))
    with pytest.raises(InputError, match="cannot be written"):
        store.put(CONFIG, {"w": torch.ones(1)})


def test_an_os_error_of_make_is_its_own(store: Store) -> None:
    def make() -> dict[str, torch.Tensor]:
        raise FileNotFoundError("data")

    with pytest.raises(FileNotFoundError, match="data"):
        store.get_or_make(CONFIG, make)


def test_put_does_not_mind_that_its_file_is_pruned_at_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    replace = Path.replace

    def then_pruned(part: Path, target: Path) -> Path:
        replace(part, target)
        target.unlink()
        return target

    monkeypatch.setattr(Path, "replace", then_pruned)
    assert torch.equal(store.put(CONFIG, {"w": torch.ones(3)}).params["w"], torch.ones(3))
    assert torch.equal(store.get_or_make(CONFIG, lambda: {"w": torch.ones(3)}).params["w"], torch.ones(3))


def test_unfinished_work_stays_until_its_entry_is_made(store: Store) -> None:
    checkpoint = store.checkpoint(CONFIG)

    def make() -> dict[str, torch.Tensor]:
        checkpoint.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.get_or_make(CONFIG, make)
    assert checkpoint.read_text() == "half"
    assert (store.entries(), store.prune(keep=0).leftovers) == ([], ())
    store.get_or_make(CONFIG, lambda: {"w": torch.ones(1)})
    assert not checkpoint.exists()


def test_prune_removes_work_that_nobody_will_finish(store: Store) -> None:
    done, old, young, busy = ({"kind": "mlp", "seed": seed} for seed in range(4))
    store.put(done, {})
    for config in (done, old, young, busy):
        store.checkpoint(config).parent.mkdir(parents=True, exist_ok=True)
        store.checkpoint(config).write_text("")
    months_ago = time.time() - 100 * 86400
    part = store.checkpoint(young).with_name(f".{store.checkpoint(young).name}.abcdefgh.part")
    part.write_text("")
    for path in (store.checkpoint(old), store.checkpoint(busy), part):
        os.utime(path, (months_ago, months_ago))
    expected = {store.checkpoint(done), store.checkpoint(old), part}
    path = store.path(busy)
    with locked(path.with_name(f".{path.stem}.lock"), "the entry"):
        assert set(store.prune(dry_run=True).leftovers) == expected
        assert all(path.exists() for path in expected)
        assert set(store.prune().leftovers) == expected
    assert [store.checkpoint(config).exists() for config in (done, old, young, busy)] == [False, False, True, True]
    assert not part.exists()


@pytest.mark.parametrize(
    ("conditions", "message"),
    [
        ({"keep": -1}, "keep must be a whole number of 0 or more, found -1"),
        ({"keep": 1.5}, "keep must be a whole number of 0 or more, found 1.5"),
        ({"keep": True}, "keep must be a whole number of 0 or more, found True"),
        ({"older_than": timedelta(days=-1)}, "older_than must be 0 or more"),
    ],
)
def test_prune_refuses_conditions_without_meaning(five: Store, conditions: dict, message: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(InputError, match=message):
        five.prune(**conditions)
    assert len(five.entries()) == 5


def test_prune_takes_any_age(five: Store) -> None:
    assert five.prune(older_than=timedelta.max).entries == ()
