"""What becomes of all tensors when the units of a class are reflected or shifted: z → ±z + constant, or nothing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coset.symmetry.discovery.calls import is_pointwise, tensors_in
from coset.symmetry.discovery.relations import Value
from coset.symmetry.discovery.stacks import Segments, Stack
from coset.symmetry.discovery.terms import Atom, atoms, resolve
from coset.symmetry.discovery.tracing import Step, Tracing
from coset.symmetry.turning import Turned


class Blocked(Exception):
    """An operation that no move of this kind passes."""


@dataclass(frozen=True)
class State:
    """A tensor becomes ±x + constant at the units: ``flips``, the dimensions along which signs flip."""

    flips: frozenset[int] = frozenset()
    constant: float = 0.0

    def __bool__(self) -> bool:
        return bool(self.flips) or self.constant != 0


STILL = State()


class Course:
    """All operations of a traced model, with the tensors each is given and the operation that made each tensor."""

    def __init__(self, tracing: Tracing) -> None:
        self.parameters = dict(tracing.parameters)
        self.names = {id(value): name for name, value in tracing.parameters.items()}
        self.steps = [(step, _given(step)) for step in tracing.steps]
        self.makers = {id(value): step for step in tracing.steps for value in tensors_in(step.result)}


class Moves:
    """The moves of parameters by which the units of one class are moved in front of a function, and only there.

    ``parameters``: name → its State. ``taken``: (weight, bias, axis of the weight along which the bias stands, number
    of the appearance of the class that is read) → the amount that the bias takes up.
    """

    def __init__(self, course: Course, atom: Atom) -> None:
        self._atom = atom
        self._steps, self._makers = course.steps, course.makers
        self._names, self._values = course.names, course.parameters
        self._states: dict[int, State] = {}
        self._takers: dict[str, set[int]] = {}
        self.parameters: dict[str, State] = {}
        self.taken: dict[tuple[str, str, int, int], float] = {}

    # What is asked for ----------------------------------------------------------------------------------------------

    def write(self, value: Value, sign: int, shift: float) -> None:
        """Move parameters so that ``value`` becomes sign·value + shift; Blocked where none can do that."""
        if id(value) in self._names:
            self._assign(value, State(frozenset(self._on(value)) if sign < 0 else frozenset(), shift))
            return
        step = self._makers.get(id(value))
        writer = _WRITERS.get(_plain(step)) if step is not None else None
        if step is None or writer is None:
            raise Blocked
        writer(self, step, sign, shift)

    def settle(self) -> None:
        """Go through all operations until nothing more has to move; Blocked where something cannot follow."""
        while True:
            known = dict(self.parameters), dict(self.taken)
            self._states = {id(self._values[name]): state for name, state in self.parameters.items()}
            read: set[int] = set()
            for step, given in self._steps:
                moved = [id(value) for value in given if self._state(value)]
                if moved:
                    read.update(moved)
                    self._read(step, given)
            if known == (self.parameters, self.taken):
                break
        if any(state and number not in read for number, state in self._states.items()):
            raise Blocked  # an output
        for bias, takers in self._takers.items():
            value = self._values[bias]
            if any(value in given and id(step) not in takers for step, given in self._steps):
                raise Blocked  # what takes a constant up is read elsewhere, too

    def places(self, name: str) -> tuple[Turned, ...]:
        """What happens at each appearance of the class on a parameter."""
        state, dims = self.parameters[name], self._on(self._values[name])
        if state.constant and len(dims) != 1:
            raise Blocked
        return tuple(Turned(dim in state.flips, state.constant) for dim in dims)

    # What is known --------------------------------------------------------------------------------------------------

    def _on(self, value: Value) -> list[int]:
        """The dimensions on which the class stands, once each."""
        counts = [sum(atom is self._atom for atom in atoms(resolve(dim))) for dim in value.dims]
        if max(counts, default=0) > 1:
            raise Blocked
        return [dim for dim, count in enumerate(counts) if count]

    def _state(self, value: Value) -> State:
        return self._states.get(id(value), STILL)

    def _assign(self, value: Value, state: State) -> None:
        """A parameter moves so, or in a view of itself; it has moved so already, or not at all."""
        if id(value) not in self._names:
            step = self._makers.get(id(value))
            if step is None or _plain(step) not in _VIEWS or len(tensors_in(step.args)) != 1:
                raise Blocked
            (x,) = tensors_in(step.args)
            back = _order(step, x.ndim)
            self._assign(x, State(frozenset(back[dim] for dim in state.flips), state.constant))
        elif not self._on(value) or self.parameters.get(self._names[id(value)], state) != state:
            raise Blocked
        else:
            self.parameters[self._names[id(value)]] = state
        self._states[id(value)] = state

    # Operations -----------------------------------------------------------------------------------------------------

    def _read(self, step: Step, given: Sequence[Value]) -> None:
        """What one operation makes of tensors that have moved."""
        if any(isinstance(item, Stack | Segments) for item in (*step.args, step.result)):
            raise Blocked
        name = _plain(step)
        rule = _RULES.get(name)
        if len(given) == 1 and rule is None and is_pointwise(step.target, step.name):
            rule = Moves._function
        if rule is None:
            raise Blocked
        rule(self, step, given)

    def _give(self, value: Value, state: State) -> None:
        if state.constant and len(self._on(value)) != 1:
            raise Blocked
        self._states[id(value)] = state

    def _function(self, step: Step, given: Sequence[Value]) -> None:
        """f(±z + c) = ±f(z) + e, decided from values."""
        (x,), state = given, self._state(given[0])
        if len(state.flips) > 1 or len(self._on(x)) != 1:
            raise Blocked
        sign, constant = _passed(_as_function(step), -1 if state.flips else 1, state.constant)
        self._give(step.result, State(frozenset(self._on(step.result)) if sign < 0 else frozenset(), constant))

    def _rearranged(self, step: Step, given: Sequence[Value]) -> None:
        """The same entries in other places; of several tensors all that have the class have moved alike."""
        for result in tensors_in(step.result):
            dims = self._on(result)
            if not dims and _plain(step) in _PARTS:
                continue
            here = [value for value in given if self._on(value)]
            if _plain(step) in _VIEWS:
                back = _order(step, given[0].ndim)
                flips = frozenset(dim for dim in range(result.ndim) if back[dim] in self._state(given[0]).flips)
                self._give(result, State(flips, self._state(given[0]).constant))
                continue
            shapes = {(bool(self._state(value).flips), self._state(value).constant) for value in here}
            if len(dims) != 1 or len(shapes) != 1 or any(len(self._on(value)) != 1 for value in here):
                raise Blocked
            ((flipped, constant),) = shapes
            self._give(result, State(frozenset(dims) if flipped else frozenset(), constant))

    def _averaged(self, step: Step, given: Sequence[Value]) -> None:
        """Averages keep what all entries have; sums do not, nor what has zeros around it."""
        state = self._state(given[0])
        padding = step.args[3] if len(step.args) > 3 and "pool" in step.name else 0
        exact = step.name.startswith(("mean", "adaptive_avg")) or ("avg_pool" in step.name and not _any(padding))
        if state.constant and not exact:
            raise Blocked
        self._rearranged(step, given)

    def _largest(self, step: Step, given: Sequence[Value]) -> None:
        """The largest entry of what is shifted; what flips would be the smallest."""
        if self._state(given[0]).flips:
            raise Blocked
        self._rearranged(step, given)

    def _padded(self, step: Step, given: Sequence[Value]) -> None:
        """Zeros beside the entries flip with them, and do not shift."""
        filled = [arg for arg in (*step.args[2:], *step.kwargs.values()) if arg not in (None, 0, 0.0, "constant")]
        if self._state(given[0]).constant or filled:
            raise Blocked
        self._rearranged(step, given)

    def _added(self, step: Step, given: Sequence[Value]) -> None:
        """x ± a·y: both flip alike, and constants add."""
        if len(given) == 1:
            self._function(step, given)
            return
        (one, two), factor = given, _second_factor(step)
        self._alike(one, two)
        result = step.result
        flips = [_spread(self._state(value).flips, value, result) for value in given if not value.zero]
        if any(item != flips[0] for item in flips[1:]):
            raise Blocked
        constant = self._state(one).constant + factor * self._state(two).constant
        self._give(result, State(flips[0] if flips else frozenset(), constant))

    def _alike(self, one: Value, two: Value) -> None:
        """A parameter that is added to what flips flips, too."""
        for value, other in ((one, two), (two, one)):
            if self._state(value).flips and not self._state(other) and id(other) in self._names:
                self._assign(other, State(frozenset(self._on(other))))

    def _multiplied(self, step: Step, given: Sequence[Value]) -> None:
        """x·y: signs multiply; a parameter along the units takes them up. A constant would be multiplied, too."""
        if len(given) == 1:
            self._function(step, given)
            return
        if step.kwargs or any(self._state(value).constant for value in given):
            raise Blocked
        for value, other in (given, (given[1], given[0])):
            if self._state(value).flips and id(other) in self._names and self._on(other) and not self._state(other):
                self._assign(other, State(frozenset(self._on(other))))
        one, two = (_spread(self._state(value).flips, value, step.result) for value in given)
        self._give(step.result, State(one ^ two))

    def _contracted(
        self, step: Step, x: Value, i: int, weight: Value, j: int, bias: Value | None, rows: int, exact: bool
    ) -> None:
        """Dimension i of x is summed over with dimension j of a weight: columns flip, and the bias takes constants up.

        ``rows``: the dimension of the weight along which the bias stands; ``exact``: all columns meet the constant.
        """
        state = self._state(x)
        if state.flips - {i} or (state.constant and i not in self._on(x)):
            raise Blocked
        if i in state.flips and j not in self._state(weight).flips:
            self._assign(weight, State(self._state(weight).flips | {j}))
        if (i in state.flips) != (j in self._state(weight).flips) and not x.zero:
            raise Blocked
        if state.constant:
            # Only what flips has a constant that an even number of turns gives back.
            if not exact or bias is None or id(bias) not in self._names or not state.flips:
                raise Blocked
            self._take(step, weight, j, rows, bias, state.constant)

    def _take(self, step: Step, weight: Value, column: int, row: int, bias: Value, amount: float) -> None:
        name, axes = self._origin(weight)
        own = self._values[name]
        if sum(bias.shape) - bias.ndim + 1 != own.shape[axes[row]]:
            raise Blocked
        number = self._on(own).index(axes[column])
        key = (name, self._names[id(bias)], axes[row], number)
        if self.taken.setdefault(key, amount) != amount:
            raise Blocked
        self._takers.setdefault(key[1], set()).add(id(step))

    def _origin(self, value: Value) -> tuple[str, list[int]]:
        """The parameter that a tensor is, or a view of which it is, and for each of its dimensions the parameter's."""
        if id(value) in self._names:
            return self._names[id(value)], list(range(value.ndim))
        step = self._makers.get(id(value))
        if step is None or _plain(step) not in _VIEWS:
            raise Blocked
        (x,) = tensors_in(step.args)
        name, axes = self._origin(x)
        back = _order(step, x.ndim)
        return name, [axes[back[dim]] for dim in range(value.ndim)]

    def _written(self, result: Value, dim: int, weight: Value, rows: int, bias: Value | None) -> None:
        """Units that a map writes flip with its rows and its bias, and shift with its bias."""
        flipped = rows in self._state(weight).flips
        shift = self._state(bias) if bias is not None else State(frozenset({0} if flipped else ()))
        if flipped != bool(shift.flips):
            raise Blocked
        self._give(result, State(frozenset({dim}) if flipped else frozenset(), shift.constant))

    def _linear(self, step: Step, given: Sequence[Value]) -> None:
        x, weight, bias = (*step.args, None)[:3]
        if not isinstance(weight, Value) or weight.ndim != 2:
            raise Blocked
        self._contracted(step, x, x.ndim - 1, weight, 1, bias, 0, True)
        self._written(step.result, step.result.ndim - 1, weight, 0, bias)

    def _convolved(self, step: Step, given: Sequence[Value]) -> None:
        x, weight, bias, _, padding, _, groups = (*step.args, *(None, 1, 0, 1, 1)[len(step.args) - 2 :])[:7]
        if groups != 1 or step.kwargs:
            raise Blocked
        channels = x.ndim - weight.ndim + 1
        self._contracted(step, x, channels, weight, 1, bias, 0, padding == "valid" or not _any(padding))
        self._written(step.result, channels, weight, 0, bias)

    def _product(self, step: Step, given: Sequence[Value]) -> None:
        """x @ W, or b + x @ W."""
        if step.kwargs or any(value.ndim < 2 for value in given[-2:]) or given[-1].ndim != 2:
            raise Blocked
        x, weight = given[-2:]
        bias = given[0] if len(given) == 3 else None
        if bias is not None and bias.ndim != 1:
            raise Blocked
        self._contracted(step, x, x.ndim - 1, weight, 0, bias, 1, True)
        self._written(step.result, step.result.ndim - 1, weight, 1, bias)

    def _normalized(self, step: Step, given: Sequence[Value]) -> None:
        """A batch norm in eval mode: its mean moves with what it reads, and its gain takes signs up."""
        x, gain, offset, mean, _, training = step.args[:6]
        state, channels = self._state(x), 1
        if training or mean is None or state.flips - {channels} or self._on(x) not in ([], [channels]):
            raise Blocked
        if state:
            if state.constant and not state.flips:
                raise Blocked
            self._assign(mean, State(frozenset({0} if state.flips else ()), state.constant))
        if state.flips and isinstance(gain, Value) and not self._state(gain):
            self._assign(gain, State(frozenset({0})))
        flipped = bool(state.flips) != (isinstance(gain, Value) and bool(self._state(gain).flips))
        shift = self._state(offset) if isinstance(offset, Value) else STILL
        if flipped != bool(shift.flips) and isinstance(offset, Value):
            raise Blocked
        self._give(step.result, State(frozenset({channels}) if flipped else frozenset(), shift.constant))

    # How units are written ------------------------------------------------------------------------------------------

    def _write_through(self, step: Step, sign: int, shift: float) -> None:
        """Behind a linear function of one tensor, a·u + b: u becomes ±u + (shift ± b − b)/a."""
        if len(given := _given(step)) != 1:
            raise Blocked
        a, b = _coefficients(_as_function(step))
        self.write(given[0], sign, (shift + (sign - 1) * b) / a)

    def _write_view(self, step: Step, sign: int, shift: float) -> None:
        if len(given := tensors_in(step.args)) != 1:
            raise Blocked
        self.write(given[0], sign, shift)

    def _write_sum(self, step: Step, sign: int, shift: float) -> None:
        """One of two terms takes up the shift; both flip."""
        given = _given(step)
        if len(given) == 1:
            self._write_through(step, sign, shift)
            return
        factors = 1.0, _second_factor(step)
        for number in (1, 0):
            kept = dict(self.parameters), dict(self._states)
            try:
                self.write(given[number], sign, shift / factors[number])
                if sign < 0:
                    self.write(given[1 - number], sign, 0.0)
            except Blocked:
                self.parameters, self._states = kept
            else:
                return
        raise Blocked

    def _write_map(self, step: Step, sign: int, shift: float) -> None:
        """Rows of a linear map or a convolution, and its bias."""
        weight, bias = (*step.args, None)[1:3]
        if shift or isinstance(bias, Value):
            if not isinstance(bias, Value):
                raise Blocked
            self.write(bias, sign, shift)
        if sign < 0:
            self._assign(weight, State(frozenset({0})))

    def _write_product(self, step: Step, sign: int, shift: float) -> None:
        *bias, _, weight = _given(step)
        if shift and not bias:
            raise Blocked
        for value in bias:
            self.write(value, sign, shift)
        if sign < 0:
            self._assign(weight, State(frozenset({weight.ndim - 1})))

    def _write_norm(self, step: Step, sign: int, shift: float) -> None:
        """Gain and offset of a batch norm."""
        gain, offset = step.args[1:3]
        if not isinstance(gain, Value) or not isinstance(offset, Value):
            raise Blocked
        self.write(offset, sign, shift)
        if sign < 0:
            self._assign(gain, State(frozenset({0})))


