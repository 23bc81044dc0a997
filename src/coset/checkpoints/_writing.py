"""Weights into files: whole or not at all, and never onto what they were made from."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from coset._files.atomic import atomic_path, new_folder, output_folder, require_reachable
from coset._files.tensors import write_tensors
from coset.checkpoints._folders import copy_beside, sharded
from coset.checkpoints.reading import Checkpoint, require_finite
from coset.errors import InputError

AnyPath = str | os.PathLike[str]

PYTORCH = (".pt", ".pth")
"""Names of files that are written as ``torch.save`` does."""


def write_checkpoint(path: AnyPath, params: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file atomically; names, dtypes and values are kept, and the same content is the same bytes.

    Tensors that share memory are written once under each of their names. ``metadata``: texts for the header; "format"
    is "pt" unless it says otherwise, as other libraries expect. Entries that are NaN or infinite are refused.
    """
    texts = {"format": "pt", **(metadata or {})}
    for name, text in texts.items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise InputError(f"metadata {name!r} is {text!r}; expected a text")
    copies = {}
    for name, tensor in params.items():
        require_finite(name, tensor, f"what is to be written to {path}")
        # Copies, because safetensors takes neither shared memory nor other strides.
        copies[name] = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
    with atomic_path(path) as part:
        write_tensors(part, copies, texts)


def write_checkpoints(
    folder: AnyPath, networks: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> list[Path]:
    """Write a stack of networks (N, *shape) to a new folder, each to a file: 000000.safetensors, 000001.safetensors, …

    ``metadata``: of every file. If one cannot be written, none stays.
    """
    with new_folder(folder) as made:
        files = [made / f"{row:06d}.safetensors" for row in range(len(next(iter(networks.values()))))]
        for row, file in enumerate(files):
            write_checkpoint(file, {name: tensor[row] for name, tensor in networks.items()}, metadata)
    return files


def write_like(
    path: AnyPath, checkpoint: Checkpoint, params: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write ``params``, named as in the file, in the form of a ``checkpoint``.

    One that was a folder becomes a new folder with the same shards, configuration and tokenizer. Of a file the name of
    what is written decides: .pt and .pth are PyTorch's, all else is safetensors.
    """
    target = Path(path)
    if checkpoint.where.is_dir():
        with new_folder(target) as folder:
            for file, held in sharded(checkpoint.where, params).items():
                write_checkpoint(folder / file, held, metadata)
            copy_beside(checkpoint.where, folder)
    elif target.suffix in PYTORCH:
        for name, tensor in params.items():
            require_finite(name, tensor, f"what is to be written to {path}")
        with atomic_path(target) as part:
            torch.save({name: tensor.detach().cpu() for name, tensor in params.items()}, part)
    else:
        write_checkpoint(target, params, metadata)


@contextmanager
def output_place(path: AnyPath, others: Sequence[AnyPath], *, folder: bool) -> Iterator[Path]:
    """``output_file``, or of what becomes a folder: a new or empty one that is none of the ``others``."""
    if not folder:
        with output_file(path, others) as target:
            yield target
        return
    target = Path(path)
    require_reachable(target)
    if target.is_file():
        raise InputError(f"{target} is a file; expected a new folder, as what is read is one")
    if target.is_dir() and any(target.iterdir()):
        raise InputError(f"{target} is not empty; expected a new folder")
    with output_folder(target.parent):
        yield target


@contextmanager
def output_file(path: AnyPath, others: Sequence[AnyPath] = ()) -> Iterator[Path]:
    """A path to write a file to, checked before any work is done: its folder is made and can be written to.

    A folder, a device, or one of the ``others``, by whatever path, is refused. If the block fails, folders made for it
    go again.
    """
    target = Path(path)
    require_reachable(target)
    if target.is_dir():
        raise InputError(f"{target} is a folder; expected a file to write")
    if target.exists() and not target.is_file():
        raise InputError(f"{target} is not a regular file; expected a file to write")
    for source in map(Path, others):
        # Not Path.resolve: that raises where links lead in a circle, which is for the reader of ``source`` to tell.
        same = os.path.realpath(target) == os.path.realpath(source)
        if same or (target.exists() and source.exists() and target.samefile(source)):
            raise InputError(f"{target} would overwrite {source}; expected another file to write")
    with output_folder(target.parent):
        yield target
