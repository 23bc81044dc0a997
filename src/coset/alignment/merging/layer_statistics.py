"""What the linear maps and batch norms of a model compute, seen from outside, for any model.

A model is run as it is while every call of a torch function is watched. Layers are known by the parameters they read,
not by their class: a linear map or convolution is a call with a parameter as its weight, a batch norm a call with
buffers as its running statistics.
"""

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from coset._magnitudes import squares_hold
from coset._values import freeze, memory_of
from coset.alignment._result import Params
from coset.alignment.matching.losses import arguments_of
from coset.distribution.ties import ties
from coset.errors import InputError, refusing
from coset.running import call_with, suited, whole_weights
from coset.running.moments import Moments

# Function → (dimensions of space behind the channels, whether the weight has its inputs first).
_LAYERS: dict[Callable[..., Any], tuple[int, bool]] = {
    F.linear: (0, False),
    F.conv1d: (1, False),
    F.conv2d: (2, False),
    F.conv3d: (3, False),
    F.conv_transpose1d: (1, True),
    F.conv_transpose2d: (2, True),
    F.conv_transpose3d: (3, True),
}

LAYER_KINDS = frozenset(kind.__name__ for kind in (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)) | frozenset(
    kind.__name__ for kind in (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
)
"""The modules whose output is that of one such call."""


@dataclass(frozen=True)
class Layer:
    """A linear map or convolution: the names of its parameters, and where its output channels are.

    ``channel``: the dimension of the outputs, from the end. ``norm``: whether batch norms, and nothing else, read
    the outputs.
    """

    weight: str
    bias: str | None
    channel: int
    transposed: bool
    groups: int
    norm: bool

    @property
    def axis(self) -> int:
        """The axis of the weight on which the output channels are."""
        return 1 if self.transposed else 0

    def along_weight(self, values: Tensor, weight: Tensor) -> Tensor:
        """One value per output channel (C,) in a shape that multiplies the weight."""
        if not self.transposed:
            return values.reshape(-1, *[1] * (weight.ndim - 1))
        # Inputs of a group first: (inputs, outputs of a group, …).
        rows = values.reshape(self.groups, -1).repeat_interleave(weight.shape[0] // self.groups, 0)
        return rows.reshape(*rows.shape, *[1] * (weight.ndim - 2))


@dataclass(frozen=True)
class BatchNorm:
    """A batch norm: the names of its running mean and variance."""

    mean: str
    variance: str


@dataclass(frozen=True)
class Anatomy:
    """The layers of a model in the order in which they are computed; ``unusable``: weight → why it cannot be scaled."""

    layers: tuple[Layer, ...]
    norms: tuple[BatchNorm, ...]
    unusable: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        freeze(self, "unusable")


def moments(values: Tensor, channel: int, what: str = "values") -> Moments:
    """The moments of each channel of a batch of values over all other dimensions, on the CPU; ``what`` they are called.

    Channels whose squares are no numbers of their type are measured in float64; where they are none there, that is an
    error.
    """
    wide = values.detach().to(torch.promote_types(values.dtype, torch.float32))
    others = [dim for dim in range(values.ndim) if dim != channel % values.ndim]
    count = values.numel() // values.shape[channel]
    if not others:
        mean, square = wide, torch.zeros_like(wide)
    else:
        square, mean = torch.var_mean(wide, others, correction=0)
        square, mean = square.double(), mean.double()
        lost = torch.nonzero(~squares_hold(square, wide.dtype)).flatten()
        if len(lost):
            part = values.detach().index_select(channel, lost).double()
            square[lost], mean[lost] = torch.var_mean(part, others, correction=0)
            _check_squares(square[lost], part, others, what)
    largest = torch.linalg.vector_norm(wide, torch.inf, others) if others else wide.abs()
    return Moments(count, mean.cpu().double(), square.cpu().double() * count, largest.cpu().double())


def _check_squares(variance: Tensor, values: Tensor, others: list[int], what: str) -> None:
    """Raise where channels vary, are finite, and yet have no variance in float64."""
    largest, least = values.amax(others), values.amin(others)
    # Less than that apart may be the rounding of a constant.
    varies = (largest - least) > 16 * torch.finfo(values.dtype).eps * torch.maximum(largest.abs(), least.abs())
    if bool((varies & torch.isfinite(largest - least) & ~squares_hold(variance)).any()):
        raise InputError(
            f"{what} are as small as {float((largest - least)[varies].min()):.3g} and as large as "
            f"{float(values.abs().max()):.3g}, whose squares float64 does not hold; expected numbers nearer to 1"
        )


OnLayer = Callable[[str, Tensor], Tensor]
"""Given a layer's weight and its outputs: the outputs to go on with."""

OnNorm = Callable[[str, Mapping[str, Any]], Tensor]
"""Given a batch norm's running variance and the arguments of ``F.batch_norm``: its outputs."""


class LayerWatch(TorchFunctionMode):
    """Hands over the outputs of every layer and the arguments of every batch norm, by the names of their parameters."""

    def __init__(self, on_layer: OnLayer, on_norm: OnNorm) -> None:
        super().__init__()
        self.names: dict[tuple[object, ...], str] = {}
        self.on_layer = on_layer
        self.on_norm = on_norm

    def know(self, weights: Params) -> None:
        """From now on the model runs with these weights."""
        self.names = {memory_of(tensor): name for name, tensor in reversed(list(weights.items()))}

    def name_of(self, value: object) -> str | None:
        """The parameter that a value is."""
        return self.names.get(memory_of(value)) if isinstance(value, Tensor) else None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _LAYERS:
            weight = self.name_of(_argument(args, kwargs, 1, "weight"))
            if weight is not None:
                self.on_call(func, weight, args, kwargs)
                return self.on_layer(weight, func(*args, **kwargs))
        if func is F.batch_norm:
            call = arguments_of(func, args, kwargs)
            variance = self.name_of(call["running_var"])
            if variance is not None and self.name_of(call["running_mean"]) is not None:
                return self.on_norm(variance, call)
        result = func(*args, **kwargs)
        self.on_other(func, args, kwargs, result)
        return result

    def on_call(self, func: Any, weight: str, args: Any, kwargs: Any) -> None:
        """A layer is about to be computed."""

    def on_other(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Some other function was computed."""


def _argument(args: Any, kwargs: Any, at: int, name: str) -> Any:
    return args[at] if len(args) > at else kwargs.get(name)


class _Reader(LayerWatch):
    """Takes down which layers there are, what reads each parameter, and what reads the outputs of each layer."""

    def __init__(self) -> None:
        super().__init__(self._output, self._norm)
        self.calls: dict[str, Layer] = {}
        self.readers: dict[str, list[str]] = {}
        self.normed: set[str] = set()
        self.read_otherwise: set[str] = set()
        self.computed: set[str] = set()
        self.norms: dict[str, BatchNorm] = {}
        self.outputs: dict[int, tuple[str, weakref.ref[Tensor]]] = {}

    def on_call(self, func: Any, weight: str, args: Any, kwargs: Any) -> None:
        self._reads((args, kwargs))
        dimensions, transposed = _LAYERS[func]
        tensor = _argument(args, kwargs, 2, "bias")
        bias = self.name_of(tensor)
        groups = _argument(args, kwargs, 6, "groups") if transposed else None
        self.calls[weight] = Layer(weight, bias, -1 - dimensions, transposed, groups or 1, False)
        self.readers.setdefault(weight, []).append(func.__name__)
        if bias is not None:
            self.readers.setdefault(bias, []).append(func.__name__)
        elif tensor is not None:
            self.computed.add(weight)

    def on_other(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        made = [memory_of(value) for value in tree_leaves(result) if isinstance(value, Tensor)]
        if made:
            self._reads((args, kwargs))
        for value in tree_leaves((args, kwargs)):
            name = self.name_of(value)
            # Sizes and types are no values, and a cast to the same type is the parameter itself.
            if name is not None and made and memory_of(value) not in made:
                self.readers.setdefault(name, []).append(getattr(func, "__name__", str(func)))

    def _output(self, weight: str, outputs: Tensor) -> Tensor:
        self.outputs[id(outputs)] = (weight, weakref.ref(outputs))
        return outputs

    def _norm(self, variance: str, call: Mapping[str, Any]) -> Tensor:
        mean = self.name_of(call["running_mean"])
        assert mean is not None
        self.norms[variance] = BatchNorm(mean, variance)
        weight = self._layer_of(call["input"])
        if weight is not None:
            self.normed.add(weight)
        return F.batch_norm(**call)

    def _reads(self, arguments: Any) -> None:
        """Some function that is no batch norm reads these values."""
        layers = (self._layer_of(value) for value in tree_leaves(arguments) if isinstance(value, Tensor))
        self.read_otherwise.update(weight for weight in layers if weight is not None)

    def _layer_of(self, value: Tensor) -> str | None:
        """The weight of the layer whose outputs a tensor is; the number of an object that is gone is used again."""
        weight, alive = self.outputs.get(id(value), (None, None))
        return weight if alive is not None and alive() is value else None


def read_anatomy(model: nn.Module, params: Params, inputs: Tensor) -> Anatomy:
    """Run the model once, in the mode it is in, and say which layers it has."""
    reader = _Reader()
    run(model, params, inputs, reader)
    tied = _tied(model, params)
    normed = reader.normed - reader.read_otherwise
    layers, unusable = [], dict[str, str]()
    for weight, call in reader.calls.items():
        if weight in reader.computed:
            unusable[weight] = "its bias is computed and no parameter"
        for name in [weight] if call.bias is None else [weight, call.bias]:
            if name in tied:
                unusable[weight] = f"'{name}' and '{tied[name]}' are one tensor"
            elif len(reader.readers[name]) > 1:
                unusable[weight] = f"'{name}' is read more than once: by {', '.join(reader.readers[name])}"
        if weight not in unusable:
            layers.append(Layer(weight, call.bias, call.channel, call.transposed, call.groups, weight in normed))
    for name in params:
        if name in tied:
            unusable[name] = f"'{name}' and '{tied[name]}' are one tensor"
        elif name not in reader.calls:
            others = f", but {', '.join(reader.readers[name])}" if name in reader.readers else ""
            unusable[name] = f"no linear map or convolution reads it{others}"
    return Anatomy(tuple(layers), tuple(reader.norms.values()), unusable)


def run(model: nn.Module, params: Params, inputs: Tensor, watch: LayerWatch) -> None:
    """Run a model with other parameters and without gradients, watched; what it writes to buffers is lost."""
    weights = whole_weights(model, params, partial=True)
    weights |= {name: weights[name].clone() for name, _ in model.named_buffers()}
    watch.know(weights)
    data = f"data of shape {tuple(inputs.shape)} and type {inputs.dtype}"
    with refusing(f"the model does not run with these weights on {data}"), torch.no_grad(), watch:
        call_with(model, weights, suited(inputs, weights))


def _tied(model: nn.Module, params: Params) -> dict[str, str]:
    """Name → another name of the same tensor, in the parameters or in the model."""
    tied: dict[str, str] = {}
    for source in (params, dict(model.named_parameters(remove_duplicate=False))):
        for name, first in ties(source).items():
            if first != name:
                tied[name], tied[first] = first, name
    return tied
