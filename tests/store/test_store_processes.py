"""One store shared by several processes and threads: each entry is computed once, and no crash blocks it."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from coset._files import locks
from coset._files.locks import locked
from coset.errors import InputError
from coset.store import Store

CONFIG = {"kind": "slow", "seed": 0}

# Each worker notes that it computes, waits, and reports what it got. The wait makes the race real.
_WORKER = """
import os, sys, time
from pathlib import Path
import torch
from coset.store import Store
root, log, wait = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
def make():
    with log.open("a") as file:
        file.write(f"{os.getpid()}\\n")
    time.sleep(wait)
    return {"w": torch.tensor([float(os.getpid())])}, {"pid": os.getpid()}
print("ready", flush=True)
sys.stdin.readline()
entry = Store(root).get_or_make({"kind": "slow", "seed": 0}, make)
print(entry.info["pid"], entry.params["w"].item(), flush=True)
"""


def _worker(root: Path, log: Path, wait: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _WORKER, str(root), str(log), str(wait)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _line(worker: subprocess.Popen[str]) -> str:
    assert worker.stdout is not None
    return worker.stdout.readline().strip()


def _go(worker: subprocess.Popen[str]) -> None:
    assert worker.stdin is not None
    worker.stdin.write("go\n")
    worker.stdin.flush()


def _wait_until(condition: object, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def test_two_processes_compute_once(tmp_path: Path) -> None:
    root, log = tmp_path / "store", tmp_path / "log"
    workers = [_worker(root, log, 0.5) for _ in range(2)]
    try:
        assert [_line(worker) for worker in workers] == ["ready", "ready"]
        for worker in workers:
            _go(worker)
        results = [_line(worker) for worker in workers]
        assert [worker.wait(20) for worker in workers] == [0, 0]
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    (pid,) = log.read_text().split()
    assert results == [f"{pid} {float(pid)}"] * 2
    assert [path.name for path in root.glob("*/*")] == [f"{Store(root).key(CONFIG)}.safetensors"]


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_a_killed_process_blocks_nobody_and_leaves_nothing_visible(tmp_path: Path) -> None:
    root, log = tmp_path / "store", tmp_path / "log"
    worker = _worker(root, log, 60.0)
    try:
        assert _line(worker) == "ready"
        _go(worker)
        _wait_until(log.exists)
        store = Store(root)
        lock_file = store.path(CONFIG).with_name(f".{store.key(CONFIG)}.lock")
        # Somebody computes: the lock is no leftover.
        assert store.prune().leftovers == ()
        assert lock_file.exists()
        os.kill(worker.pid, signal.SIGKILL)
        worker.wait(20)
    finally:
        worker.kill()
        worker.communicate()
    assert store.get(CONFIG) is None
    assert store.entries() == []
    assert lock_file.exists()
    entry = store.get_or_make(CONFIG, lambda: {"w": torch.ones(1)})
    assert torch.equal(entry.params["w"], torch.ones(1))
    assert not lock_file.exists()


def test_threads_compute_once_and_each_gets_the_entry(tmp_path: Path) -> None:
    store, made, found = Store(tmp_path), [], []
    start = threading.Barrier(6)

    def make() -> dict[str, torch.Tensor]:
        made.append(threading.get_ident())
        time.sleep(0.1)
        return {"w": torch.ones(1)}

    def ask() -> None:
        start.wait()
        found.append(store.get_or_make(CONFIG, make).params["w"].item())

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert found == [1.0] * 6


def test_a_lock_on_a_removed_file_counts_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A holder removes the file as it lets go: here between the opening and the locking of the one who waited."""
    path = tmp_path / ".abc.lock"
    fcntl = pytest.importorskip("fcntl")
    flock, calls = fcntl.flock, []

    def removed_first(handle: int, operation: int) -> None:
        if not calls:
            path.unlink()
        calls.append(handle)
        flock(handle, operation)

    monkeypatch.setattr(fcntl, "flock", removed_first)
    with locked(path, "the store entry abc"):
        assert len(calls) == 2
        assert path.exists()
        assert not locks.remove_if_free(path)


def test_a_lock_excludes_every_other_thread(tmp_path: Path) -> None:
    inside, most, rounds = 0, 0, 0
    guard = threading.Lock()

    def work() -> None:
        nonlocal inside, most, rounds
        for _ in range(40):
            with locked(tmp_path / ".lock", "a counter"):
                with guard:
                    inside += 1
                    most = max(most, inside)
                time.sleep(0.0002)
                with guard:
                    inside -= 1
                    rounds += 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, rounds) == (1, 160)


def test_a_person_is_told_of_a_long_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(locks, "_PATIENCE", 0.0)
    path = tmp_path / ".abc.lock"

    def wait() -> None:
        with locked(path, "the store entry abc"):
            pass

    waiter = threading.Thread(target=wait)
    with locked(path, "the store entry abc"):
        waiter.start()
        _wait_until(lambda: caplog.messages)
    waiter.join()
    assert caplog.messages == ["waiting for another process that works on the store entry abc"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_make_leaves_nothing_and_can_be_repeated(tmp_path: Path, error: type[BaseException]) -> None:
    store = Store(tmp_path)

    def make() -> dict[str, torch.Tensor]:
        raise error

    with pytest.raises(error):
        store.get_or_make(CONFIG, make)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert store.get_or_make(CONFIG, lambda: ({"w": torch.ones(1)}, {"loss": 0.5})).info == {"loss": 0.5}


def test_a_second_call_computes_nothing(tmp_path: Path) -> None:
    first = Store(tmp_path).get_or_make(CONFIG, lambda: {"w": torch.ones(1)})
    second = Store(tmp_path).get_or_make(CONFIG, lambda: pytest.fail("computed again"))
    assert first.created == second.created


def test_a_make_that_asks_for_itself_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)

    def make() -> dict[str, torch.Tensor]:
        return store.get_or_make(CONFIG, make).params

    with pytest.raises(InputError, match=f"the store entry {store.key(CONFIG)} needs itself"):
        store.get_or_make(CONFIG, make)


def test_a_make_may_ask_for_another_entry(tmp_path: Path) -> None:
    store = Store(tmp_path)
    other = {**CONFIG, "seed": 1}
    entry = store.get_or_make(CONFIG, lambda: store.get_or_make(other, lambda: {"w": torch.ones(2)}).params)
    assert torch.equal(entry.params["w"], torch.ones(2))
    assert len(store.entries()) == 2


@pytest.mark.parametrize("made", [None, [1, 2], ({}, {}, {})])
def test_a_make_that_returns_something_else_is_refused(tmp_path: Path, made: object) -> None:
    with pytest.raises(InputError, match=r"make must return params or \(params, info\), found"):
        Store(tmp_path).get_or_make(CONFIG, lambda: made)  # type: ignore[arg-type,return-value]
    assert Store(tmp_path).entries() == []
