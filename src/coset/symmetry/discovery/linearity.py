"""Which classes only linear maps and norms see, so that matrices may mix their units.

Every class begins with all of GL(n), and each operation that meets it may lower that: sums and contractions keep it,
norms leave O(n), norms behind means O(n − 1), anything else nothing but permutations. Along the way each appearance of
a class gets a frame: A on what is written, A⁻ᵀ on what it is contracted with, and gains that it has passed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from torch import Tensor
from torch.utils._pytree import tree_leaves

from coset.symmetry.discovery.frames import Frame, FrameBook, Frames
from coset.symmetry.discovery.relations import Value
from coset.symmetry.discovery.stacks import Segments, Stack
from coset.symmetry.discovery.terms import Atom, Plus, atoms, resolve
from coset.symmetry.discovery.tracing import Step, Tracing, tensors_of
from coset.symmetry.mixing import Mixing


def linear_classes(tracing: Tracing, classes: Mapping[str, Atom], movable: Mapping[str, Tensor]) -> dict[str, Mixing]:
    """The classes that may be mixed, and how: none of those whose units something tells apart.

    ``movable``: all parameters; one tensor under several names is read under one of them.
    """
    reader = _Reader(tracing, {atom: name for name, atom in classes.items() if atom.pinned is None and atom.size > 1})
    for step in tracing.steps:
        reader.read(step)
    found = {}
    for atom, name in reader.names.items():
        mixing = reader.mixing(atom)
        if mixing is not None:
            same = {id(movable[key]): places for key, places in mixing.places.items()}
            places = {key: same[id(tensor)] for key, tensor in movable.items() if id(tensor) in same}
            found[name] = replace(mixing, places=places)
    return found


class _Reader(FrameBook):
    """Goes through the operations; what an operation does to classes is said by a method that is named after it."""

    # Operations -----------------------------------------------------------------------------------------------------

    def read(self, step: Step) -> None:
        """What one operation does to the classes on the tensors it is given."""
        given, results = step.given, step.results
        name = step.name.removesuffix("_")
        if name in ASKING or not any(self.counted(value) for value in (*given, *results)):
            return
        for value in given:
            if id(value) in self.squares and name not in _REDUCTIONS:
                self.lose(*self.squares[id(value)])
        if name in REARRANGING and all(id(value) in self.frames for value in results):
            return  # a part that was taken out of several is what it was
        rule = _RULES.get(name)
        # Of tensors that stand side by side only their places are known here.
        stacked = any(isinstance(item, Stack | Segments) for item in tree_leaves((step.args, step.kwargs)))
        if rule is None or (stacked and name not in REARRANGING) or not rule(self, step, given, results):
            self.lose(*(atom for value in (*given, *results) for atom in self.counted(value)))

    def rearranged(self, step: Step, given: Sequence[Value], results: Sequence[Value]) -> bool:
        """The same entries in other places: parts in order have the frames of the whole, and the other way round."""
        before: Frames = {}
        given = given[:1] if step.name == "expand_as" else given
        for value in given:
            for atom, frames in self.of(value).items():
                before.setdefault(atom, []).extend(frames)
        counts: dict[Atom, int] = {}
        for value in results:
            for atom, count in self.counted(value).items():
                counts[atom] = counts.get(atom, 0) + count
        for value in results:
            new = {atom for atom in self.counted(value) if not any(atom in self.counted(other) for other in given)}
            new |= {atom for other in given for atom in self.flat.get(id(other), ())}
            if new:
                self.flat[id(value)] = new
        many = len(given) > 1
        for atom, frames in before.items():
            # Of a tensor in several, each once: all in one frame.
            if many and counts.get(atom, 0) * len(given) == len(frames) and len(results) == 1:
                for other in frames[1:] if counts[atom] == 1 else ():
                    self.same(atom, frames[0], other)
                before[atom] = frames[: counts[atom]]
            elif len(frames) < counts.get(atom, 0) and len(results) > 1 and counts[atom] == len(frames) * len(results):
                before[atom] = frames * len(results)
            elif len(frames) != counts.get(atom, 0):
                self.lose(atom)
        taken: dict[Atom, int] = {}
        for value in results:
            own: Frames = {}
            for atom, count in self.counted(value).items():
                start = taken.get(atom, 0)
                own[atom] = before.get(atom, [])[start : start + count]
                taken[atom] = start + count
            self.give(value, own)
        return True

    def sliced(self, step: Step, given: Sequence[Value], results: Sequence[Value]) -> bool:
        """Some of the segments of a concatenation; or a part of a dimension without classes."""
        if len(given) != 1 or len(results) != 1 or step.args[0] is not given[0]:
            return self.rearranged(step, given, results)
        x, (result,) = given[0], results
        dim = step.args[1] % x.ndim if len(step.args) > 1 else 0
        term = resolve(x.dims[dim])
        if self.counted(x) == self.counted(result) or not isinstance(term, Plus):
            return self.rearranged(step, given, results)
        start = step.args[2] if len(step.args) > 2 and step.args[2] is not None else 0
        start += x.shape[dim] * (start < 0)
        frames = self._others(x, range(dim, x.ndim))
        known, at = self.at(x, dim), 0
        taken: dict[Atom, int] = {}
        for segment in term.segments:
            for atom in atoms(segment):
                if atom in self.names:
                    number = taken.get(atom, 0)
                    taken[atom] = number + 1
                    if start <= at < start + result.shape[dim]:
                        frames.setdefault(atom, []).extend(known.get(atom, [])[number : number + 1])
            at += segment.size
        for atom, items in self._others(x, range(dim + 1)).items():
            frames.setdefault(atom, []).extend(items)
        self.give(result, frames)
        return True

    def added(self, step: Step, given: Sequence[Value], results: Sequence[Value]) -> bool:
        if len(given) == 1:
            # A number beside it is a constant along all units.
            return False
        one, two = given[:2]
        self.meet(self.of(one), self.of(two), turned=False)
        self.give(results[0], {**self.of(two), **self.of(one)})
        return True

    def multiplied(self, step: Step, given: Sequence[Value], results: Sequence[Value]) -> bool:
        """By a number, or by what has other units; by a parameter along the units, a gain; a square is a norm's."""
        if len(given) == 1 or given[0] is given[1]:
            if len(given) == 1 and len(tensors_of(step.args)) == 1 and step.args[0] is given[0]:
                self.give(results[0], self.of(given[0]))
                return True
            return len(given) == 2 and self.squared(step, given[:1], results)
        one, two = given[:2]
        frames: Frames = {}
        inverse = step.name.endswith("div")
        for atom in self.counted(results[0]):
            here = [value for value in (one, two) if self._varies(value, atom, results[0])]
            if len(here) == 1 and not (inverse and here[0] is two):
                frames[atom] = self.of(here[0]).get(atom, [])
            elif len(here) == 2 and not inverse:
                gain = next((value for value in (two, one) if self._is_gain(value, atom)), None)
                other = one if gain is two else two
                if gain is None or len(self.of(other).get(atom, [])) != 1:
                    return False
                frames[atom] = [self._behind(atom, self.of(other)[atom][0], gain)]
            else:
                return False
        self.give(results[0], frames)
        return True

    def _behind(self, atom: Atom, frame: Frame, gain: Value) -> Frame:
        """The frame behind a gain; in front of it entries are mixed by A."""
        self.of(gain)[atom][0].place.gain = True
        self.anchors.setdefault(atom, frame.place)
        return Frame(frame.place, (*frame.gains, self.gains[id(gain)]))

    def _varies(self, value: Value, atom: Atom, result: Value) -> bool:
        """Whether entries of a factor differ along the units of a class, as it stands in the product."""
        if atom in self.flat.get(id(value), ()):
            return False
        dims = [dim - result.ndim for dim in range(result.ndim) if atom in self.along(result, dim)]
        return any(-dim <= value.ndim and value.shape[dim] > 1 for dim in dims)

    def _is_gain(self, value: Value, atom: Atom) -> bool:
        """Whether a tensor is a parameter along the units of a class and nothing else, and moves with no matrix yet."""
        return id(value) in self.gains and self.counted(value) == {atom: 1} and sum(n > 1 for n in value.shape) == 1

    def squared(self, step: Step, given: Sequence[Value], results: Sequence[Value]) -> bool:
        power = step.args[1] if len(step.args) > 1 and not isinstance(step.args[1], Value) else 2
        if power != 2:
            return False
        self.squares[id(results[0])] = set(self.counted(given[0]))
        self.give(results[0], self.of(given[0]))
        return True

    def reduced(self, step: Step, given: Sequence[Value], results: Sequence[Value]) -> bool:
        """Sums and means over other dimensions; of squares over the units themselves, which is a norm."""
        (x,) = given[:1]
        frames = dict(self.of(x))
        gone = {atom for atom in self.counted(x) if atom not in self.counted(results[0])}
        square = self.squares.get(id(x), set())
        if (gone and not square) or (square and (square - gone)):
            return False
        for atom in gone:
            if not self._is_whole(x, atom):
                return False
            self._measure(atom, frames[atom], "orthogonal")
        self.give(results[0], {atom: item for atom, item in frames.items() if atom not in gone})
        return True

    def normed(self, step: Step, given: Sequence[Value], results: Sequence[Value]) -> bool:
        """‖x‖₂ over the units."""
        order = step.args[1] if len(step.args) > 1 else 2
        x = given[0]
        gone = [atom for atom in self.counted(x) if atom not in self.counted(results[0])]
        if order != 2 or any(not self._is_whole(x, atom) for atom in gone):
            return False
        for atom in gone:
            self._measure(atom, self.of(x).get(atom, []), "orthogonal")
        self.give(results[0], {atom: item for atom, item in self.of(x).items() if atom not in gone})
        return True

    def _is_whole(self, value: Value, atom: Atom) -> bool:
        """Whether a class is all there is on its dimension."""
        return any(resolve(dim) is atom for dim in value.dims)

    def _measure(self, atom: Atom, frames: Sequence[Frame], kind: str) -> None:
        self.lower(atom, kind)
        for frame in frames:
            if self.settle(frame):
                self.lose(atom)

    def standardized(self, step: Step, given: Sequence[Value], results: Sequence[Value]) -> bool:
        x, shape = step.args[0], step.args[1]
        weight, bias = (*step.args[2:4], None, None)[:2]
        centred = "layer_norm" in step.name
        bias = bias if centred else None
        last = self.along(x, x.ndim - 1)
        if len(shape) != 1 or len(last) != 1 or not self._is_whole(x, last[0]):
            return False
        (atom,) = last
        frames = dict(self.of(x))
        if len(frames.get(atom, [])) != 1:
            return False
        self._measure(atom, frames[atom], "centred" if centred else "orthogonal")
        if isinstance(weight, Value):
            if not self._is_gain(weight, atom):
                return False
            frames[atom] = [self._behind(atom, frames[atom][0], weight)]
        if isinstance(bias, Value):
            self.meet({atom: frames[atom]}, self.of(bias), turned=False)
        self.give(results[0], frames)
        return True

    def linear(self, step: Step, given: Sequence[Value], results: Sequence[Value]) -> bool:
        x, weight = given[:2]
        bias = given[2] if len(given) > 2 else None
        self.meet(self.at(x, -1), self.at(weight, 1), turned=True)
        frames = self._others(x, [x.ndim - 1])
        return self._written(results[0], frames, self.at(weight, 0), bias)

    def convolved(self, step: Step, given: Sequence[Value], results: Sequence[Value]) -> bool:
        groups = step.args[6] if len(step.args) > 6 else step.kwargs.get("groups", 1)
        x, weight = given[:2]
        bias = given[2] if len(given) > 2 else None
        if groups != 1:
            return False
        self.meet(self.at(x, 1), self.at(weight, 1), turned=True)
        return self._written(results[0], self._others(x, [1]), self.at(weight, 0), bias)

    def _others(self, value: Value, without: Iterable[int]) -> Frames:
        """The frames on all other dimensions."""
        found: Frames = {}
        for dim in range(value.ndim):
            if dim not in without:
                for atom, frames in self.at(value, dim).items():
                    found.setdefault(atom, []).extend(frames)
        return found

    def _written(self, result: Value, frames: Frames, own: Frames, bias: Value | None) -> bool:
        if set(frames) & set(own):
            return False
        if bias is not None:
            self.meet(own, self.of(bias), turned=False)
        self.give(result, {**frames, **own})
        return True

    def matrix_product(self, step: Step, given: Sequence[Value], results: Sequence[Value]) -> bool:
        one, two = given[-2:]
        if one.ndim < 2 or two.ndim < 2:
            return False
        self.meet(self.at(one, -1), self.at(two, -2), turned=True)
        frames = self._others(one, [one.ndim - 1])
        others = self._others(two, [two.ndim - 2])
        together = set(frames) & set(others)
        # Blocks that both have (heads) are compared one with one: they permute, and no more.
        self.lose(*together)
        bias = given[0] if len(given) == 3 else None
        own = {atom: item for atom, item in others.items() if atom not in together}
        kept = {atom: item for atom, item in frames.items() if atom not in together}
        if bias is not None:
            self.meet({**kept, **own}, self.of(bias), turned=False)
        self.give(results[0], {**kept, **own})
        return True

    def attention(self, step: Step, given: Sequence[Value], results: Sequence[Value]) -> bool:
        query, key, value = given[:3]
        self.meet(self.at(query, -1), self.at(key, -1), turned=True)
        sides = [self._others(item, [item.ndim - 1]) for item in (query, key, value)]
        self.lose(*(atom for side in sides for atom in side))
        self.give(results[0], self.at(value, -1))
        return True

    def summed_products(self, step: Step, given: Sequence[Value], results: Sequence[Value]) -> bool:
        equation = str(step.args[0]).replace(" ", "")
        if len(given) != 2 or "." in equation or "->" not in equation:
            return False
        left, _, out = equation.partition("->")
        sides = list(zip(left.split(","), given, strict=True))
        if any(len(word) != value.ndim or len(set(word)) < len(word) for word, value in sides):
            return False
        frames: Frames = {}
        for letter in dict.fromkeys(out + left.replace(",", "")):
            here = [self.at(value, word.index(letter)) for word, value in sides if letter in word]
            if letter not in out and len(here) == 2:
                self.meet(*here, turned=True)
            elif letter not in out or len(here) == 2:
                self.lose(*(atom for side in here for atom in side))
            for atom, items in here[0].items() if letter in out else ():
                frames.setdefault(atom, []).extend(items)
        self.give(results[0], frames)
        return True

    def looked_up(self, step: Step, given: Sequence[Value], results: Sequence[Value]) -> bool:
        self.give(results[0], self.at(given[0], 1))
        return True


