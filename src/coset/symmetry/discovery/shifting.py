"""What operations do to shifts: sums, reshapes, means, the values of attention and linear maps pass them.

A shift passes where it is the same along all that is summed over; a bias, the offset of a norm or a running mean takes
it up and begins a new one; anything else needs it to be 0.
"""

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from coset.symmetry.discovery.blindness import (
    CUTS,
    PARTS,
    RESHAPES,
    SAME,
    TURNS,
    argument,
    is_real,
    operation,
    shape_of,
)
from coset.symmetry.discovery.shift_book import LARGEST, Norm, ShiftBook, Source
from coset.symmetry.discovery.shifts import Term, numbers
from coset.symmetry.translations import Divided, Level, Move, Take, Through, Translation


class Shifting(ShiftBook):
    """Goes through a graph, operation by operation."""

    def read(self, node: Node) -> None:
        """The shift of what a node makes."""
        if node.op == "placeholder":
            self.shifts[node] = self.begun(node)
        elif node.op == "output":
            self.refuse(node)
        elif node.target is operator.getitem:
            parts = self.shifts.get(node.args[0])  # type: ignore[arg-type]
            self.shifts[node] = self.unseen(node, parts[node.args[1]] if isinstance(parts, dict) else [])
        else:
            rule = _RULES.get(operation(node)) if node.op == "call_function" else None
            if rule is not Shifting.moved and rule is not Shifting.same:
                self.see([term for item in node.all_input_nodes for term in self.of(item)])
            self.shifts[node] = self.unseen(node, self.refuse(node) if rule is None else rule(self, node))

    def same(self, node: Node) -> list[Term]:
        """The same entries, or their negatives."""
        if not is_real(node):
            return self.refuse(node)
        self._keep_facts(node)
        terms = self.of(node.args[0])
        return [replace(term, factor=-term.factor) for term in terms] if operation(node) == "neg" else terms

    def _keep_facts(self, node: Node) -> None:
        source = node.args[0]
        if isinstance(source, Node) and operation(node) != "neg":
            if source in self.norms:
                self.norms[node] = self.norms[source]
            if source in self.sums:
                self.sums.add(node)

    def moved(self, node: Node) -> Any:
        """The same entries in other places: the operation itself says where."""
        source = node.args[0]
        before, meta = shape_of(source), node.meta.get("val")
        terms = self.of(source)
        if isinstance(source, Node) and source in self.norms and self._keeps_last(node, before):
            self.norms[node] = self.norms[source]
        if not terms:
            return []
        if before is None or not _moves_alone(node, before):
            return self.refuse(node)
        target: Any = node.target
        results = []
        for term in terms:
            index = term.index.expand(before).contiguous()
            results.append(target(index, *node.args[1:], **node.kwargs))
        if isinstance(meta, list | tuple):
            return {
                number: [term.at(parts[number]) for term, parts in zip(terms, results, strict=True)]
                for number in range(len(meta))
            }
        return [term.at(result) for term, result in zip(terms, results, strict=True)]

    def _keeps_last(self, node: Node, before: tuple[int, ...] | None) -> bool:
        """Whether the last dimension is left as it is."""
        after = shape_of(node)
        if before is None or after is None or before[-1:] != after[-1:] or before[-1:] == (1,):
            return False
        if not _moves_alone(node, before):
            return False
        index = numbers(before[-1], len(before), -1).expand(before).contiguous()
        target: Any = node.target
        moved = target(index, *node.args[1:], **node.kwargs)
        return bool((moved == torch.arange(before[-1])).all())

    def added(self, node: Node) -> list[Term]:
        shape = shape_of(node)
        if shape is None or argument(node, "alpha", 1) not in (1, None):
            return self.refuse(node)
        sign = -1.0 if operation(node) == "sub" else 1.0
        parts = zip(node.args[:2], (1.0, sign), strict=False)
        terms = [
            replace(term.over(len(shape)), factor=term.factor * by) for part, by in parts for term in self.of(part)
        ]
        return self.unknowns.resolved(terms)

    def scaled(self, node: Node) -> list[Term]:
        """By a number."""
        one, two = (*node.args, None)[:2]
        number, other = (two, one) if isinstance(one, Node) else (one, two)
        inverse = operation(node) == "div"
        odd = argument(node, "rounding_mode") is not None or (inverse and other is two)
        if not isinstance(number, int | float) or number == 0 or odd:
            return self.refuse(node)
        by = 1 / number if inverse else number
        return [replace(term, factor=term.factor * by) for term in self.of(other)]

    def averaged(self, node: Node) -> list[Term]:
        """Means over dimensions along which a shift is the same."""
        source, dims = node.args[0], argument(node, "dim")
        shape = shape_of(source)
        terms = self.of(source)
        if shape is None or not dims:
            return self.refuse(node)
        gone = {d % len(shape) for d in ([dims] if isinstance(dims, int) else dims)}
        if any(not term.is_same_along(gone) for term in terms):
            return self.refuse(node)
        if isinstance(source, Node) and source in self.norms and len(shape) - 1 not in gone:
            self.norms[node] = self.norms[source]
        if argument(node, "keepdim", False):
            return terms
        return [term.at(term.index.squeeze(tuple(gone))) for term in terms]

    def pooled(self, node: Node) -> list[Term]:
        """Means over neighbours in space; at padding they are of less."""
        terms, shape = self.of(node.args[0]), shape_of(node.args[0])
        padding = argument(node, "padding", 0)
        odd = any(padding) if isinstance(padding, list | tuple) else bool(padding)
        odd = odd or argument(node, "divisor_override") is not None
        if odd or shape is None or len(shape) != int(operation(node)[-2]) + 2:
            return self.refuse(node)
        return terms if all(term.is_same_along(range(2, len(shape))) for term in terms) else self.refuse(node)

    def joined(self, node: Node) -> list[Term]:
        parts, shape = list(node.args[0]), shape_of(node)  # type: ignore[arg-type]
        if shape is None or torch.Size(shape).numel() > LARGEST:
            return self.refuse(node)
        dim = (argument(node, "dim", 0) or 0) % len(shape)
        terms = []
        for number, part in enumerate(parts):
            for term in self.of(part):
                index = [torch.full(shape_of(other) or (), -1) for other in parts]
                index[number] = term.index.expand(index[number].shape)
                terms.append(term.at(torch.cat(index, dim)))
        return terms

    def linear(self, node: Node) -> list[Term]:
        x, weight, bias = (*node.args, None)[:3]
        return self._read_by(node, x, weight, bias, 1, -1)

    def product(self, node: Node) -> list[Term]:
        """By a parameter from the right; or of rows that sum to one with what is the same along them."""
        one, two = node.args[-2:]
        bias = node.args[0] if len(node.args) == 3 else None
        plain = argument(node, "beta", 1) == argument(node, "alpha", 1) == 1
        weight, axis = self._behind_turn(two)
        if weight in self.names and len(shape_of(weight) or ()) == 2 and plain:
            return self._read_by(node, one, weight, bias, axis, -1)
        shape = shape_of(node)
        if one in self.sums and bias is None and shape is not None and len(shape_of(two) or ()) == len(shape):
            terms = self.of(two)
            if all(term.is_same_along([len(shape) - 2]) for term in terms) and not self.of(one):
                return terms
        return self.refuse(node)

    def _behind_turn(self, node: Any) -> tuple[Any, int]:
        """A parameter, and along which axis it is read as the right one of a product."""
        if isinstance(node, Node) and operation(node) in ("t", "transpose", "mT", "permute", "numpy_T"):
            return node.args[0], 1
        return node, 0

    def convolved(self, node: Node) -> list[Term]:
        x, weight, bias = (*node.args, None)[:3]
        padding = argument(node, "padding", 0)
        padded = padding != "valid" if isinstance(padding, str) else any(padding) if padding else False
        if len(shape_of(x) or ()) != len(shape_of(weight) or ()):
            return self.refuse(node)
        if padded:
            self.vanish(x)
        return self._read_by(node, x, weight, bias, 1, 1, argument(node, "groups", 1))

    def _read_by(self, node: Node, x: Any, weight: Any, bias: Any, axis: int, dim: int, groups: int = 1) -> list[Term]:
        """W·x + b: what W makes of the shift of x is taken up by b, or else passed on."""
        shape, before = shape_of(node), shape_of(x)
        self.vanish(weight)
        name = self.names.get(weight) if isinstance(weight, Node) else None
        ndim = len(before or ())
        others = [d for d in range(ndim) if d != dim % max(ndim, 1)]
        terms = self.of(x)
        if terms and (name is None or shape is None or any(not term.is_same_along(others) for term in terms)):
            self.vanish(x)
            terms = []
        if shape is None or before is None:
            return self.refuse(node)
        read = []
        for term in terms:
            picked = term.index.reshape(-1).expand(before[dim])
            links = (*term.links, Take.of(picked), Through(str(name), axis, groups))
            read.append(Term(term.name, numbers(shape[dim], len(shape), dim), term.factor, links))
        if name is not None and dim == -1 and x in self.norms:
            virtual = self._behind_norm(node, x, weight, bias, axis, terms, read)
            if virtual is not None:
                return virtual
        own = self.bias(bias)
        if own is not None and own in self.sources:
            self.taken.setdefault(own, []).extend(_vector(term, -1.0) for term in read)
            return [replace(self._begin_bias(own), index=numbers(shape[dim], len(shape), dim))]
        added = self._along(self.of(bias), len(shape), dim) if bias is not None else []
        return self.unknowns.resolved([*read, *added])

    def _along(self, terms: Sequence[Term], ndim: int, dim: int) -> list[Term]:
        """Terms of a vector along one dimension."""
        return [term.at(_turned(term.index.reshape(-1), ndim, dim)) for term in terms]

    def _begin_bias(self, name: str) -> Term:
        return Term(name, torch.arange(len(self.unknowns.free[name])))

    def _behind_norm(
        self, node: Node, x: Node, weight: Node, bias: Any, axis: int, terms: Sequence[Term], read: Sequence[Term]
    ) -> list[Term] | None:
        """Readers behind a LayerNorm may add u(1/γ)ᵀ; one without a bias takes up what the offset adds by it."""
        norm, name, shape = self.norms[x], self.bias(weight), shape_of(node)
        if name is None or shape is None or (bias is not None and self.bias(bias) is None):
            return None
        out = 1 - axis
        size = list(shape_of(weight) or ())
        own = tuple(1 if d == axis else n for d, n in enumerate(size))
        if bias is not None or norm.offset is None:
            moves = [Move(self.aliases(name), over=(axis,), gain=norm.gain)]
            if norm.offset is not None:
                moves.append(Move(self.aliases(str(self.bias(bias))), -1.0, (Level(norm.gain, norm.offset),)))
            blind = self.blind[weight]
            centred = ((out,),) if frozenset({out}) in blind else ()
            self.readers.append(Translation("reader", own, tuple(moves), centred=centred))
            return None
        alone = [term for term in terms if term.name == norm.offset and not term.links and term.factor == 1]
        if len(terms) != 1 or not alone or not torch.equal(alone[0].index.reshape(-1), torch.arange(size[axis])):
            return None
        term = self.source(Source(name, own, (axis,), norm))
        self.taken.setdefault(name, []).extend(_vector(item, -1.0) for item in read)
        return [replace(term, index=numbers(size[out], len(shape), -1))]

    def attended(self, node: Node) -> list[Term]:
        """Values that are shifted alike at all tokens: rows of attention sum to one."""
        query, key, value = node.args[:3]
        shape, before = shape_of(node), shape_of(value)
        for item in (query, key, argument(node, "attn_mask")):
            self.vanish(item)
        terms = self.of(value)
        if shape is None or before is None or len(shape) != len(before):
            return self.refuse(node)
        if any(not term.is_same_along([len(shape) - 2]) for term in terms):
            self.vanish(value)
            return []
        repeats = shape[-3] // before[-3] if len(shape) > 2 and before[-3] else 1
        if repeats == 1:
            return terms
        return [
            term if term.index.shape[-3] == 1 else term.at(term.index.repeat_interleave(repeats, -3)) for term in terms
        ]

    def softened(self, node: Node) -> list[Term]:
        self.refuse(node)
        shape = shape_of(node)
        if shape and argument(node, "dim") % len(shape) == len(shape) - 1 and "log" not in operation(node):
            self.sums.add(node)
        return []

    def layer_norm(self, node: Node) -> list[Term]:
        bias, shape, norm = argument(node, "bias"), shape_of(node), self._norm(node)
        self.vanish(node.args[0])
        self.vanish(argument(node, "weight"))
        if norm is None or shape is None:
            self.vanish(bias)
            return []
        self.norms[node] = norm
        return self._along(self.of(bias), len(shape), -1)

    def _norm(self, node: Node) -> Norm | None:
        """The parameters of a LayerNorm over the last dimension."""
        given = argument(node, "weight"), argument(node, "bias")
        names = [None if item is None else self.names.get(item) for item in given]
        known = all(name is not None or item is None for name, item in zip(names, given, strict=True))
        return Norm(*names) if known and len(argument(node, "normalized_shape")) == 1 else None

    def batch_norm(self, node: Node) -> list[Term]:
        """A running mean takes up what is added in front of it."""
        x, mean, bias = node.args[0], argument(node, "running_mean"), argument(node, "bias")
        for item in (argument(node, "weight"), mean, argument(node, "running_var")):
            self.vanish(item)
        shape, before = shape_of(node), shape_of(x)
        moves = isinstance(mean, Node) and mean in self.buffers and len(mean.users) == 1
        if shape is None or before is None or not moves or argument(node, "training", False):
            self.vanish(x)
        else:
            others = [d for d in range(len(before)) if d != 1]
            if any(not term.is_same_along(others) for term in self.of(x)):
                self.vanish(x)
            taken = [_vector(term, 1.0, before[1]) for term in self.of(x)]
            self.taken.setdefault(self.buffers[mean], []).extend(taken)
        return self._along(self.of(bias), len(shape or ()), 1)

    def looked_up(self, node: Node) -> list[Term]:
        """A constant that is added to all rows of a table."""
        weight, index = node.args[:2]
        self.vanish(index)
        shape, result = shape_of(weight), shape_of(node)
        if not isinstance(weight, Node) or weight not in self.names or shape is None or result is None:
            self.vanish(weight)
            return []
        readers = [user for user in weight.users if operation(user) != "embedding" or user.args[0] is not weight]
        if readers:
            return self._tied(weight, readers, shape, len(result))
        term = self.source(Source(self.names[weight], (1, shape[1]), (0,)))
        return self.unknowns.resolved([term.at(numbers(shape[1], len(result), -1))])

    def _tied(self, weight: Node, readers: Sequence[Node], shape: tuple[int, ...], ndim: int) -> list[Term]:
        """A table that reads behind a LayerNorm, too: all rows may add 1/γ, a constant there that its bias takes up."""
        (reader, *more), name = readers, self.names[weight]
        x, _, bias = (*reader.args, None, None)[:3]
        own = self.bias(bias)
        reads = operation(reader) == "linear" and reader.args[1] is weight
        direct = reads and isinstance(x, Node) and operation(x) == "layer_norm"
        norm = self._norm(x) if direct and not more else None  # type: ignore[arg-type]
        if norm is None or norm.gain is None or (norm.offset is not None and own is None):
            return []
        self.source(Source(name, (1, 1), (0, 1), Norm(norm.gain, None)))
        if norm.offset is not None:
            links = (Take.of(torch.zeros(shape[0], dtype=torch.long)), Level(norm.gain, norm.offset))
            self.taken.setdefault(str(own), []).append(Term(name, torch.arange(shape[0]), -1.0, links))
        along = (Take.of(torch.zeros(shape[1], dtype=torch.long)), Divided(norm.gain))
        return self.unknowns.resolved([Term(name, numbers(shape[1], ndim, -1), 1.0, along)])


