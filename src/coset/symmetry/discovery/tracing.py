"""From an exported model to statements about its parameters: one rule per operation."""

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.export.graph_signature import InputKind
from torch.fx import Node
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves, tree_map_only

from coset.errors import InputError
from coset.symmetry.discovery import (
    contractions,
    elementwise,
    movement,
    norms,
    ordering,
    picking,
    positions,
    products,
    recurrences,
    scattering,
)
from coset.symmetry.discovery.calls import Call, is_pointwise, tensors_in
from coset.symmetry.discovery.evaluation import WRITTEN, part_of
from coset.symmetry.discovery.exporting import place_of
from coset.symmetry.discovery.known_numbers import Constants, has_number, masked_fill, number_of, unmasked
from coset.symmetry.discovery.operands import watched
from coset.symmetry.discovery.relations import Book, Value
from coset.symmetry.discovery.routing import routed, settle, settle_orders
from coset.symmetry.discovery.rules import RULES, passed, straight
from coset.symmetry.discovery.stacks import (
    SPLITS,
    Segments,
    Stack,
    as_tensor,
    name_of_node,
    on_segments,
    on_stack,
    rejoined,
    say_interleaved,
    segment_sizes,
    span_of,
    split_into_segments,
    split_into_stack,
    stack_dimension,
    stays_stacked,
)
from coset.symmetry.discovery.terms import Atom, atoms, fresh, resolve
from coset.symmetry.discovery.ties import Tie, ties


@dataclass(frozen=True)
class Step:
    """One operation: its name, what it was given and what it gave; tensors as their Values. ``target``: itself."""

    name: str
    args: Any
    kwargs: Mapping[str, Any]
    result: Any
    target: Callable[..., Any]

    @property
    def given(self) -> list[Value]:
        """The tensors among its arguments."""
        return tensors_of(self.args, self.kwargs)

    @property
    def results(self) -> list[Value]:
        """The tensors it gave."""
        return tensors_of(self.result)


def tensors_of(*parts: Any) -> list[Value]:
    """The tensors among arguments, those of stacks and segments included."""
    found: list[Value] = []
    for item in tree_leaves(parts):
        found += [item] if isinstance(item, Value) else item.parts if isinstance(item, Stack | Segments) else []
    return found


@dataclass
class Tracing:
    """What came out: the book, the Value of every parameter and moving buffer that is used, and what was pinned.

    ``watched``: the nodes that modules give or contractions read, with their names; ``activations``: name → its Value.
    ``contractions``: their names, and how many tensors they read. ``steps``: all operations, in order. ``known``: the
    number of the Value of a constant → its entries.
    """

    book: Book
    parameters: dict[str, Value]
    variances: list[tuple[str, str | None, float]] = field(default_factory=list)
    pinned: list[str] = field(default_factory=list)
    constants: Constants = field(default_factory=Constants)
    watched: Mapping[Node, Sequence[str]] = field(default_factory=dict)
    activations: dict[str, Value] = field(default_factory=dict)
    contractions: Sequence[tuple[str, int]] = ()
    steps: list[Step] = field(default_factory=list)
    known: dict[int, Tensor] = field(default_factory=dict)

    def standing(self) -> dict[Atom, None]:
        """The atoms of all parameters."""
        values = self.parameters.values()
        return dict.fromkeys(atom for value in values for dim in value.dims for atom in atoms(resolve(dim)))


