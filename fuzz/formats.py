"""Every format of files that coset reads: small originals, how they are read, and what can be damaged inside."""

import dataclasses
import gzip
import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from coset._files.sealed import read_sealed, write_sealed
from coset.checkpoints import read_checkpoint, write_checkpoint
from coset.cli.examples import _array
from coset.data._content import Part, checksum, verify
from coset.data._fetching import unpack
from coset.data._idx import read_mnist
from coset.data._plain import Raw
from coset.data._tables import read_snelson, read_uci
from coset.data.cifar import read_cifar10, read_cifar100, read_slice
from coset.distribution import (
    Delta,
    Distribution,
    Gaussian,
    LowRank,
    MeanField,
    Mixture,
    Samples,
    load_distribution,
    load_metadata,
    save_distribution,
)
from coset.distribution.files import KEY as DISTRIBUTION
from coset.distribution.files import pack
from coset.errors import InputError
from coset.store import Store
from coset.store._address import key_of_json
from coset.store._entry import _digest
from coset.study._report import read_results, text
from coset.symmetry import Element, Symmetry
from coset.symmetry.element import KEY as ELEMENT
from coset.symmetry.mixing import Mixed, Mixing
from coset.train import Recipe, fit
from coset.train._checkpoint import KEY as TRAINING
from fuzz.mutations import Mutation, in_gzip, in_header, in_json, in_npy, in_texts, in_zip, resealed


@dataclass(frozen=True)
class Format:
    """Files under their names, the function that reads them from a folder, and what may be done to them.

    ``sealed``: a checksum vouches for the content, so that only the original may be read. ``inside``: damage that a
    damaged file of this kind has behind a whole surface. ``craft``: gives a file new checksums and the name that
    belongs to them, so that what is behind these checks is reached; then other content is as good.
    """

    name: str
    files: Mapping[str, bytes]
    read: Callable[[Path], Any]
    sealed: bool = False
    inside: tuple[Mutation, ...] = ()
    craft: Callable[[str, bytes], tuple[str, bytes]] | None = None


def plain(value: Any) -> Any:
    """Any content as something that can be compared bit by bit."""
    if isinstance(value, Tensor):
        values = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        return str(value.dtype), tuple(value.shape), values.tobytes()
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, np.ascontiguousarray(value).tobytes()
    if isinstance(value, Raw):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return value


def formats(folder: Path) -> list[Format]:
    """All formats; the originals are written in ``folder`` first, as coset writes them."""
    written = [_training, _store, _elements, _distributions]
    made = [*_checkpoints(), *(form for make in written for form in make(folder)), *_data(), *_others()]
    assert len({form.name for form in made}) == len(made)
    return made


def _one(folder: Path, name: str, write: Callable[[Path], object]) -> dict[str, bytes]:
    """What ``write`` writes to a file."""
    write(folder / name)
    return {name: (folder / name).read_bytes()}


def _sealing(key: str) -> Callable[[str, bytes], tuple[str, bytes]]:
    return lambda name, content: (name, resealed(content, key))


def _weights() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "layer.weight": torch.randn(3, 2, generator=generator),
        "layer.bias": torch.randn(3, generator=generator, dtype=torch.float64).half(),
        "steps": torch.tensor(7),
    }


def _checkpoints() -> list[Format]:
    def read(folder: Path) -> Any:
        found = read_checkpoint(next(folder.iterdir()))
        return plain((found.params, found.metadata))

    def saved(**options: Any) -> bytes:
        stream = io.BytesIO()
        torch.save({"state_dict": _weights(), "epoch": 3}, stream, **options)
        return stream.getvalue()

    header = save(_weights(), {"format": "pt", "made": "by hand"})
    return [
        Format("checkpoint", {"w.safetensors": header}, read, inside=(in_header,)),
        Format("PyTorch file", {"w.pt": saved()}, read, inside=(in_zip,)),
        Format("older PyTorch file", {"w.pth": saved(_use_new_zipfile_serialization=False)}, read),
    ]


