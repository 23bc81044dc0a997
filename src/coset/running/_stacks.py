"""Many networks of one model run together: weights with a leading axis of networks."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.func import vmap

from coset._checks import check_count
from coset.errors import InputError
from coset.running._weights import check_model, outputs_with, suited, under_owners, whole_weights, with_weights

GROUP_SIZE = 2**22
"""Parameters of all networks run together, at most: 16 MB in single precision."""


def run_together(
    model: nn.Module, stacked: Mapping[str, Tensor], shared: Mapping[str, Tensor]
) -> Callable[[Tensor], Tensor]:
    """x ↦ outputs (networks, points, …) of several networks at once; ``shared``: weights that all have in common."""

    def one(varying: dict[str, Tensor], x: Tensor) -> Tensor:
        return outputs_with(model, {**shared, **varying}, x)

    batched = vmap(one, in_dims=(0, None))
    return lambda x: batched(dict(stacked), x)


def outputs_of_stack(
    model: nn.Module, stack: Mapping[str, Tensor], x: Tensor, *, batch_size: int | None = None
) -> Tensor:
    """f(x; θ_i) for all networks of a stack, (N, points, …), without derivatives and in the model's own mode.

    ``stack``: tensors (N, *shape) under the names of the model's ``state_dict()``. ``batch_size``: so many points at a
    time (default: all). Networks are run together by ``vmap``, one by one where an operation does not allow it.
    """
    check_model(model)
    if batch_size is not None:
        check_count("batch_size", batch_size)
    counts = {len(tensor) if tensor.ndim else 0 for tensor in stack.values()}
    if len(counts) != 1 or 0 in counts:
        raise InputError(f"the stack has leading axes of {sorted(counts)}; expected one number of networks, at least 1")
    count = counts.pop()
    first = whole_weights(model, {name: tensor[0] for name, tensor in stack.items()})
    given = under_owners(model, stack)
    shared = {name: tensor for name, tensor in first.items() if name not in given}
    inputs = suited(x, first)
    at_once = max(1, GROUP_SIZE // max(1, sum(tensor.numel() for tensor in first.values())))
    batches = torch.split(inputs, batch_size or max(1, len(inputs)))
    with torch.no_grad():
        found = []
        for start in range(0, count, at_once):
            part = {name: tensor[start : start + at_once].detach() for name, tensor in given.items()}
            run = run_together(model, part, shared)
            try:
                found.append(torch.cat([run(batch) for batch in batches], 1))
            except (RuntimeError, ValueError):
                # Not every operation knows vmap; what is wrong with the model itself shows here, too.
                singles = (
                    {name: tensor[i] for name, tensor in part.items()} for i in range(min(at_once, count - start))
                )
                found += [_alone(model, {**shared, **single}, batches)[None] for single in singles]
    return torch.cat(found)


def _alone(model: nn.Module, weights: Mapping[str, Tensor], batches: tuple[Tensor, ...]) -> Tensor:
    return with_weights(model, weights, lambda network: torch.cat([network(batch) for batch in batches]))