ASKING = frozenset({"_assert_tensor_metadata", "sym_size", "sym_stride", "sym_numel"})
"""Operations that look at no entry."""

_REDUCTIONS = frozenset({"sum", "mean"})

REARRANGING = frozenset(
    {"view", "_unsafe_view", "reshape", "permute", "transpose", "t", "mT", "numpy_T", "unsqueeze", "squeeze"}
    | {"expand", "expand_as", "clone", "contiguous", "to", "_to_copy", "type_as", "detach", "alias", "dropout"}
    | {"movedim", "flatten", "unflatten", "chunk", "split", "split_with_sizes", "unbind", "select", "slice"}
    | {"narrow", "cat", "concat", "stack", "repeat", "repeat_interleave", "index", "index_select", "neg"}
)

_Rule = Callable[[_Reader, Step, Sequence[Value], Sequence[Value]], bool]

_RULES: dict[str, _Rule] = {
    **dict.fromkeys(REARRANGING, _Reader.rearranged),
    **dict.fromkeys(("slice", "narrow"), _Reader.sliced),
    **dict.fromkeys(("add", "sub"), _Reader.added),
    **dict.fromkeys(("mul", "div"), _Reader.multiplied),
    **dict.fromkeys(("pow", "square"), _Reader.squared),
    **dict.fromkeys(("sum", "mean"), _Reader.reduced),
    **dict.fromkeys(("linalg_vector_norm", "norm"), _Reader.normed),
    **dict.fromkeys(("layer_norm", "rms_norm", "_fused_rms_norm"), _Reader.standardized),
    **dict.fromkeys(("matmul", "mm", "bmm", "addmm", "baddbmm"), _Reader.matrix_product),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _Reader.convolved),
    "linear": _Reader.linear,
    "einsum": _Reader.summed_products,
    "scaled_dot_product_attention": _Reader.attention,
    "embedding": _Reader.looked_up,
}
