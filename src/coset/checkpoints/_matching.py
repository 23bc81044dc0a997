"""Whether weights belong to a model, name by name; and back into the form they had in their file."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from coset._values import memory_of
from coset.checkpoints.reading import Checkpoint, listed
from coset.errors import InputError

_SHOWN = 3


def match_checkpoint(checkpoint: Checkpoint, state: Mapping[str, Tensor], what: str = "the model") -> dict[str, Tensor]:
    """The checkpoint's tensors under the names of ``state`` (a model's ``state_dict()``), in its order.

    Names must be the same and shapes equal, name by name. Names that share one tensor in ``state`` (tied weights) share
    one in the result; a file may have it under any of them, but not with different values.
    """
    found = dict(checkpoint.params)
    for names in _ties(state):
        _tie(names, found, checkpoint)
    missing = [name for name in state if name not in found]
    unexpected = [name for name in found if name not in state]
    problems = []
    if missing:
        problems.append(f"it lacks {listed(missing, _SHOWN)}")
    if unexpected:
        problems.append(f"{what} does not have its {listed(unexpected, _SHOWN)}")
    shapes = [
        f"{name!r} is {tuple(found[name].shape)} where {tuple(tensor.shape)} is expected"
        for name, tensor in state.items()
        if name in found and found[name].shape != tensor.shape
    ]
    if shapes:
        more = f" and {len(shapes) - _SHOWN} more differ" if len(shapes) > _SHOWN else ""
        problems.append(", ".join(shapes[:_SHOWN]) + more)
    if problems:
        hint = _hint(found, state)
        raise InputError(f"{checkpoint.where} does not fit {what}: {'; '.join(problems)}{hint}")
    for name, tensor in state.items():
        if found[name].is_floating_point() != tensor.is_floating_point():
            raise InputError(
                f"{name!r} of {checkpoint.where} is of type {found[name].dtype}; {what} has {tensor.dtype} there"
            )
    return {name: found[name] for name in state}


def as_stored(checkpoint: Checkpoint, params: Mapping[str, Tensor], what: str) -> dict[str, Tensor]:
    """``params`` with the names and dtypes that they have in the file; a number too large for its dtype is an error."""
    result = {}
    for name, tensor in checkpoint.params.items():
        value = params[name].detach()
        stored = value.to(tensor.dtype)
        if value.is_floating_point() and bool((torch.isfinite(value) & ~torch.isfinite(stored.to(value.dtype))).any()):
            largest = float(value.abs().max())
            raise InputError(f"{name!r} of {what} reaches {largest:.3g}, too large for {tensor.dtype} as it is stored")
        result[checkpoint.prefix + checkpoint.inside.get(name, name)] = stored
    return result


def _ties(state: Mapping[str, Tensor]) -> list[list[str]]:
    """The names that stand for one tensor, where there are several."""
    names: dict[object, list[str]] = {}
    for name, tensor in state.items():
        if tensor.numel():  # empty tensors may share the null pointer without being tied
            names.setdefault(memory_of(tensor), []).append(name)
    return [group for group in names.values() if len(group) > 1]


def _tie(names: Sequence[str], found: dict[str, Tensor], checkpoint: Checkpoint) -> None:
    """Put one tensor under all ``names``, in place, if the file has it under one of them."""
    present = [name for name in names if name in found]
    if not present:
        return
    first = found[present[0]]
    for name in present[1:]:
        if first.dtype != found[name].dtype or not torch.equal(first, found[name]):
            raise InputError(
                f"{present[0]!r} and {name!r} are one tensor in the model, but differ in {checkpoint.where}"
            )
    found.update(dict.fromkeys(names, first))


def _hint(found: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> str:
    """Say so if the names differ by a prefix only."""
    longer, shorter = (found, state) if len(next(iter(found))) > len(next(iter(state), "")) else (state, found)
    first = next(iter(longer))
    for name in shorter:
        prefix = first.removesuffix(name)
        if prefix != first and prefix.endswith(".") and {prefix + other for other in shorter} == set(longer):
            if longer is found:
                return f"; its names fit without {prefix!r}: choose that with strip_prefix (--strip-prefix {prefix})"
            return f"; its names lack the prefix {prefix!r}"
    return ""
