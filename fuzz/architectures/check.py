"""Whether the group that is discovered of an architecture is sound, seen eagerly on inputs that discovery never saw."""

import copy
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from coset import discover
from coset.errors import InputError
from coset.symmetry import Symmetry
from fuzz.architectures.architecture import Architecture, Inputs
from fuzz.eager import change, doubled, moved, outputs, wide

TOLERANCE = 1e-8
NOTICED = 1e-6
ELEMENTS = 2


@dataclass(frozen=True)
class Finding:
    """What came out: the group, or why it was refused; the largest change of an output under its elements.

    ``noticed``: the smallest change where a random half of the parameters moves alone, which is no symmetry: that the
    outputs can tell a wrong move from a right one.
    """

    parameters: int
    seconds: float
    sym: Symmetry | None = None
    refused: str = ""
    change: float = 0.0
    noticed: float = math.inf

    @property
    def sound(self) -> bool:
        """Nothing changed that should not, and everything that should."""
        return self.sym is None or (self.change <= TOLERANCE and (self.noticed >= NOTICED or not self.sym.structures))


def check(architecture: Architecture, seed: int = 0) -> Finding:
    """Discover the group of a small model, then run the model before and after random elements of it have acted."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = architecture.build()
    generator = torch.Generator().manual_seed(seed)
    count = sum(parameter.numel() for parameter in model.parameters())
    example = architecture.inputs(generator, *architecture.example)
    start = time.perf_counter()
    try:
        sym = discover(model, (), kwargs=copy.deepcopy(example))
    except InputError as error:
        return Finding(count, time.perf_counter() - start, refused=str(error))
    seconds = time.perf_counter() - start
    given = [example, *(architecture.inputs(generator, *sizes) for sizes in architecture.others)]
    worst, noticed = changes(in_double(model, architecture), sym, given, generator)
    return Finding(count, seconds, sym, change=worst, noticed=noticed)


def in_double(model: nn.Module, architecture: Architecture) -> nn.Module:
    """A copy in float64, with the settings that it needs for that."""
    twin = doubled(model)
    for setter, value in architecture.in_double:
        getattr(twin, setter)(value)
    return twin


def changes(twin: nn.Module, sym: Symmetry, given: Sequence[Inputs], generator: torch.Generator) -> tuple[float, float]:
    """The largest change of an output under elements of a group, and the smallest under a move that is none of them.

    ``twin``: a model in float64; ``given``: its inputs.
    """
    params = general_position(twin, generator)
    images = [moved(sym, params, generator) for _ in range(ELEMENTS)]
    if not all(_still_tied(params, image) for image in images):
        return math.inf, math.inf
    broken = _half(moved(sym, params, generator), params, sym)
    worst, noticed = 0.0, math.inf
    for kwargs in map(wide, given):
        before = run(twin, params, kwargs)
        worst = max([worst, *(change(before, run(twin, image, kwargs)) for image in images)])
        noticed = min(noticed, change(before, run(twin, broken, kwargs)))
    return worst, noticed


def general_position(model: nn.Module, generator: torch.Generator) -> dict[str, Tensor]:
    """A state dict with random weights instead of an initialisation's zeros and ones, tied tensors alike; variances and
    numbers of batches stay what they can be.
    """
    known: dict[int, Tensor] = {}
    state = model.state_dict(keep_vars=True)
    for name, tensor in state.items():
        if id(tensor) in known:
            continue
        value = tensor.detach().clone()
        if value.is_floating_point():
            noise = torch.randn(value.shape, generator=generator, dtype=torch.float64)
            if name.endswith("running_var"):
                value = value * (0.5 + noise.abs())
            else:
                inputs = max(1, math.prod(value.shape[1:]))
                value = value * (1 + 0.2 * noise) + 0.5 * noise / math.sqrt(inputs if value.ndim > 1 else 4)
        known[id(tensor)] = value
    return {name: known[id(tensor)] for name, tensor in state.items()}


def _still_tied(params: Mapping[str, Tensor], image: Mapping[str, Tensor]) -> bool:
    """Whether tensors under several names have moved alike."""
    first: dict[int, str] = {}
    return all(torch.equal(image[name], image[first.setdefault(id(params[name]), name)]) for name in params)


def run(model: nn.Module, params: Mapping[str, Tensor], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """The outputs in float64, also where the model itself asks for less; of tied tensors one stands for all."""
    one = {name: params[name] for name, _ in (*model.named_parameters(), *model.named_buffers()) if name in params}
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Widened():
            return outputs(model, one, (), copy.deepcopy(dict(kwargs)))
    finally:
        torch.set_default_dtype(default)


class _Widened(TorchDispatchMode):
    """Every operation that is asked for a narrower floating type gives float64: rounding in a cast is no asymmetry."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map(
            lambda item: _WIDE.get(item, item) if isinstance(item, torch.dtype) else item, (args, kwargs or {})
        )
        return func(*args, **kwargs)


_WIDE = {
    torch.float32: torch.float64,
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.complex64: torch.complex128,
}


def _half(image: Mapping[str, Tensor], params: Mapping[str, Tensor], sym: Symmetry) -> dict[str, Tensor]:
    """Parameters of which every other one that moves has moved."""
    moving = set(list(sym.structures)[::2])
    return {name: image[name] if name in moving else tensor for name, tensor in params.items()}
