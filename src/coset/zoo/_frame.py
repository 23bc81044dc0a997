"""All networks of a zoo in one frame: aligned to one of them, or in canonical form."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coset.alignment import align
from coset.alignment.inputs import check_network
from coset.canonical import canonicalize
from coset.errors import InputError
from coset.symmetry import Symmetry
from coset.zoo._write import changed_zoo
from coset.zoo._zoo import Zoo

Params = Mapping[str, Tensor]


def align_zoo(
    zoo: Zoo,
    directory: str | Path,
    *,
    reference: int | None = None,
    symmetry: Symmetry | None = None,
    method: str = "weights",
    show: bool | None = None,
    **options: Any,
) -> Zoo:
    """A zoo in a new folder: every network of ``zoo`` aligned to one of them, by default the first that can be used."""
    sym, target, number = _frame(zoo, symmetry, reference)
    assert target is not None
    return changed_zoo(
        zoo,
        directory,
        lambda stack: aligned_stack(sym, target, stack, method=method, **options),
        {"by": "align", "reference": number, "method": method, "symmetry": sym.fingerprint},
        show,
    )


def canonicalize_zoo(
    zoo: Zoo,
    directory: str | Path,
    *,
    reference: int | None = None,
    symmetry: Symmetry | None = None,
    method: str = "weights",
    show: bool | None = None,
    **options: Any,
) -> Zoo:
    """A zoo in a new folder: every network in its canonical form, with units in the data-free order.

    With a ``reference`` permutations and signs are those of ``align`` to its canonical form instead.
    """
    sym, target, number = _frame(zoo, symmetry, reference, needed=False)
    return changed_zoo(
        zoo,
        directory,
        lambda stack: canonicalize(sym, stack, reference=target, method=method, **options).params,
        {"by": "canonicalize", "reference": number, "method": method, "symmetry": sym.fingerprint},
        show,
    )


def aligned_stack(sym: Symmetry, reference: Params, stack: Params, **options: Any) -> dict[str, Tensor]:
    """Every network of a stack (N, …), aligned to the reference."""
    count = len(next(iter(stack.values())))
    found = [align(sym, reference, {k: t[i] for k, t in stack.items()}, show=False, **options) for i in range(count)]
    return {name: torch.stack([one.params[name] for one in found]) for name in found[0].params}


def _frame(
    zoo: Zoo, symmetry: Symmetry | None, reference: int | None, *, needed: bool = True
) -> tuple[Symmetry, dict[str, Tensor] | None, int | None]:
    """The symmetry of all networks, and the reference with its number."""
    zoo.model()  # of one architecture, or an error that says of which two
    if not zoo.indices:
        raise InputError(f"no network of {zoo.folder} can be used: {next(iter(zoo.problems.values()))}")
    sym = zoo.symmetry() if symmetry is None else symmetry
    try:
        check_network(sym, zoo[zoo.indices[0]], f"networks of {zoo.folder}")
    except InputError as error:
        raise InputError(f"the symmetry is that of another model than networks of {zoo.folder}: {error}") from error
    if reference is None and not needed:
        return sym, None, None
    number = zoo.indices[0] if reference is None else reference
    return sym, zoo[number], number