def trace(program: torch.export.ExportedProgram, movable: Mapping[str, Tensor], fixed: Collection[str] = ()) -> Tracing:
    """Interpret the graph: every tensor gets a Value, every operation says what it knows.

    ``fixed``: names of tensors that are constants whatever the function does with them.
    """
    tracing = Tracing(Book(), {})
    tracing.contractions, tracing.watched = watched(program)
    kinds = {
        spec.arg.name: (spec.kind, spec.target)
        for spec in program.graph_signature.input_specs
        if hasattr(spec.arg, "name")
    }
    placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
    arguments = [_placeholder(tracing, node, *kinds[node.name], movable, fixed) for node in placeholders]
    for node in placeholders:
        kind, name = kinds[node.name]
        constant = movable.get(str(name), program.constants.get(str(name))) if kind in _KEPT else None
        if isinstance(constant, Tensor) and not constant.is_meta and str(name) not in tracing.parameters:
            tracing.constants.tensors[node] = constant
    tracing.known |= {
        id(v): tracing.constants.tensors[node]
        for node, v in zip(placeholders, arguments, strict=True)
        if node in tracing.constants.tensors
    }
    tracing.book.where = "shared memory"
    for tie in ties(movable):
        _tie(tracing, tie, movable, fixed)
    for name, value in tracing.parameters.items():
        # Copies of one number cannot be scaled apart.
        repeated = [dim for dim, step in enumerate(movable[name].stride()) if step == 0 and value.shape[dim] > 1]
        tracing.book.neutral(value, dims=repeated)
    tracing.parameters = _in_order_of_use(program.graph, tracing.parameters, kinds)
    returned = tree_map_only(
        Stack, lambda stack: as_tensor(tracing.book, stack), _run(tracing, program.graph_module, arguments)
    )
    for spec, value in zip(program.graph_signature.output_specs, returned, strict=True):
        tracing.book.where = "output"
        if not isinstance(value, Value):
            continue
        if spec.kind in WRITTEN and spec.target in tracing.parameters:
            # What is written back has to be what the moved network would write: it moves with what it replaces.
            passed(tracing.book, value, tracing.parameters[str(spec.target)], straight(value))
        elif spec.kind in WRITTEN:
            tracing.book.hold(value, reason=f"it is written into '{spec.target}', which is fixed", known=False)
        else:
            tracing.book.hold(value, reason="an output of the model")
            if value.about is not None:
                settle(tracing.book, value)
    tracing.book.own = set(tracing.standing())
    settle_orders(tracing.book)
    return tracing


def _tie(tracing: Tracing, tie: Tie, movable: Mapping[str, Tensor], fixed: Collection[str]) -> None:
    """Names that share memory move alike, also where the function uses but one of them."""
    book, names = tracing.book, (tie.one, tie.two)
    if movable[tie.one] is movable[tie.two] or not any(name in tracing.parameters for name in names):
        return  # the same object is exported under one name
    if any(name in fixed for name in names):
        told = f"'{tie.one}' and '{tie.two}' share memory, and one is fixed"
        for value in (tracing.parameters[name] for name in names if name in tracing.parameters):
            book.hold(value, reason=told, known=False)
        return
    for name in names:
        if name not in tracing.parameters:
            shape = tuple(movable[name].shape)
            tracing.parameters[name] = book.value(shape, [fresh(n) for n in shape])
    one, two = (tracing.parameters[name] for name in names)
    if tie.order is not None:
        passed(book, one, two, tie.order)
        return
    for value in (one, two):
        book.hold(value, reason=f"'{tie.one}' and '{tie.two}' overlap in memory", known=False)


def _in_order_of_use(
    graph: torch.fx.Graph, parameters: Mapping[str, Value], kinds: Mapping[str, tuple[InputKind, Any]]
) -> dict[str, Value]:
    """Parameters as the computation meets them: those that write units come before those that read them."""
    turn = {node: number for number, node in enumerate(graph.nodes)}
    first = {
        str(kinds[node.name][1]): min(turn[user] for user in node.users)
        for node in graph.nodes
        if node.op == "placeholder" and node.users
    }
    return dict(sorted(parameters.items(), key=lambda item: first.get(item[0], len(turn))))


def _run(tracing: Tracing, module: torch.fx.GraphModule, arguments: Sequence[Any]) -> Any:
    """Go through a graph, or a part of one that stands apart (under no_grad or autocast); returns what it returns."""
    env: dict[Node, Any] = {}
    given = iter(arguments)
    whole = rejoined(module.graph)
    for node in module.graph.nodes:
        tracing.book.where = place_of(node)
        if node in whole:
            env[node] = env[whole[node]]
        elif node.op == "placeholder":
            env[node] = next(given)
        elif node.op == "get_attr":
            env[node] = module.get_submodule(str(node.target))
        elif node.op == "call_function":
            tracing.constants.learn(node)
            args, kwargs = map_arg((node.args, node.kwargs), env.__getitem__)
            env[node] = _call(tracing, node, env, args, kwargs)
            if hasattr(node.target, "_schema"):
                target: Any = node.target
                tracing.steps.append(Step(name_of_node(node), args, kwargs, env[node], target))
            if node in tracing.constants.tensors:
                # The steps hold all Values, so that no other one gets this number.
                tracing.known[id(env[node])] = tracing.constants.tensors[node]
            if node in tracing.watched and isinstance(env[node], Value) and not env[node].inert:
                tracing.activations |= dict.fromkeys(tracing.watched[node], env[node])
        elif node.op == "output":
            return map_arg(node.args[0], env.__getitem__)
    return None


