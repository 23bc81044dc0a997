"""Distributions in files: one safetensors file for each, of every kind.

Tensors: ``<part>/<name>`` such as ``mean/layers.0.weight``, each tied tensor once; those of the components of a mixture
behind ``0/``, ``1/``, …. Of draws, a tensor that is one point repeated over chains and draws is stored once, without
these axes. Metadata: under ``coset.distribution``, as JSON, in ``content`` the ``kind``, the names in their order with
the tensor that each stands for, of draws those that are ``repeated``, and for a mixture the same of its components; in
``symmetry`` the fingerprint of the group that they are for, if it was given; and what ``_files.sealed`` adds, checksums
of everything. Whatever the user adds stands beside it. Schema 1 had neither checksums nor fingerprints.
"""

import os
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from coset._files.atomic import parse_json
from coset._files.sealed import TEXTS, checksum_key, unsealed, write_sealed
from coset.checkpoints import Checkpoint, read_checkpoint
from coset.checkpoints.reading import require_finite
from coset.distribution.delta import Delta
from coset.distribution.gaussian import Gaussian
from coset.distribution.low_rank import LowRank
from coset.distribution.mean_field import MeanField
from coset.distribution.mixture import Distribution, Mixture
from coset.distribution.samples import Samples
from coset.distribution.ties import ties
from coset.errors import InputError
from coset.symmetry import Symmetry
from coset.symmetry.storage import require_fingerprint

SCHEMA = 2
KEY = "coset.distribution"

_FORMAT = "format"
"""What other libraries read from the header of a safetensors file: where its tensors come from."""

_OWN = (KEY, checksum_key(KEY), _FORMAT)

_MAPPINGS: dict[str, tuple[type, tuple[str, ...]]] = {
    "delta": (Delta, ("params",)),
    "mean-field": (MeanField, ("mean", "std")),
    "samples": (Samples, ("params",)),
    "gaussian": (Gaussian, ("mean",)),
    "low-rank": (LowRank, ("mean", "diagonal", "factors")),
    "mixture": (Mixture, ()),
}
"""Kind → its class and which of its parts are dicts of tensors."""


def save_distribution(
    q: Distribution,
    path: str | os.PathLike[str],
    metadata: Mapping[str, str] | None = None,
    *,
    sym: Symmetry | None = None,
) -> None:
    """Write ``q`` to a safetensors file, whole or not at all; values, types, names, their order and ties are kept.

    ``metadata``: texts to keep beside it, see ``load_metadata``; "format" is the file's own. ``sym``: the symmetry of
    the weights, whose fingerprint the file then has.
    """
    for name, text in (metadata or {}).items():
        if name in _OWN:
            raise InputError(f"metadata has {name!r}, which is the file's own; expected other names")
        if not isinstance(name, str) or not isinstance(text, str):
            raise InputError(f"metadata {name!r} is {text!r}; expected a text")
    tensors, description = pack(q)
    for name, tensor in tensors.items():
        require_finite(name, tensor, f"what is to be written to {path}")
    content = {"content": description, "symmetry": None if sym is None else sym.fingerprint}
    write_sealed(Path(path), KEY, SCHEMA, tensors, content, {**(metadata or {}), _FORMAT: "pt"})


def load_distribution(path: str | os.PathLike[str], *, sym: Symmetry | None = None) -> Distribution:
    """Read what ``save_distribution`` wrote, on the CPU; anything else is an InputError that names the file.

    With ``sym`` a file that was written for another symmetry is refused.
    """
    found, description = _read(path)
    try:
        if sym is not None:
            require_fingerprint(description.get("symmetry"), sym, "it")
        return unpack(found.params, description["content"])
    except InputError as error:
        # Names from the file may be in it, with ends of lines.
        raise InputError(f"{found.where} holds no distribution: {' '.join(str(error).split())}") from error
    except (KeyError, TypeError, AttributeError, RuntimeError, OverflowError) as error:
        told = " ".join(repr(error).split())
        raise InputError(f"{found.where} is damaged: {told} in what it says of its content") from error


def load_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """The texts that were saved beside a distribution."""
    found, description = _read(path)
    # Schema 1 did not say which they are.
    names = description.get(TEXTS, {}) if "format" in description else found.metadata
    return {name: found.metadata[name] for name in names if name not in _OWN}


