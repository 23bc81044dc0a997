"""Datasets of a few bytes, for a server on this machine."""

import dataclasses
import hashlib
import io
import tarfile
from pathlib import Path

from coset.data._content import Part
from coset.data._sources import Download, Source
from coset.data.catalog import CATALOG

ONE, TWO = b"the first file" * 1000, b"the second file" * 1000


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def listing(folder: Path) -> list[str]:
    """All files, and folders with nothing in them."""
    paths = (path for path in folder.rglob("*") if path.is_file() or not any(path.iterdir()))
    return sorted(str(path.relative_to(folder)) for path in paths)


def register(monkeypatch, name: str, parts: tuple[Part, ...], downloads: tuple[Download, ...]) -> None:
    """A dataset with these files, which are not to be read as one."""
    entry = dataclasses.replace(
        CATALOG["mnist"], name=name, parts=parts, source=Source("http://127.0.0.1:1/", downloads)
    )
    monkeypatch.setitem(CATALOG, name, entry)


def tar(members: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()
