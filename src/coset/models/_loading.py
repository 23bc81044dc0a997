"""The user's own model factories, found by ``module.path:factory`` or ``path/to/file.py:factory``."""

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


def load_factory(reference: str) -> Callable[..., Any]:
    """Return the factory that ``reference`` names; importing it runs the user's code.

    A file is run once per process, with its own folder first on the import path so that it can import its neighbours.
    One that does not run to its end leaves no module behind and runs again when it is asked for again.
    """
    place, _, name = reference.rpartition(":")
    if not place or not name:
        raise InputError(f"model {reference!r}: expected 'module.path:factory' or 'path/to/file.py:factory'")
    module = _run_file(reference, Path(place)) if place.endswith(".py") else _import(reference, place)
    if not hasattr(module, name):
        raise InputError(f"model {reference!r}: {place} has no attribute {name!r}")
    factory = getattr(module, name)
    if isinstance(factory, nn.Module) or not callable(factory):
        found = type(factory).__name__
        raise InputError(f"model {reference!r}: {name!r} is {found}, expected a class or function that returns a model")
    made: Callable[..., Any] = factory
    return made


def _import(reference: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise InputError(
            f"model {reference!r}: module {name!r} cannot be imported ({type(error).__name__}: {error})"
        ) from error


def _run_file(reference: str, path: Path) -> ModuleType:
    if not path.is_file():
        raise InputError(f"model {reference!r}: there is no file {str(path)!r}")
    # Named by its whole path: two files of one name must not replace each other.
    name = f"coset_user_model_{zlib.crc32(str(path.resolve()).encode()):08x}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"model {reference!r}: {str(path)!r} cannot be read as Python code")
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
        raise InputError(
            f"model {reference!r}: running {str(path)!r} failed ({type(error).__name__}: {error})"
        ) from error
    return module


@contextmanager
def _folder_first(folder: Path) -> Iterator[None]:
    entry = str(folder)
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        sys.path.remove(entry)