def pack(q: Distribution) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of ``q`` under names of their own, and a description in plain values of what is where."""
    tensors: dict[str, Tensor] = {}
    return tensors, _pack(q, "", tensors)


def unpack(tensors: Mapping[str, Tensor], description: Mapping[str, Any]) -> Distribution:
    """The distribution that ``pack`` took apart."""
    return _unpack(description, "", tensors)


def _pack(q: Distribution, prefix: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Put the tensors of ``q`` into ``tensors`` and say what is where."""
    kinds = {cls: kind for kind, (cls, _) in _MAPPINGS.items()}
    if type(q) not in kinds:
        known = ", ".join(cls.__name__ for cls in kinds)
        raise InputError(f"a {type(q).__name__} cannot be saved; expected one of {known}")
    kind = kinds[type(q)]
    description: dict[str, Any] = {"kind": kind}
    for part in _MAPPINGS[kind][1]:
        params = dict(getattr(q, part))
        description[part] = ties(params)
        tensors |= {f"{prefix}{part}/{name}": params[name] for name in description[part].values()}
    if isinstance(q, Samples):
        points = [name for name in dict.fromkeys(description["params"].values()) if _is_repeated(q.params[name])]
        tensors |= {f"{prefix}params/{name}": q.params[name][0, 0] for name in points}
        if points:
            description["repeated"] = {"over": [q.chains, q.draws], "names": points}
    if isinstance(q, Gaussian):
        tensors[f"{prefix}covariance"] = q.covariance
        description["names"] = list(q.names)
    if isinstance(q, Mixture):
        tensors[f"{prefix}weights"] = q.weights
        description["components"] = [
            _pack(component, f"{prefix}{number}/", tensors) for number, component in enumerate(q.components)
        ]
    return description


def _unpack(description: Mapping[str, Any], prefix: str, tensors: Mapping[str, Tensor]) -> Distribution:
    kind = description["kind"]
    if kind not in _MAPPINGS:
        raise InputError(f"its kind is {reprlib.repr(kind)}; expected one of {', '.join(_MAPPINGS)}")
    cls, mappings = _MAPPINGS[kind]
    parts: dict[str, Any] = {
        part: {name: _tensor(tensors, f"{prefix}{part}/{one}") for name, one in description[part].items()}
        for part in mappings
    }
    if cls is Samples and "repeated" in description:
        views = _repeated(parts["params"], description["repeated"])
        parts["params"] |= {name: views[one] for name, one in description["params"].items() if one in views}
    if cls is Gaussian:
        parts |= {"covariance": _tensor(tensors, f"{prefix}covariance"), "names": tuple(description["names"])}
    if cls is Mixture:
        rows = enumerate(description["components"])
        parts["components"] = [_unpack(component, f"{prefix}{number}/", tensors) for number, component in rows]
        parts["weights"] = _tensor(tensors, f"{prefix}weights")
    built: Distribution = cls(**parts)
    return built


def _is_repeated(tensor: Tensor) -> bool:
    """Whether draws (chains, draws, …) are one point, expanded; a single draw is as small either way."""
    steps = [step for size, step in zip(tensor.shape[:2], tensor.stride()[:2], strict=True) if size > 1]
    return bool(steps) and not any(steps)


def _repeated(points: Mapping[str, Tensor], description: Mapping[str, Any]) -> dict[str, Tensor]:
    """The points that ``description`` names as views (chains, draws, …); one for all the names of a tied tensor."""
    over = description["over"]
    if len(over) != 2 or not all(type(size) is int and size >= 1 for size in over):
        raise InputError(f"its points are repeated over {reprlib.repr(over)}; expected [chains, draws]")
    return {name: points[name].expand(*over, *points[name].shape) for name in description["names"]}


def _tensor(tensors: Mapping[str, Tensor], key: str) -> Tensor:
    if key not in tensors:
        raise InputError(f"the tensor {key!r} is missing")
    return tensors[key]


def _read(path: str | os.PathLike[str]) -> tuple[Checkpoint, dict[str, Any]]:
    """The file, and what it says of itself."""
    found = read_checkpoint(path)
    if KEY not in found.metadata:
        raise InputError(
            f"{found.where} is not a distribution: there is no {KEY!r} in its metadata; expected a file written by "
            f"save_distribution"
        )
    description = parse_json(found.metadata[KEY], f"{found.where} is damaged: its metadata {KEY!r}")
    if isinstance(description, dict) and description.get("schema") == 1:
        return found, description
    schema = description.get("format", description.get("schema")) if isinstance(description, dict) else None
    if schema != SCHEMA:
        raise InputError(f"{found.where} is a distribution of schema {reprlib.repr(schema)}; expected 1 or {SCHEMA}")
    return found, unsealed(found.params, found.metadata, KEY, SCHEMA, str(found.where), "distribution")
