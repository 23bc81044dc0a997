"""Weights from files that others wrote, without running code that may be in them."""

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coset._files.tensors import read_pytorch, read_tensors
from coset._values import freeze
from coset.checkpoints._folders import digest_of, shards_of
from coset.errors import InputError

USUAL_KEYS = ("state_dict", "model_state_dict", "model", "module", "net", "network", "params", "weights")
"""Under one of these people put a state dict beside what else they save."""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The weights of one file, on the CPU, dense and finite.

    ``metadata`` are the texts in a safetensors header; ``where`` is the file and ``sha256`` that of its bytes.
    ``prefix`` was taken off every name: in the file they are ``prefix + name``. Of a folder ``sha256`` is that of the
    names and digests of its files of weights.
    """

    params: Mapping[str, Tensor]
    metadata: Mapping[str, str]
    where: Path
    sha256: str
    prefix: str = ""
    inside: Mapping[str, str] = field(default_factory=dict)
    """Name → the name in the file, where that is another one."""

    def __post_init__(self) -> None:
        freeze(self, "params", "metadata", "inside")

    def renamed(self, names: Mapping[str, str]) -> "Checkpoint":
        """The same weights under other names, from the name in the file to the new one."""
        params = {names.get(name, name): tensor for name, tensor in self.params.items()}
        if len(params) < len(self.params):
            raise InputError(f"{self.where} holds two tensors under names that stand for one")
        inside = {new: old for old, new in names.items() if old in self.params}
        return replace(self, params=params, inside=inside)


def read_checkpoint(path: str | os.PathLike[str], *, key: str | None = None, strip_prefix: str = "") -> Checkpoint:
    """Read a safetensors file, or a PyTorch file (zip or older) as ``torch.load`` with ``weights_only=True`` does.

    Which of them it is is told by its content. A PyTorch file holds a state dict, or one under a usual name such as
    "state_dict" or "model" beside other things; if several are there, ``key`` chooses. ``strip_prefix`` (such as
    "module.") is taken off the names of a file if all of them have it; if only some have it that is an error. Of a
    folder as Hugging Face writes it all shards are read, as its index says.
    """
    where = Path(path)
    if where.is_dir():
        return _read_folder(where, key, strip_prefix)
    params, metadata, digest = _read_file(where, key)
    return _checkpoint(params, metadata, where, digest, strip_prefix)


def _read_folder(where: Path, key: str | None, strip_prefix: str) -> Checkpoint:
    params: dict[str, Tensor] = {}
    metadata: dict[str, str] = {}
    digests = {}
    for file, names in shards_of(where).items():
        held, texts, digests[file] = _read_file(where / file, key)
        if names is not None and held.keys() != set(names):
            odd = min(held.keys() ^ set(names))
            what = "lacks" if odd in names else "holds"
            raise InputError(f"{where / file} {what} {odd!r}, other than the index of the folder says")
        if twice := params.keys() & held.keys():
            raise InputError(f"{where} holds {min(twice)!r} in two files")
        params |= held
        metadata |= texts
    return _checkpoint(params, metadata, where, digest_of(digests), strip_prefix)


def _checkpoint(
    params: dict[str, Tensor], metadata: dict[str, str], where: Path, digest: str, strip_prefix: str
) -> Checkpoint:
    if not params:
        raise InputError(f"{where} holds no tensors")
    stripped = _stripped(params, strip_prefix, where)
    return Checkpoint(stripped, metadata, where, digest, strip_prefix if stripped.keys() != params.keys() else "")


def _read_file(where: Path, key: str | None) -> tuple[dict[str, Tensor], dict[str, str], str]:
    """The tensors and texts of a file and the SHA-256 of its bytes."""
    _require_file(where)
    try:
        with where.open("rb") as file:
            start = file.read(9)
            file.seek(0)
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{where} cannot be read: {error.strerror or error}") from error
    found: Mapping[Any, Any]
    metadata: dict[str, str] = {}
    if start[8:] == b"{":  # a safetensors file: the length of its header in eight bytes, then JSON
        if key is not None:
            raise InputError(f"{where} is a safetensors file, which has no parts; {key!r} cannot be chosen there")
        found, metadata = read_tensors(where, str(where))
    elif start.startswith((b"PK\x03\x04", b"\x80")):  # a zip archive; a pickle
        found = _state_dict(read_pytorch(where), key, where)
    else:
        raise InputError(f"{where} is neither a safetensors nor a PyTorch file; it begins with {start[:8]!r}")
    return {name: _checked(name, value, where) for name, value in found.items()}, metadata, digest


def _require_file(where: Path) -> None:
    if not where.exists():
        raise InputError(f"{where} does not exist; expected a file of weights")
    if not where.is_file():
        raise InputError(f"{where} is not a regular file; expected a file of weights")


def _state_dict(content: Any, key: str | None, where: Path) -> Mapping[Any, Any]:
    """The dict of tensors in what a PyTorch file holds: all of it, or the part that is meant."""
    if not isinstance(content, Mapping):
        raise InputError(f"{where} holds a {type(content).__name__}; expected a state dict of tensors")
    if key is not None:
        chosen = content.get(key)
        if not isinstance(chosen, Mapping):
            found = f"a {type(chosen).__name__} there" if key in content else f"only {listed(content)}"
            raise InputError(f"{where} has no state dict under {key!r}, {found}")
        return chosen
    parts = [name for name, value in content.items() if _is_state_dict(value)]
    if not parts:
        return content
    if len(parts) > 1 or parts[0] not in USUAL_KEYS:
        raise InputError(f"{where} holds tensors under {listed(parts)}; choose with key (--key) which are meant")
    chosen = content[parts[0]]
    assert isinstance(chosen, Mapping)
    return chosen


def _is_state_dict(value: Any) -> bool:
    return isinstance(value, Mapping) and bool(value) and all(isinstance(part, Tensor) for part in value.values())


def _checked(name: Any, value: Any, where: Path) -> Tensor:
    """The tensor without its history, if it is one that can be computed with."""
    if not isinstance(name, str):
        raise InputError(f"{where} holds something under {name!r}; expected names")
    if not isinstance(value, Tensor):
        raise InputError(f"{name!r} of {where} is a {type(value).__name__}; expected a tensor")
    if value.layout is not torch.strided or value.is_meta or value.is_quantized or value.is_nested:
        kind = "quantized" if value.is_quantized else "nested" if value.is_nested else value.layout
        raise InputError(f"{name!r} of {where} is not a dense tensor with values ({kind} on {value.device})")
    require_finite(name, value, str(where))
    return value.detach()


def require_finite(name: str, tensor: Tensor, where: str) -> None:
    """Raise if a floating point tensor has entries that are not numbers."""
    if tensor.is_floating_point() or tensor.is_complex():
        # Numbers of eight bits know nothing but their conversion.
        finite = torch.isfinite(tensor.float() if tensor.element_size() == 1 else tensor)
        if not bool(finite.all()):
            raise InputError(
                f"{name!r} of {where} has {int((~finite).sum())} of {tensor.numel()} entries that are NaN or infinite"
            )


def _stripped(params: Mapping[str, Tensor], prefix: str, where: Path) -> dict[str, Tensor]:
    having = [name for name in params if prefix and name.startswith(prefix) and name != prefix]
    if not having:
        return dict(params)
    if len(having) < len(params):
        other = next(name for name in params if name not in set(having))
        raise InputError(f"{prefix!r} begins {having[0]!r} but not {other!r} of {where}; expected it on all names")
    return {name.removeprefix(prefix): tensor for name, tensor in params.items()}


def listed(names: Iterable[Any], limit: int = 4) -> str:
    """The first names, and how many more there are."""
    known = [f"{name!r}" for name in names]
    return ", ".join(known[:limit]) + (f" and {len(known) - limit} more" if len(known) > limit else "")