def _placeholder(
    tracing: Tracing,
    node: Node,
    kind: InputKind,
    target: Any,
    movable: Mapping[str, Tensor],
    fixed: Collection[str],
) -> Any:
    meta = node.meta.get("val")
    if not isinstance(meta, Tensor):
        return meta
    shape = tuple(int(n) for n in meta.shape)
    book = tracing.book
    real_or_complex = meta.is_floating_point() or meta.is_complex()
    moves = kind in (InputKind.PARAMETER, InputKind.BUFFER) and target in movable and real_or_complex
    if moves and node.users and target not in fixed:
        value = book.value(shape, [fresh(n) for n in shape])
        tracing.parameters[str(target)] = value
        return value
    reason = "an input of the model" if kind == InputKind.USER_INPUT else "a constant"
    value = book.constant(shape, reason)
    value.data = kind == InputKind.USER_INPUT
    return value


def _shapes(tracing: Tracing, node: Node) -> list[tuple[int, ...]]:
    meta = node.meta.get("val")
    found = meta if isinstance(meta, list | tuple) else [meta]
    shapes = []
    for item in found:
        if isinstance(item, Tensor):
            shape = tracing.constants.shape(node, item)
            if shape is None:
                raise InputError(
                    f"{place_of(node)} gives a tensor whose shape depends on the data; no single graph can show it"
                )
            shapes.append(shape)
    return shapes


def _call(tracing: Tracing, node: Node, env: Mapping[Node, Any], args: Any, kwargs: dict[str, Any]) -> Any:
    book = tracing.book
    if node.target is operator.getitem:
        return args[0][args[1]]
    if (part := part_of(args)) is not None:
        if str(node.target) in _WRAPPERS:
            return _run(tracing, *part)
        raise InputError(
            f"the model's control flow depends on its data at {book.where}, which no single graph can show"
        )
    shapes = _shapes(tracing, node)
    target: Any = node.target
    if not shapes:
        return number_of(book, node, args)
    name = name_of_node(node) or str(target)
    if hasattr(target, "_schema") and target._schema.is_mutable:
        name = name.removesuffix("_")
    used = frozenset(int(str(user.args[1])) for user in node.users if user.target is operator.getitem and user.users)
    several = isinstance(node.meta["val"], list | tuple)
    first = next(item for item in (node.meta["val"] if several else [node.meta["val"]]) if isinstance(item, Tensor))
    call = Call(name, target, args, kwargs, shapes, used, first.is_floating_point() or first.is_complex())
    call.kwargs = {key: _neutral_factor(book, key, value) for key, value in kwargs.items()}
    if name == "stack" and len(args[0]) > 1 and not any(isinstance(part, Stack) for part in args[0]):
        return Stack(list(args[0]), call.argument("dim", 0) % len(shapes[0]))
    if args and isinstance(args[0], Stack) and stays_stacked(call, args[0]):
        return on_stack(book, call, args[0])
    if args and isinstance(args[0], Stack):
        say_interleaved(book, call, args[0])
    if any(isinstance(env[other], Stack) for other in node.all_input_nodes):
        call.args = args = tree_map_only(Stack, lambda stack: as_tensor(book, stack), args)
    if args and isinstance(args[0], Segments):
        span = span_of(node, _shapes(tracing, node.all_input_nodes[0])[0], tracing.constants.tensors)
        assert span is not None
        return on_segments(book, call, args[0], *span[1:])
    if name == "index_put" and (filled := masked_fill(book, tracing.constants, node, call)) is not None:
        return filled
    if name in ("index", "_unsafe_index"):
        call.args = args = (args[0], unmasked(book, tracing.constants, node, args[1]), *args[2:])
    if name in SPLITS and (parts := _in_parts(tracing, node, args[0], shapes[0])) is not None:
        return parts
    result = _routed(tracing, node, call)
    if result is None:
        result = _apply(tracing, call)
    if RULES.get(name) in _REARRANGING and all(value.zero for value in call.tensors()):
        for value in tensors_in(result):
            value.zero = True
    names = {id(value): key for key, value in tracing.parameters.items()} if call.variances else {}
    for variance, gain, eps in call.variances:
        alone = sum(len(user.users) for user in node.all_input_nodes if env.get(user) is variance) == 1
        if id(variance) in names and alone:
            tracing.variances.append((names[id(variance)], names.get(id(gain)), eps))
        else:
            # var + ε is what scales: a variance that is computed, or read elsewhere too, has to stay what it is.
            book.neutral(variance, sign=False)
    if isinstance(result, list):
        return result if several else result[0]
    return [result] if several else result


