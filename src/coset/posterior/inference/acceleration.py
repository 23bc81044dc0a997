"""A pure function of tensors made fast: its operations are recorded once, and compiled where that pays.

A small network costs less to compute than to call: a gradient of many chains is some 200 calls of Python, ``vmap`` and
autograd around a few dozen operations. "recorded" goes through them once, keeps the operations as a graph of
``torch.fx`` and runs that; "compiled" has inductor make machine code of the graph.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from coset._files.sealed import checksum
from coset.errors import InputError

Function = Callable[..., tuple[Tensor, ...]]
"""Tensors to tensors, without side effects and without randomness."""

Compile = bool | Literal["auto"]

WAYS = ("plain", "recorded", "compiled")
"""How a function may be run; a checkpoint keeps the number."""

WORTH_RECORDING = 500
"""Calls that a run must have: recording takes as long as some hundred of them."""

WORTH_COMPILING = 60.0
"""Seconds that a run must take without it: compiling takes 4 to 45 of them."""

GAIN = 0.9
"""Compiled code is taken where it needs less than this share of the time."""

LARGEST_GRAPH = 5000
"""Operations; beyond, compiling takes minutes and overhead is not what costs."""

_COMPILED: dict[object, Function] = {}
"""What this process has compiled, by graph, constants, shapes and types. On disk inductor keeps it itself."""


def check_compile(compile: object) -> Compile:
    """True, False or "auto"."""
    if not isinstance(compile, bool) and compile != "auto":
        raise InputError(f"compile is {compile!r}; expected True, False or 'auto'")
    return compile


def bound(function: Function, way: str, inputs: Sequence[Tensor]) -> Function:
    """``function`` for inputs of these shapes and types, made ready to run in that ``way``."""
    if way == "plain":
        return function
    graph = recorded(function, inputs)
    return graph if way == "recorded" else compiled(graph, inputs)


def recorded(function: Function, inputs: Sequence[Tensor]) -> GraphModule:
    """The operations of ``function``, derivatives inside of it included, for inputs of these shapes.

    Raises a ValueError unless the graph gives what the function gives at other inputs, too: then its course depends on
    more than shapes.
    """
    graph = make_fx(function)(*inputs)
    for node in list(graph.graph.nodes):
        # Nothing is differentiated any more.
        if node.target is torch.ops.aten.detach.default:
            node.replace_all_uses_with(node.args[0])
    graph.graph.eliminate_dead_code()
    graph.recompile()
    elsewhere = [_elsewhere(tensor) for tensor in inputs]
    with torch.no_grad():
        _require_same(graph(*elsewhere), function(*elsewhere), "its operations depend on the values of tensors")
    return graph


def compiled(graph: GraphModule, inputs: Sequence[Tensor]) -> Function:
    """Machine code of a graph for inputs of these shapes; raises whatever keeps it from being made."""
    constants = [(name, value) for name, value in vars(graph).items() if isinstance(value, Tensor)]
    constants += list(graph.named_buffers())
    key = (
        graph.code,
        tuple((name, tuple(tensor.shape), checksum(tensor)) for name, tensor in constants),
        tuple((tensor.shape, tensor.dtype, tensor.device, tensor.stride()) for tensor in inputs),
        torch.get_num_threads(),
    )
    if key not in _COMPILED:
        code: Function = torch.compile(graph, fullgraph=True, dynamic=False, options=_options())
        _require_same(code(*inputs), graph(*inputs), "compiled code gives other numbers")
        _COMPILED[key] = code
    return _COMPILED[key]


def _options() -> dict[str, Any]:
    """No guards, where torch can leave them out: shapes and types are ours to keep, and looking costs a third."""
    skip = getattr(torch.compiler, "skip_all_guards_unsafe", None)
    return {} if skip is None else {"guard_filter_fn": skip}


@dataclass(frozen=True)
class Choice:
    """A ``way`` and a number of ``threads``; ``note`` says why, where the user should know."""

    way: str
    threads: int
    note: str = ""


def choose(function: Function, inputs: Sequence[Tensor], calls: int, compile: Compile) -> Choice:
    """How to run ``function`` on inputs like these about ``calls`` times.

    Recorded, unless that fails or "auto" finds the run shorter than ``WORTH_RECORDING``. "auto" compiles runs that
    would take longer than ``WORTH_COMPILING`` and measures whether it helps; these also try a single thread, which
    small networks are faster with. Measured times decide nothing in shorter runs, so that there the same call always
    takes the same way. ``compile=True`` compiles without a measurement; what fails falls back, and the note says why.
    """
    threads = torch.get_num_threads()
    if compile == "auto" and calls < WORTH_RECORDING:
        return Choice("plain", threads)
    with torch.no_grad():
        try:
            graph = recorded(function, inputs)
        except Exception as error:
            return Choice("plain", threads, f"gradients are computed as they are written: {_reason(error)}")
        if compile is False:
            return Choice("recorded", threads)
        if compile is True:
            try:
                compiled(graph, inputs)
            except Exception as error:
                return Choice("recorded", threads, f"gradients are not compiled: {_reason(error)}")
            return Choice("compiled", threads, "gradients are compiled")
        return _measured(graph, inputs, calls, threads)


def _measured(graph: GraphModule, inputs: Sequence[Tensor], calls: int, threads: int) -> Choice:
    times = {("recorded", threads): _seconds(graph, inputs)}
    if times["recorded", threads] * calls < WORTH_COMPILING or len(graph.graph.nodes) > LARGEST_GRAPH:
        return Choice("recorded", threads)
    if threads > 1:
        with on_threads(1):
            times["recorded", 1] = _seconds(graph, inputs)
    _, used = min(times, key=lambda way: times[way])
    note = ""
    begun = time.perf_counter()
    try:
        with on_threads(used):
            code = compiled(graph, inputs)
            took = time.perf_counter() - begun
            times["compiled", used] = GAIN**-1 * _seconds(code, inputs)
    except Exception as error:
        note = f"gradients are not compiled: {_reason(error)}"
    way, used = min(times, key=lambda way: times[way])
    if way == "compiled":
        before, after = 1e3 * times["recorded", used], 1e3 * GAIN * times["compiled", used]
        note = f"gradients are compiled: {after:.3g} ms in place of {before:.3g} ms for all chains, after {took:.1f} s"
    return Choice(way, used, note)


class Accelerator:
    """Functions of one run, made ready when first needed, all in the way that the first of them chose.

    ``state`` (2,): the number of the way in ``WAYS`` and the threads, −1 as long as nothing is chosen. It belongs to a
    checkpoint, so that a resumed run goes the same way to the same bits. ``calls``: about how many there will be.
    """

    def __init__(self, compile: Compile | None, calls: int) -> None:
        self.compile, self.calls = compile, calls
        self.state = torch.full((2,), -1, dtype=torch.int64)
        if compile is None:
            self.state[0] = WAYS.index("plain")
        self.notes: tuple[str, ...] = ()
        self._bound: dict[str, Function] = {}

    def ready(self, name: str, function: Function, inputs: Sequence[Tensor]) -> Function:
        """``function``, known as ``name``, for inputs like these."""
        if name not in self._bound:
            self._bound[name] = self._bind(function, inputs)
        return self._bound[name]

    def _bind(self, function: Function, inputs: Sequence[Tensor]) -> Function:
        if int(self.state[0]) < 0:
            assert self.compile is not None
            choice = choose(function, inputs, self.calls, self.compile)
            self.state.copy_(torch.tensor([WAYS.index(choice.way), choice.threads]))
            self._note(choice.note)
        way = WAYS[int(self.state[0])]
        for fallback in range(WAYS.index(way), -1, -1):
            try:
                return bound(function, WAYS[fallback], inputs)
            except Exception as error:
                self._note(f"gradients are not {WAYS[fallback]}: {_reason(error)}")
        raise AssertionError("a function as it is written is always ready")

    def _note(self, text: str) -> None:
        if text and text not in self.notes:
            self.notes += (text,)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Around every round: the threads that were chosen, and no derivatives of what is known to need none."""
        threads = int(self.state[1])
        count = threads if threads > 0 else torch.get_num_threads()
        with on_threads(count), torch.set_grad_enabled(torch.is_grad_enabled() and self.compile is None):
            yield


@contextmanager
def on_threads(count: int) -> Iterator[None]:
    """Torch's threads inside of the block."""
    before = torch.get_num_threads()
    if count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _seconds(function: Function, inputs: Sequence[Tensor]) -> float:
    """Of one call: the least of several measurements."""
    function(*inputs)
    best = float("inf")
    for _ in range(5):
        begun = time.perf_counter()
        function(*inputs)
        best = min(best, time.perf_counter() - begun)
    return best


def _elsewhere(tensor: Tensor) -> Tensor:
    return 0.75 * tensor if tensor.is_floating_point() else tensor


def _require_same(found: Sequence[Tensor], expected: Sequence[Tensor], otherwise: str) -> None:
    for one, other in zip(found, expected, strict=True):
        if not one.is_floating_point():
            continue
        wide = torch.nan_to_num(other.double())
        allowed = torch.finfo(other.dtype).eps ** 0.5 * max(1.0, float(wide.abs().max()) if wide.numel() else 0.0)
        if one.shape != other.shape or not torch.allclose(one, other, rtol=0, atol=allowed, equal_nan=True):
            raise ValueError(otherwise)


def _reason(error: BaseException) -> str:
    text: Any = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else 'no reason given'}"
