"""Folders of weights as Hugging Face writes them: one file or shards with an index, a configuration, a tokenizer."""

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from coset._files.atomic import parse_json
from coset.errors import InputError

WHOLE = ("model.safetensors", "diffusion_pytorch_model.safetensors", "pytorch_model.bin")
"""Names of the one file of weights in a folder, the likeliest first."""

INDICES = tuple(f"{name}.index.json" for name in WHOLE)
"""Names of the file that says in which shard each tensor lies."""

_BESIDE = (".json", ".txt", ".model", ".jinja", ".tiktoken", ".spm", ".vocab", ".md")
"""What stands beside weights and belongs to the model: configuration, tokenizer, card; never code."""


def shards_of(folder: Path) -> dict[str, list[str] | None]:
    """File → the tensors that an index says are in it, in the order of the files; None where there is no index."""
    for name in INDICES:
        if (folder / name).is_file():
            return _indexed(folder / name)
    for name in WHOLE:
        if (folder / name).is_file():
            return {name: None}
    raise InputError(
        f"{folder} is a folder without weights; expected one with {', '.join(WHOLE)} or an index of shards in it"
    )


def _indexed(index: Path) -> dict[str, list[str] | None]:
    content = parse_json(index.read_text(encoding="utf-8"), str(index))
    places = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(places, dict) or not all(isinstance(file, str) for file in places.values()) or not places:
        raise InputError(f"{index} has no weight_map from names of tensors to files")
    shards: dict[str, list[str] | None] = {}
    for name, file in places.items():
        if Path(file).name != file:
            raise InputError(f"{index} puts {name!r} into {file!r}; expected a file of the same folder")
        held = shards.setdefault(file, [])
        assert held is not None
        held.append(name)
    return dict(sorted(shards.items()))


def digest_of(parts: Mapping[str, str]) -> str:
    """One SHA-256 of all files, from their names and theirs."""
    return hashlib.sha256(json.dumps(dict(sorted(parts.items()))).encode()).hexdigest()


def sharded(like: Path, params: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """``params`` in files as those of the folder ``like``; a file of pickles becomes one of safetensors."""
    held: dict[str, dict[str, Tensor]] = {}
    for file, names in shards_of(like).items():
        held[renamed(file)] = {name: params[name] for name in (params if names is None else names)}
    return held


def renamed(file: str) -> str:
    """The name of a shard when it is written: safetensors."""
    if not file.endswith(".bin"):
        return file
    return file.removesuffix(".bin").replace("pytorch_model", "model") + ".safetensors"


def copy_beside(like: Path, folder: Path) -> None:
    """Copy configuration and tokenizer; the index names the files that are written."""
    for path in sorted(like.iterdir()):
        if path.name in INDICES:
            content = json.loads(path.read_text(encoding="utf-8"))
            content["weight_map"] = {name: renamed(file) for name, file in content["weight_map"].items()}
            name = f"{renamed(path.name.removesuffix('.index.json'))}.index.json"
            (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        elif path.is_file() and path.suffix in _BESIDE and not path.name.endswith(".index.json"):
            shutil.copyfile(path, folder / path.name)
