"""The address of an entry: the hash of its configuration."""

import hashlib
import json
import math
from collections.abc import Mapping

from coset.errors import InputError

SCHEMA = 1
"""Version of the file format and of the hash; it is part of every address."""

_ALLOWED = "None, bool, int, float, str, lists, tuples and mappings with str keys"


def canonical_json(config: Mapping[str, object]) -> str:
    """The one JSON text of a configuration: keys sorted, floats by ``repr``, no spaces, pure ASCII.

    ``1``, ``1.0`` and ``True`` stay apart; a tuple is written as a list; the order of keys does not matter.
    """
    _require_mapping(config, "config")
    return json.dumps(_plain(config, "config", finite=True), sort_keys=True, separators=(",", ":"), allow_nan=False)


def info_json(info: Mapping[str, object]) -> str:
    """The JSON text of what is noted beside an entry: the same types, and NaN and infinities too.

    A diverged loss is worth keeping, while a configuration with NaN has no meaning and would not equal itself.
    """
    _require_mapping(info, "info")
    return json.dumps(_plain(info, "info", finite=False), separators=(",", ":"))


def key_of(config: Mapping[str, object]) -> str:
    """SHA-256 (hex) of the schema version and the canonical JSON of ``config``."""
    return key_of_json(canonical_json(config))


def key_of_json(text: str) -> str:
    """SHA-256 (hex) of the schema version and a canonical JSON text."""
    return hashlib.sha256(f"coset.store/{SCHEMA}\n{text}".encode()).hexdigest()


def _require_mapping(value: object, name: str) -> None:
    if not isinstance(value, Mapping):
        raise InputError(f"{name} must be a mapping from names to values, found {_type_name(value)}")


def _plain(value: object, where: str, *, finite: bool) -> object:
    """``value`` with mappings as dicts and tuples as lists; anything JSON cannot carry exactly is refused by name."""
    # Exact types: a subclass (an enumeration, a NumPy scalar) may print differently in another version of its library.
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        if finite and not math.isfinite(value):
            raise InputError(f"{where} is {value}; a configuration holds finite numbers only")
        return value
    if type(value) in (list, tuple):
        assert isinstance(value, list | tuple)
        return [_plain(item, f"{where}[{index}]", finite=finite) for index, item in enumerate(value)]
    if isinstance(value, Mapping):
        for name in value:
            if type(name) is not str:
                raise InputError(f"{where} has the key {name!r} ({_type_name(name)}); keys must be str")
        return {name: _plain(item, f"{where}[{name!r}]", finite=finite) for name, item in value.items()}
    raise InputError(f"{where} is a {_type_name(value)}; only {_ALLOWED} can be stored")


def _type_name(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