def _given(step: Step) -> list[Value]:
    parts = [item for item in (*step.args, *step.kwargs.values()) if isinstance(item, Stack | Segments)]
    return [*tensors_in((*step.args, *step.kwargs.values())), *(value for part in parts for value in part.parts)]


def _second_factor(step: Step) -> float:
    """By which number the second term of a sum or a difference is multiplied."""
    alpha = step.kwargs.get("alpha", 1)
    if not isinstance(alpha, int | float):
        raise Blocked
    return -float(alpha) if step.name.startswith("sub") else float(alpha)


def _plain(step: Step) -> str:
    """The name of an operation, in place or not."""
    return step.name.removesuffix("_")


def _any(padding: Any) -> bool:
    return any(padding) if isinstance(padding, list | tuple) else bool(padding)


def _spread(flips: frozenset[int], value: Value, result: Value) -> frozenset[int]:
    """Dimensions of a tensor as dimensions of what it is broadcast to."""
    return frozenset(dim + result.ndim - value.ndim for dim in flips)


def _order(step: Step, ndim: int) -> list[int]:
    """For each dimension of a view the dimension of the tensor."""
    order = list(range(ndim))
    name = _plain(step)
    if name == "permute":
        return [dim % ndim for dim in step.args[1]]
    if name in ("t", "numpy_T", "mT", "transpose") and ndim > 1:
        one, two = (dim % ndim for dim in step.args[1:3]) if name == "transpose" else (ndim - 2, ndim - 1)
        order[one], order[two] = order[two], order[one]
    return order


