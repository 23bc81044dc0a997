"""Fetching datasets from a server on this machine: checked, resumed, and visible only when whole."""

import gzip
import io
import zipfile

import pytest
from small_datasets import ONE, TWO, listing, register, sha256, tar

from coset.data import check, fetch, load
from coset.data._content import Part, checksum
from coset.data._sources import Download
from coset.data.catalog import CATALOG
from coset.errors import InputError


def test_fetch_and_fetch_again(tiny, tmp_path):
    paths = fetch("tiny", root=tmp_path, source=tiny.address)
    assert paths == (tmp_path / "tiny" / "one.gz", tmp_path / "tiny" / "two.gz")
    assert listing(tmp_path) == ["tiny/one.gz", "tiny/two.gz"]
    assert len(tiny.asked) == 2
    assert fetch("tiny", root=tmp_path, source=tiny.address) == paths
    assert len(tiny.asked) == 2


def test_default_root_is_the_cache(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("COSET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COSET_DATA", str(tmp_path / "read-only"))
    fetch("tiny", source=tiny.address.rstrip("/"))
    assert listing(tmp_path) == ["cache/data/tiny/one.gz", "cache/data/tiny/two.gz"]


def test_what_is_right_stays_and_what_is_wrong_is_replaced(tiny, tmp_path):
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "one").write_bytes(ONE)
    (tmp_path / "tiny" / "two").write_bytes(b"damaged")
    paths = fetch("tiny", root=tmp_path, source=tiny.address)
    assert paths == (tmp_path / "tiny" / "one", tmp_path / "tiny" / "two.gz")
    assert tiny.asked == [("/two.gz", None)]
    (tmp_path / "tiny" / "two.gz").write_bytes(b"no gzip")
    fetch("tiny", root=tmp_path, source=tiny.address)
    assert gzip.decompress((tmp_path / "tiny" / "two.gz").read_bytes()) == TWO


def test_cut_fetch_continues(tiny, tmp_path):
    size = len(tiny.files["one.gz"])
    tiny.hang_up_after = size // 2
    with pytest.raises(InputError, match=r"one.gz: the transfer was cut"):
        fetch("tiny", root=tmp_path, source=tiny.address)
    assert listing(tmp_path) == [".fetch-tiny/tiny/one.gz.part"]
    tiny.hang_up_after = None
    fetch("tiny", root=tmp_path, source=tiny.address)
    assert tiny.asked == [("/one.gz", None), ("/one.gz", f"bytes={size // 2}-"), ("/two.gz", None)]
    assert listing(tmp_path) == ["tiny/one.gz", "tiny/two.gz"]


def test_whole_files_of_a_cut_fetch_are_not_asked_for_again(tiny, tmp_path):
    second = tiny.files.pop("two.gz")
    with pytest.raises(InputError, match=r"two.gz: the server answered 404"):
        fetch("tiny", root=tmp_path, source=tiny.address)
    assert listing(tmp_path) == [".fetch-tiny/tiny/one.gz"]
    tiny.files["two.gz"] = second
    fetch("tiny", root=tmp_path, source=tiny.address)
    assert [path for path, _ in tiny.asked] == ["/one.gz", "/two.gz", "/two.gz"]
    assert listing(tmp_path) == ["tiny/one.gz", "tiny/two.gz"]


def test_wrong_checksum_installs_nothing(tiny, tmp_path):
    tiny.files["two.gz"] = gzip.compress(b"something else")
    with pytest.raises(InputError, match=r"two.gz: SHA-256 is .*; the download was deleted"):
        fetch("tiny", root=tmp_path, source=tiny.address)
    assert listing(tmp_path) == [".fetch-tiny/tiny/one.gz"]


NUMBERS = {"a.txt": b"1\n2\n", "b.txt": b"3\n"}


@pytest.fixture
def table(server, monkeypatch, tmp_path_factory):
    """A dataset "two/tables" whose files have no published checksum: their numbers are checked."""
    server.files.update({f"table/data/{name}": content for name, content in NUMBERS.items()})
    files = tuple(f"two/tables/{name}" for name in NUMBERS)
    written = tmp_path_factory.mktemp("written")
    for name, content in NUMBERS.items():
        (written / "two" / "tables").mkdir(parents=True, exist_ok=True)
        (written / "two" / "tables" / name).write_bytes(content)
    known = checksum(Part(files, "numbers", ""), written)
    downloads = tuple(Download(f"table/data/{name}", ((name, f"two/tables/{name}"),)) for name in NUMBERS)
    register(monkeypatch, "two/tables", (Part(files, "numbers", known),), downloads)
    return server


def test_numbers_are_checked_not_blanks(table, tmp_path):
    table.files["table/data/a.txt"] = b" 1.0 \r\n\r\n2e0"
    fetch("two/tables", root=tmp_path, source=table.address)
    assert listing(tmp_path) == ["two/tables/a.txt", "two/tables/b.txt"]


@pytest.mark.parametrize("content", [b"1\n2.5\n", b"1\n2\n3\n", b"<html>"])
def test_wrong_numbers_are_deleted(table, tmp_path, content):
    table.files["table/data/a.txt"] = content
    with pytest.raises(InputError, match=r"two/tables was not installed: .*a.txt.*; what came was deleted"):
        fetch("two/tables", root=tmp_path, source=table.address)
    assert listing(tmp_path) == []
    table.files["table/data/a.txt"] = NUMBERS["a.txt"]
    fetch("two/tables", root=tmp_path, source=table.address)
    assert listing(tmp_path) == ["two/tables/a.txt", "two/tables/b.txt"]


