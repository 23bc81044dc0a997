"""Which studies there are: coset's own, and those that other distributions name as entry points."""

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import entry_points
from types import MappingProxyType

from coset.errors import InputError, one_line
from coset.study._study import REGISTRY, Study

GROUP = "coset.studies"
"""The group of entry points. Each names a module, or a package, of which all modules are imported whose path below it
has no underscore in front; what they declare with ``@study`` is there."""

OWN = {"coset-studies": "coset_studies"}
"""coset's own entry point, which a source tree has before anything is installed."""


def studies() -> Mapping[str, Study]:
    """All studies by name; those of entry points that cannot be loaded are missing, see ``broken_studies``."""
    for _ in _failures():
        pass
    return MappingProxyType(dict(sorted(REGISTRY.items())))


def broken_studies() -> tuple[InputError, ...]:
    """One error for each module that an entry point names and that cannot be imported."""
    return tuple(_failures())


def find_study(name: str) -> Study:
    """The study of that name."""
    known = studies()
    if name not in known:
        missing = "".join(f"; {error}" for error in broken_studies())
        raise InputError(f"there is no study {name!r}; there are: {', '.join(known)}{missing}")
    return known[name]


def _failures() -> Iterator[InputError]:
    # Own ones first, so that no other distribution can take their names; an installed coset names them again, and one
    # that is installed from a source tree may name those of yesterday.
    points = {value: name for name, value in OWN.items()}
    for point in sorted(entry_points(group=GROUP)):
        if point.dist is None or point.dist.name != "coset":
            points.setdefault(point.value, point.name)
    for value, name in points.items():
        yield from _load(name, value)


@cache
def _load(name: str, value: str) -> tuple[InputError, ...]:
    """Import what the entry point names, once in a process; the errors of modules that cannot be imported."""
    what = f"the entry point {name} = {value!r} of the group {GROUP}"
    if not all(part.isidentifier() for part in value.split(".")):
        return (InputError(f"{what} does not name a module"),)
    failures = []
    waiting = [value]
    while waiting:
        module = waiting.pop(0)
        try:
            loaded = importlib.import_module(module)
        # Whatever a module of someone else does, the other studies stay.
        except (Exception, SystemExit) as error:
            for study in [study for study in REGISTRY.values() if study.run.__module__ == module]:
                del REGISTRY[study.name]
            told = one_line(f"{type(error).__name__}: {error}")
            place = "" if module == value else f" ({module})"
            failures.append(InputError(f"{what} cannot be loaded{place}: {told}"))
        else:
            below = pkgutil.iter_modules(getattr(loaded, "__path__", ()))
            waiting += [f"{module}.{item.name}" for item in below if not item.name.startswith("_")]
    return tuple(failures)
