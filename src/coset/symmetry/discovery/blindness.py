"""Backwards through a graph: which changes of a tensor nothing sees.

A tensor is blind along some of its dimensions if no output changes when anything is added to it that is the same along
all of these, whatever it is along the others: what a LayerNorm reads along the units, a softmax along what it sums to
one, keys along their tokens. Along no dimension at all: nothing that is added is seen.
"""

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor
from torch.fx import Graph, Node

from coset.symmetry.discovery.relations import regroupings
from coset.symmetry.discovery.stacks import name_of_node

Blind = frozenset[frozenset[int]]
"""Sets of dimensions, none of which contains another."""

NOT: Blind = frozenset()
LEAST = -1e30
"""Additive masks fill in numbers below this: nothing that is added to them changes them."""

SAME = frozenset(
    {"clone", "contiguous", "to", "_to_copy", "type_as", "detach", "alias", "dropout", "lift_fresh_copy", "neg"}
    | {"feature_dropout", "alpha_dropout"}
)
RESHAPES = frozenset({"view", "_unsafe_view", "reshape", "flatten", "unflatten", "unsqueeze", "squeeze"})
TURNS = frozenset({"permute", "transpose", "t", "mT", "numpy_T", "movedim"})
PARTS = frozenset({"slice", "select", "narrow", "repeat_interleave", "index_select"})
CUTS = frozenset({"chunk", "split", "split_with_sizes", "unbind"})
SUMS = frozenset({"add", "sub"})


def operation(node: Node) -> str:
    """The name of an operation, in place or not."""
    return name_of_node(node).removesuffix("_") if node.op == "call_function" else ""


def shape_of(node: Any) -> tuple[int, ...] | None:
    """The shape of what a node makes; None unless it is one tensor of known sizes."""
    meta = node.meta.get("val") if isinstance(node, Node) else None
    if not isinstance(meta, Tensor) or not all(isinstance(n, int) for n in meta.shape):
        return None
    return tuple(meta.shape)


def argument(node: Node, name: str, default: Any = None) -> Any:
    """An argument by its name in the operation's schema."""
    schema: Any = getattr(node.target, "_schema", None)
    names = [item.name for item in schema.arguments]
    if name not in names:
        return default
    at = names.index(name)
    return node.args[at] if at < len(node.args) else node.kwargs.get(name, default)


def blindness(graph: Graph) -> dict[Node, Blind]:
    """For every tensor the dimensions along which it is blind, the placeholders of parameters among them."""
    found: dict[Node, Blind] = {}
    for node in reversed(list(graph.nodes)):
        uses = [seen_by(user, node, found) for user in node.users]
        blind = uses[0] if uses else NOT
        for other in uses[1:]:
            blind = _both(blind, other)
        found[node] = blind
    return found


def _both(one: Blind, two: Blind) -> Blind:
    return _least(a | b for a in one for b in two)


def _least(sets: Iterable[frozenset[int]]) -> Blind:
    known = set(sets)
    return frozenset(item for item in known if not any(other < item for other in known))


def seen_by(user: Node, node: Node, found: Mapping[Node, Blind]) -> Blind:
    """Along which dimensions one of its users is blind to a tensor."""
    if user.op != "call_function":
        return NOT
    if user.target is operator.getitem:
        return found[user]
    name = operation(user)
    sources = [item for item in user.all_input_nodes if item is node]
    rule = _RULES.get(name)
    if rule is None or len(sources) != 1 or _times(user, node) != 1:
        return NOT
    return rule(user, node, found[user])


def _times(user: Node, node: Node) -> int:
    """How often a node is an argument of another."""
    given = [*user.args, *user.kwargs.values()]
    flat = [part for item in given for part in (item if isinstance(item, list | tuple) else (item,))]
    return sum(part is node for part in flat)


def is_real(node: Node) -> bool:
    """Whether a node makes floating numbers, so that what is added is not rounded away."""
    meta = node.meta.get("val")
    return isinstance(meta, Tensor) and meta.is_floating_point()


def _same(user: Node, node: Node, blind: Blind) -> Blind:
    return blind if user.args[0] is node and is_real(user) else NOT


def broadcast(shape: tuple[int, ...], result: tuple[int, ...], blind: Blind) -> Blind:
    """Dimensions of what is broadcast to a result: along those that it has not, it is the same anyway."""
    lead = len(result) - len(shape)
    return _least(frozenset(d - lead for d in item if d >= lead and shape[d - lead] > 1) for item in blind)


