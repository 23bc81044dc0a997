"""``train_zoo``: all networks of a specification, group by group; what is on disk already is not trained again."""

import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from coset._checks import check_count, check_positive
from coset._files.atomic import output_folder
from coset._files.locks import locked, locked_if_free
from coset._files.sealed import kind, read_sealed
from coset._show.progress import SILENT, Ticker, progress
from coset.errors import InputError, one_line
from coset.train.loss import LOSSES
from coset.zoo._data import Data, load_data
from coset.zoo._evaluate import STACKED
from coset.zoo._group import Task, train_stack
from coset.zoo._index import (
    FORMAT,
    INDEX,
    KEY,
    SHARD,
    Content,
    change_index,
    read_index,
    shard_path,
    sweep,
    write_index,
    write_shard,
)
from coset.zoo._members import architectures, group_size, grouped, members, new_model
from coset.zoo._one_by_one import train_one_by_one
from coset.zoo._spec import ZooSpec, as_spec
from coset.zoo._stacked import takes_a_stack
from coset.zoo._zoo import Zoo, open_zoo

CHECKPOINT_SECONDS = 5.0
"""At most so much work of a group is lost when a process is killed."""

WATCH = 0.2
"""Seconds between two looks at what worker processes have done."""

ONE_BY_ONE = "one by one"

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
    continues from its checkpoint, which is written every ``checkpoint_seconds``. The result has the same bits as that
    of a run that was never interrupted. Other processes may work on the same folder: each group is trained by one.
    """
    wanted, folder = as_spec(spec), Path(directory)
    check_positive("checkpoint_seconds", checkpoint_seconds, zero=True)
    if workers is not None:
        check_count("workers", workers)
    with output_folder(folder):
        content = _prepared(wanted, folder)
    left = len([group for group in content["groups"] if group["file"] is None])
    alone = all(one["path"] == STACKED for one in content["architectures"])
    count = min(workers or (1 if alone else _cores()), left)
    if count > 1:
        _with_workers(folder, content, count, checkpoint_seconds, show)
    with progress("zoo", _steps(content), show=show) as bar:
        bar.advance(_steps(content, done=True))
        work(folder, checkpoint_seconds, bar=bar)
    return open_zoo(folder)


def work(folder: Path, checkpoint_seconds: float, *, bar: Ticker = SILENT, parent: int | None = None) -> None:
    """Train groups until none is left; wait for those that other processes train."""
    zoo = _Workshop(folder, checkpoint_seconds, bar, parent)
    with _one_thread():
        while left := zoo.left():
            busy = [group for group in left if not zoo.take(group)]
            if len(busy) == len(left):
                # Until its holder has done it, or is gone.
                with locked(zoo.lock(busy[0]), f"group {busy[0]} of {folder}"):
                    pass


class _Workshop:
    """One process at work on a zoo."""

    def __init__(self, folder: Path, checkpoint_seconds: float, bar: Ticker, parent: int | None) -> None:
        self.folder, self.seconds, self.bar, self.parent = folder, checkpoint_seconds, bar, parent
        content = read_index(folder)
        self.spec = ZooSpec.from_dict(content["spec"])
        self.everyone = members(self.spec)
        self.groups = [tuple(group["members"]) for group in content["groups"]]
        self.paths = [one["path"] for one in content["architectures"]]
        self.tensors = [one["tensors"] for one in content["architectures"]]
        self.data = cache(lambda number: load_data(self.spec.data[number], getattr(torch, self.spec.dtype)))
        for name in ("locks", "shards", "checkpoints"):
            (folder / name).mkdir(exist_ok=True)

    def left(self) -> list[int]:
        """The groups that nobody has finished."""
        return [number for number, group in enumerate(read_index(self.folder)["groups"]) if group["file"] is None]

    def lock(self, group: int) -> Path:
        """Who holds it works on the group."""
        return self.folder / "locks" / f"{group:05d}.lock"

    def take(self, group: int) -> bool:
        """Train a group, unless another process does: then False."""
        with locked_if_free(self.lock(group)) as free:
            if free and group in self.left():
                entry = self.found(group) or self.trained(group)
                change_index(self.folder, lambda content: content["groups"][group].update(entry))
                for path in (self.folder / "checkpoints").glob(f"{group:05d}.*"):
                    path.unlink()
        return free

    def found(self, group: int) -> dict[str, Any] | None:
        """The entry of a group whose shard was written by a process that was killed before it changed the index."""
        path = shard_path(self.folder, group)
        if not path.is_file():
            return None
        _, content = read_sealed(path, KEY, SHARD, "shard")
        return _entry(self.folder, group, content)

    def trained(self, group: int) -> dict[str, Any]:
        """Train a group and write its shards; the entry of the index."""
        chosen = [self.everyone[index] for index in self.groups[group]]
        first = chosen[0]
        self.check_architecture(first.architecture)
        snapshots: dict[str, list[int]] = {}

        def keep(step: int, tensors: Mapping[str, Tensor]) -> None:
            snapshots[str(step)] = write_shard(shard_path(self.folder, group, step), tensors, {"step": step})

        checkpoint = self.folder / "checkpoints" / f"{group:05d}.safetensors"
        sweep(checkpoint.parent, f"{group:05d}.*")
        data = self.data(first.data)
        task = Task(self.spec, chosen, data, checkpoint, self.seconds, keep, self.bar, self.stop)
        result = (train_stack if self.paths[first.architecture] == STACKED else train_one_by_one)(task)
        # Of snapshots that were written before an interruption, the checksums are in their headers.
        for step in task.snapshots:
            if str(step) not in snapshots:
                _, content = read_sealed(shard_path(self.folder, group, step), KEY, SHARD, "shard")
                snapshots[str(step)] = content["checksums"]
        known: dict[str, Any] = {"members": list(self.groups[group]), "records": result.records}
        known["snapshots"] = {str(step): snapshots[str(step)] for step in task.snapshots}
        sums = write_shard(shard_path(self.folder, group), result.tensors, known)
        return _entry(self.folder, group, {**known, "checksums": sums})

    def check_architecture(self, number: int) -> None:
        """A factory of the user's own may have changed since the zoo was begun."""
        model = new_model(self.spec, architectures(self.spec)[number], self.spec.seeds[0])
        if _described(model) != self.tensors[number]:
            raise InputError(
                f"the model {self.spec.model} is not the one that {self.folder} was begun with: its tensors differ"
            )

    def stop(self) -> None:
        """End a worker whose parent is gone: nobody would see what it does."""
        if self.parent is not None and os.getppid() != self.parent:
            raise SystemExit(1)


