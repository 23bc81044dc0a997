"""A server on this machine that can behave badly, and files in the formats that the readers read."""

import dataclasses
import gzip
import struct
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from small_datasets import ONE, TWO, register, sha256

from coset.data._content import Part, checksum
from coset.data._plain import Raw
from coset.data._sources import Download, Source
from coset.data.catalog import CATALOG, Entry
from coset.data.cifar import write_slice

IDX_CODES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}


def encode_idx(array: np.ndarray) -> bytes:
    """An IDX file, written independently of the reader."""
    code = IDX_CODES[array.dtype.str[1:]]
    header = struct.pack(f">HBB{array.ndim}I", 0, code, array.ndim, *array.shape)
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


@pytest.fixture(scope="session")
def idx_bytes() -> Callable[[np.ndarray], bytes]:
    return encode_idx


@pytest.fixture
def mnist_files(tmp_path: Path) -> Path:
    """Seven train and three test images, one of the files not compressed."""
    folder = tmp_path / "mnist"
    folder.mkdir()
    random = np.random.default_rng(0)
    for prefix, count in (("train", 7), ("t10k", 3)):
        images = random.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = np.arange(count, dtype=np.uint8)
        (folder / f"{prefix}-images-idx3-ubyte.gz").write_bytes(gzip.compress(encode_idx(images)))
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(encode_idx(labels))
    return folder


class Server:
    """Serves ``files``; counts what was asked for; may ignore ranges or hang up after some bytes."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.ranges = True
        self.announces_length = True
        self.hang_up_after: int | None = None
        self.asked: list[tuple[str, str | None]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.answer(self)

            def log_message(self, *_: object) -> None:
                return None

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}/"

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        wanted = handler.headers.get("Range")
        self.asked.append((handler.path, wanted))
        content = self.files.get(handler.path.removeprefix("/"))
        if content is None:
            handler.send_error(404)
            return
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and self.ranges else 0
        if start and start >= len(content):
            handler.send_response(416)
            handler.send_header("Content-Range", f"bytes */{len(content)}")
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return
        handler.send_response(206 if start else 200)
        if start:
            handler.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        if self.announces_length:
            handler.send_header("Content-Length", str(len(content) - start))
        handler.end_headers()
        handler.wfile.write(content[start : len(content) if self.hang_up_after is None else self.hang_up_after])

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.close()


@pytest.fixture
def tiny(server, monkeypatch):
    """A dataset of two compressed files, "tiny", on the server."""
    packed = {"one.gz": gzip.compress(ONE, mtime=0), "two.gz": gzip.compress(TWO, mtime=0)}
    server.files.update(packed)
    parts = (Part(("tiny/one",), "bytes", sha256(ONE)), Part(("tiny/two",), "bytes", sha256(TWO)))
    downloads = tuple(Download(name, ((name, f"tiny/{name}"),), sha256(content)) for name, content in packed.items())
    register(monkeypatch, "tiny", parts, downloads)
    return server


@pytest.fixture
def small_cifar10(monkeypatch, tmp_path) -> Raw:
    """CIFAR-10 with 2,001 train and 1,001 test images, registered with the checksum of its slice."""
    x_train, x_test = np.zeros((2001, 3, 32, 32), np.uint8), np.zeros((1001, 3, 32, 32), np.uint8)
    x_train[:, 0, 0, 0], x_test[:, 0, 0, 0] = np.arange(2001) % 10, np.arange(1001) % 7
    raw = Raw(x_train, x_train[:, 0, 0, 0], x_test, x_test[:, 0, 0, 0], scale=255.0)
    write_slice(raw, tmp_path / "reference" / "cifar10-slice.npz")
    part = CATALOG["cifar10-slice"].parts[0]
    known = dataclasses.replace(part, sha256=checksum(part, tmp_path / "reference"))
    monkeypatch.setitem(CATALOG, "cifar10-slice", dataclasses.replace(CATALOG["cifar10-slice"], parts=(known,)))
    entry: Entry = dataclasses.replace(
        CATALOG["cifar10"], parts=(Part(("whole.bin",), "bytes", sha256(b"whole")),), read=lambda *_: raw
    )
    download = Download("whole.bin", (("whole.bin", "whole.bin"),), sha256(b"whole"))
    entry = dataclasses.replace(entry, source=Source("http://127.0.0.1:1/", (download,)))
    monkeypatch.setitem(CATALOG, "cifar10", entry)
    return raw