def _training(folder: Path) -> list[Format]:
    """Of a run that has ended: reading it does not train."""
    x, y = torch.linspace(-1, 1, 8).reshape(4, 2), torch.tensor([0, 1, 0, 1])
    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    recipe = Recipe(epochs=1, batch_size=4, learning_rate=0.1)

    def run(path: Path) -> Any:
        result = fit(model, x, y, recipe, seed=0, checkpoint=path, show=False)
        return plain((result.params, [dataclasses.asdict(epoch) for epoch in result.history], result.best_epoch))

    original = _one(folder, "run.checkpoint", run)
    key = "coset.fuzz"
    content = {"records": [{"loss": 1.5}], "run": {"seed": 0}}
    other = _one(folder, "state.checkpoint", lambda path: write_sealed(path, key, 1, _weights(), content, {"a": "b"}))
    return [
        Format(
            "training checkpoint",
            original,
            lambda folder: run(folder / "run.checkpoint"),
            sealed=True,
            inside=(in_header, in_texts),
            craft=_sealing(TRAINING),
        ),
        Format(
            "sealed file",
            other,
            lambda folder: plain(read_sealed(folder / "state.checkpoint", key, 1)),
            sealed=True,
            inside=(in_header, in_texts),
            craft=_sealing(key),
        ),
    ]


def _store(folder: Path) -> list[Format]:
    config = {"kind": "mlp", "widths": [2, 3]}
    path = Store(folder / "store").put(config, _weights(), info={"loss": 0.5, "history": [1, 2]}, cost=1.5).path
    name = f"{path.parent.name}/{path.name}"

    def read(folder: Path) -> Any:
        store = Store(folder)
        rows = store.entries() + store.entries(check=True)
        store.prune(keep=0, unreadable=True, dry_run=True)
        assert rows, "an entry is listed, whatever it is"
        assert all(len(row.problem.splitlines()) <= 1 for row in rows)
        found = [store.get(row.config) for row in rows if not row.problem] or [store.get(config)]
        entry = found[-1]
        if entry is None:
            (problem,) = {row.problem for row in rows[-1:]}
            raise InputError(problem)
        return plain((entry.config, entry.info, entry.params, entry.created.isoformat(), entry.version))

    return [
        Format(
            "store entry",
            {name: path.read_bytes()},
            read,
            sealed=True,
            inside=(in_header, in_texts),
            craft=_crafted_entry,
        )
    ]


def _crafted_entry(name: str, content: bytes) -> tuple[str, bytes]:
    """An entry with the checksum and the address of what it says."""
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    metadata = header["__metadata__"]
    fields = {key.removeprefix("coset."): value for key, value in metadata.items()}
    metadata["coset.digest"] = _digest(load(content), fields)
    written = json.dumps(header).encode()
    key = key_of_json(fields["config"])
    return f"{key[:2]}/{key}.safetensors", len(written).to_bytes(8, "little") + written + content[8 + size :]


def _symmetry() -> Symmetry:
    shapes = {"w1": (6, 4), "b1": (6,), "w2": (3, 6), "w3": (6,)}
    axes = {"w1": "h 4", "b1": "h", "w2": "3 h", "w3": "g[c]"}
    zeros = {name: torch.zeros(shape) for name, shape in shapes.items()}
    sym = Symmetry.from_axes(axes, zeros, scales={"h": "positive"}, sizes={"g": 2})
    mixing = Mixing("general", {"w1": (Mixed(1),), "b1": (Mixed(1),), "w2": (Mixed(-1, ("w3",)),)})
    return replace(sym, continuous={"h": mixing})


def _elements(folder: Path) -> list[Format]:
    sym = _symmetry()
    g = sym.random(torch.Generator().manual_seed(0))

    def read(folder: Path) -> Any:
        found = Element.load(next(folder.iterdir()))
        return plain(found._tensors())

    def read_with_symmetry(folder: Path) -> Any:
        return plain(Element.load(next(folder.iterdir()), sym)._tensors())

    old = save(
        {name: tensor.contiguous() for name, tensor in g._tensors().items()},
        {"format": ELEMENT, "version": "1"},
    )
    new = _one(folder, "g.safetensors", lambda path: g.save(path, sym))
    return [
        Format("element", new, read, sealed=True, inside=(in_header, in_texts), craft=_sealing(ELEMENT)),
        Format("element of a symmetry", new, read_with_symmetry, sealed=True, inside=(in_header,)),
        Format("element of version 1", {"g": old}, read, inside=(in_header,)),
    ]


