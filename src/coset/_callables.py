"""A user's function or class by its reference: in an importable module, or in a file."""

import importlib
import importlib.util
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from coset.errors import InputError


def load_callable(reference: str, what: str, expected: str, *, modules: bool = True) -> Callable[..., Any]:
    """Return what ``module.path:name`` or ``path/to/file.py:name`` names; importing it runs the user's code.

    A file is run once per process, with its own folder first on the import path so that it can import its neighbours.
    One that does not run to its end leaves no module behind and runs again when it is asked for again. Refusals call it
    ``what`` and say what was ``expected``; ``modules``: whether it may be a network.
    """
    place, _, name = reference.rpartition(":")
    whole = f"{what} {reference!r}"
    if not place or not name:
        kind = "factory" if what == "model" else "name"
        raise InputError(f"{whole}: expected 'module.path:{kind}' or 'path/to/file.py:{kind}'")
    module = _run_file(whole, Path(place)) if place.endswith(".py") else _import(whole, place)
    if not hasattr(module, name):
        raise InputError(f"{whole}: {place} has no attribute {name!r}")
    found = getattr(module, name)
    if (isinstance(found, nn.Module) and not modules) or not callable(found):
        raise InputError(f"{whole}: {name!r} is {type(found).__name__}, expected {expected}")
    made: Callable[..., Any] = found
    return made


def _import(whole: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise InputError(f"{whole}: module {name!r} cannot be imported ({type(error).__name__}: {error})") from error


def _run_file(whole: str, path: Path) -> ModuleType:
    if not path.is_file():
        raise InputError(f"{whole}: there is no file {str(path)!r}")
    # Named by its whole path: two files of one name must not replace each other.
    name = f"coset_user_model_{zlib.crc32(str(path.resolve()).encode()):08x}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{whole}: {str(path)!r} cannot be read as Python code")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickling look a class's module up by name.
    sys.modules[name] = module
    try:
        with _folder_first(path.resolve().parent):
            spec.loader.exec_module(module)
    except BaseException as error:
        sys.modules.pop(name, None)
        # An interrupt from the keyboard is no fault of the file.
        if not isinstance(error, Exception | SystemExit):
            raise
        raise InputError(f"{whole}: running {str(path)!r} failed ({type(error).__name__}: {error})") from error
    return module


@contextmanager
def _folder_first(folder: Path) -> Iterator[None]:
    """Modules are looked for in a user's folder first, and leave no bytecode there."""
    entry, kept = str(folder), sys.dont_write_bytecode
    sys.path.insert(0, entry)
    sys.dont_write_bytecode = True
    try:
        yield
    finally:
        sys.path.remove(entry)
        sys.dont_write_bytecode = kept
