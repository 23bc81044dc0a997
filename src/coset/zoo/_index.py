"""The index of a zoo: one JSON file with what every network is made of, its metrics, and the checksums of its weights.

A zoo is a folder: ``zoo.json``, ``shards/00000.safetensors`` with the weights of a group, stacked, and
``shards/00000-100.safetensors`` with those after step 100. Processes that work on it have files in ``locks/`` and
``checkpoints/``. A shard has the records of its group in its header, so that the index can be made of shards.
"""

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coset._files.atomic import is_part, parse_json, remove_part, write_text
from coset._files.locks import locked
from coset._files.sealed import checksum, write_sealed
from coset.errors import InputError, refusing

FORMAT = 1
INDEX = "zoo.json"
KEY = "coset.zoo"
SHARD = 1
"""The format of shards."""

Content = dict[str, Any]


def read_index(folder: Path) -> Content:
    """The index of a zoo, checked; a folder without one, or a damaged one, is one clear error."""
    path = folder / INDEX
    if not path.is_file():
        raise InputError(f"{folder} is not a zoo: it has no {INDEX}")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    outer = parse_json(text, str(path))
    content = outer.get(KEY) if isinstance(outer, dict) else None
    if not isinstance(content, dict):
        raise InputError(f"{path} is not the index of a zoo: it has no entry {KEY!r}")
    if content.get("format") != FORMAT:
        raise InputError(f"{path} has format {content.get('format')!r}, expected {FORMAT}")
    if outer.get("checksum") != _checksum(content):
        raise InputError(f"{path} is damaged: it does not have the checksum it was written with")
    return content


def write_index(folder: Path, content: Content) -> None:
    """Write the index of a zoo atomically; the same content is the same bytes."""
    sweep(folder, INDEX)
    text = json.dumps({KEY: content, "checksum": _checksum(content)}, indent=1, ensure_ascii=False)
    write_text(folder / INDEX, text + "\n")


def change_index(folder: Path, change: Callable[[Content], None]) -> Content:
    """Read the index, change it and write it, while no other process does."""
    lock = folder / "locks" / "index.lock"
    try:
        lock.parent.mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder} cannot be written to: {error.strerror or error}") from error
    with locked(lock, f"the index of {folder}"):
        content = read_index(folder)
        change(content)
        write_index(folder, content)
    return content


def _checksum(content: Content) -> str:
    return f"{zlib.crc32(json.dumps(content, sort_keys=True).encode()):08x}"


def shard_path(folder: Path, group: int, step: int | None = None) -> Path:
    """Where the weights of a group are, or those after a step."""
    return folder / "shards" / (f"{group:05d}.safetensors" if step is None else f"{group:05d}-{step}.safetensors")


def write_shard(path: Path, tensors: Mapping[str, Tensor], content: Mapping[str, Any]) -> list[int]:
    """Write the stacked weights of a group, with a checksum of every network, which are returned."""
    sums = member_checksums(tensors)
    sweep(path.parent, path.name)
    write_sealed(path, KEY, SHARD, tensors, {**content, "checksums": sums})
    return sums


def entry(folder: Path, group: int, content: Mapping[str, Any]) -> dict[str, Any]:
    """What the index says of a finished group, by what its shard says."""
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


def member_checksums(tensors: Mapping[str, Tensor]) -> list[int]:
    """Of every network of a stack the CRC-32 of all its tensors, by name."""
    count = len(next(iter(tensors.values())))
    return [member_checksum({name: tensor[number] for name, tensor in tensors.items()}) for number in range(count)]


def member_checksum(tensors: Mapping[str, Tensor]) -> int:
    """The CRC-32 of the tensors of one network, by name."""
    total = 0
    for name in sorted(tensors):
        total = checksum(tensors[name], zlib.crc32(name.encode(), total))
    return total


def finite(tensors: Mapping[str, Tensor]) -> list[bool]:
    """Whether all numbers of each network of a stack are finite."""
    stacked = torch.stack([t.reshape(len(t), -1).isfinite().all(1) for t in tensors.values()])
    return list(map(bool, stacked.all(0)))


def read_rows(path: Path, rows: Sequence[int]) -> dict[str, Tensor]:
    """Some networks of a shard, in this order, and nothing else of the file."""
    from safetensors import safe_open

    with refusing(f"shard {path} is not a whole safetensors file"):
        if not path.is_file():
            raise InputError(f"shard {path} is missing")
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            whole = list(rows) == list(range(rows[0], rows[0] + len(rows)))
            if whole:
                return {name: file.get_slice(name)[rows[0] : rows[0] + len(rows)] for name in names}
            return {name: torch.stack([file.get_slice(name)[row] for row in rows]) for name in names}


def sweep(folder: Path, name: str) -> None:
    """Remove what a killed process left of writing the file ``name``; for who holds the lock on it."""
    if not folder.is_dir():
        return
    for path in folder.glob(f".{name}.*.part"):
        with suppress(OSError):  # a link, or another's
            if is_part(path):
                remove_part(path)
