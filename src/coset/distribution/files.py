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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from coset._files.atomic import parse_json
from coset._files.sealed import TEXTS, checksum_key, unsealed, write_sealed
from coset.checkpoints import Checkpoint, read_checkpoint
from coset.checkpoints.reading import require_finite
from coset.distribution.contract import Distribution, unwrapped
from coset.distribution.delta import Delta
from coset.distribution.gaussian import Gaussian
from coset.distribution.low_rank import LowRank
from coset.distribution.mean_field import MeanField
from coset.distribution.mixture import Mixture
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


@dataclass(frozen=True)
class Kind:
    """How a class of distributions stands in a file: which of its fields are what; ``cls(**fields)`` makes it again.

    ``mappings``: dicts of tensors; ``tensors``; ``values``: what JSON can hold, lists come back as tuples; ``parts``:
    one sequence of distributions. ``lead``: so many leading axes of the ``mappings``, over which a point may be
    repeated.
    """

    cls: type[Distribution]
    mappings: tuple[str, ...] = ()
    tensors: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    parts: str = ""
    lead: int = 0


KINDS: dict[str, Kind] = {
    "delta": Kind(Delta, ("params",)),
    "mean-field": Kind(MeanField, ("mean", "std")),
    "samples": Kind(Samples, ("params",), lead=2),
    "gaussian": Kind(Gaussian, ("mean",), ("covariance",), ("names",)),
    "low-rank": Kind(LowRank, ("mean", "diagonal", "factors")),
    "mixture": Kind(Mixture, tensors=("weights",), parts="components"),
}
"""Name in files → how the kind is written and read; a kind from outside is added here."""


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
    tensors, description = pack(unwrapped(q))
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


def pack(q: Distribution, prefix: str = "") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of ``q``, under names that begin with ``prefix``, and in plain values what is where."""
    tensors: dict[str, Tensor] = {}
    names = {kind.cls: name for name, kind in KINDS.items()}
    if type(q) not in names:
        known = ", ".join(cls.__name__ for cls in names)
        raise InputError(f"a {type(q).__name__} cannot be saved; expected one of {known}")
    kind = KINDS[names[type(q)]]
    description: dict[str, Any] = {"kind": names[type(q)]}
    for part in kind.mappings:
        params = dict(getattr(q, part))
        description[part] = ties(params)
        points = [name for name in dict.fromkeys(description[part].values()) if _is_repeated(params[name], kind.lead)]
        if points:
            description[_repeated_key(kind, part)] = {
                "over": list(params[points[0]].shape[: kind.lead]),
                "names": points,
            }
        for name in dict.fromkeys(description[part].values()):
            tensors[f"{prefix}{part}/{name}"] = params[name][(0,) * kind.lead] if name in points else params[name]
    tensors |= {f"{prefix}{part}": getattr(q, part) for part in kind.tensors}
    for part in kind.values:
        value = getattr(q, part)
        description[part] = list(value) if isinstance(value, tuple) else value
    if kind.parts:
        description[kind.parts] = []
        for number, one in enumerate(getattr(q, kind.parts)):
            inner, told = pack(one, f"{prefix}{number}/")
            tensors |= inner
            description[kind.parts].append(told)
    return tensors, description


def unpack(tensors: Mapping[str, Tensor], description: Mapping[str, Any], prefix: str = "") -> Distribution:
    """The distribution that ``pack`` took apart; its tensors' names begin with ``prefix``."""
    if description["kind"] not in KINDS:
        raise InputError(f"its kind is {reprlib.repr(description['kind'])}; expected one of {', '.join(KINDS)}")
    kind = KINDS[description["kind"]]
    parts: dict[str, Any] = {
        part: {name: _tensor(tensors, f"{prefix}{part}/{one}") for name, one in description[part].items()}
        for part in kind.mappings
    }
    for part in kind.mappings:
        if kind.lead and (key := _repeated_key(kind, part)) in description:
            views = _repeated(parts[part], description[key], kind.lead)
            parts[part] |= {name: views[one] for name, one in description[part].items() if one in views}
    parts |= {part: _tensor(tensors, f"{prefix}{part}") for part in kind.tensors}
    for part in kind.values:
        parts[part] = tuple(value) if isinstance(value := description[part], list) else value
    if kind.parts:
        rows = enumerate(description[kind.parts])
        parts[kind.parts] = [unpack(tensors, one, f"{prefix}{number}/") for number, one in rows]
    return kind.cls(**parts)


def _repeated_key(kind: Kind, part: str) -> str:
    """Under which name a description has the points of a dict: that of ``Samples`` is as old as the format."""
    return "repeated" if part == kind.mappings[0] else f"repeated {part}"


def _is_repeated(tensor: Tensor, lead: int) -> bool:
    """Whether a tensor is one point, expanded over its leading axes; a single draw is as small either way."""
    steps = [step for size, step in zip(tensor.shape[:lead], tensor.stride()[:lead], strict=True) if size > 1]
    return bool(steps) and not any(steps)


def _repeated(points: Mapping[str, Tensor], description: Mapping[str, Any], lead: int) -> dict[str, Tensor]:
    """The points that ``description`` names as views with leading axes; one for all the names of a tied tensor."""
    over = description["over"]
    if len(over) != lead or not all(type(size) is int and size >= 1 for size in over):
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