def _kinds() -> dict[str, Distribution]:
    params = {"a": torch.ones(2, 2), "b": torch.arange(3.0)}
    tied = {"a": params["a"], "t": params["a"], "b": params["b"]}
    field = MeanField(params, {"b": torch.ones(3)})
    dense = Gaussian(params, torch.eye(3) + 0.1, ("b",))
    thin = LowRank(params, {"b": torch.ones(3)}, {"b": torch.ones(2, 3)})
    draws = Samples({"w": torch.arange(12.0).reshape(2, 3, 2), "p": torch.ones(2).expand(2, 3, 2)})
    return {
        "delta": Delta(tied),
        "mean-field": field,
        "gaussian": dense,
        "low-rank": thin,
        "samples": draws,
        "mixture": Mixture([field, Mixture([dense, Delta(params)], [0.5, 0.5])], [0.25, 0.75]),
    }


def _distributions(folder: Path) -> list[Format]:
    def read(folder: Path) -> Any:
        path = next(folder.iterdir())
        tensors, description = pack(load_distribution(path))
        return plain((tensors, json.dumps(description), load_metadata(path)))

    found = []
    for kind, q in _kinds().items():
        name = f"{kind}.safetensors"
        tensors, description = pack(q)
        old = {DISTRIBUTION: json.dumps({"schema": 1, "content": description})}
        save_distribution(q, folder / name, {"made": "here"}, sym=_symmetry())
        write_checkpoint(folder / f"old-{name}", tensors, old)
        new, before = ({file: (folder / file).read_bytes()} for file in (name, f"old-{name}"))
        found += [
            Format(f"{kind} distribution", new, read, True, (in_header, in_texts), _sealing(DISTRIBUTION)),
            Format(f"{kind} distribution of schema 1", before, read, inside=(in_header, in_texts)),
        ]
    return found


def _idx(array: np.ndarray[Any, Any]) -> bytes:
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()


def _data() -> list[Format]:
    rng = np.random.default_rng(0)
    images = {}
    for part, count in (("train", 3), ("t10k", 2)):
        images[f"{part}-images-idx3-ubyte"] = _idx(rng.integers(0, 255, (count, 28, 28)))
        images[f"{part}-labels-idx1-ubyte"] = _idx(np.arange(count))
    packed = {f"{name}.gz": gzip.compress(content, 1, mtime=0) for name, content in images.items()}
    records = {f"data_batch_{k}.bin": bytes([k]) + rng.bytes(3072) for k in range(1, 6)}
    records["test_batch.bin"] = bytes([0]) + rng.bytes(3072)
    fine = {name: bytes([1, 99]) + rng.bytes(3072) for name in ("train.bin", "test.bin")}
    table = "\n".join(" ".join(f"{value:.3f}" for value in row) for row in rng.normal(size=(6, 3)))
    uci = {"data.txt": table, "index_features.txt": "0\n1\n", "index_target.txt": "2\n"}
    uci |= {"index_train_0.txt": "0\n1\n2\n4\n", "index_test_0.txt": "3\n5\n"}
    tables = {name: content.encode() for name, content in uci.items()}
    curve = dict.fromkeys(("train_inputs.dat", "train_outputs.dat", "test_inputs.dat"), b"1.5\n2.5\n")
    slices = {name: np.zeros((1, 3, 32, 32) if name[0] == "x" else (1,), np.uint8) for name in _SLICE}
    stream = io.BytesIO()
    np.savez_compressed(stream, allow_pickle=False, **slices)
    return [
        Format("IDX", images, lambda folder: plain(read_mnist(folder, 3, 2))),
        Format("compressed IDX", packed, lambda folder: plain(read_mnist(folder, 3, 2)), inside=(in_gzip,)),
        _published("published IDX", images, packed, lambda folder: read_mnist(folder, 3, 2)),
        Format("CIFAR-10", records, lambda folder: plain(read_cifar10(folder, 1))),
        Format("CIFAR-100", fine, lambda folder: plain(read_cifar100(folder, 1, 1))),
        Format(
            "slice of CIFAR-10",
            {"slice.npz": stream.getvalue()},
            lambda folder: plain(read_slice(folder / "slice.npz", 1, 1)),
            inside=(in_zip,),
        ),
        Format("table", tables, lambda folder: plain(read_uci(folder, 0))),
        Format("curve", curve, lambda folder: plain(read_snelson(folder))),
    ]


