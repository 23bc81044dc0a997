"""What crosses a cut, for all examples of a data set: computed once if it fits, otherwise when it is asked for."""

import torch
from torch import Tensor

from coset.represent._cut import Cut

KEPT_BYTES = 2**30
"""So much is kept unless told."""

CHUNK = 500
"""Examples at a time where no gradients are kept."""


def index_batches(count: int, size: int, generator: torch.Generator | None = None) -> list[Tensor]:
    """The numbers of ``count`` examples in batches of ``size``, shuffled if there is a generator."""
    order = torch.arange(count) if generator is None else torch.randperm(count, generator=generator)
    return [order[start : start + size] for start in range(0, count, size)]


class CrossingFeatures:
    """The features of a cut for the examples of x (N, …), by their numbers."""

    def __init__(self, joined: Cut, x: Tensor, kept_bytes: int = KEPT_BYTES) -> None:
        self._cut, self._x = joined, x
        self._kept: dict[str, Tensor] | None = None
        one = joined.features(x[:1])
        size = sum(part.numel() * part.element_size() for part in one.values())
        if size * len(x) <= kept_bytes:
            self._kept = {name: part.new_empty((len(x), *part.shape[1:])) for name, part in one.items()}
            for indices in index_batches(len(x), CHUNK):
                for name, part in joined.features(x[indices]).items():
                    self._kept[name][indices] = part

    @property
    def kept(self) -> bool:
        """Whether they were computed once."""
        return self._kept is not None

    def __len__(self) -> int:
        return len(self._x)

    def at(self, indices: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The inputs of the examples ``indices`` (n) and what crosses the cut for them, n rows each."""
        inputs = self._x[indices]
        if self._kept is None:
            return inputs, self._cut.features(inputs)
        return inputs, {name: part[indices] for name, part in self._kept.items()}
