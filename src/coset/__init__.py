"""coset: neural networks modulo their symmetries.

Public names are loaded when they are first used, so that ``coset --help`` does not wait for torch.
"""

import importlib
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from coset._rooms import ROOMS

if TYPE_CHECKING:
    from coset.alignment import align, align_many, merge
    from coset.canonical import canonicalize
    from coset.distribution import normalize_scales
    from coset.errors import InputError
    from coset.landscape import barrier
    from coset.symmetry import Element, Symmetry, discover, infer_intertwiner, intertwiner

__version__ = version("coset")

__all__ = [
    "Element",
    "InputError",
    "Symmetry",
    "__version__",
    "align",
    "align_many",
    "barrier",
    "canonicalize",
    "discover",
    "infer_intertwiner",
    "intertwiner",
    "merge",
    "normalize_scales",
]

_HOMES = {
    "alignment": ("align", "align_many", "merge"),
    "canonical": ("canonicalize",),
    "distribution": ("normalize_scales",),
    "errors": ("InputError",),
    "landscape": ("barrier",),
    "symmetry": ("Element", "Symmetry", "discover", "infer_intertwiner", "intertwiner"),
}


def __getattr__(name: str) -> Any:
    if name in ROOMS:
        return importlib.import_module(f"coset.{name}")
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"coset.{home}"), name)
    raise AttributeError(f"module 'coset' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
