"""Zoos that are not trained here: brought to one frame from another zoo, or imported."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coset._files.atomic import output_folder
from coset._show.progress import progress
from coset.errors import InputError
from coset.zoo._index import Content, shard_path, write_index, write_shard
from coset.zoo._zoo import Zoo, open_zoo

Change = Callable[[dict[str, Tensor]], Mapping[str, Tensor]]
"""From stacked weights to others of the same networks."""


@contextmanager
def new_folder(directory: str | Path) -> Iterator[Path]:
    """A folder for a zoo, which must be new or empty; if the block fails, what it has written goes again."""
    folder = Path(directory)
    if folder.is_dir() and any(folder.iterdir()):
        raise InputError(f"{folder} is not empty; expected a new folder")
    with output_folder(folder):
        try:
            yield folder
        except BaseException:
            for path in sorted(folder.rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
            raise


def entry(folder: Path, group: int, members: list[int], tensors: Mapping[str, Tensor], records: Any) -> Content:
    """Write the shard of a group; what the index says of it."""
    known = {"members": members, "records": records, "snapshots": {}}
    sums = write_shard(shard_path(folder, group), tensors, known)
    file = shard_path(folder, group).relative_to(folder).as_posix()
    return {**known, "file": file, "checksums": sums}


def changed_zoo(zoo: Zoo, directory: str | Path, change: Change, made: Content, show: bool | None) -> Zoo:
    """A zoo in a new folder with other weights of the same networks, group by group; snapshots are left out.

    Networks that cannot be used keep their problem, and have no weights.
    """
    groups = zoo.content["groups"]
    with new_folder(directory) as folder, progress(made["by"], len(groups), show=show) as bar:
        written = []
        for number, group in enumerate(groups):
            usable = [index for index in group["members"] if index not in zoo.problems]
            if not usable:
                written.append({"members": group["members"], "file": None})
                continue
            whole = _among(change(zoo.stack(usable)), [group["members"].index(i) for i in usable], group["members"])
            records = [{**r, "problem": zoo.problems.get(i)} for i, r in zip(group["members"], group["records"], strict=True)]  # fmt: skip  # noqa: E501
            written.append(entry(folder, number, group["members"], whole, records))
            bar.advance()
        write_index(folder, {**zoo.content, "made": {**made, "from": zoo.content["made"]}, "groups": written})
    return open_zoo(folder)


def _among(tensors: Mapping[str, Tensor], rows: list[int], everyone: list[int]) -> dict[str, Tensor]:
    """Rows at their places among all of a group; nothing in the others."""
    whole = {}
    for name, tensor in tensors.items():
        nothing = float("nan") if tensor.is_floating_point() else 0
        whole[name] = torch.full((len(everyone), *tensor.shape[1:]), nothing, dtype=tensor.dtype, device=tensor.device)
        whole[name][rows] = tensor.detach()
    return whole