def _neutral_factor(book: Book, name: str, value: Any) -> Any:
    """Factors inside of an operation that depend on data or weights let nothing through."""
    if name not in ("alpha", "beta", "value") or not isinstance(value, Value) or value.ndim:
        return value
    book.neutral(value)
    return 1.0


def _routed(tracing: Tracing, node: Node, call: Call) -> Any:
    """What an operation on numbers of units says; None, and the units are told apart, where nothing is known of it."""
    third = node.args[2] if len(node.args) > 2 else None
    known = tracing.constants.tensors.get(third) if isinstance(third, Node) else None
    result = routed(tracing.book, call, known)
    named = [value for value in call.tensors() if value.about is not None] if result is None else []
    if named and RULES.get(call.name) in _REARRANGING and len(call.tensors()) == 1:
        result = _apply(tracing, call)
        about = named[0].about
        assert about is not None
        if RULES[call.name] not in _WHOLE:
            # A part of the numbers: the same part twice is the same.
            about = replace(about, index=(about.index, call.name, *map(str, node.args[1:])))
        parts = tensors_in(result)
        for number, value in enumerate(parts):
            value.about = about if len(parts) == 1 else replace(about, index=(about.index, number))
        return result
    for value in named:
        settle(tracing.book, value)
    return result


def _in_parts(tracing: Tracing, node: Node, x: Value, shape: tuple[int, ...]) -> Stack | Segments | None:
    """A reshaped tensor in the parts in which alone it is read, if there are such."""
    if (dim := stack_dimension(node)) is not None:
        return split_into_stack(tracing.book, x, shape, dim)
    if (cuts := segment_sizes(node, tracing.constants.tensors)) is not None:
        return split_into_segments(tracing.book, x, shape, *cuts)
    return None


def _apply(tracing: Tracing, call: Call) -> Any:
    """The rule of an operation, or what is true of any elementwise one, or nothing at all: pinned and reported."""
    book = tracing.book
    try:
        if call.name in RULES:
            return RULES[call.name](book, call)
        if is_pointwise(call.target, call.name):
            return _elementwise(book, call)
        reason = f"{book.where}: no rule for {call.name}" if call.tensors() else "a constant"
    except InputError as error:
        reason = f"{book.where}: {error}"
    except TypeError:
        if not has_number(call):
            raise
        reason = f"{book.where}: {call.name} with a number that depends on data"
    if not all(value.inert for value in call.tensors()):
        tracing.pinned.append(reason)
    return movement.nothing(book, call, reason)


def _elementwise(book: Book, call: Call) -> Value:
    """An elementwise function of one tensor passes what its values say, if any; of several, dimensions alone."""
    if len(call.tensors()) == 1:
        try:
            return elementwise.unary(book, call)
        except InputError:
            # No function of real numbers: of truth values, say. Entry by entry it is all the same.
            return elementwise.pointwise(book, call)
    return elementwise.pointwise(book, call)


# The modules that enter their rules into the table when they are imported.
RULE_BOOKS = (
    elementwise, contractions, products, norms, ordering, picking, scattering, positions,
    movement, recurrences,
)  # fmt: skip

# Rules that make no new numbers: what they make of zeros is zero.
_REARRANGING = (
    elementwise.same_values,
    movement.regrouped,
    movement.permuted,
    movement.expanded,
    movement.joined,
    movement.divided,
    picking.sliced,
    picking.selected,
)

# What a model brings with it.
_KEPT = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)

# Of these, rules that keep all entries.
_WHOLE = (elementwise.same_values, movement.regrouped, movement.permuted, movement.expanded)

# Parts of a graph under another mode; they compute the same.
_WRAPPERS = frozenset({"wrap_with_autocast", "wrap_with_set_grad_enabled"})
