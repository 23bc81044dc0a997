"""The trained parameters of a network as one flat vector, and back."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Size, Tensor, nn

from coset._values import Frozen
from coset.errors import InputError
from coset.running import owners


@dataclass(frozen=True, eq=False)
class Layout:
    """Where each trained parameter lies in a vector of D numbers; tied ones lie there once.

    ``shapes``: of the trained parameters, in order. ``fixed``: all else that the ``state_dict`` holds, as points:
    frozen parameters and buffers. ``aliases``: further names of trained tensors.
    """

    shapes: Mapping[str, Size]
    fixed: Mapping[str, Tensor]
    aliases: Mapping[str, str]

    def __post_init__(self) -> None:
        for part in ("shapes", "fixed", "aliases"):
            object.__setattr__(self, part, Frozen(getattr(self, part)))

    @property
    def size(self) -> int:
        """D."""
        return sum(self.sizes)

    @property
    def sizes(self) -> list[int]:
        """The number of entries of each trained parameter."""
        return [math.prod(shape) for shape in self.shapes.values()]

    def flatten(self, params: Mapping[str, Tensor]) -> Tensor:
        """Trained parameters, possibly behind the same leading axes, as vectors (…, D); a copy."""
        parts = []
        for name, shape in self.shapes.items():
            if name not in params:
                raise InputError(f"'{name}' is not among the parameters given; expected all trained ones")
            tensor = params[name]
            if tensor.shape[max(0, tensor.ndim - len(shape)) :] != shape:
                raise InputError(f"'{name}' has shape {tuple(tensor.shape)}; the model expects {tuple(shape)}")
            parts.append(tensor.detach().reshape(*tensor.shape[: tensor.ndim - len(shape)], -1))
        return torch.cat(parts, -1)

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """The trained parameters in vectors (…, D), each (…, *shape), without a copy."""
        pieces = torch.split(flat, self.sizes, -1)
        return {
            name: piece.view(*flat.shape[:-1], *shape)
            for piece, (name, shape) in zip(pieces, self.shapes.items(), strict=True)
        }

    def whole(self, flat: Tensor) -> dict[str, Tensor]:
        """All that the ``state_dict`` holds, from vectors (…, D): own copies; points have no leading axes."""
        trained = {name: tensor.clone() for name, tensor in self.views(flat.detach()).items()}
        return self.with_points(trained)

    def with_points(self, trained: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Trained parameters with their aliases and the points beside them."""
        everything = {**trained, **{alias: trained[name] for alias, name in self.aliases.items()}}
        return everything | {name: tensor.clone() for name, tensor in self.fixed.items()}

    def with_aliases(self, trained: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Trained parameters, or what belongs to them, under all their names."""
        return {**trained, **{alias: trained[name] for alias, name in self.aliases.items()}}


def layout_of(model: nn.Module) -> Layout:
    """Trained are the floating-point parameters that require a gradient."""
    owner = owners(model)
    trained = {name: tensor for name, tensor in model.named_parameters() if tensor.requires_grad}
    if not trained:
        raise InputError("model has no parameters that require a gradient; expected a network to infer")
    for what in ("dtype", "device"):
        found = {str(getattr(tensor, what)) for tensor in trained.values()}
        if len(found) > 1:
            raise InputError(f"the model's trained parameters have {what}s {', '.join(sorted(found))}; expected one")
    state = model.state_dict(keep_vars=True)
    aliases = {name: owner[name] for name in state if name in owner and owner[name] != name and owner[name] in trained}
    fixed = {
        name: tensor.detach().clone()
        for name, tensor in state.items()
        if isinstance(tensor, Tensor) and name not in trained and name not in aliases
    }
    return Layout({name: tensor.shape for name, tensor in trained.items()}, fixed, aliases)
