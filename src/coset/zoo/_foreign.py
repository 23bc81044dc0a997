"""Zoos of others: folders of checkpoints and stacks in HDF5 or npz files, in and out."""

import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from coset._files.atomic import atomic_path, new_folder, write_text
from coset._files.sealed import kind
from coset._show.progress import progress
from coset._show.tables import csv_table
from coset.checkpoints import Checkpoint, match_checkpoint, read_checkpoint, write_checkpoint
from coset.errors import InputError, refusing
from coset.models import build
from coset.zoo._index import FORMAT, Content, finite, write_index
from coset.zoo._members import LARGEST, STACKED
from coset.zoo._spec import meant
from coset.zoo._write import write_group
from coset.zoo._zoo import NOT_FINITE, Zoo, open_zoo

T = TypeVar("T")

ENDINGS = (".safetensors", ".pt", ".pth", ".ckpt", ".bin")
HDF5 = (".h5", ".hdf5")


def import_zoo(
    source: str | Path,
    directory: str | Path,
    *,
    model: str,
    options: Mapping[str, Any] | None = None,
    names: Mapping[str, str] | None = None,
    key: str | None = None,
    strip_prefix: str = "",
    show: bool | None = None,
) -> Zoo:
    """A zoo in a new folder of networks that others trained, all of one ``model`` as ``coset.models.build`` makes it.

    ``source``: a folder of checkpoints, one network each, in the order of their names; or an HDF5 or npz file of arrays
    (N, …). ``names``: for a parameter of the model, its name there; with it, other arrays of a file are left out.
    Networks with numbers that are not finite are listed with that problem, and left out.
    """
    where = Path(source)
    built = build(model, seed=0, **(options or {}))
    for name in names or ():
        if name not in built.state_dict():
            raise InputError(f"names has {name!r}, which the model has not{meant(name, list(built.state_dict()))}")
    if where.is_dir():
        origins, stack = _folder(where, built, names or {}, key, strip_prefix, show)
    elif where.suffix in (".npz", *HDF5):
        stack = _file(where, built, names or {})
        origins = [f"{where.name}[{row}]" for row in range(len(next(iter(stack.values()))))]
    else:
        raise InputError(f"{where} is neither a folder of checkpoints nor an .npz or .h5 file")
    real = next(tensor for tensor in stack.values() if tensor.is_floating_point())
    about = {"name": model, "options": dict(options or {}), "dtype": str(real.dtype).removeprefix("torch.")}
    kind_of_network = {"options": {}, "path": STACKED, "tensors": _kinds(stack)}
    return _new_zoo(directory, stack, origins, about, kind_of_network, {"by": "import", "source": where.name})


def save_zoo(
    networks: Mapping[str, Tensor],
    directory: str | Path,
    *,
    like: Zoo,
    sources: Sequence[str] | None = None,
    made: Mapping[str, Any] | None = None,
) -> Zoo:
    """A zoo in a new folder of a stack of networks (N, *shape), of the model that the networks of ``like`` have.

    ``sources``: where each comes from (default: its number); ``made``: what the index says of all, as plain values.
    """
    number = like.require_one_architecture(like.indices or range(len(like)))
    own = like.content["architectures"][number]
    counts = {tensor.shape[0] if tensor.ndim else 0 for tensor in networks.values()}
    if len(counts) != 1 or 0 in counts:
        raise InputError(f"networks has leading axes of {sorted(counts)}; expected a stack of at least one network")
    if (found := _kinds(networks)) != own["tensors"]:
        known = own["tensors"]
        odd = next(name for name in {**known, **found} if found.get(name) != known.get(name))
        raise InputError(
            f"'{odd}' of networks is {found.get(odd, 'missing')}; expected {known.get(odd, 'no such tensor')}, as "
            f"networks of {like.folder} have it"
        )
    (count,) = counts
    origins = [str(row) for row in range(count)] if sources is None else list(sources)
    if len(origins) != count:
        raise InputError(f"there are {len(origins)} sources and {count} networks; expected one for each")
    stack = {name: networks[name] for name in own["tensors"]}
    return _new_zoo(directory, stack, origins, like.content["model"], own, {"by": "stack", **(made or {})})


def _kinds(stack: Mapping[str, Tensor]) -> dict[str, Any]:
    return {name: kind(tensor[0]) for name, tensor in stack.items()}


def _new_zoo(
    directory: str | Path,
    stack: Mapping[str, Tensor],
    origins: Sequence[str],
    model: Content,
    architecture: Content,
    made: Content,
) -> Zoo:
    """A zoo in a new folder of networks of one architecture; those that are not finite have that problem."""
    with new_folder(directory) as folder:
        groups: list[Content] = []
        for start in range(0, len(origins), LARGEST):
            part = {name: tensor[start : start + LARGEST] for name, tensor in stack.items()}
            members = list(range(start, start + len(next(iter(part.values())))))
            records: list[Content] = [{"problem": None if fine else NOT_FINITE, "metrics": {}} for fine in finite(part)]
            groups.append(write_group(folder, len(groups), members, part, records))
        content = {
            "format": FORMAT,
            "made": made,
            "model": model,
            "architectures": [architecture],
            "members": [{"source": origin, "architecture": 0} for origin in origins],
            "groups": groups,
        }
        write_index(folder, content)
    return open_zoo(folder)


