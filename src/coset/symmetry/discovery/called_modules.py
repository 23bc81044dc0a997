"""Modules as they are called in an exported graph: which nodes are theirs, what they read and what they give."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor
from torch.fx import Graph as Nodes
from torch.fx import Node

from coset.symmetry.layers import INPUT, Layer


@dataclass(frozen=True, eq=False)
class CalledModule:
    """One call of a module: ``name`` (with #1 and so on from the second call), ``kind``, and its ``nodes``."""

    name: str
    kind: str
    nodes: frozenset[Node]
    output: Node | None


def called_modules(graph: Nodes) -> list[CalledModule]:
    """All calls of modules but that of the model itself, in the order in which they end."""
    inside: dict[str, set[Node]] = {}
    kinds: dict[str, tuple[str, str]] = {}
    for node in graph.nodes:
        for key, (path, kind) in (node.meta.get("nn_module_stack") or {}).items():
            if path:
                inside.setdefault(key, set()).add(node)
                kinds.setdefault(key, (path, str(kind).rpartition(".")[2]))
    place = {node: number for number, node in enumerate(graph.nodes)}
    count: dict[str, int] = {}
    calls = []
    for key in inside:
        path, kind = kinds[key]
        again = count.get(path, 0)
        count[path] = again + 1
        name = f"{path}#{again}" if again else path
        calls.append(CalledModule(name, kind, frozenset(inside[key]), _given(inside[key])))
    return sorted(calls, key=lambda call: max(place[node] for node in call.nodes))


def outputs_of(graph: Nodes) -> dict[Node, list[str]]:
    """The nodes that are the only tensor which modules give, with the names of these modules."""
    found: dict[Node, list[str]] = {}
    for call in called_modules(graph):
        if call.output is not None:
            found.setdefault(call.output, []).append(call.name)
    return found


def _given(nodes: Iterable[Node]) -> Node | None:
    """The one tensor of some nodes that others read, if it is one."""
    own = set(nodes)
    read = [node for node in own if any(user not in own for user in node.users)]
    return read[0] if len(read) == 1 and isinstance(read[0].meta.get("val"), Tensor) else None


def connected(
    graph: Nodes, calls: Iterable[CalledModule], homes: Mapping[Node, str]
) -> tuple[tuple[Layer, ...], tuple[str, ...]]:
    """Modules with operations of their own as layers, in the order of these, with what each reads; and those that the
    outputs of the graph come from.

    ``homes``: the parameter behind each placeholder.
    """
    owner: dict[Node, CalledModule] = {}
    for call in sorted(calls, key=lambda call: -len(call.nodes)):
        owner |= dict.fromkeys(call.nodes, call)
    found: dict[Node, tuple[str, ...]] = {}

    def sources(node: Node) -> tuple[str, ...]:
        """The layers whose outputs a node outside of all layers is made of."""
        if node in owner:
            return (owner[node].name,)
        if node.op == "placeholder":
            return () if node in homes else (INPUT,)
        if node not in found:
            found[node] = tuple(dict.fromkeys(name for other in node.all_input_nodes for name in sources(other)))
        return found[node]

    for node in graph.nodes:  # in order, so that nothing is deep
        sources(node)
    layers = []
    nodes: dict[str, list[Node]] = {}
    for node, call in owner.items():
        nodes.setdefault(call.name, []).append(node)
    place = {node: number for number, node in enumerate(graph.nodes)}
    busy = [call for call in calls if call.name in nodes]
    for call in sorted(busy, key=lambda call: max(place[node] for node in nodes[call.name])):
        own = sorted(nodes[call.name], key=place.__getitem__)  # a set has no order
        outside = [other for node in own for other in node.all_input_nodes if owner.get(other) is not call]
        reads = dict.fromkeys(name for other in outside if other not in homes for name in sources(other))
        parameters = dict.fromkeys(homes[other] for other in outside if other in homes)
        layers.append(Layer(call.name, call.kind, tuple(parameters), tuple(reads)))
    (end,) = (node for node in graph.nodes if node.op == "output")
    return tuple(layers), tuple(dict.fromkeys(name for other in end.all_input_nodes for name in sources(other)))
