"""Damage to files: to their bytes anywhere, and to the JSON, the archives and the headers inside them."""

import gzip
import io
import json
import random
import struct
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

Mutation = Callable[[random.Random, bytes], bytes]

_SIZES = (0, 1, 127, 255, 2**15, 2**16 - 1, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 10**12, 2**63 - 1, 2**64 - 1)
_DEEP = "\ue000deep"
"""Stands for lists in lists, which are only written out as text: to build them would recur."""


def _flip(rng: random.Random, content: bytes) -> bytes:
    changed = bytearray(content or b"\0")
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _truncate(rng: random.Random, content: bytes) -> bytes:
    return content[: rng.randrange(len(content) + 1)]


def _insert(rng: random.Random, content: bytes) -> bytes:
    at = rng.randrange(len(content) + 1)
    return content[:at] + rng.randbytes(rng.choice((1, 2, 8, 100))) + content[at:]


def _delete(rng: random.Random, content: bytes) -> bytes:
    at = rng.randrange(len(content) + 1)
    return content[:at] + content[at + rng.choice((1, 2, 8, 100)) :]


def _splice(rng: random.Random, content: bytes) -> bytes:
    """A piece of the file over, or between, others of it."""
    start, at = (rng.randrange(len(content) + 1) for _ in range(2))
    piece = content[start : start + rng.choice((1, 8, 64, 500))]
    return content[:at] + piece + content[at + rng.choice((0, len(piece))) :]


def _overwrite(rng: random.Random, content: bytes) -> bytes:
    """A number as lengths and offsets are written, near the beginning or anywhere."""
    form = rng.choice("<>") + rng.choice("BHIQ")
    size = struct.calcsize(form)
    number = rng.choice((*_SIZES, len(content), len(content) - 1, len(content) + 1)) % 256**size
    at = rng.choice((rng.randrange(min(len(content), 64) + 1), rng.randrange(len(content) + 1)))
    return content[:at] + struct.pack(form, number) + content[at + size :]


def _zeros(rng: random.Random, content: bytes) -> bytes:
    at, size = rng.randrange(len(content) + 1), rng.choice((1, 4, 16, 512, 4096))
    return content[:at] + bytes(min(size, len(content) - at)) + content[at + size :]


BYTES: dict[str, Mutation] = {
    "flip": _flip,
    "truncate": _truncate,
    "insert": _insert,
    "delete": _delete,
    "splice": _splice,
    "overwrite": _overwrite,
    "zeros": _zeros,
}


