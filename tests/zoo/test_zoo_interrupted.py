"""A zoo whose training is killed, or done by two processes, has the same bytes."""

import os
import signal
import time
from multiprocessing import get_context

import pytest
from small_zoos import files, small

from coset.errors import InputError
from coset.zoo import open_zoo, train_zoo

LONGER = small({"epochs": 20}, seeds=6, group=2, snapshots={"epochs": [5, 20]})
SECONDS = 0.05
"""Between two checkpoints: often, so that most kills find one."""


def start(folder):
    """A process that trains; forked, since importing torch anew would take longer than all the rest."""
    process = get_context("fork").Process(target=train_zoo, args=(LONGER, folder), kwargs={"show": False})
    process.start()
    return process


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The zoo of a run that nobody stopped, and how long it took."""
    folder = tmp_path_factory.mktemp("whole") / "zoo"
    begun = time.perf_counter()
    train_zoo(LONGER, folder, show=False, checkpoint_seconds=SECONDS)
    return files(folder), time.perf_counter() - begun


@pytest.fixture(autouse=True)
def _often(monkeypatch):
    """Checkpoints are written often by forked processes, too."""
    monkeypatch.setitem(train_zoo.__kwdefaults__, "checkpoint_seconds", SECONDS)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_a_killed_run_goes_on_to_the_same_bytes(share, whole, tmp_path):
    expected, seconds = whole
    process = start(tmp_path / "zoo")
    time.sleep(share * seconds)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    zoo = train_zoo(LONGER, tmp_path / "zoo", show=False)
    assert zoo.indices == tuple(range(6))
    assert files(tmp_path / "zoo") == expected


def test_an_exception_in_a_group_goes_on_from_its_checkpoint(trained, tmp_path, monkeypatch):
    from coset.zoo import _group

    taken = []
    step = _group._step

    def failing(*given):
        taken.append(1)
        if len(taken) == 10:
            raise KeyboardInterrupt
        return step(*given)

    monkeypatch.setattr(_group, "_step", failing)
    spec = small(snapshots={"steps": [0, 3]})
    with pytest.raises(KeyboardInterrupt):
        train_zoo(spec, tmp_path / "zoo", show=False, checkpoint_seconds=0.0)
    assert list((tmp_path / "zoo" / "checkpoints").iterdir())
    train_zoo(spec, tmp_path / "zoo", show=False)
    # 2 groups of 8 steps, of which the one that failed is the only one that is done twice.
    assert len(taken) == 2 * 8 + 1
    assert files(tmp_path / "zoo") == files(trained)


def test_two_processes_share_the_groups_of_one_zoo(whole, tmp_path):
    both = [start(tmp_path / "zoo"), start(tmp_path / "zoo")]
    for process in both:
        process.join()
    assert [process.exitcode for process in both] == [0, 0]
    assert files(tmp_path / "zoo") == whole[0]


def test_worker_processes_give_the_same_bytes(whole, tmp_path):
    zoo = train_zoo(LONGER, tmp_path / "zoo", workers=2, show=False)
    assert zoo.indices == tuple(range(6))
    assert files(tmp_path / "zoo") == whole[0]


def test_a_group_that_another_holds_is_left_to_it(tmp_path):
    """Who waits takes other groups first, and trains the last one itself when its holder is gone."""
    from coset._files.locks import locked
    from coset._show.progress import SILENT
    from coset.zoo._spec import as_spec
    from coset.zoo._train import _prepared, _Workshop, work

    folder = tmp_path / "zoo"
    folder.mkdir()
    _prepared(as_spec(small(seeds=4, group=2)), folder)
    (folder / "locks").mkdir()
    with locked(folder / "locks" / "00000.lock", "a test"):
        shop = _Workshop(folder, 1.0, SILENT, None)
        assert [shop.take(group) for group in shop.left()] == [False, True]
        assert shop.left() == [0]
    work(folder, 1.0)
    assert open_zoo(folder).indices == (0, 1, 2, 3)


def test_a_zoo_of_another_specification_is_refused(trained, tmp_path):
    with pytest.raises(InputError, match="zoo of another specification: its seeds is"):
        train_zoo(small(seeds=7, snapshots={"steps": [0, 3]}), trained)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"is not empty and has no zoo\.json"):
        train_zoo(small(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
