"""On which entries of parameters the outputs depend: in this function at these inputs, or whatever the values are.

The first is a gradient. The second is a gradient, too, of the same graph with a generic function in the place of every
elementwise one: nothing is dead, no branch is left out, and what comes out zero is not read at all.
"""

import cmath
import re
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.node import map_aggregate
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from coset.symmetry.discovery.calls import is_pointwise
from coset.symmetry.discovery.elementwise import masked_fill, same_values, where
from coset.symmetry.discovery.evaluation import arguments_of, differentiable, double, name_of, part_of, run, widened
from coset.symmetry.discovery.movement import constant
from coset.symmetry.discovery.rules import RULES
from coset.symmetry.incidence import largest_by_block
from coset.symmetry.symmetry import Symmetry


class Standing(NamedTuple):
    """The units of one block of a class, on one parameter; a class that is not nested is one block."""

    name: str
    block: int
    parameter: str


Influence = dict[Standing, float]
"""The largest |θ·∂θ| where a block of a class stands on a parameter."""


def influence(
    sym: Symmetry,
    program: torch.export.ExportedProgram,
    theta: Mapping[str, Tensor],
    inputs: Sequence[Any],
    generator: torch.Generator,
    *,
    generic: bool = False,
) -> Influence:
    """How much each class is felt on each of its parameters, by one backward pass from a random projection of outputs.

    ``generic``: in the generic function instead of this one.
    """
    found: Influence = {}
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in theta.items() if name in sym.structures}

    def reduced(name: str, leaf: Tensor) -> None:
        # Freed at once: gradients of all parameters are never there together.
        assert leaf.grad is not None
        largest = largest_by_block(sym, name, (leaf.grad * leaf).detach())
        leaf.grad = None
        for owner, values in largest.items():
            for block, value in enumerate(values):
                part = Standing(owner, block, name)
                found[part] = max(found.get(part, 0.0), value)

    for name, leaf in leaves.items():
        leaf.register_post_accumulate_grad_hook(partial(reduced, name))  # type: ignore[no-untyped-call]
    readers: dict[str, float] = {}
    placeholders = (node for node in program.graph.nodes if node.op == "placeholder")
    specs = zip(placeholders, program.graph_signature.input_specs, strict=True)
    homes = {node: str(spec.target or "") for node, spec in specs}

    def watch(node: Node, result: Any) -> None:
        if isinstance(result, Tensor) and result.requires_grad and node.op == "call_function":
            for name in {homes[other] for other in node.all_input_nodes if homes.get(other) in leaves}:
                result.register_hook(partial(_noted, readers, name, result.detach()))  # type: ignore[no-untyped-call]

    without: set[str] = set()
    params = {**theta, **leaves}

    def ends() -> Tensor | None:
        """A random projection of what the model, or the generic function, returns and writes."""
        if not generic:
            outputs, written = run(program, params, inputs, without, watch)
            return _projected([*outputs, *written.values()], generator)
        graph = _Generic(program.graph_module, generator, without)
        arguments = [
            Twin(double(value).detach(), double(value)) if name in leaves else double(value)
            for name, value in arguments_of(program, params, inputs)
        ]
        found = [item.generic if isinstance(item, Twin) else item for item in tree_leaves(graph.run(*arguments))]
        return graph.ended([item for item in found if isinstance(item, Tensor)])

    while True:
        try:
            with torch.enable_grad():
                total = ends()
                if total is not None:
                    total.backward()  # type: ignore[no-untyped-call]
            return _with_readers(found, readers)
        except RuntimeError as error:
            # Some operations say only now that they have no derivative.
            told = re.search(r"derivative for '?([\w:]+)'? is not implemented", str(error))
            back = re.search(r"Function (\w+?)Backward\d* returned an invalid gradient", str(error))
            name = told[1] if told else f"aten::{_snake(back[1])}" if back else ""
            if not name or name in without:
                raise
            without.add(name)


def _noted(readers: dict[str, float], name: str, result: Tensor, gradient: Tensor | None) -> None:
    if gradient is not None and result.numel():  # a count has none
        readers[name] = max(readers.get(name, 0.0), float((gradient * result).abs().max()))


def _with_readers(found: Influence, readers: Mapping[str, float]) -> Influence:
    """A parameter is also felt where what is computed from it is, if its units are felt elsewhere.

    A bias of keys shifts all scores alike, so that no output depends on it; the sum it is in is noticed all the same.
    """
    blocks = {(part.name, part.block) for part, value in found.items() if value > 0}
    return {
        part: max(value, readers.get(part.parameter, 0.0)) if (part.name, part.block) in blocks else value
        for part, value in found.items()
    }