def _as_function(step: Step) -> Callable[[Tensor], Tensor]:
    """An operation of one tensor as a function of it."""

    def function(x: Tensor) -> Tensor:
        args = [x.clone() if isinstance(arg, Value) else arg for arg in step.args]
        result: Tensor = step.target(*args, **step.kwargs)
        return result

    return function


_PROBES = torch.linspace(-21.0, 20.0, 247, dtype=torch.float64) ** 3 / 40 + 0.1234567


def _passed(function: Callable[[Tensor], Tensor], sign: int, shift: float) -> tuple[int, float]:
    """(t, e) with f(sign·z + shift) = t·f(z) + e for all z that are tried."""
    try:
        before, after = function(_PROBES), function(sign * _PROBES + shift)
    except (RuntimeError, TypeError) as error:
        raise Blocked from error
    if not before.is_floating_point() or not bool(torch.isfinite(before).all() and torch.isfinite(after).all()):
        raise Blocked
    for passed in (1, -1):
        left = after - passed * before
        if float(left.max() - left.min()) <= 1e-9 * float(before.abs().max().clamp(min=1.0)):
            constant = float(left.median())
            near = round(constant, 9)
            return passed, near if abs(constant - near) < 1e-12 else constant
    raise Blocked


def _coefficients(function: Callable[[Tensor], Tensor]) -> tuple[float, float]:
    """(a, b) of a function a·z + b; Blocked if it is none, or a = 0."""
    try:
        low, high = function(torch.tensor([0.0, 1.0], dtype=torch.float64)).tolist()
        values = function(_PROBES)
    except (RuntimeError, TypeError) as error:
        raise Blocked from error
    a, b = high - low, low
    if not values.is_floating_point() or a == 0 or not torch.allclose(values, a * _PROBES + b, rtol=1e-12, atol=1e-12):
        raise Blocked
    return a, b


