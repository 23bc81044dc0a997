"""``train_zoo``: all networks of a specification, in this process or in others."""

import logging
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coset._checks import check_count, check_positive
from coset._files.atomic import output_folder
from coset._show.progress import progress
from coset.zoo._begin import prepared
from coset.zoo._group import steps_per_epoch
from coset.zoo._index import Content, read_index
from coset.zoo._members import ONE_BY_ONE, STACKED, members
from coset.zoo._spec import ZooSpec, as_spec
from coset.zoo._work import mend, work
from coset.zoo._zoo import Zoo, open_zoo

CHECKPOINT_SECONDS = 5.0
"""At most so much work of a group is lost when a process is killed."""

WATCH = 0.2
"""Seconds between two looks at what worker processes have done."""

_log = logging.getLogger(__name__)


def train_zoo(
    spec: ZooSpec | Mapping[str, Any] | str | Path,
    directory: str | Path,
    *,
    workers: int | None = None,
    show: bool | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> Zoo:
    """Train all networks of a specification into a folder, and open it.

    Networks of one architecture train side by side along a leading axis of their tensors, in groups that the
    specification fixes, for any module that ``torch.func.vmap`` takes; others one by one. ``workers``: so many
    processes, each with one thread, take one group after the other; by default one, this one, for what trains side by
    side, and one per core for what does not. The weights do not depend on it.

    The same call goes on where an earlier one was stopped, in whatever way: finished groups stay, and the current one
    continues from its checkpoint, which is written every ``checkpoint_seconds``. Groups of which a file is missing or
    damaged are trained again. The result has the same bits as that of a run that was never interrupted. Other processes
    may work on the same folder: each group is trained by one.
    """
    wanted, folder = as_spec(spec), Path(directory)
    check_positive("checkpoint_seconds", checkpoint_seconds, zero=True)
    if workers is not None:
        check_count("workers", workers)
    with output_folder(folder):
        content = prepared(wanted, folder)
    if broken := mend(folder):
        _log.warning("files of %d groups of %s are missing or damaged: they are trained again", len(broken), folder)
        content = read_index(folder)
    left = len([group for group in content["groups"] if group["file"] is None])
    alone = all(one["path"] == STACKED for one in content["architectures"])
    count = min(workers or (1 if alone else _cores()), left)
    if count > 1:
        _with_workers(folder, content, count, checkpoint_seconds, show)
    with progress("zoo", _steps(content), show=show) as bar:
        bar.advance(_steps(content, done=True))
        work(folder, checkpoint_seconds, bar=bar)
    return open_zoo(folder)


def _steps(content: Content, *, done: bool = False) -> int:
    """Steps of all groups, or of those that are finished."""
    spec = ZooSpec.from_dict(content["spec"])
    everyone, total = members(spec), 0
    for group in content["groups"]:
        if done and group["file"] is None:
            continue
        first = everyone[group["members"][0]]
        steps = first.recipe.epochs * steps_per_epoch(first.recipe, content["data"][first.data]["train"])
        alone = content["architectures"][first.architecture]["path"] == ONE_BY_ONE
        total += steps * (len(group["members"]) if alone else 1)
    return total


def _with_workers(folder: Path, content: Content, count: int, seconds: float, show: bool | None) -> None:
    """Let other processes train, and look how far they are; what they leave is trained here."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "coset.zoo._worker", str(folder), str(seconds), str(os.getpid())]
    running = [subprocess.Popen(command, env=environment) for _ in range(count)]
    try:
        with progress(f"zoo, {count} processes", _steps(content), show=show) as bar:
            seen = 0
            while any(process.poll() is None for process in running):
                time.sleep(WATCH)
                now = _steps(read_index(folder), done=True)
                bar.advance(now - seen)
                seen = now
    finally:
        for process in running:
            process.terminate()
            process.wait()
    if failed := [process.returncode for process in running if process.returncode]:
        _log.warning("%d of %d processes ended with code %d", len(failed), count, failed[0])


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
