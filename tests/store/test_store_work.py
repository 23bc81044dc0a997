"""What entries cost to make, and what a block cost with all that was made for it earlier."""

import time

import pytest
import torch

from coset.store import Store
from coset.store._entry import read_header


def burn(seconds: float) -> None:
    """Keep the processor busy for so long."""
    start = time.process_time()
    while time.process_time() - start < seconds:
        pass


def making(seconds: float):
    def make() -> dict[str, torch.Tensor]:
        burn(seconds)
        return {"a": torch.zeros(1)}

    return make


def unwanted() -> dict[str, torch.Tensor]:
    raise AssertionError("made again")


def test_an_entry_knows_its_cost_and_keeps_it(tmp_path) -> None:
    store = Store(tmp_path)
    made = store.get_or_make({"n": 1}, making(0.05))
    assert made.cost == pytest.approx(0.05, abs=0.04)
    assert made.cost >= 0.049
    found = Store(tmp_path).get_or_make({"n": 1}, unwanted)
    assert found.cost == made.cost == read_header(found.path).cost


def test_the_cost_is_not_part_of_the_checksum(tmp_path) -> None:
    """So that a reader that knows of no cost finds the entry whole."""
    path = Store(tmp_path).put({"n": 1}, {"a": torch.zeros(1)}, cost=1.25).path
    content = path.read_bytes()
    assert content.count(b'"1.250"') == 1
    path.write_bytes(content.replace(b'"1.250"', b'"2.250"'))
    assert Store(tmp_path).get({"n": 1}).cost == 2.25


def test_waiting_costs_nothing(tmp_path) -> None:
    def make() -> dict[str, torch.Tensor]:
        time.sleep(0.2)
        return {"a": torch.zeros(1)}

    assert Store(tmp_path).get_or_make({"n": 1}, make).cost < 0.1


def test_an_entry_that_was_put_has_none(tmp_path) -> None:
    store = Store(tmp_path)
    assert store.put({"n": 1}, {"a": torch.zeros(1)}).cost is None
    assert store.put({"n": 1}, {"a": torch.zeros(1)}, cost=2.5).cost == 2.5


def test_a_block_costs_the_same_whether_its_entries_are_made_or_found(tmp_path) -> None:
    def block(store: Store, make) -> float | None:
        with store.work.measured() as cost:
            burn(0.02)
            for _ in range(3):
                store.get_or_make({"n": 1}, make)
        return cost()

    first = block(Store(tmp_path), making(0.1))
    again = block(Store(tmp_path), unwanted)
    assert first >= 0.119
    assert again == pytest.approx(first, abs=0.05)
    # Asked for thrice, it was made once.
    assert again < 0.2


def test_an_entry_made_of_others_costs_what_these_cost(tmp_path) -> None:
    store = Store(tmp_path)
    store.get_or_make({"part": 1}, making(0.1))

    def whole() -> dict[str, torch.Tensor]:
        store.get_or_make({"part": 1}, unwanted)
        store.get_or_make({"part": 2}, making(0.05))
        burn(0.02)
        return {"a": torch.zeros(1)}

    with store.work.measured() as cost:
        entry = store.get_or_make({"whole": 1}, whole)
    assert entry.cost >= 0.169
    assert entry.cost == pytest.approx(0.17, abs=0.06)
    assert cost() == pytest.approx(entry.cost, abs=0.03)


def test_a_part_of_two_entries_is_in_the_cost_of_both(tmp_path) -> None:
    store = Store(tmp_path)

    def whole() -> dict[str, torch.Tensor]:
        store.get_or_make({"part": 1}, making(0.1))
        return {"a": torch.zeros(1)}

    with store.work.measured() as cost:
        for number in range(2):
            assert store.get_or_make({"whole": number}, whole).cost >= 0.099
    assert 0.198 <= cost() < 0.29


def test_what_is_not_known_is_not_told(tmp_path) -> None:
    store = Store(tmp_path)
    store.put({"n": 1}, {"a": torch.zeros(1)})
    with store.work.measured() as cost:
        store.get_or_make({"n": 1}, unwanted)
    assert cost() is None


def test_work_that_goes_on_from_a_checkpoint_has_no_known_cost(tmp_path) -> None:
    store = Store(tmp_path)
    checkpoint = store.checkpoint({"n": 1})
    checkpoint.parent.mkdir(parents=True)
    checkpoint.write_bytes(b"half")
    assert store.get_or_make({"n": 1}, making(0.0)).cost is None


def test_a_failing_block_leaves_the_count_right(tmp_path) -> None:
    store = Store(tmp_path)

    def fails() -> dict[str, torch.Tensor]:
        burn(0.05)
        raise RuntimeError("no")

    with store.work.measured() as cost:
        with pytest.raises(RuntimeError, match="no"):
            store.get_or_make({"n": 1}, fails)
        store.get_or_make({"n": 1}, making(0.02))
    assert 0.019 <= cost() < 0.06
