"""Archives: what is asked for comes out, what is unsafe does not."""

import contextlib
import io
import tarfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coset.data import _fetching as unpacking
from coset.data._fetching import is_archive, unpack
from coset.errors import InputError

FILES = (("box/one.bin", "out/one.bin"), ("box/two.bin", "out/2.bin"))


def tar(path: Path, members: dict[str, bytes], links: dict[str, str] | None = None) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        for name, target in (links or {}).items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            archive.addfile(member)
    return path


def zipped(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def pack(folder: Path, kind: str, members: dict[str, bytes]) -> Path:
    return tar(folder / "a.tar.gz", members) if kind == "tar" else zipped(folder / "a.zip", members)


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_only_what_is_asked_for_comes_out(tmp_path, kind):
    members = {"box/readme.html": b"hello", "box/one.bin": b"1", "./box/two.bin": b"22"}
    unpack(pack(tmp_path, kind, members), FILES, tmp_path / "target")
    found = {path.relative_to(tmp_path / "target"): path.read_bytes() for path in (tmp_path / "target").rglob("*.*")}
    assert found == {Path("out/one.bin"): b"1", Path("out/2.bin"): b"22"}


@pytest.mark.parametrize("kind", ["tar", "zip"])
@pytest.mark.parametrize("name", ["../evil.bin", "/tmp/evil.bin", "box/../../evil.bin", "..\\evil.bin"])
def test_member_that_leads_outside_is_refused(tmp_path, kind, name):
    archive = pack(tmp_path, kind, {"box/one.bin": b"1", "box/two.bin": b"2", name: b"evil"})
    with pytest.raises(InputError, match="leads outside the archive; nothing was unpacked"):
        unpack(archive, FILES, tmp_path / "target")
    assert list(tmp_path.iterdir()) == [archive]


def test_link_in_place_of_a_file_is_refused(tmp_path):
    archive = tar(tmp_path / "a.tar.gz", {"box/one.bin": b"1"}, {"box/two.bin": "/etc/passwd"})
    with pytest.raises(InputError, match=r"has no regular file box/two.bin"):
        unpack(archive, FILES, tmp_path / "target")
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_missing_member_is_named(tmp_path, kind):
    with pytest.raises(InputError, match=r"has no regular file box/two.bin"):
        unpack(pack(tmp_path, kind, {"box/one.bin": b"1"}), FILES, tmp_path / "target")
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_enormous_member_is_refused(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(unpacking, "LARGEST", 10)
    archive = pack(tmp_path, kind, {"box/one.bin": bytes(11), "box/two.bin": b"2"})
    with pytest.raises(InputError, match=r"member box/one.bin has 11 bytes, expected at most 10"):
        unpack(archive, FILES, tmp_path / "target")


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_damaged_archive_is_refused(tmp_path, kind):
    archive = pack(tmp_path, kind, {"box/one.bin": bytes(range(256)) * 40, "box/two.bin": b"2"})
    content = archive.read_bytes()
    archive.write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match="not a sound archive"):
        unpack(archive, FILES, tmp_path / "target")
    archive.write_bytes(b"something else")
    with pytest.raises(InputError, match="not a sound archive"):
        unpack(archive, FILES, tmp_path / "target")
    assert not (tmp_path / "target").exists()


def test_archives_are_known_by_their_suffix():
    assert is_archive("cifar-10-binary.tar.gz")
    assert is_archive("SPGP_dist.zip")
    assert not is_archive("train-images-idx3-ubyte.gz")


@given(st.sampled_from(["tar", "zip"]), st.data())
def test_no_damage_escapes_as_another_error(tmp_path_factory, kind, data):
    """Whatever bytes are changed or cut off: the archive is read or refused, never anything else."""
    folder = tmp_path_factory.mktemp("damage")
    archive = pack(folder, kind, {"box/one.bin": b"1" * 50, "box/two.bin": b"22"})
    content = bytearray(archive.read_bytes())
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=4)):
        content[place] = data.draw(st.integers(0, 255))
    archive.write_bytes(content[: data.draw(st.integers(len(content) // 2, len(content)))])
    with contextlib.suppress(InputError):
        unpack(archive, FILES, folder / "target")
        assert (folder / "target" / "out" / "2.bin").is_file()