def offer_archive(server, monkeypatch, name: str, content: bytes) -> None:
    server.files[name] = content
    parts = (Part(("box/one.bin",), "bytes", sha256(ONE)),)
    register(monkeypatch, "boxed", parts, (Download(name, (("box/one.bin", "box/one.bin"),), sha256(content)),))


def test_archive_is_unpacked(server, monkeypatch, tmp_path):
    offer_archive(server, monkeypatch, "box.tar.gz", tar({"box/readme.html": b"hello", "box/one.bin": ONE}))
    assert fetch("boxed", root=tmp_path, source=server.address) == (tmp_path / "box" / "one.bin",)
    assert listing(tmp_path) == ["box/one.bin"]
    assert (tmp_path / "box" / "one.bin").read_bytes() == ONE


def test_zip_is_unpacked(server, monkeypatch, tmp_path):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("box/one.bin", ONE)
    offer_archive(server, monkeypatch, "box.zip", stream.getvalue())
    fetch("boxed", root=tmp_path, source=server.address)
    assert listing(tmp_path) == ["box/one.bin"]


def test_archive_that_leads_outside_is_refused(server, monkeypatch, tmp_path):
    offer_archive(server, monkeypatch, "box.tar.gz", tar({"box/one.bin": ONE, "../../../evil": b"evil"}))
    root = tmp_path / "root"
    with pytest.raises(InputError, match=r"'../../../evil' leads outside the archive; .*the download was deleted"):
        fetch("boxed", root=root, source=server.address)
    assert listing(tmp_path) == ["root"]


def test_archive_with_other_content_is_refused(server, monkeypatch, tmp_path):
    offer_archive(server, monkeypatch, "box.tar.gz", tar({"box/one.bin": TWO}))
    expected = f"box/one.bin: SHA-256 of the content is {sha256(TWO)}, expected {sha256(ONE)}; what came was deleted"
    with pytest.raises(InputError, match=expected):
        fetch("boxed", root=tmp_path, source=server.address)
    assert listing(tmp_path) == []


def test_slice_is_cut_from_cifar10(small_cifar10, monkeypatch, server, tmp_path):
    monkeypatch.setenv("COSET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COSET_DATA", str(tmp_path / "mine"))
    server.files["whole.bin"] = b"whole"
    fetch("cifar10-slice", root=tmp_path / "first", source=server.address)
    assert listing(tmp_path / "first") == ["cifar10-slice.npz", "whole.bin"]
    assert len(load("cifar10-slice", root=tmp_path / "first").train) == 2000
    # Where cifar10 is at hand already, nothing is downloaded.
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "whole.bin").write_bytes(b"whole")
    fetch("cifar10-slice", root=tmp_path / "second")
    assert listing(tmp_path / "second") == ["cifar10-slice.npz"]
    assert len(server.asked) == 1
    assert check("cifar10-slice", tmp_path / "second").ok


def test_slice_of_other_images_is_not_installed(small_cifar10, tmp_path):
    small_cifar10.x_train[0] += 1
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "whole.bin").write_bytes(b"whole")
    with pytest.raises(InputError, match=r"cifar10-slice was not installed: .*slice.npz: SHA-256 of the content"):
        fetch("cifar10-slice", root=tmp_path / "root")
    assert listing(tmp_path / "root") == ["whole.bin"]


def test_unreachable_server_leaves_nothing(tiny, tmp_path):
    with pytest.raises(InputError, match=r"http://127.0.0.1:1/one.gz: cannot be reached"):
        fetch("tiny", root=tmp_path)
    assert listing(tmp_path) == []


def test_embedded_datasets_need_no_fetch(tmp_path):
    assert fetch("digits", root=tmp_path) == ()
    assert listing(tmp_path) == []


def test_unknown_name_is_refused(tmp_path):
    with pytest.raises(InputError, match="dataset is 'imagenet'; expected one of"):
        fetch("imagenet", root=tmp_path)


@pytest.mark.parametrize("entry", CATALOG.values(), ids=lambda entry: entry.name)
def test_downloads_bring_all_files(entry):
    """Every file of every dataset comes from exactly one download, and nothing else does."""
    files = [file for part in entry.parts for file in part.files]
    brought = [
        file.removesuffix(".gz")
        for download in (entry.source.downloads if entry.source else ())
        for _, file in download.files
    ]
    assert sorted(brought) == (sorted(files) if entry.source else [])
    assert bool(entry.parts) == (entry.source is not None or entry.made_from is not None)


def test_progress_reaches_its_end(tiny, tmp_path, monkeypatch):
    steps = []

    class Bar:
        def advance(self, count: int = 1, note: str = "") -> None:
            steps.append(count)

    class Context:
        def __enter__(self) -> Bar:
            return Bar()

        def __exit__(self, *_: object) -> None:
            return None

    monkeypatch.setattr("coset.data._fetching.progress", lambda *_, **__: Context())
    fetch("tiny", root=tmp_path, source=tiny.address)
    assert sum(steps) == 2000
    assert min(steps) >= 0
