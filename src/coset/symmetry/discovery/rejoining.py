"""Slices of a tensor that are only joined again: nothing has happened to it."""

import operator

from torch.fx import Graph, Node

from coset.symmetry.discovery.stacks import name_of_node, shape_of_node, span_of

_CUTS = frozenset({"split", "split_with_sizes", "chunk", "tensor_split", "unsafe_split", "unsafe_chunk"})


def rejoined(graph: Graph) -> dict[Node, Node]:
    """For every concatenation of all parts of one tensor, in order, that tensor; and for the parts themselves, too.

    Only where nobody else reads the parts.
    """
    found: dict[Node, Node] = {}
    for node in graph.nodes:
        if name_of_node(node) in ("cat", "concat", "concatenate") and isinstance(node.args[0], list | tuple):
            parts = [part for part in node.args[0] if isinstance(part, Node)]
            dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
            source = _source(parts, int(str(dim)) % len(shape_of_node(node))) if len(parts) > 1 else None
            if source is not None and shape_of_node(source) == shape_of_node(node):
                found |= dict.fromkeys((node, *parts, *(_cutter(part) for part in parts)), source)
    return found


def _cutter(part: Node) -> Node:
    """The operation that cuts a part off: the part itself, or what it is an item of."""
    first = part.args[0] if part.args else None
    return first if part.target is operator.getitem and isinstance(first, Node) else part


def _source(parts: list[Node], dim: int) -> Node | None:
    """The tensor of which these are all parts along a dimension, in order, each read once."""
    if any(len(part.users) != 1 for part in parts):
        return None
    cutters = {_cutter(part) for part in parts}
    sources = {cutter.args[0] if cutter.args else None for cutter in cutters}
    source = sources.pop() if len(sources) == 1 else None
    if not isinstance(source, Node):
        return None
    if all(part.target is operator.getitem for part in parts):
        if len(cutters) > 1:
            return None
        cutter = cutters.pop()
        along = cutter.args[2] if len(cutter.args) > 2 else cutter.kwargs.get("dim", 0)
        numbers = [part.args[1] for part in parts]
        whole = name_of_node(cutter) in _CUTS and int(str(along)) % len(shape_of_node(source)) == dim
        return source if whole and numbers == list(range(len(cutter.users))) else None
    at = 0
    for part in parts:
        span = span_of(part, shape_of_node(source), {}) if name_of_node(part) == "slice" else None
        if span is None or span[0] != dim or span[1] != at:
            return None
        at += span[2]
    return source if at == shape_of_node(source)[dim] else None
