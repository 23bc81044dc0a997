"""Exported models run in float64 with other parameters, whatever types they are of and cast to."""

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.export.graph_signature import OutputKind
from torch.fx import GraphModule, Node
from torch.fx.node import map_aggregate, map_arg
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

_WIDE = {
    dtype: torch.complex128 if dtype.is_complex else torch.float64
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype) and (dtype.is_complex or dtype.is_floating_point)
    if dtype not in (torch.float64, torch.complex128)
}

WRITTEN = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION)
"""Results of a graph that the model writes into its own buffers and parameters."""


def part_of(args: Sequence[Any]) -> tuple[GraphModule, Sequence[Any]] | None:
    """A part of a graph that is called as a function (under no_grad or autocast), and what it is called with."""
    at = next((i for i, item in enumerate(args) if isinstance(item, GraphModule)), None)
    return None if at is None else (args[at], args[at + 1 :])


def widened(arguments: Any) -> Any:
    """Arguments of an operation with every type of numbers widened."""
    return map_aggregate(arguments, lambda item: _WIDE.get(item, item) if isinstance(item, torch.dtype) else item)


class _Step(NamedTuple):
    """A node, whether types or parts of a graph are among its arguments, and the nodes that nobody reads later."""

    node: Node
    special: bool
    done: tuple[Node, ...]


def _steps(graph: GraphModule) -> list[_Step]:
    """The nodes of a graph in order, as they are run; made once, since graphs are run many times."""
    found: list[_Step] | None = graph.meta.get(_STEPS)
    if found is None:
        last: dict[Node, Node] = {}
        for node in graph.graph.nodes:
            last |= dict.fromkeys(node.all_input_nodes, node)
        done: dict[Node, list[Node]] = {}
        for node, reader in last.items():
            done.setdefault(reader, []).append(node)
        found = [_Step(node, _is_special(node), tuple(done.get(node, ()))) for node in graph.graph.nodes]
        graph.meta[_STEPS] = found
    return found


_STEPS = "coset.steps"


def _is_special(node: Node) -> bool:
    """Whether a type, which has to be widened, or a part of a graph is among the arguments."""
    given = tree_leaves((node.args, node.kwargs))
    return any(isinstance(item, torch.dtype) or (isinstance(item, Node) and item.op == "get_attr") for item in given)


class InDouble:
    """Runs a graph with every floating type widened to float64, casts inside the model included.

    ``without``: names of operations that have no derivative: what is in front of them gets no gradient. Those that say
    so when they are called are added. ``watch`` is shown every node with its result.
    """

    def __init__(
        self, graph: GraphModule, without: set[str] | None = None, watch: Callable[[Node, Any], None] | None = None
    ) -> None:
        self._graph = graph
        self._without = set() if without is None else without
        self._watch = watch

    def run(self, *arguments: Any) -> Any:
        """What the graph returns; what nobody reads any more is freed as it goes."""
        env: dict[Node, Any] = {}
        given = iter(arguments)
        for node, special, done in _steps(self._graph):
            if node.op == "placeholder":
                result = next(given)
            elif node.op == "get_attr":
                result = attrgetter(str(node.target))(self._graph)
            else:
                args, kwargs = map_arg((node.args, node.kwargs), env.__getitem__)
                if node.op == "output":
                    return args[0]
                assert node.op == "call_function", node.op
                if special:
                    args, kwargs = widened((args, kwargs))
                result = self._called(node.target, args, kwargs, special)
            env[node] = result
            if self._watch is not None:
                self._watch(node, result)
            for other in done:
                del env[other]
        return None

    def _called(self, target: Any, args: Any, kwargs: Any, special: bool) -> Any:
        if special and (part := part_of(args)) is not None:
            return InDouble(part[0], self._without).run(*part[1])
        if not torch.is_grad_enabled():
            return _all_double(target(*args, **kwargs))
        if name_of(target) not in self._without:
            try:
                return _all_double(differentiable(target)(*args, **kwargs))
            except RuntimeError:
                self._without.add(name_of(target))
        args, kwargs = tree_map_only(Tensor, lambda item: item.detach(), (args, kwargs))
        return _all_double(target(*args, **kwargs))


def _all_double(result: Any) -> Any:
    """The result of an operation in double precision."""
    return double(result) if isinstance(result, Tensor) else tree_map(double, result)


def name_of(target: Any) -> str:
    """The full name of an operation, aten::relu."""
    schema = getattr(target, "_schema", None)
    return "" if schema is None else str(schema.name)