def _folder(
    where: Path, model: nn.Module, names: Mapping[str, str], key: str | None, prefix: str, show: bool | None
) -> tuple[list[str], dict[str, Tensor]]:
    """The names of checkpoints, and their weights, stacked; one that does not fit the model is an error."""
    files = sorted(path for path in where.iterdir() if path.suffix in ENDINGS)
    if not files:
        raise InputError(f"{where} has no checkpoints; expected files that end in {', '.join(ENDINGS)}")
    state, found = model.state_dict(), []
    with progress("reading", len(files), show=show) as bar:
        for file in files:
            read = read_checkpoint(file, key=key, strip_prefix=prefix)
            renamed = Checkpoint(_renamed(read.params, names, file), {}, read.where, read.sha256)
            found.append(match_checkpoint(renamed, state))
            bar.advance()
    return [file.name for file in files], {name: torch.stack([one[name] for one in found]) for name in state}


def _file(where: Path, model: nn.Module, names: Mapping[str, str]) -> dict[str, Tensor]:
    """The arrays of a file as stacked weights; others than the model's are refused unless ``names`` chooses."""
    state = model.state_dict()
    with refusing(f"{where} cannot be read"):
        if not where.is_file():
            raise InputError(f"{where} does not exist")
        found = _renamed(_arrays(where, {names.get(name, name) for name in state} if names else None), names, where)
    if unknown := sorted(found.keys() - state.keys()):
        raise InputError(f"{where} has {unknown[0]!r}, which the model has not; expected its names, or a map of names")
    with refusing(f"{where} cannot be read"):
        renamed = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in found.items()}
    counts = set()
    for name, tensor in state.items():
        if name not in renamed and not tensor.is_floating_point():
            continue
        if name not in renamed:
            raise InputError(f"{where} has no {names.get(name, name)!r}; expected one array per parameter, or names")
        if renamed[name].ndim != tensor.ndim + 1 or renamed[name].shape[1:] != tensor.shape:
            raise InputError(
                f"{where}: {names.get(name, name)!r} has shape {tuple(renamed[name].shape)}; expected networks first, "
                f"then {tuple(tensor.shape)}"
            )
        counts.add(len(renamed[name]))
    if len(counts) != 1 or 0 in counts:
        raise InputError(
            f"{where} has arrays for {sorted(counts)} networks; expected the same number of all, at least 1"
        )
    (count,) = counts
    return {n: renamed[n] if n in renamed else t.expand(count, *t.shape).clone() for n, t in state.items()}


def _arrays(where: Path, wanted: set[str] | None) -> dict[str, Any]:
    """The arrays of an HDF5 or npz file by name, all or the ``wanted`` ones; of HDF5 in groups, too."""
    if where.suffix not in HDF5:
        with np.load(where, allow_pickle=False) as file:
            return {name: file[name] for name in file.files if wanted is None or name in wanted}
    h5py, found = _h5py(), dict[str, Any]()

    def take(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and (wanted is None or name in wanted):
            found[name] = item[()]

    with h5py.File(where, "r") as file:
        file.visititems(take)
    return found


def _renamed(tensors: Mapping[str, T], names: Mapping[str, str], where: Path) -> dict[str, T]:
    """Under the model's names where ``names`` has them, else under their own."""
    for ours, theirs in names.items():
        if theirs not in tensors:
            raise InputError(f"{where} has no {theirs!r}, which names has for {ours!r}")
    back = {theirs: ours for ours, theirs in names.items()}
    return {back.get(name, name): tensor for name, tensor in tensors.items()}


def export_zoo(zoo: Zoo, out: str | Path) -> list[Path]:
    """Write the networks that can be used for others; the files that were written.

    By the ending: ``.csv`` the table, ``.npz``, ``.h5`` or ``.safetensors`` stacked weights under ``state_dict()``
    names; without an ending a new folder with a safetensors checkpoint of every network.
    """
    target = Path(out)
    if target.suffix == ".csv":
        rows = zoo.rows()
        columns = list(dict.fromkeys(name for row in rows for name in row))
        write_text(target, csv_table(columns, [[row.get(name) for name in columns] for row in rows]))
    elif target.suffix == ".safetensors":
        write_checkpoint(target, zoo.stack(), {"coset.zoo.indices": ",".join(map(str, zoo.indices))})
    elif target.suffix == ".npz":
        with atomic_path(target) as part, part.open("wb") as file:
            np.savez(file, **{name: tensor.numpy() for name, tensor in zoo.stack().items()})  # type: ignore[arg-type]
    elif target.suffix in HDF5:
        h5py = _h5py()
        with atomic_path(target) as part, h5py.File(part, "w") as file:
            for name, tensor in zoo.stack().items():
                file[name] = tensor.numpy()
    elif not target.suffix:
        if not zoo.indices:
            raise InputError(f"no network of {zoo.folder} can be used: {next(iter(zoo.problems.values()))}")
        with new_folder(target) as folder:
            for index in zoo.indices:
                write_checkpoint(folder / f"{index:06d}.safetensors", zoo[index])
            return sorted(Path(folder, name) for name in os.listdir(folder))  # noqa: PTH208
    else:
        raise InputError(f"out is {target}; expected .csv, .npz, .h5, .safetensors, or a folder")
    return [target]


def _h5py() -> Any:
    try:
        return import_module("h5py")
    except ImportError as error:
        raise InputError("HDF5 files need the package h5py: pip install 'coset[zoo]'") from error
