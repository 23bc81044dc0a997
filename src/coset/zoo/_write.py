"""Zoos that are not trained here: brought to one frame from another zoo, or imported."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from coset._files.atomic import new_folder
from coset._show.progress import progress
from coset.zoo._index import Content, entry, shard_path, write_index, write_shard
from coset.zoo._zoo import Zoo, open_zoo


@dataclass(frozen=True)
class Moved:
    """Other weights of the same networks, a factor of each if its function is known up to one, and notes."""

    tensors: Mapping[str, Tensor]
    factors: list[float] | None = None
    notes: tuple[str, ...] = ()


Change = Callable[[int, dict[str, Tensor]], Moved]
"""From an architecture and stacked weights to others of the same networks."""


def write_group(
    folder: Path,
    group: int,
    members: list[int],
    tensors: Mapping[str, Tensor],
    records: list[Content],
    snapshots: Mapping[int, Mapping[str, Tensor]] | None = None,
) -> Content:
    """Write the shards of a group; what the index says of it."""
    known: Content = {"members": members, "records": records, "snapshots": {}}
    for step, weights in (snapshots or {}).items():
        known["snapshots"][str(step)] = write_shard(shard_path(folder, group, step), weights, {"step": step})
    sums = write_shard(shard_path(folder, group), tensors, known)
    return entry(folder, group, {**known, "checksums": sums})


def changed_zoo(zoo: Zoo, directory: str | Path, change: Change, made: Content, show: bool | None) -> Zoo:
    """A zoo in a new folder with other weights of the same networks and snapshots, group by group.

    Networks that cannot be used keep their problem, and have no weights.
    """
    groups, notes = zoo.content["groups"], dict[str, None]()

    def moved(members: list[int], usable: list[int], step: int | None) -> tuple[dict[str, Tensor], dict[int, float]]:
        """The weights of a group; nothing in place of those that cannot be used."""
        found = change(zoo.architecture(usable[0]), zoo.stack(usable, step=step))
        notes.update(dict.fromkeys(found.notes))
        factors = dict(zip(usable, found.factors, strict=True)) if found.factors is not None else {}
        return _among(found.tensors, [members.index(index) for index in usable], members), factors

    def changed(folder: Path, number: int) -> Content:
        """A group written anew; what the index says of it."""
        members = groups[number]["members"]
        usable = [index for index in members if index not in zoo.problems]
        tensors, factors = moved(members, usable, None) if usable else ({}, {})
        known = groups[number].get("records", [{"metrics": {}} for _ in members])
        records = [
            _record(record, zoo.problems.get(index), factors.get(index))
            for index, record in zip(members, known, strict=True)
        ]
        if not usable:
            return {"members": members, "records": records, "file": None}
        snapshots = {}
        for step in zoo.snapshots:
            if there := zoo.readable(usable, step=step):
                snapshots[step], _ = moved(members, there, step)
            else:
                notes[f"weights after step {step} are damaged from network {members[0]} on, and left out"] = None
        return write_group(folder, number, members, tensors, records, snapshots)

    with new_folder(directory) as folder, progress(made["by"], len(groups), show=show) as bar:
        entries = []
        for number in range(len(groups)):
            entries.append(changed(folder, number))
            bar.advance()
        about = {**made, "notes": list(notes), "from": zoo.content["made"]}
        write_index(folder, {**zoo.content, "made": about, "groups": entries})
    return open_zoo(folder)


def _record(record: Content, problem: str | None, factor: float | None) -> Content:
    """What is known of a network whose weights were changed; its losses are others if its function was multiplied."""
    if factor is None:
        return {**record, "problem": problem}
    return {"problem": problem, "metrics": {}, "logit_factor": factor}


def _among(tensors: Mapping[str, Tensor], rows: list[int], everyone: list[int]) -> dict[str, Tensor]:
    """Rows at their places among all of a group; nothing in the others."""
    whole = {}
    for name, tensor in tensors.items():
        nothing = float("nan") if tensor.is_floating_point() else 0
        whole[name] = torch.full((len(everyone), *tensor.shape[1:]), nothing, dtype=tensor.dtype, device=tensor.device)
        whole[name][rows] = tensor.detach()
    return whole