def damaged(rng: random.Random, content: bytes) -> bytes:
    """The bytes after one to three kinds of damage."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        content = BYTES[rng.choice(list(BYTES))](rng, content)
    return content


def damaged_json(rng: random.Random, text: str) -> str:
    """A JSON text with one or two of its values replaced, removed, renamed, repeated or exchanged."""
    value = json.loads(text)
    for _ in range(rng.choice((1, 1, 2))):
        value = _changed(rng, value)
    deep = rng.choice((50, 150, 900, 5000, 100_000))
    closed = rng.random() < 0.7
    nested = "[" * deep + ("]" * deep if closed else "")
    return json.dumps(value).replace(json.dumps(_DEEP), nested)


def _odd(rng: random.Random) -> Any:
    texts = ("", "x", "\ud800", "a\nb", "\u2028", "0" * 300, "../../x", "nan", "-1", "NaN", "\0")
    numbers = (0, -1, 1, 2, 7, 2**31, 2**63, 10**30, 0.5, -0.0, 1e308, float("nan"), float("inf"))
    return rng.choice((None, True, False, [], {}, [[]], {"": None}, _DEEP, rng.choice(texts), rng.choice(numbers)))


def _changed(rng: random.Random, value: Any) -> Any:
    places: list[tuple[Any, Any]] = []
    layers = [value] if isinstance(value, dict | list) else []
    while layers:
        part = layers.pop()
        inside = list(part.items()) if isinstance(part, dict) else list(enumerate(part))
        places += [(part, key) for key, _ in inside]
        layers += [item for _, item in inside if isinstance(item, dict | list)]
    if not places or rng.random() < 0.03:
        return _odd(rng)
    part, key = rng.choice(places)
    old = part[key]
    if isinstance(old, str) and old[:1] in ("{", "[") and rng.random() < 0.8:
        part[key] = damaged_json(rng, old)
        return value
    deed = rng.randrange(6)
    if deed == 0 and isinstance(part, dict):
        part[rng.choice(("", "x", f"{key}x", "__metadata__"))] = part.pop(key)
    elif deed == 1:
        del part[key]
    elif deed == 2:
        other, its = rng.choice(places)
        if isinstance(other[its], dict | list) or isinstance(old, dict | list):  # one may be inside of the other
            part[key] = _odd(rng)
        else:
            part[key], other[its] = other[its], old
    elif deed == 3 and isinstance(part, list):
        part.insert(rng.randrange(len(part) + 1), json.loads(json.dumps(old)))
    elif deed == 4 and isinstance(old, int | float) and not isinstance(old, bool):
        part[key] = rng.choice((old + 1, old - 1, -old, old * 2, float(old), str(old)))
    else:
        part[key] = _odd(rng)
    return value


def in_json(rng: random.Random, content: bytes) -> bytes:
    """Damage inside of a JSON file."""
    return damaged_json(rng, content.decode()).encode(errors="surrogatepass")


def in_header(rng: random.Random, content: bytes) -> bytes:
    """Damage inside of the header of a safetensors file, and of the JSON in its texts."""
    size = int.from_bytes(content[:8], "little")
    header = damaged_json(rng, content[8 : 8 + size].decode()).encode(errors="surrogatepass")
    return len(header).to_bytes(8, "little") + header + content[8 + size :]


def in_texts(rng: random.Random, content: bytes) -> bytes:
    """Damage inside of the JSON in one of the texts of a safetensors file."""
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    texts = header["__metadata__"]
    name = rng.choice([name for name, text in sorted(texts.items()) if text[:1] in ("{", "[")])
    texts[name] = damaged_json(rng, texts[name])
    written = json.dumps(header).encode()
    return len(written).to_bytes(8, "little") + written + content[8 + size :]


def in_gzip(rng: random.Random, content: bytes) -> bytes:
    """Damage to what is compressed."""
    return gzip.compress(damaged(rng, gzip.decompress(content)), 1, mtime=0)


def in_zip(rng: random.Random, content: bytes) -> bytes:
    """Damage to one member of a zip archive, which is whole as an archive again."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    name = rng.choice(list(members))
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for member, inside in members.items():
            change = in_npy if member.endswith(".npy") and rng.random() < 0.5 else damaged
            archive.writestr(member, change(rng, inside) if member == name else inside)
    return stream.getvalue()


def in_npy(rng: random.Random, content: bytes) -> bytes:
    """Another type or shape in the header of a NumPy file."""
    size = int.from_bytes(content[8:10], "little")
    types = (
        "'<f8'",
        "'>f4'",
        "'|u1'",
        "'<i8'",
        "'|O'",
        "'<U3'",
        "'|V0'",
        "[('a', '<f8')]",
        "[('a', '|O')]",
        "'?'",
        "3",
    )
    shapes = ("()", "(0,)", "(-1, 2)", "(1000000000000,)", "(2, 2.5)", "(1,) * 9", "[2]", "None", "(" + "1," * 70 + ")")
    order = rng.choice(("False", "True", "2", "''"))
    header = f"{{'descr': {rng.choice(types)}, 'fortran_order': {order}, 'shape': {rng.choice(shapes)}, }}"
    return content[:8] + struct.pack("<H", len(header)) + header.encode() + content[10 + size :]


def resealed(content: bytes, key: str) -> bytes:
    """A sealed file whose text has the checksum that belongs to it, whatever it says by now."""
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    text = header["__metadata__"][key]
    header["__metadata__"][f"{key}.checksum"] = f"{zlib.crc32(text.encode(errors='surrogatepass')):08x}"
    written = json.dumps(header).encode()
    return len(written).to_bytes(8, "little") + written + content[8 + size :]