def _spread(user: Node, node: Node, blind: Blind) -> Blind:
    shape, result = shape_of(node), shape_of(user)
    return NOT if shape is None or result is None else broadcast(shape, result, blind)


def _sum(user: Node, node: Node, blind: Blind) -> Blind:
    if user.args[0] is node and is_own_mean(user.args[1], node):
        mean: Any = user.args[1]
        ndim = len(shape_of(node) or ())
        return frozenset({frozenset(d % ndim for d in argument(mean, "dim"))})
    return _spread(user, node, blind) if argument(user, "alpha", 1) in (1, None) else NOT


def is_own_mean(node: Any, of: Node) -> bool:
    """Whether a node is the mean of another over some dimensions, which all its users subtract from that one."""
    return (
        isinstance(node, Node)
        and operation(node) == "mean"
        and node.args[0] is of
        and bool(argument(node, "keepdim", False))
        and bool(argument(node, "dim"))
        and all(operation(user) == "sub" and user.args == (of, node) and not user.kwargs for user in node.users)
    )


def _mean(user: Node, node: Node, blind: Blind) -> Blind:
    shape, dims = shape_of(node), argument(user, "dim")
    if is_own_mean(user, node):
        return frozenset({frozenset()})
    if shape is None or not dims:
        return NOT
    gone = {d % len(shape) for d in ([dims] if isinstance(dims, int) else dims)}
    kept = [d for d in range(len(shape)) if argument(user, "keepdim", False) or d not in gone]
    return _least(frozenset(kept[d] for d in item if kept[d] not in gone) for item in blind)


def _deviation(user: Node, node: Node, blind: Blind) -> Blind:
    shape, dims = shape_of(node), argument(user, "dim")
    if shape is None or not isinstance(dims, list | tuple):
        return NOT
    return frozenset({frozenset(d % len(shape) for d in dims)})


def _times_number(user: Node, node: Node, blind: Blind) -> Blind:
    one, two = (*user.args, None)[:2]
    number = two if one is node else one
    odd = argument(user, "rounding_mode") is not None or (one is not node and operation(user) == "div")
    return blind if isinstance(number, int | float) and not odd else NOT


def _filled(user: Node, node: Node, blind: Blind) -> Blind:
    value = user.args[2]
    return blind if user.args[0] is node and isinstance(value, int | float) and value < LEAST else NOT


def _reshaped(user: Node, node: Node, blind: Blind) -> Blind:
    shape, result = shape_of(node), shape_of(user)
    if shape is None or result is None:
        return NOT
    groups = [
        ({i for i in left if shape[i] > 1}, {j for j in right if result[j] > 1})
        for left, right in regroupings(shape, result)
    ]
    mapped = []
    for item in blind:
        inside = [(left, right) for left, right in groups if right & item]
        if all(right <= item for _, right in inside):
            mapped.append(frozenset(i for left, _ in inside for i in left))
    return _least(mapped)


def order(user: Node, ndim: int) -> list[int]:
    """For each dimension of the result of a turn, the one it was."""
    name = operation(user)
    if name == "permute":
        dims: Any = user.args[1]
        return [d % ndim for d in dims]
    if name == "movedim":
        return []
    one: Any
    two: Any
    one, two = (user.args[1], user.args[2]) if name == "transpose" else (-2, -1) if name == "mT" else (0, -1)
    found = list(range(ndim))
    if ndim > 1:
        found[one], found[two] = found[two], found[one]
    return found


def _turned(user: Node, node: Node, blind: Blind) -> Blind:
    dims = order(user, len(shape_of(user) or ()))
    return _least(frozenset(dims[d] for d in item) for item in blind) if dims else NOT


def _part(user: Node, node: Node, blind: Blind) -> Blind:
    shape, result = shape_of(node), shape_of(user)
    if user.args[0] is not node or shape is None or result is None:
        return NOT
    if operation(user) != "select":
        return blind if len(result) == len(shape) else NOT
    at = argument(user, "dim") % len(shape)
    return _least(frozenset(d + (d >= at) for d in item) for item in blind)


def _cut(user: Node, node: Node, blind: Blind) -> Blind:
    if operation(user) != "unbind":
        return blind
    at = (argument(user, "dim", 0) or 0) % len(shape_of(node) or (1,))
    return _least(frozenset(d + (d >= at) for d in item) for item in blind)


def _joined(user: Node, node: Node, blind: Blind) -> Blind:
    at = (argument(user, "dim", 0) or 0) % len(shape_of(user) or (1,))
    return frozenset(item for item in blind if at not in item)


