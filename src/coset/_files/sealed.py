"""Sealed files: tensors and a JSON text in one safetensors file, with checksums of both, written atomically.

The metadata hold the text under a key, which says what kind of file it is, and the checksum of the text under
``<key>.checksum``; the text holds the format number, the versions that wrote the file and a checksum of every tensor,
and of every further text that the metadata hold.
"""

import json
import platform
import reprlib
import tempfile
import zlib
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coset._files.atomic import atomic_path, parse_json
from coset._files.tensors import read_tensors, write_tensors
from coset.errors import InputError, one_line

TEXTS = "texts"
"""Under this the content holds the checksums of the texts beside it."""


def check_writable(path: Path, what: str = "checkpoint") -> None:
    """Refuse at once a path to which nothing could be written; its folder is made if there is none."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(prefix=f".{path.name}.", suffix=".part", dir=path.parent):
            pass
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(
            f"{what} {path} cannot be written: {reason}; expected a path in a folder to write to"
        ) from error


def write_sealed(
    path: Path,
    key: str,
    form: int,
    tensors: Mapping[str, Tensor],
    content: Mapping[str, Any],
    texts: Mapping[str, str] | None = None,
) -> None:
    """Write tensors and ``content`` (plain JSON values), replacing an earlier file only once the new one is whole.

    ``texts`` stand beside the content in the header, for everybody to read.
    """
    # Copies, because safetensors takes neither shared memory nor other strides.
    copies = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()
    }
    described = {
        "format": form,
        **content,
        "tensors": {name: checksum(tensor) for name, tensor in copies.items()},
        "versions": {"coset": version("coset"), "torch": torch.__version__, "python": platform.python_version()},
    }
    if texts:
        described[TEXTS] = {name: _text_checksum(text) for name, text in texts.items()}
    text = json.dumps(described)
    with atomic_path(path) as part:
        write_tensors(part, copies, {**(texts or {}), key: text, checksum_key(key): _text_checksum(text)})


def read_sealed(path: Path, key: str, form: int, what: str = "checkpoint") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the content of a file that ``write_sealed`` wrote; anything else is one clear error."""
    if not path.is_file():
        raise InputError(f"{what} {path} is not a file, expected a {what} or a new path")
    tensors, metadata = read_tensors(path, f"{what} {path}")
    return tensors, unsealed(tensors, metadata, key, form, f"{what} {path}", what)


def unsealed(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, str], key: str, form: int, where: str, what: str
) -> dict[str, Any]:
    """The content of a sealed file whose tensors and metadata were read, once everything has its checksum."""
    if key not in metadata:
        raise InputError(f"{where} is a safetensors file without {key!r} in its metadata, expected a {what}")
    content = parse_json(metadata[key], f"{where} is damaged: its metadata")
    found = content.get("format") if isinstance(content, dict) else None
    if found != form:
        raise InputError(f"{where} has format {reprlib.repr(found)}, expected {form}")
    if metadata.get(checksum_key(key)) != _text_checksum(metadata[key]):
        raise InputError(f"{where} is damaged: its metadata does not have the checksum it was written with")
    written = content.get("tensors")
    if not isinstance(written, dict):
        raise InputError(f"{where} is damaged: it does not say which tensors it has")
    _check_tensors(where, tensors, written)
    texts = content.get(TEXTS, {})
    for name in texts if isinstance(texts, dict) else {TEXTS: ""}:
        if name not in metadata or _text_checksum(metadata[name]) != texts[name]:
            raise InputError(f"{where} is damaged: its text {name!r} does not have the checksum it was written with")
    return dict(content)


def checksum(tensor: Tensor, start: int = 0) -> int:
    """CRC-32 of the shape, type and bytes of a tensor, continued from ``start``."""
    content = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return zlib.crc32(content.numpy().data, zlib.crc32(kind(tensor).encode(), start))


def kind(tensor: Tensor) -> str:
    """Shape and type of a tensor in words."""
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def _check_tensors(where: str, tensors: Mapping[str, Tensor], written: Mapping[str, int]) -> None:
    """The tensors of the file must be those that were written, bit by bit."""
    # Names from a file may be anything.
    for name, expected in written.items():
        told = one_line(name, 200)
        if name not in tensors:
            raise InputError(f"{where} is damaged: it lacks {told}")
        if checksum(tensors[name]) != expected:
            raise InputError(f"{where} is damaged: {told} does not have the checksum it was written with")
    for name in tensors.keys() - written.keys():
        raise InputError(f"{where} is damaged: it has {one_line(name, 200)}, which was not written")


def checksum_key(key: str) -> str:
    """Where the checksum of the text under ``key`` stands."""
    return f"{key}.checksum"


def _text_checksum(text: str) -> str:
    return f"{zlib.crc32(text.encode(errors='surrogatepass')):08x}"
