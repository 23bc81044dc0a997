"""The tensors of an exported graph that are told about: what modules give, and what contractions read of the data."""

from collections.abc import Collection, Iterable

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves

from coset.symmetry.discovery.called_modules import outputs_of
from coset.symmetry.layers import CONTRACTIONS, operand_name

_SAME = frozenset(
    {"clone", "alias", "detach", "contiguous", "to", "_to_copy", "lift_fresh", "lift_fresh_copy"}
    | {"dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"}
)
"""Operations that hand on the values they are given, in a network that is not being trained."""


def watched(program: torch.export.ExportedProgram) -> tuple[list[tuple[str, int]], dict[Node, list[str]]]:
    """Each contraction with the number of tensors it reads; and the nodes that modules give or contractions read, with
    the names of these.

    Of what contractions read that is left out which no input reaches (weights), and what an earlier one has read.
    """
    inputs = set(program.graph_signature.user_inputs)
    reader = _Reader()
    given = [node for node in program.graph.nodes if node.op == "placeholder" and node.name in inputs]
    reader.read(program.graph_module, given)
    names = reader.names
    for node, modules in outputs_of(program.graph).items():
        names[node] = [*modules, *names.get(node, ())]
    return reader.calls, names


class _Reader:
    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []
        self.names: dict[Node, list[str]] = {}

    def read(self, module: GraphModule, given: Iterable[Node]) -> None:
        """Go through a graph of which the nodes ``given`` depend on the data."""
        reached = set(given)
        for node in module.graph.nodes:
            if node.op != "call_function":
                continue
            self._call(module, node, reached)
            if any(other in reached for other in node.all_input_nodes):
                reached.add(node)

    def _call(self, module: GraphModule, node: Node, reached: Collection[Node]) -> None:
        for other in node.all_input_nodes:
            part = module.get_submodule(str(other.target)) if other.op == "get_attr" else None
            if isinstance(part, GraphModule):  # a part that stands apart, under no_grad or autocast
                inner = [item for item in part.graph.nodes if item.op == "placeholder"]
                own = node.all_input_nodes[node.all_input_nodes.index(other) + 1 :]
                self.read(part, [item for item, outer in zip(inner, own, strict=False) if outer in reached])
        name = _name(node)
        if name not in CONTRACTIONS:
            return
        operands = [item for item in tree_leaves((node.args, node.kwargs)) if _is_floating(item)]
        for number, operand in enumerate(operands):
            source = _source(operand)
            if source in reached and source not in self.names:
                self.names[source] = [operand_name(len(self.calls), number)]
        self.calls.append((name, len(operands)))


def _name(node: Node) -> str:
    return str(getattr(getattr(node.target, "_overloadpacket", node.target), "__name__", node.target))


def _is_floating(item: object) -> bool:
    value = item.meta.get("val") if isinstance(item, Node) else None
    return isinstance(value, Tensor) and value.is_floating_point()


def _source(node: Node) -> Node:
    """The node whose values these are."""
    while node.op == "call_function" and _name(node) in _SAME:
        before = node.args[0]
        if not isinstance(before, Node) or not _is_floating(before):
            break
        node = before
    return node
