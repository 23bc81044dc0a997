"""A process at work on a zoo: group by group; what is on disk already is not trained again."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coset._files.locks import locked, locked_if_free
from coset._files.sealed import read_sealed
from coset._show.progress import SILENT, Ticker
from coset.errors import InputError
from coset.zoo._data import Data, load_data
from coset.zoo._group import Task, train_stack
from coset.zoo._index import KEY, SHARD, Content, change_index, entry, read_index, shard_path, sweep, write_shard
from coset.zoo._members import STACKED, architectures, described, members, new_model
from coset.zoo._one_by_one import train_one_by_one
from coset.zoo._spec import ZooSpec
from coset.zoo._zoo import open_zoo


def work(folder: Path, checkpoint_seconds: float, *, bar: Ticker = SILENT, parent: int | None = None) -> None:
    """Train groups until none is left; wait for those that other processes train."""
    zoo = Workshop(folder, checkpoint_seconds, bar, parent)
    with _one_thread():
        while left := zoo.left():
            busy = [group for group in left if not zoo.take(group)]
            if len(busy) == len(left):
                # Until its holder has done it, or is gone.
                with locked(zoo.lock(busy[0]), f"group {busy[0]} of {folder}"):
                    pass


def mend(folder: Path) -> list[int]:
    """Forget the groups of which a file is missing or damaged, so that they are trained again; which these were."""
    forgotten = []
    for group in open_zoo(folder).broken_groups():
        lock = folder / "locks" / f"{group:05d}.lock"
        lock.parent.mkdir(exist_ok=True)
        with locked_if_free(lock) as free:
            # Another process may have mended it since.
            if free and group in open_zoo(folder).broken_groups():
                for path in (folder / "shards").glob(f"{group:05d}[.-]*safetensors"):
                    path.unlink()
                change_index(folder, partial(_forget, group))
                forgotten.append(group)
    return forgotten


def _forget(group: int, content: Content) -> None:
    content["groups"][group] = {"members": content["groups"][group]["members"], "file": None}


class Workshop:
    """One process at work on a zoo."""

    def __init__(self, folder: Path, checkpoint_seconds: float, bar: Ticker, parent: int | None) -> None:
        self.folder, self.seconds, self.bar, self.parent = folder, checkpoint_seconds, bar, parent
        content = read_index(folder)
        self.spec = ZooSpec.from_dict(content["spec"])
        self.everyone = members(self.spec)
        self.groups = [tuple(group["members"]) for group in content["groups"]]
        self.paths = [one["path"] for one in content["architectures"]]
        self.tensors = [one["tensors"] for one in content["architectures"]]
        self.data = cache(self.load)
        self.described = content["data"]
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
        return entry(self.folder, group, content)

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
        return entry(self.folder, group, {**known, "checksums": sums})

    def load(self, number: int) -> Data:
        """A data set, which must be the one that the zoo was begun with."""
        data = load_data(self.spec.data[number], getattr(torch, self.spec.dtype))
        if data.describe() != self.described[number]:
            name = self.spec.data[number].name
            raise InputError(f"the data {name} are not those that {self.folder} was begun with: their numbers differ")
        return data

    def check_architecture(self, number: int) -> None:
        """A factory of the user's own may have changed since the zoo was begun."""
        model = new_model(self.spec, architectures(self.spec)[number], self.spec.seeds[0])
        if described(model) != self.tensors[number]:
            raise InputError(
                f"the model {self.spec.model} is not the one that {self.folder} was begun with: its tensors differ"
            )

    def stop(self) -> None:
        """End a worker whose parent is gone: nobody would see what it does."""
        if self.parent is not None and os.getppid() != self.parent:
            raise SystemExit(1)


@contextmanager
def _one_thread() -> Iterator[None]:
    """One thread inside: sums are then the same whatever the machine, and small products are fastest."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
