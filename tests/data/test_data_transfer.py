"""One file over HTTP: whole or not there, and continued where it stopped."""

import hashlib
import socket

import pytest

from coset.data import transfer as transferring
from coset.data.transfer import file_sha256, transfer
from coset.errors import InputError

CONTENT = bytes(range(256)) * 400
SHA256 = hashlib.sha256(CONTENT).hexdigest()


def ignore(done: int, total: int) -> None:
    return None


@pytest.fixture
def address(server, monkeypatch):
    monkeypatch.setattr(transferring, "CHUNK", 1000)
    server.files["file.bin"] = CONTENT
    return f"{server.address}file.bin"


def test_whole_file(address, tmp_path):
    steps = []
    transfer(address, tmp_path / "deep" / "file.bin", sha256=SHA256, report=lambda *step: steps.append(step))
    assert (tmp_path / "deep" / "file.bin").read_bytes() == CONTENT
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["file.bin"]
    assert steps[-1] == (len(CONTENT), len(CONTENT))
    assert [done for done, _ in steps] == sorted({done for done, _ in steps})
    assert file_sha256(tmp_path / "deep" / "file.bin") == SHA256


def test_cut_transfer_is_continued(address, server, tmp_path):
    target = tmp_path / "file.bin"
    server.hang_up_after = 30_000
    with pytest.raises(InputError, match=r"the transfer was cut: 30000 of 102400 bytes arrived; run the same command"):
        transfer(address, target, sha256=SHA256, report=ignore)
    assert not target.exists()
    assert (tmp_path / "file.bin.part").read_bytes() == CONTENT[:30_000]
    server.hang_up_after = None
    transfer(address, target, sha256=SHA256, report=ignore)
    assert target.read_bytes() == CONTENT
    assert server.asked == [("/file.bin", None), ("/file.bin", "bytes=30000-")]
    assert [path.name for path in tmp_path.iterdir()] == ["file.bin"]


def test_server_without_ranges_starts_afresh(address, server, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(b"x" * 500)
    server.ranges = False
    transfer(address, tmp_path / "file.bin", sha256=SHA256, report=ignore)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert server.asked == [("/file.bin", "bytes=500-")]


def test_interrupted_transfer_leaves_only_the_part(address, tmp_path):
    def interrupt(done: int, total: int) -> None:
        if done > 5000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        transfer(address, tmp_path / "file.bin", sha256=SHA256, report=interrupt)
    assert [path.name for path in tmp_path.iterdir()] == ["file.bin.part"]
    part = (tmp_path / "file.bin.part").read_bytes()
    assert 5000 < len(part) < len(CONTENT)
    assert CONTENT.startswith(part)


def test_wrong_checksum_deletes_the_download(address, server, tmp_path):
    server.files["file.bin"] = CONTENT[:-1] + b"!"
    found = hashlib.sha256(server.files["file.bin"]).hexdigest()
    with pytest.raises(InputError, match=f"SHA-256 is {found}, expected {SHA256}; the download was deleted"):
        transfer(address, tmp_path / "file.bin", sha256=SHA256, report=ignore)
    assert not list(tmp_path.iterdir())


def test_part_of_another_file_is_found_out(address, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(b"x" * 500)
    with pytest.raises(InputError, match="the download was deleted"):
        transfer(address, tmp_path / "file.bin", sha256=SHA256, report=ignore)
    assert not list(tmp_path.iterdir())


def test_whole_part_is_taken(address, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(CONTENT)
    transfer(address, tmp_path / "file.bin", sha256=SHA256, report=ignore)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_part_longer_than_the_file_is_deleted(address, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(CONTENT + b"more")
    with pytest.raises(InputError, match=r"cannot continue from byte 102404 .*'bytes \*/102400'.*the part was deleted"):
        transfer(address, tmp_path / "file.bin", sha256=SHA256, report=ignore)
    assert not list(tmp_path.iterdir())


def test_length_may_be_unknown(address, server, tmp_path):
    server.announces_length = False
    steps = []
    transfer(address, tmp_path / "file.bin", sha256=SHA256, report=lambda *step: steps.append(step))
    assert steps[-1] == (len(CONTENT), 0)


def test_checksum_may_be_unknown(address, tmp_path):
    transfer(address, tmp_path / "file.bin", report=ignore)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_missing_file_is_named(address, server, tmp_path):
    with pytest.raises(InputError, match=r"other.bin: the server answered 404 Not Found, expected the file"):
        transfer(f"{server.address}other.bin", tmp_path / "file.bin", report=ignore)
    assert not list(tmp_path.iterdir())


def test_wrong_range_is_refused(address, server, tmp_path, monkeypatch):
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:500])
    answer = server.answer

    def shifted(handler) -> None:
        handler.headers.replace_header("Range", "bytes=400-")
        answer(handler)

    monkeypatch.setattr(server, "answer", shifted)
    with pytest.raises(
        InputError, match=r"the server sent the range 'bytes 400-.*expected one that starts at byte 500"
    ):
        transfer(address, tmp_path / "file.bin", sha256=SHA256, report=ignore)
    assert (tmp_path / "file.bin.part").read_bytes() == CONTENT[:500]


def test_unreachable_server_is_named(tmp_path):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    with pytest.raises(InputError, match=rf"http://127.0.0.1:{port}/file.bin: cannot be reached"):
        transfer(f"http://127.0.0.1:{port}/file.bin", tmp_path / "file.bin", report=ignore)


def test_silent_server_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(transferring, "TIMEOUT", 0.05)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(InputError, match="timed out"):
            transfer(f"http://127.0.0.1:{silent.getsockname()[1]}/x", tmp_path / "x", report=ignore)
    assert not (tmp_path / "x").exists()


def test_only_http_is_followed(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("text")
    with pytest.raises(InputError, match="expected an address that starts with http:// or https://"):
        transfer(secret.as_uri(), tmp_path / "file.bin", report=ignore)


def test_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match="cannot be made"):
        transfer("http://127.0.0.1:1/x", tmp_path / "file" / "x", report=ignore)
