"""One file over HTTP: whole or not there, and continued where it stopped."""

import hashlib
import socket

import pytest

from coset.data import _transfer as transferring
from coset.data._transfer import file_sha256, transfer
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
        InputError, match=r"the server sent the range 'bytes 400-.*expected one that starts at byte 500; delete .*part"
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


def answering(server, monkeypatch, status: int, headers: dict[str, str], body: bytes = b"") -> None:
    """All requests get this one answer."""

    def answer(handler) -> None:
        server.asked.append((handler.path, handler.headers.get("Range")))
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body)

    monkeypatch.setattr(server, "answer", answer)


@pytest.mark.parametrize("length", ["abc", "-5", "1e3", "²"])
def test_length_that_is_no_number_is_refused(address, server, tmp_path, monkeypatch, length):
    answering(server, monkeypatch, 200, {"Content-Length": length}, CONTENT)
    with pytest.raises(InputError, match=r"the server announced the length '.*', expected a number of bytes"):
        transfer(address, tmp_path / "file.bin", sha256=SHA256, report=ignore)
    assert not list(tmp_path.iterdir())


def test_answer_without_the_file_is_refused(address, server, tmp_path, monkeypatch):
    answering(server, monkeypatch, 204, {})
    with pytest.raises(InputError, match=r"file.bin: the server answered 204 No Content, expected the file"):
        transfer(address, tmp_path / "file.bin", report=ignore)
    assert not list(tmp_path.iterdir())


def test_redirects_are_followed_with_the_range(address, server, tmp_path, monkeypatch):
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:500])
    answer = server.answer

    def redirect(handler) -> None:
        if handler.path == "/file.bin":
            answer(handler)
            return
        server.asked.append((handler.path, handler.headers.get("Range")))
        handler.send_response(302)
        handler.send_header("Location", "/file.bin")
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    monkeypatch.setattr(server, "answer", redirect)
    transfer(f"{server.address}moved.bin", tmp_path / "file.bin", sha256=SHA256, report=ignore)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert server.asked == [("/moved.bin", "bytes=500-"), ("/file.bin", "bytes=500-")]


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("/file.bin", "the server answered 302 .*infinite loop"),
        ("file:///etc/passwd", "the server answered 302 .*not allowed"),
        ("http://[bad/x", "not an address that can be asked: Invalid IPv6 URL"),
    ],
)
def test_redirects_that_lead_nowhere_are_refused_in_one_line(address, server, tmp_path, monkeypatch, place, message):
    answering(server, monkeypatch, 302, {"Location": place, "Content-Length": "0"})
    with pytest.raises(InputError, match=message) as refusal:
        transfer(address, tmp_path / "file.bin", report=ignore)
    assert len(str(refusal.value).splitlines()) == 1
    assert str(refusal.value).startswith(address)


@pytest.mark.parametrize("url", ["http://[bad/x", "http://127.0.0.1:80/a b", "http://127.0.0.1:port/x"])
def test_malformed_address_is_refused(tmp_path, url):
    with pytest.raises(InputError, match="not an address that can be asked: ") as refusal:
        transfer(url, tmp_path / "file.bin", report=ignore)
    assert str(refusal.value).startswith(url)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["file.bin", "file.bin.part"])
def test_folder_in_the_place_of_the_file_is_named(address, server, tmp_path, name):
    (tmp_path / name).mkdir()
    with pytest.raises(InputError, match=f"{name}: is a folder, expected a file or nothing there"):
        transfer(address, tmp_path / "file.bin", sha256=SHA256, report=ignore)
    assert server.asked == []


def test_whole_part_is_taken_from_a_server_that_does_not_say_the_size(address, server, tmp_path, monkeypatch):
    (tmp_path / "file.bin.part").write_bytes(CONTENT)
    answering(server, monkeypatch, 416, {"Content-Length": "0"})
    transfer(address, tmp_path / "file.bin", sha256=SHA256, report=ignore)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:-1])
    with pytest.raises(InputError, match="the part was deleted, run the same command again"):
        transfer(address, tmp_path / "file.bin", sha256=SHA256, report=ignore)
    assert not (tmp_path / "file.bin.part").exists()
