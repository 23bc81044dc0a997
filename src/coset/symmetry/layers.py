"""Layers of a network as discovery saw them, and what stands on the axes of their outputs."""

from collections.abc import Mapping
from dataclasses import dataclass

from coset.errors import InputError
from coset.symmetry.axes import Concat, Fixed, Node, Product, size_of, units_of

INPUT, OUTPUT = "input", "output"

CONTRACTIONS = frozenset(
    {"linear", "bilinear", "einsum", "tensordot", "scaled_dot_product_attention", "inner", "dot", "vdot", "vecdot"}
    | {"matmul", "mm", "bmm", "mv", "addmm", "addbmm", "baddbmm", "addmv", "multi_dot", "cdist"}
    | {"conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "convolution"}
    | {"lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"}
)
"""Operations that sum products over an axis: what they read is where the units of a network are seen."""


@dataclass(frozen=True)
class Activation:
    """The output of a layer: ``shape`` on the example, ``axes``: what stands on each of its axes.

    ``Fixed(0)`` are positions of inputs (examples, tokens, pixels), as many as there are; classes carry their charges
    as on parameters: layer(g·θ, x) = g·layer(θ, x).
    """

    shape: tuple[int, ...]
    axes: tuple[Node, ...]

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes that stand on any axis."""
        return tuple(dict.fromkeys(unit.name for node in self.axes for unit in units_of(node)))

    def fitted(self, shape: tuple[int, ...], sizes: Mapping[str, int], where: str) -> tuple[Node, ...]:
        """The axes on inputs of other sizes: ``Fixed(0)`` gets its size from ``shape``."""
        if len(shape) != len(self.axes):
            raise InputError(f"{where} has shape {shape}; expected {len(self.axes)} axes, as on the example")
        return tuple(_fitted(node, n, sizes, where) for node, n in zip(self.axes, shape, strict=True))


@dataclass(frozen=True)
class Contraction:
    """An ``operation`` of ``CONTRACTIONS`` and the floating tensors it reads, in order.

    None for those that do not depend on the data (weights), that an earlier one has read, or of which nothing is known.
    """

    operation: str
    operands: tuple[Activation | None, ...]


def operand_name(call: int, number: int) -> str:
    """The name of a tensor that a contraction reads; no module can be called that."""
    return f"@{call}.{number}"


def _fitted(node: Node, size: int, sizes: Mapping[str, int], where: str) -> Node:
    rest = size_of(node, sizes)
    if isinstance(node, Fixed) and not node.size:
        return Fixed(size)
    if isinstance(node, Product) and any(isinstance(factor, Fixed) and not factor.size for factor in node.factors):
        known = 1
        for factor in node.factors:
            known *= size_of(factor, sizes) or 1
        if size % known:
            raise InputError(f"{where} has {size} positions on an axis; expected a multiple of {known}")
        many = Fixed(size // known)
        return Product(tuple(many if isinstance(f, Fixed) and not f.size else f for f in node.factors))
    if rest != size:
        raise InputError(f"{where} has {size} positions on an axis; expected {rest}")
    return node


def without_sizes(node: Node) -> Node:
    """An axis of an activation with ``Fixed(0)`` for positions of inputs, where there is one such factor."""
    if isinstance(node, Fixed):
        return Fixed(0)
    if isinstance(node, Product):
        still = [factor for factor in node.factors if isinstance(factor, Fixed)]
        joined = any(isinstance(factor, Concat) for factor in node.factors)
        if len(still) == 1 and not joined:
            return Product(tuple(Fixed(0) if factor is still[0] else factor for factor in node.factors))
    return node


@dataclass(frozen=True)
class Layer:
    """A module that was called: its ``name``, its ``kind``, the ``parameters`` it owns, the layers it ``reads``."""

    name: str
    kind: str
    parameters: tuple[str, ...]
    reads: tuple[str, ...]
