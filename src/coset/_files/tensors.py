"""Tensors and texts in safetensors files: the one place where these are written, and read from the disk; PyTorch files
without the code that may be in them."""

import json
import os
import pickle
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from coset.errors import InputError, refusing


def write_tensors(part: Path, tensors: dict[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write contiguous tensors on the CPU to a path of ``atomic_path``; the same content gives the same bytes.

    What the system says against it is an OSError, as for any other file.
    """
    try:
        save_file(tensors, part, dict(metadata))
    except SafetensorError as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise InputError(f"{part.name} cannot be written: {error}") from error
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from error
    _sort_metadata(part)


def read_tensors(path: Path, what: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the texts of a safetensors file; ``what`` names the file in errors."""
    with refusing(f"{what} is not a whole safetensors file"):
        if not path.is_file():
            raise InputError(f"{what} is not a regular file, expected a safetensors file")
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return tensors, file.metadata() or {}


def read_pytorch(where: Path) -> Any:
    """What a PyTorch file holds, as ``torch.load`` with ``weights_only=True`` reads it, on the CPU."""
    try:
        # From an open file: by name alone torch would take it for what its ending says. Its warnings about pickles of
        # other protocols say nothing that a failure does not.
        with where.open("rb") as file, warnings.catch_warnings(action="ignore"):
            return torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        needed = re.search(r"GLOBAL ([\w.]+)", str(error))
        if needed is None:
            raise InputError(f"{where} is not a PyTorch file of plain tensors, or is damaged") from error
        raise InputError(
            f"{where} holds pickled code (it asks for {needed[1]}), which is not run; expected a state dict of "
            f"tensors, as torch.save(model.state_dict(), …) writes it"
        ) from error
    # Bytes that nobody vouches for can fail anywhere in the unpickler, with any exception.
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{where} is damaged or not a PyTorch file: {reason}") from error


def _sort_metadata(path: Path) -> None:
    """Give the texts in the header a fixed order; safetensors writes them in a random one."""
    with path.open("rb+") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode().ljust(size)
        assert len(text) == size, "the same texts, escaped alike, take the same space"
        file.seek(8)
        file.write(text)