def _linear(user: Node, node: Node, blind: Blind) -> Blind:
    shape = shape_of(user)
    if shape is None:
        return NOT
    last = len(shape) - 1
    if node is user.args[0]:
        return frozenset(item for item in blind if last not in item)
    if node is user.args[1]:
        return frozenset({frozenset({0})}) if frozenset({last}) in blind else NOT
    return _spread(user, node, blind)


def _product(user: Node, node: Node, blind: Blind) -> Blind:
    """Of A·B: A along the rows of the result, B along its columns."""
    one, two = user.args[-2:]
    shape, result = shape_of(node), shape_of(user)
    if shape is None or result is None or len(shape_of(one) or ()) < 2 or len(shape_of(two) or ()) < 2:
        return NOT
    if node is not one and node is not two:
        return _spread(user, node, blind)
    here = len(result) - (2 if node is one else 1)
    return frozenset({frozenset({len(shape) - (2 if node is one else 1)})}) if frozenset({here}) in blind else NOT


def _attention(user: Node, node: Node, blind: Blind) -> Blind:
    shape = shape_of(node)
    if shape is None:
        return NOT
    if node is user.args[1]:
        return frozenset({frozenset({len(shape) - 2})})
    last = frozenset({len(shape) - 1})
    return frozenset({last}) if node is user.args[2] and last in blind else NOT


def _layer_norm(user: Node, node: Node, blind: Blind) -> Blind:
    shape = shape_of(node)
    if node is user.args[0] and shape is not None:
        count = len(argument(user, "normalized_shape"))
        return frozenset({frozenset(range(len(shape) - count, len(shape)))})
    return _spread(user, node, blind) if node is argument(user, "bias") else NOT


def _softmax(user: Node, node: Node, blind: Blind) -> Blind:
    shape = shape_of(node)
    dim: Any = user.args[1]
    return NOT if not shape else frozenset({frozenset({dim % len(shape)})})


def _group_norm(user: Node, node: Node, blind: Blind) -> Blind:
    shape = shape_of(node)
    return frozenset({frozenset(range(1, len(shape)))}) if shape and node is user.args[0] else NOT


def _instance_norm(user: Node, node: Node, blind: Blind) -> Blind:
    shape = shape_of(node)
    own = bool(argument(user, "use_input_stats", False))
    return frozenset({frozenset(range(2, len(shape)))}) if own and shape and node is user.args[0] else NOT


def _convolved(user: Node, node: Node, blind: Blind) -> Blind:
    if len(shape_of(user) or ()) != len(shape_of(user.args[1]) or ()):
        return NOT  # without a batch
    if node is argument(user, "bias"):
        result = shape_of(user) or ()
        # Along the channels, dimension 1 of the result.
        return _least(frozenset({0} if 1 in item and result[1] > 1 else ()) for item in blind)
    alone = argument(user, "groups", 1) == 1 and node is user.args[1]
    return frozenset({frozenset({0})}) if alone and frozenset({1}) in blind else NOT


def _looked_up(user: Node, node: Node, blind: Blind) -> Blind:
    last = frozenset({len(shape_of(user) or (1,)) - 1})
    return frozenset({frozenset({1})}) if node is user.args[0] and last in blind else NOT


_RULES: dict[str, Callable[[Node, Node, Blind], Blind]] = {
    **dict.fromkeys(SAME, _same),
    **dict.fromkeys(RESHAPES, _reshaped),
    **dict.fromkeys(TURNS, _turned),
    **dict.fromkeys(PARTS, _part),
    **dict.fromkeys(CUTS, _cut),
    **dict.fromkeys(SUMS, _sum),
    **dict.fromkeys(("mul", "div"), _times_number),
    **dict.fromkeys(("expand", "expand_as"), _spread),
    **dict.fromkeys(("cat", "concat"), _joined),
    **dict.fromkeys(("matmul", "mm", "bmm", "addmm", "baddbmm"), _product),
    **dict.fromkeys(("softmax", "_softmax", "log_softmax", "_log_softmax"), _softmax),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _convolved),
    **dict.fromkeys(("layer_norm", "native_layer_norm"), _layer_norm),
    **dict.fromkeys(("var", "std"), _deviation),
    "mean": _mean,
    "masked_fill": _filled,
    "linear": _linear,
    "scaled_dot_product_attention": _attention,
    "group_norm": _group_norm,
    "instance_norm": _instance_norm,
    "embedding": _looked_up,
}
