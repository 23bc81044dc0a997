"""One entry of the store: a safetensors file with its configuration in the header."""

import hashlib
import json
import math
import os
import stat
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from coset._files.atomic import atomic_path, parse_json
from coset._files.tensors import write_tensors
from coset.errors import InputError, one_line
from coset.store._address import SCHEMA, canonical_json, info_json, key_of_json

_DTYPES = frozenset(
    {torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.bool}
    | {torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8}
)
_FIELDS = ("schema", "version", "created", "config", "info", "names", "digest")
_COST = "cost"
"""A field that entries have whose making was measured; it is not part of the checksum."""


class DamagedEntryError(InputError):
    """A file of the store that is truncated, altered or under a wrong name."""


@dataclass(frozen=True, eq=False)
class Entry:
    """What the store keeps under one address.

    ``config`` and ``info`` come back as JSON gives them (tuples as lists), ``params`` on the CPU in their own order.
    ``cost``: the seconds of processor time that it took to make, of all cores together; None where nobody measured it.
    """

    key: str
    path: Path
    config: dict[str, Any]
    info: dict[str, Any]
    params: dict[str, Tensor]
    created: datetime
    version: str
    cost: float | None = None


def write_entry(
    path: Path,
    config: Mapping[str, object],
    params: Mapping[str, Tensor],
    info: Mapping[str, object],
    cost: float | None = None,
) -> Entry:
    """Write one entry atomically: tensors, and in the header configuration, notes, schema and a checksum.

    Names that share one tensor (tied weights) share one tensor in the file, and again when they are read. The result is
    read back from the disk before the file takes its place, so what others then do to it does not matter.
    """
    tensors, names = _storable(params)
    fields = {
        "schema": str(SCHEMA),
        "version": version("coset"),
        "created": datetime.now(UTC).isoformat(timespec="microseconds"),
        "config": canonical_json(config),
        "info": info_json(info),
        "names": json.dumps(names),
        **({} if cost is None else {_COST: f"{cost:.3f}"}),
    }
    fields["digest"] = _digest(tensors, fields)
    metadata = {f"coset.{name}": text for name, text in fields.items()}
    with atomic_path(path) as part:
        write_tensors(part, tensors, metadata)
        return _entry(path, part.read_bytes())


def read_entry(path: Path) -> Entry:
    """Read and check one entry: its checksum, and that its configuration belongs to its address.

    An absent one is a FileNotFoundError, one that the system does not let be read an InputError.
    """
    with _refusals(path):
        content = path.read_bytes()
    return _entry(path, content)


def read_header(path: Path) -> Entry:
    """Read an entry without its tensors; damage in these other than a wrong length goes unseen."""
    with _refusals(path), path.open("rb") as file:
        start = file.read(8)
        size = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        length = os.fstat(file.fileno()).st_size
        content = start + file.read(min(size, length))
    return _header(path, _fields(path, content, length))


@contextmanager
def _refusals(path: Path) -> Iterator[None]:
    """What the system says against reading ``path``, as an InputError; that it is absent stays as it is."""
    try:
        # A pipe would be waited for, a device may have no end.
        if not stat.S_ISREG(path.stat().st_mode):
            raise InputError(f"the store entry {path} cannot be read: it is not a regular file")
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise InputError(f"the store entry {path} cannot be read: {error.strerror or error}") from error


def _entry(path: Path, content: bytes) -> Entry:
    """The entry whose file, at ``path``, has this content."""
    fields = _fields(path, content)
    header, names = _header(path, fields), _mapping(fields, "names")
    try:
        tensors = safetensors.torch.load(content)
    # Altered bytes can fail in safetensors or in torch, with any exception.
    except Exception as error:
        raise _damaged(path, one_line(error)) from error
    if fields["digest"] != _digest(tensors, fields) or set(names.values()) != set(tensors):
        raise _damaged(path, "its content does not match its checksum")
    return replace(header, params={name: tensors[stored] for name, stored in names.items()})