_SLICE = ("x_train", "y_train", "x_test", "y_test")


def _published(
    name: str, files: Mapping[str, bytes], packed: Mapping[str, bytes], read: Callable[[Path], Raw]
) -> Format:
    """Files of a dataset whose content is known by checksums, as ``coset.data.load`` reads them."""
    parts = [Part((file,), "bytes", hashlib.sha256(content).hexdigest()) for file, content in files.items()]

    def verified(folder: Path) -> Any:
        for part in parts:
            assert checksum(part, folder), "of 64 letters"
            verify(part, folder)
        return plain(read(folder))

    return Format(name, packed, verified, sealed=True, inside=(in_gzip,))


def _others() -> list[Format]:
    array = np.arange(12.0).reshape(3, 4)
    single, several, packed = io.BytesIO(), io.BytesIO(), io.BytesIO()
    np.save(single, array)
    np.savez(several, x=array, y=array)
    np.savez_compressed(packed, x_train=array)

    def arrays(folder: Path) -> Any:
        return plain(_array(next(folder.iterdir()), "train"))

    def symmetry(folder: Path) -> Any:
        sym = Symmetry.load(folder / "sym.json")
        return sym.to_json(), sym.fingerprint, str(sym)

    def study(folder: Path) -> Any:
        run = read_results(folder)
        return text(run).replace(str(folder), ""), plain(run.results())

    return [
        Format("NumPy array", {"x.npy": single.getvalue()}, arrays, inside=(in_npy,)),
        Format("NumPy archive", {"x.npz": several.getvalue()}, arrays, inside=(in_zip,)),
        Format("compressed NumPy archive", {"x.npz": packed.getvalue()}, arrays, inside=(in_zip,)),
        Format("symmetry", {"sym.json": _symmetry().to_json().encode()}, symmetry, inside=(in_json, in_json, in_json)),
        Format("results of a study", {"results.json": _results()}, study, inside=(in_json, in_json, in_json)),
        *_archives(),
    ]


def _results() -> bytes:
    texts = ("title", "reference", "paper", "outcome", "caption", "device", "preset")
    tables = {"means": {"caption": "Means.", "columns": ["a", "b"], "rows": [[1, None], [0.5, "x"]]}}
    content = {
        "schema": 1,
        "study": "toy",
        **dict.fromkeys(texts, "Some words."),
        "seed": 0,
        "config": {"widths": [2, 3]},
        "numbers": {"loss": 0.5, "sound": True},
        "tables": tables,
        "versions": {"coset": "0.1"},
        "times": {"started": "now", "seconds": 1.5, "processor": 2.5},
    }
    return json.dumps(content, indent=2).encode()


def _archives() -> list[Format]:
    """Downloads that hold the files of a dataset."""
    members = {"set/a.bin": b"abc" * 50, "set/b.bin": bytes(200)}
    wanted = tuple((name, name) for name in members)
    tar, bundle = io.BytesIO(), io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    with zipfile.ZipFile(bundle, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, content in members.items():
            zipped.writestr(name, content)

    def reader(name: str) -> Callable[[Path], Any]:
        def read(folder: Path) -> Any:
            unpack(folder / name, wanted, folder / "unpacked")
            return {file: (folder / "unpacked" / file).read_bytes() for _, file in wanted}

        return read

    return [
        Format("tar archive", {"set.tar.gz": tar.getvalue()}, reader("set.tar.gz"), inside=(in_gzip,)),
        Format("zip archive", {"set.zip": bundle.getvalue()}, reader("set.zip"), inside=(in_zip,)),
    ]
