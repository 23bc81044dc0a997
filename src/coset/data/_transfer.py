"""One file over HTTP: resumed where it stopped, checked, and visible only when whole."""

import hashlib
import http.client
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from coset.errors import InputError, one_line

CHUNK = 1 << 18
TIMEOUT = 60.0  # seconds without a byte


def transfer(url: str, target: Path, *, sha256: str | None = None, report: Callable[[int, int], None]) -> None:
    """Download ``url`` to ``target``.

    Bytes gather in ``target.part``, which stays behind when the transfer is cut and is continued by the next call. If
    ``sha256`` is given and the file has another, it is deleted. ``report(done, total)`` is told of every chunk, with
    total 0 where the server does not say it.
    """
    part = target.with_name(f"{target.name}.part")
    for path in (target, part):
        if path.is_dir():
            raise InputError(f"{path}: is a folder, expected a file or nothing there")
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{part.parent}: cannot be made: {error.strerror}") from error
    try:
        _receive(url, part, sha256, report)
    except urllib.error.HTTPError as error:
        raise _answered(url, error.code, error.reason) from error
    except urllib.error.URLError as error:
        raise InputError(f"{url}: cannot be reached: {one_line(error.reason)}") from error
    except (OSError, http.client.HTTPException) as error:
        raise _cut(url, part, one_line(error) or type(error).__name__) from error
    if sha256 is not None:
        found = file_sha256(part)
        if found != sha256:
            part.unlink()
            raise InputError(f"{url}: SHA-256 is {found}, expected {sha256}; the download was deleted")
    part.replace(target)


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _receive(url: str, part: Path, sha256: str | None, report: Callable[[int, int], None]) -> None:
    """Append to ``part`` what is still missing of it."""
    done = part.stat().st_size if part.exists() else 0
    try:
        response = _open(url, done)
    except urllib.error.HTTPError as error:
        if error.code == 416 and done:
            _beyond_the_end(url, part, sha256, error.headers.get("Content-Range", ""))
            return
        raise
    with response:
        if response.status == 206:
            _check_start(url, part, done, response.headers.get("Content-Range", ""))
        elif response.status == 200:
            done = 0  # A server without ranges sends the file from its first byte.
        else:
            raise _answered(url, response.status, response.reason)
        total = _total(url, done, response.headers.get("Content-Length"))
        with part.open("ab" if done else "wb") as file:
            while chunk := response.read(CHUNK):
                file.write(chunk)
                done += len(chunk)
                report(done, total)
    if done < total:
        raise _cut(url, part, f"{done} of {total} bytes arrived")


def _open(url: str, done: int) -> http.client.HTTPResponse:
    """The answer to a request for ``url`` from byte ``done`` on."""
    if not url.startswith(("http://", "https://")):
        raise InputError(f"{url}: expected an address that starts with http:// or https://")
    try:
        request = urllib.request.Request(url, headers={"User-Agent": "coset"})
        if done:
            request.add_header("Range", f"bytes={done}-")
        response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT)
    except (ValueError, http.client.InvalidURL) as error:  # of the address, or of one it leads to
        raise InputError(f"{url}: not an address that can be asked: {one_line(error)}") from error
    return response


def _total(url: str, done: int, length: str | None) -> int:
    """The size of the whole file by what the server says is to come after byte ``done``; 0 if it says nothing."""
    if length is None:
        return 0
    if not (length.isascii() and length.isdigit()):
        raise InputError(f"{url}: the server announced the length {length!r}, expected a number of bytes")
    return done + int(length)


def _answered(url: str, code: int, reason: str) -> InputError:
    return InputError(f"{url}: the server answered {code} {one_line(reason)}, expected the file")


def _cut(url: str, part: Path, what: str) -> InputError:
    return InputError(f"{url}: the transfer was cut: {what}; run the same command again to continue {part}")


def _check_start(url: str, part: Path, done: int, content_range: str) -> None:
    if not content_range.startswith(f"bytes {done}-"):
        raise InputError(
            f"{url}: the server sent the range {content_range!r}, expected one that starts at byte {done}; "
            f"delete {part} to start afresh"
        )


def _beyond_the_end(url: str, part: Path, sha256: str | None, content_range: str) -> None:
    """Nothing follows the part: it is whole, or it belongs to another version of the file."""
    done = part.stat().st_size
    # Not every server says how long the file is; the checksum says whether this is all of it.
    whole = content_range == f"bytes */{done}" if sha256 is None else file_sha256(part) == sha256
    if not whole:
        part.unlink()
        raise InputError(
            f"{url}: cannot continue from byte {done} (the server says {content_range!r}); the part was deleted, "
            "run the same command again to start afresh"
        )
