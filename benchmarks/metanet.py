"""A step of a reader of weights against its matrix products alone; what it keeps; the form with N×N edges."""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.measure import Ratio, ratio
from coset.metanet import PNA, Reader, RelationalTransformer, _relational
from coset.models import MLP
from coset.symmetry import discover

STEP_BOUND, DENSE_BOUND = 4.0, 1.0
KEPT_BOUNDS = {RelationalTransformer: 6.0, PNA: 16.0}
_PRODUCTS = {"mm": torch.mm, "bmm": torch.bmm, "addmm": torch.addmm, "baddbmm": torch.baddbmm}


def run(small: bool) -> list[Ratio]:
    """784-10-10 with the settings that are wanted; 100-10-10 for the form in which every two nodes have an edge."""
    batch, layers, repeat = (2, 1, 1) if small else (8, 5, 7)
    rows = []
    for kind in KEPT_BOUNDS:
        reader, graph = _setting(kind, 784, batch, layers)
        step = _step(reader, graph)
        label = f"{kind.__name__}, 784-10-10, batch {batch}, 32 channels, {layers} layers"
        rows.append(
            ratio(
                f"metanet, a step of {label}",
                step,
                "its matrix products",
                _products(step),
                bound=STEP_BOUND,
                repeat=repeat,
            )
        )
        kept = _kept(reader, graph) / 1024 / (784 * 10 + 10 + 100 + 10) / batch
        rows.append(
            Ratio(f"metanet, kept by {label}", "KB per weight and network", 0.0, kept, (kept, kept), KEPT_BOUNDS[kind])
        )
    (plain, graph), (dense, whole) = (
        _setting(RelationalTransformer, 100, 2, layers, everywhere=e) for e in (False, True)
    )
    what = f"metanet, a step of RelationalTransformer, 100-10-10, batch 2, {layers} layers"
    rows.append(
        ratio(what, _step(plain, graph), "with every two nodes joined", _step(dense, whole), bound=1.0, repeat=repeat)
    )
    share = _kept(plain, graph) / _kept(dense, whole)
    rows.append(Ratio(f"{what}, what it keeps", "with every two nodes joined", 0.0, share, (share, share), DENSE_BOUND))
    return rows


def _setting(kind: type[Reader], inputs: int, batch: int, layers: int, **options: Any) -> tuple[Reader, Any]:
    """A reader of random networks, and these as it reads them."""
    model = MLP(inputs, [10], 10).eval()
    sym = discover(model, torch.zeros(2, inputs))
    generator = torch.Generator().manual_seed(0)
    stack = {n: 0.05 * torch.randn(batch, *t.shape, generator=generator) for n, t in model.state_dict().items()}
    reader = kind(sym, 10, gauge="none", channels=32, layers=layers, heads=4, **options)
    reader.calibrate(stack)
    return reader, reader.read(stack)


def _step(reader: Reader, graph: Any) -> Callable[[], None]:
    """Forward and backward."""

    def step() -> None:
        reader.zero_grad()
        reader(graph).square().sum().backward()

    return step


class _Recorder(TorchDispatchMode):
    """The shapes of all matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, list[tuple[int, ...]]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in _PRODUCTS:
            self.calls.append((name, [tuple(part.shape) for part in args if isinstance(part, Tensor)]))
        return func(*args, **(kwargs or {}))


def _products(step: Callable[[], None]) -> Callable[[], None]:
    """The matrix products of a step by themselves; those that are made again in the backward pass count once."""
    with patch.object(_relational, "checkpointed", lambda task, *parts, **_: task(*parts)), _Recorder() as recorder:
        step()
    operands: dict[tuple[int, ...], Tensor] = {}
    for _, shapes in recorder.calls:
        for shape in shapes:
            operands.setdefault(shape, torch.randn(shape))

    def products() -> None:
        for name, shapes in recorder.calls:
            _PRODUCTS[name](*(operands[shape] for shape in shapes))

    return products


def _kept(reader: Reader, graph: Any) -> int:
    """Bytes of the tensors that a forward pass keeps for the backward pass."""
    seen: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        reader(graph)
    return sum(seen.values())
