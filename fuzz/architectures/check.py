"""Whether the group that is discovered of an architecture is sound, seen eagerly on inputs that discovery never saw."""

import copy
import math
import time
from collections.abc import Iterator, Mapping, Sequence
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
DRAWS = 32


@dataclass(frozen=True)
class Finding:
    """What came out: the group, or why there is none; the largest change of an output under its elements.

    ``unnoticed``: classes of which the outputs on the example do not notice a wrong move, so that ``change`` says
    nothing about them.
    """

    parameters: int
    seconds: float
    sym: Symmetry | None = None
    refused: str = ""
    change: float = 0.0
    unnoticed: tuple[str, ...] = ()

    @property
    def sound(self) -> bool:
        """Nothing changed that should not."""
        return self.change <= TOLERANCE


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
        return Finding(count, time.perf_counter() - start, refused=f"refused: {error}")
    except Exception as error:  # a defect, which is told in its row and does not keep the others from theirs
        broken = f"fails: {type(error).__name__}: {error}"
        return Finding(count, time.perf_counter() - start, refused=broken, change=math.inf)
    seconds = time.perf_counter() - start
    given = [example, *(architecture.inputs(generator, *sizes) for sizes in architecture.others)]
    twin = in_double(model, architecture)
    params = general_position(twin, generator)
    worst = largest_change(twin, params, sym, given, generator)
    return Finding(count, seconds, sym, change=worst, unnoticed=unnoticed(twin, params, sym, given[0], generator))


def in_double(model: nn.Module, architecture: Architecture) -> nn.Module:
    """A copy in float64, with the settings that it needs for that."""
    twin = doubled(model)
    for setter, value in architecture.in_double:
        getattr(twin, setter)(value)
    return twin


def largest_change(
    twin: nn.Module,
    params: Mapping[str, Tensor],
    sym: Symmetry,
    given: Sequence[Inputs],
    generator: torch.Generator,
) -> float:
    """Of an output of a model in float64, under random elements of a group, on all the inputs given."""
    images = [moved(sym, params, generator) for _ in range(ELEMENTS)]
    if not all(_still_tied(params, image) for image in images):
        return math.inf
    worst = 0.0
    for kwargs in map(wide, given):
        before = run(twin, params, kwargs)
        worst = max([worst, *(change(before, run(twin, image, kwargs)) for image in images)])
    return worst


def unnoticed(
    twin: nn.Module, params: Mapping[str, Tensor], sym: Symmetry, kwargs: Inputs, generator: torch.Generator
) -> tuple[str, ...]:
    """Classes that no output notices when they move on one of their parameters only, which is a wrong move."""
    kwargs = wide(kwargs)
    before = run(twin, params, kwargs)
    return tuple(
        name
        for name in sym.classes
        if (sym.classes[name].permutes or any(family.owner == name for family in sym.families.values()))
        and not any(change(before, run(twin, one, kwargs)) > NOTICED for one in _wrong(params, sym, name, generator))
    )


def _wrong(
    params: Mapping[str, Tensor], sym: Symmetry, name: str, generator: torch.Generator
) -> Iterator[Mapping[str, Tensor]]:
    """Parameters of which a single one has moved by a class, and of that a random half of the entries.

    All of them in turn: there are some without influence, such as the bias of keys under a softmax. Several elements:
    of two units every other one is the identity.
    """
    part = sym.restrict([name])
    for _ in range(DRAWS):
        image = moved(part, params, generator)
        for carrier in part.carriers(name):
            half = torch.rand(params[carrier].shape, generator=generator) < 0.5
            yield {**params, carrier: torch.where(half, image[carrier], params[carrier])}


def general_position(model: nn.Module, generator: torch.Generator) -> dict[str, Tensor]:
    """A state dict with random weights instead of an initialisation's zeros and ones, tied tensors alike.

    Matrices get the size at which signals pass many layers (variance 2 over the entries of a row); variances of batch
    norms stay positive, below those of an initialisation, which would damp.
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
                value = value * (0.1 + 0.3 * noise.abs())
            else:
                inputs = max(1, math.prod(value.shape[1:]))
                value = value * (1 + 0.2 * noise) + noise * (math.sqrt(2 / inputs) if value.ndim > 1 else 0.25)
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