def differentiable(target: Any) -> Any:
    """An operation, or another form of it: with derivatives by all arguments, of any strides, and not in place."""
    schema = getattr(target, "_schema", None)
    if schema is None or not schema.is_mutable:
        return _DIFFERENTIABLE.get(name_of(target), target)

    def apart(*args: Any, **kwargs: Any) -> Any:
        # What is written over may be needed for a derivative.
        return target(args[0].clone(), *args[1:], **kwargs)

    return apart


def _batch_norm(x: Tensor, *args: Any) -> Tensor:
    """By the statistics kept, if there are any; torch's own has no derivative by them."""
    weight, bias, mean, variance, training, _, eps, _ = args
    if mean is None or variance is None or training:
        return torch.batch_norm(x, *args)
    shape = (1, -1, *(1,) * (x.ndim - 2))
    result: Tensor = (x - mean.reshape(shape)) / torch.sqrt(variance.reshape(shape) + eps)
    result = result if weight is None else result * weight.reshape(shape)
    return result if bias is None else result + bias.reshape(shape)


def double(item: Any) -> Any:
    """A floating or complex tensor in double precision; anything else as it is."""
    return item.to(_WIDE[item.dtype]) if isinstance(item, Tensor) and item.dtype in _WIDE else item


def _batch_norm_in_parts(x: Tensor, *args: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The same as it is in decomposed graphs, with two results that are empty."""
    *statistics, momentum, eps = args
    return _batch_norm(x, *statistics, False, momentum, eps, False), x.new_empty(0), x.new_empty(0)


def _instance_norm(x: Tensor, *args: Any) -> Tensor:
    """By the statistics kept it is a batch norm."""
    *statistics, by_input, momentum, eps, cudnn = args
    if by_input or statistics[2] is None:
        return torch.instance_norm(x, *args)
    return _batch_norm(x, *statistics, False, momentum, eps, cudnn)


def _copied(x: Tensor, y: Tensor, non_blocking: bool = False) -> Tensor:
    """y in the shape and type of x."""
    return y.to(x.dtype).expand(x.shape)


def _viewed(x: Tensor, shape: Any) -> Tensor:
    """Also of other strides than in the export: where there are gradients other kernels run."""
    return x.view(shape) if isinstance(shape, torch.dtype) else x.reshape(shape)


_DIFFERENTIABLE = {
    "aten::batch_norm": _batch_norm,
    "aten::_native_batch_norm_legit_no_training": _batch_norm_in_parts,
    "aten::instance_norm": _instance_norm,
    "aten::copy": _copied,
    "aten::view": _viewed,
}


def arguments_of(
    program: torch.export.ExportedProgram, params: Mapping[str, Tensor], inputs: Sequence[Any]
) -> list[tuple[str | None, Any]]:
    """What the graph is called with, in order: the name of a parameter that is given and its tensor, or (None, …)."""
    given = iter(inputs)
    arguments: list[tuple[str | None, Any]] = []
    for spec in program.graph_signature.input_specs:
        name = str(spec.target)
        if spec.target is None:
            arguments.append((None, next(given)))
        elif name in params:
            arguments.append((name, params[name]))
        else:
            constant = program.constants[name] if name in program.constants else program.state_dict[name]
            arguments.append((None, constant))
    return arguments


Results = tuple[list[Tensor], dict[str, Tensor]]
"""What a model returns, and what it writes into its tensors, by name."""


def run(
    program: torch.export.ExportedProgram,
    params: Mapping[str, Tensor],
    inputs: Sequence[Any],
    without: set[str] | None = None,
    watch: Callable[[Node, Any], None] | None = None,
) -> Results:
    """What an exported model returns in float64 with other parameters, and what it writes into its tensors, by name.

    Differentiable where gradients are enabled; ``without``, ``watch``: see ``InDouble``.
    """
    arguments = [double(value) for _, value in arguments_of(program, params, inputs)]
    results = InDouble(program.graph_module, without, watch).run(*arguments)
    outputs: list[Tensor] = []
    written: dict[str, Tensor] = {}
    for spec, item in zip(program.graph_signature.output_specs, results, strict=True):
        if spec.kind in WRITTEN:
            written[str(spec.target)] = item
        else:
            outputs += [leaf for leaf in tree_leaves(item) if isinstance(leaf, Tensor)]
    return outputs, written


def results_of(
    program: torch.export.ExportedProgram,
    params: Mapping[str, Tensor],
    inputs: Sequence[Any],
    watch: Callable[[Node, Any], None] | None = None,
) -> Results:
    """As ``run``, without derivatives."""
    with torch.no_grad():
        return run(program, params, inputs, watch=watch)


def evaluate(
    program: torch.export.ExportedProgram, params: Mapping[str, Tensor], inputs: Sequence[Any]
) -> list[Tensor]:
    """The outputs of an exported model in float64, with other parameters."""
    return results_of(program, params, inputs)[0]
