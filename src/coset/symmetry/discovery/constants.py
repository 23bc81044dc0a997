"""What a graph computes from constants alone: masks, indices, positions; and sizes that follow from them."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.node import map_arg

_LARGEST = 1_000_000
"""Entries of a constant that is kept."""


@dataclass
class Constants:
    """``tensors``: the values of nodes that are known. ``sizes``: what symbols for sizes turned out to be."""

    tensors: dict[Node, Tensor] = field(default_factory=dict)
    sizes: dict[Any, int] = field(default_factory=dict)

    def learn(self, node: Node) -> None:
        """Compute a node from constants, if it depends on nothing else."""
        if not hasattr(node.target, "_schema") or any(other not in self.tensors for other in node.all_input_nodes):
            return
        if not isinstance(node.meta.get("val"), Tensor):
            return
        target: Any = node.target
        args, kwargs = map_arg((node.args, node.kwargs), self.tensors.__getitem__)
        with torch.no_grad():
            value = target(*args, **kwargs)
        if isinstance(value, Tensor) and value.numel() <= _LARGEST:
            self.tensors[node] = value

    def shape(self, node: Node, meta: Tensor) -> tuple[int, ...] | None:
        """The shape of what a node makes, or None where it depends on data."""
        if node not in self.tensors and any(self._size(n) is None for n in meta.shape):
            self._picked(node, meta)
        shape = [self._size(n) for n in meta.shape]
        return None if any(n is None for n in shape) else tuple(n for n in shape if n is not None)

    def places(self, index: Node) -> tuple[Tensor, ...] | None:
        """The positions that a boolean mask picks, one tensor for each of its dimensions; None for anything else."""
        mask = self.tensors.get(index)
        return mask.nonzero(as_tuple=True) if mask is not None and mask.dtype == torch.bool and mask.ndim else None

    def _size(self, n: Any) -> int | None:
        if isinstance(n, int):
            return n
        known = n.node.expr.xreplace(self.sizes)
        return int(known) if known.is_Integer else None

    def _picked(self, node: Node, meta: Tensor) -> None:
        """How many entries a known mask picks is how long the result is."""
        if "index" not in str(node.target) or len(node.args) < 2 or not isinstance(node.args[1], list | tuple):
            return
        found = [self.places(index) for index in node.args[1] if isinstance(index, Node)]
        counts = {len(places[0]) for places in found if places is not None}
        unknown: list[Any] = [n for n in meta.shape if self._size(n) is None]
        if len(counts) == 1 and len(unknown) == 1 and unknown[0].node.expr.is_Symbol:
            self.sizes[unknown[0].node.expr] = counts.pop()