_VIEWS = frozenset({"permute", "t", "numpy_T", "mT", "transpose", "detach", "alias", "clone", "contiguous", "dropout"})
_PARTS = frozenset({"chunk", "split", "split_with_sizes", "slice", "narrow", "select", "unbind"})
_MOVED = _PARTS | frozenset(
    {"view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "expand", "to", "_to_copy", "type_as", "movedim"}
    | {"flatten", "unflatten", "cat", "concat", "repeat", "feature_dropout", "roll", "flip"}
    | {f"{kind}_pad{d}d" for kind in ("reflection", "replication") for d in (1, 2, 3)}
)
_POOLS = [f"{kind}{d}d" for kind in ("avg_pool", "adaptive_avg_pool") for d in (1, 2, 3)]
_PEAKS = [f"max_pool{d}d" for d in (1, 2, 3)]
_MAPS = ("conv1d", "conv2d", "conv3d")

_Rule = Callable[[Moves, Step, Sequence[Value]], None]

_RULES: dict[str, _Rule] = {
    **dict.fromkeys(_MOVED | _VIEWS, Moves._rearranged),
    **dict.fromkeys(("mean", "sum", *_POOLS), Moves._averaged),
    **dict.fromkeys(("amax", *_PEAKS), Moves._largest),
    **dict.fromkeys(("pad", "constant_pad_nd"), Moves._padded),
    **dict.fromkeys(("add", "sub"), Moves._added),
    **dict.fromkeys(("mul", "div"), Moves._multiplied),
    **dict.fromkeys(_MAPS, Moves._convolved),
    **dict.fromkeys(("matmul", "mm", "addmm"), Moves._product),
    "linear": Moves._linear,
    "batch_norm": Moves._normalized,
}
"""What each operation makes of tensors that have moved."""

_Writer = Callable[[Moves, Step, int, float], None]

_WRITERS: dict[str, _Writer] = {
    **dict.fromkeys(_VIEWS | (_MOVED - _PARTS - {"cat", "concat"}), Moves._write_view),
    **dict.fromkeys(("add", "sub"), Moves._write_sum),
    **dict.fromkeys(("mul", "div", "neg", "rsub"), Moves._write_through),
    **dict.fromkeys(("linear", *_MAPS), Moves._write_map),
    **dict.fromkeys(("matmul", "mm", "addmm"), Moves._write_product),
    "batch_norm": Moves._write_norm,
}
"""Which operations can be made to give something else, by what they are given."""