def _entry(folder: Path, group: int, content: Mapping[str, Any]) -> dict[str, Any]:
    """What the index says of a finished group."""
    return {
        "members": content["members"],
        "file": str(shard_path(folder, group).relative_to(folder).as_posix()),
        "checksums": content["checksums"],
        "records": content["records"],
        "snapshots": {
            step: {
                "file": str(shard_path(folder, group, int(step)).relative_to(folder).as_posix()),
                "checksums": sums,
            }
            for step, sums in content["snapshots"].items()
        },
    }


def _prepared(spec: ZooSpec, folder: Path) -> Content:
    """The index of the folder, made if there is none; a zoo of another specification is refused."""
    with locked(folder / ".coset-zoo.lock", f"the zoo {folder}"):
        if not (folder / INDEX).exists():
            if any(path.name != ".coset-zoo.lock" and not path.name.endswith(".part") for path in folder.iterdir()):
                raise InputError(f"{folder} is not empty and has no {INDEX}; expected a new folder, or a zoo")
            write_index(folder, _fresh(spec))
        content = read_index(folder)
    there = content.get("spec")
    here = spec.to_dict()
    if there is None or content["made"]["by"] != "train":
        raise InputError(f"{folder} is a zoo made by {content['made']['by']}; expected a new one, or one in training")
    differing = [name for name in {**there, **here} if there.get(name) != here.get(name)]
    if differing:
        name = differing[0]
        raise InputError(
            f"{folder} is a zoo of another specification: its {name} is {one_line(there.get(name), 80)} there and "
            f"{one_line(here.get(name), 80)} here"
        )
    return content


def _fresh(spec: ZooSpec) -> Content:
    """The index of a zoo before any training; whatever cannot be trained is refused here."""
    everyone, dtype = members(spec), getattr(torch, spec.dtype)
    data = [load_data(one, dtype) for one in spec.data]
    kinds, sizes = [], {}
    for number, options in enumerate(architectures(spec)):
        paths = set()
        models = [new_model(spec, options, seed) for seed in (0, 1)]
        for which, one in enumerate(data):
            recipe = next(m.recipe for m in everyone if (m.data, m.architecture) == (which, number))
            paths.add(_path(models, one, recipe.loss, spec.data[which].name))
            sizes[which, number] = spec.group or group_size(models[0], one.train.x, recipe.batch_size)
        path = STACKED if paths == {STACKED} else ONE_BY_ONE
        if path == ONE_BY_ONE and spec.order == "shared":
            raise InputError(
                f"order is 'shared', and the model {spec.model} cannot be trained side by side: vmap does not take it; "
                f"expected order 'own'"
            )
        kinds.append({"options": dict(options), "path": path, "tensors": _described(models[0])})
    return {
        "format": FORMAT,
        "spec": spec.to_dict(),
        "made": {"by": "train"},
        "model": {
            "name": spec.model,
            "options": spec.to_dict()["options"],
            "dtype": spec.dtype,
            "input": list(data[0].train.x.shape[1:]),
        },
        "data": [one.describe() for one in data],
        "architectures": kinds,
        "members": [member.describe() for member in everyone],
        "groups": [{"members": list(group), "file": None} for group in grouped(everyone, sizes)],
    }


def _path(models: list[nn.Module], data: Data, loss: str, name: str) -> str:
    """How a model is trained on data, after a first look whether it can be."""
    x, y = data.train.x[:4], data.train.y[:4]
    try:
        with torch.no_grad():
            outputs = models[0].eval()(x)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise InputError(
            f"the model cannot take inputs of {name}, which have shape {tuple(x.shape[1:])}: {one_line(error, 200)}"
        ) from error
    finally:
        models[0].train()
    LOSSES[loss].fit_targets(data.train.y, outputs, f"the targets of {name}")
    return STACKED if takes_a_stack(models, x, y, LOSSES[loss]) else ONE_BY_ONE


def _described(model: nn.Module) -> dict[str, str]:
    return {name: kind(tensor) for name, tensor in model.state_dict().items()}


def _steps(content: Content, *, done: bool = False) -> int:
    """Steps of all groups, or of those that are finished."""
    spec = ZooSpec.from_dict(content["spec"])
    everyone, total = members(spec), 0
    for group in content["groups"]:
        if done and group["file"] is None:
            continue
        first = everyone[group["members"][0]]
        steps = first.recipe.epochs * -(-content["data"][first.data]["train"] // first.recipe.batch_size)
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


@contextmanager
def _one_thread() -> Iterator[None]:
    """One thread inside: sums are then the same whatever the machine, and small products are fastest."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