def _moves_alone(node: Node, before: tuple[int, ...]) -> bool:
    """Whether an operation only moves entries of one tensor, not too many, by what it is given beside it."""
    types = any(isinstance(item, torch.dtype) for item in (*node.args, *node.kwargs.values()))
    return torch.Size(before).numel() <= LARGEST and len(node.all_input_nodes) == 1 and not types


def _turned(index: Tensor, ndim: int, dim: int) -> Tensor:
    shape = [1] * ndim
    shape[dim] = -1
    return index.reshape(shape)


def _vector(term: Term, by: float, count: int | None = None) -> Term:
    """A term as a vector, times a number."""
    index = term.index.reshape(-1)
    return replace(term, index=index if count is None else index.expand(count), factor=term.factor * by)


_RULES: dict[str, Callable[[Shifting, Node], Any]] = {
    **dict.fromkeys(SAME, Shifting.same),
    **dict.fromkeys(RESHAPES | TURNS | PARTS | CUTS | {"expand"}, Shifting.moved),
    **dict.fromkeys(("add", "sub"), Shifting.added),
    **dict.fromkeys(("mul", "div"), Shifting.scaled),
    **dict.fromkeys(("cat", "concat"), Shifting.joined),
    **dict.fromkeys(("matmul", "mm", "bmm", "addmm"), Shifting.product),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), Shifting.convolved),
    **dict.fromkeys(("softmax", "_softmax"), Shifting.softened),
    **dict.fromkeys(("avg_pool1d", "avg_pool2d", "avg_pool3d"), Shifting.pooled),
    **dict.fromkeys(("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d"), Shifting.pooled),
    "mean": Shifting.averaged,
    "linear": Shifting.linear,
    "scaled_dot_product_attention": Shifting.attended,
    "layer_norm": Shifting.layer_norm,
    "batch_norm": Shifting.batch_norm,
    "embedding": Shifting.looked_up,
}