def _snake(name: str) -> str:
    """The name of an operation as it is in the name of its derivative: ScatterAdd → scatter_add."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _projected(tensors: Sequence[Tensor], generator: torch.Generator) -> Tensor | None:
    """Σ r·y over all entries that are finite and have a gradient, with random r; None if there are none."""
    total: Tensor | None = None
    for tensor in tensors:
        if not tensor.requires_grad:
            continue
        real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        weights = torch.randn(real.shape, generator=generator, dtype=torch.float64).to(real.device)
        part = (torch.where(torch.isfinite(real), real, 0.0) * weights).sum()
        total = part if total is None else total + part
    return total


class Twin:
    """A tensor as the model computes it, which decides on indices and shapes, and as the generic function does."""

    def __init__(self, native: Tensor, generic: Tensor) -> None:
        self.native = native
        self.generic = generic


class _Generic(Interpreter):
    """Runs a graph with elementwise functions replaced by generic ones; tensors with gradients are twins.

    Where an operation has no gradient (an order, an index, a cast to whole numbers) all that flows into it counts as
    felt.
    """

    def __init__(self, module: GraphModule, generator: torch.Generator, without: Collection[str]) -> None:
        super().__init__(module, garbage_collect_values=True)
        self._generator = generator
        self._without = without
        self._total: Tensor | None = None

    def ended(self, outputs: Sequence[Tensor]) -> Tensor | None:
        """What is differentiated: the projections of outputs, and of all that gradients do not get past."""
        self._felt(outputs)
        return self._total

    def _felt(self, tensors: Sequence[Tensor]) -> None:
        part = _projected(tensors, self._generator)
        if part is not None:
            self._total = part if self._total is None else self._total + part

    def run_node(self, n: Node) -> Any:
        if n.op != "call_function":
            return super().run_node(n)
        args, kwargs = widened(self.fetch_args_kwargs_from_env(n))
        if (part := part_of(args)) is not None:
            inner = _Generic(part[0], self._generator, self._without)
            result = inner.run(*part[1])
            self._felt([] if inner._total is None else [inner._total])
            return result
        target: Any = n.target
        twins_given: list[Twin] = []

        def native_of(item: Any) -> Any:
            if isinstance(item, Twin):
                twins_given.append(item)
                return item.native
            return item

        natives: Any = map_aggregate((args, kwargs), native_of)
        with torch.no_grad():
            native = tree_map(double, target(*natives[0], **natives[1]))
        if not twins_given or not hasattr(target, "_schema"):
            return native if hasattr(target, "_schema") else target(*args, **kwargs)
        generic = self._generic(target, args, kwargs, native)
        flat, form = tree_flatten(native)
        twins = [
            Twin(one, two) if isinstance(two, Tensor) and two.requires_grad else one
            for one, two in zip(flat, tree_leaves(generic), strict=True)
        ]
        return form.unflatten(twins)

    def _generic(self, target: Any, args: Any, kwargs: Any, native: Any) -> Any:
        generics: Any = map_aggregate((args, kwargs), lambda item: item.generic if isinstance(item, Twin) else item)
        tensors = [item for item in tree_leaves(generics) if isinstance(item, Tensor)]
        name = name_of(target).partition("::")[2].rstrip("_")
        if RULES.get(name) is constant:
            # Made in the shape of a tensor, of which nothing else is read; a number to fill it with may be a tensor.
            self._felt([tensor for tensor in tensors[1:] if tensor.requires_grad])
            return native
        elementwise = is_pointwise(target, name) or RULES.get(name) in (same_values, where, masked_fill)
        if isinstance(native, Tensor) and name not in _LINEAR and elementwise:
            # type_as has a second argument of which it takes nothing but the type.
            read = generics[0][:1] if RULES.get(name) is same_values else tensors
            return self._in_range(_sum([item for item in read if isinstance(item, Tensor)], native))
        if name_of(target) in self._without:
            self._felt([tensor for tensor in tensors if tensor.requires_grad])
            return native
        result: Any
        try:
            result = tree_map(self._in_range, differentiable(target)(*generics[0], **generics[1]))
        except (RuntimeError, IndexError, TypeError, ValueError):
            result = native  # a type or an index that only the model's own values have
        first = next((item for item in tree_leaves(result) if isinstance(item, Tensor)), None)
        if name in _ORDERED or first is None or not first.requires_grad:
            self._felt([tensor for tensor in tensors if tensor.requires_grad])
        return result

    def _in_range(self, item: Any) -> Any:
        """A tensor brought to a random size near 1, so that nothing overflows, saturates or cancels; NaNs become 0."""
        if not isinstance(item, Tensor) or not item.requires_grad:
            return item
        with torch.no_grad():
            sizes = item.abs()
            largest = float(torch.where(torch.isfinite(sizes), sizes, 0.0).max()) if item.numel() else 0.0
        if bool(torch.isnan(sizes).any()):
            item = torch.where(torch.isnan(sizes), 0.0, item)
        # Complex numbers are turned as well: what is purely imaginary is so by chance.
        size, turn = torch.rand(2, generator=self._generator, dtype=torch.float64).tolist()
        factor = (0.5 + size) * (cmath.exp(1j * (0.5 + turn)) if item.is_complex() else 1.0)
        return item * (factor / largest) if largest > 0 else item


def _sum(tensors: Sequence[Tensor], native: Tensor) -> Tensor:
    """x + y + xy of all arguments with a gradient, in the shape of the result: neither shifts nor scales are lost."""
    parts = [tensor for tensor in tensors if tensor.requires_grad]
    if not parts:
        return native
    total = parts[0].expand(native.shape)
    for part in parts[1:]:
        total = total + part.expand(native.shape) + total * part.expand(native.shape)
    if native.is_floating_point() and total.is_complex():
        return torch.view_as_real(total).sum(-1)
    return total


# Elementwise operations that are generic as they are, and know what a zero is.
_LINEAR = frozenset({"add", "sub", "mul", "neg", "rsub"})

# Operations that let a gradient through for some of the entries that they look at.
_ORDERED = frozenset(
    {"topk", "sort", "argsort", "argmax", "argmin", "max", "min", "amax", "amin", "kthvalue", "mode", "median"}
    | {"cummax", "cummin", "aminmax", "nanmedian", "msort", "max_pool2d_with_indices"}
)


def felt(item: Influence, scale: float = 1e-9) -> set[Standing]:
    """What is felt by more than rounding, against what is felt most."""
    largest = max(item.values(), default=0.0)
    return {part for part, value in item.items() if value > scale * largest}


def to_be_felt(item: Influence) -> set[Standing]:
    """What is felt, and every other block of a class on a parameter of which one block is.

    Which expert a token goes to depends on values: that none goes to some of them says nothing about these.
    """
    known = {(part.name, part.parameter) for part in felt(item)}
    return {part for part in item if (part.name, part.parameter) in known}
