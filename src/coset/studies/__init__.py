"""coset's studies that are not in ``coset_studies`` yet: one file each, that reproduces a figure or table of a paper.

A module of this package that declares a ``@study`` is one; the machinery is ``coset.study``.
"""

import warnings
from typing import Any


def __getattr__(name: str) -> Any:
    from coset import study

    if name not in study.__all__:
        raise AttributeError(f"module 'coset.studies' has no attribute {name!r}")
    warnings.warn(f"coset.studies.{name} is coset.study.{name} now", DeprecationWarning, stacklevel=2)
    return getattr(study, name)