def _fields(path: Path, content: bytes, length: int | None = None) -> dict[str, str]:
    """The texts of the safetensors header, whose form is ⟨u64 size⟩⟨JSON⟩⟨tensors⟩; ``length`` is the whole file's."""
    length = len(content) if length is None else length
    try:
        (size,) = struct.unpack_from("<Q", content)
        header = parse_json(content[8 : 8 + size], "its header")
        metadata = header.pop("__metadata__")
        fields = {name: _text(metadata[f"coset.{name}"]) for name in _FIELDS}
        if (cost := metadata.get(f"coset.{_COST}")) is not None:
            fields[_COST] = _text(cost)
        data = max((int(tensor["data_offsets"][1]) for tensor in header.values()), default=0)
    except (struct.error, ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError) as error:
        raise _damaged(path, "it has no header of a store entry") from error
    if length != 8 + size + data:
        raise _damaged(path, f"it has {length} bytes and its header tells of {8 + size + data}")
    return fields


def _text(value: Any) -> str:
    """``value``, if it is a text that can be written."""
    if not isinstance(value, str):
        raise TypeError(f"found {type(value).__name__}, expected a text")
    value.encode()
    return value


def _damaged(path: Path, why: str) -> DamagedEntryError:
    return DamagedEntryError(f"the store entry {path} is damaged: {why}")


def _header(path: Path, fields: Mapping[str, str]) -> Entry:
    """Check and parse the texts of a header: the entry, but without its tensors."""
    if fields["schema"] != str(SCHEMA):
        # Not damage: the entry of another version of coset, to be left as it is.
        raise InputError(
            f"the store entry {path} has schema version {one_line(fields['schema'], 40)} (written by coset "
            f"{one_line(fields['version'], 40)}), this coset reads version {SCHEMA}"
        )
    key = key_of_json(fields["config"])
    if key != path.stem:
        raise _damaged(path, f"its configuration belongs to the address {key}")
    try:
        header = Entry(
            key=key,
            path=path,
            config=_mapping(fields, "config"),
            info=_mapping(fields, "info"),
            params={},
            created=datetime.fromisoformat(fields["created"]),
            version=fields["version"],
            cost=float(fields[_COST]) if _COST in fields else None,
        )
        names = _mapping(fields, "names")
        header.created.astimezone(UTC)
        canonical = canonical_json(header.config) == fields["config"]
    except (ValueError, OverflowError) as error:
        raise _damaged(path, one_line(error, 200)) from error
    if not canonical:
        # Under this address nobody would look for it.
        raise _damaged(path, "its configuration is not written as the store writes it")
    if header.created.tzinfo is None:
        raise _damaged(path, f"its date {header.created} has no time zone")
    if not all(isinstance(name, str) for name in names.values()):
        raise _damaged(path, "its names do not stand for tensors")
    if header.cost is not None and not 0 <= header.cost < math.inf:
        raise _damaged(path, f"its cost is {header.cost}")
    return header


def _mapping(fields: Mapping[str, str], name: str) -> dict[str, Any]:
    """A text of the header that is a mapping in JSON."""
    value = parse_json(fields[name], f"its {name}")
    if not isinstance(value, dict):
        raise InputError(f"its {name} is a {type(value).__name__}, expected a mapping")
    return value


def _storable(params: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Contiguous copies on the CPU, one for each distinct tensor, and for each name the name it is stored under."""
    tensors: dict[str, Tensor] = {}
    names: dict[str, str] = {}
    first: dict[object, str] = {}
    for name, tensor in params.items():
        _check_storable(name, tensor)
        # Two empty tensors may share the null pointer without being tied.
        where = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        names[name] = first.setdefault(where, name) if tensor.numel() else name
        if names[name] == name:
            tensors[name] = tensor.detach().to("cpu", copy=True).contiguous()
    return tensors, names


def _check_storable(name: object, tensor: object) -> None:
    if not isinstance(name, str) or name == "__metadata__":
        raise InputError(f"params has the name {name!r}; a name must be a str other than '__metadata__'")
    if not isinstance(tensor, Tensor):
        raise InputError(f"params[{name!r}] must be a tensor, found {type(tensor).__qualname__}")
    if tensor.layout is not torch.strided or tensor.is_meta:
        raise InputError(f"params[{name!r}] must be a dense tensor with data, found {tensor.layout} on {tensor.device}")
    if tensor.dtype not in _DTYPES:
        known = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in _DTYPES))
        raise InputError(f"params[{name!r}] has dtype {tensor.dtype}; the store keeps {known}")


def _digest(tensors: Mapping[str, Tensor], fields: Mapping[str, str]) -> str:
    """SHA-256 (hex) of all texts but the digest and the cost, and of name, type, shape and bytes of every tensor."""
    digest = hashlib.sha256()
    for name in _FIELDS[:-1]:
        digest.update(f"{name}={len(fields[name])}:{fields[name]}\n".encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
