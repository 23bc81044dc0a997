"""Features: the outputs of named layers over data, examples first, channels second, positions behind."""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from coset._batches import BATCH_SIZE, Inputs, count_batches, input_batches
from coset._show.progress import progress
from coset.data import Split, given
from coset.errors import InputError
from coset.running import check_layers, outputs_with, recording, suited, whole_weights
from coset.train.metrics import evaluation_mode

ChannelAxis = int | Mapping[str, int] | None
"""The axis of an output on which channels stand: one for all layers, by name of the layer, or None for the default."""


def features(
    model: nn.Module,
    data: Inputs | Split,
    layers: Sequence[str],
    *,
    params: Mapping[str, Tensor] | None = None,
    channel_axis: ChannelAxis = None,
    batch_size: int = BATCH_SIZE,
    show: bool | None = None,
) -> dict[str, Tensor]:
    """The outputs of the named layers of ``model`` on ``data``: name → (N, C, *positions).

    ``data``: a tensor of inputs, a pair (inputs, targets), a ``Split`` or a loader. ``layers``: as in
    ``named_modules()`` (see ``_layers``). ``params``: weights in place of the model's own.
    ``channel_axis``: where channels stand; by default on axis 1 (vectors (N, C), images (N, C, H, W)), but behind
    tokens, (N, T, C), on the last. The model runs in evaluation mode and without derivatives; device and type of the
    features are those that it computes in. ``feature_chunks`` is for features too large to hold.
    """
    data = inputs_of(data, model)
    parts: dict[str, list[Tensor]] = {}
    with progress("features", count_batches(data, batch_size) or 0, show=show) as bar:
        chunks = feature_chunks(model, data, layers, params=params, channel_axis=channel_axis, batch_size=batch_size)
        for chunk in chunks:
            for name, tensor in chunk.items():
                earlier = parts.setdefault(name, [])
                if earlier and earlier[0].shape[1:] != tensor.shape[1:]:
                    raise InputError(
                        f"layer '{name}' has features of shape {tuple(earlier[0].shape[1:])} for some examples and "
                        f"{tuple(tensor.shape[1:])} for others; expected one shape"
                    )
                earlier.append(tensor)
            bar.advance()
    # One layer after the other gives up its parts, so that not everything is held twice.
    return {name: torch.cat(parts.pop(name)) for name in tuple(parts)}


def feature_chunks(
    model: nn.Module,
    data: Inputs | Split,
    layers: Sequence[str],
    *,
    params: Mapping[str, Tensor] | None = None,
    channel_axis: ChannelAxis = None,
    batch_size: int = BATCH_SIZE,
) -> Iterator[dict[str, Tensor]]:
    """``features`` batch by batch: name → (n, C, *positions), for sums that never hold all of them.

    The model is untouched between batches: hooks, mode and weights are put back before each chunk is given.
    """
    names = check_layers(model, layers)
    weights = None if params is None else whole_weights(model, params)
    own = weights if weights is not None else dict(model.named_parameters()) | dict(model.named_buffers())
    for inputs in input_batches(inputs_of(data, model), batch_size):
        x = suited(inputs, own)
        with torch.no_grad(), evaluation_mode(model), recording(model, names) as outputs:
            if weights is None:
                model(x)
            else:
                outputs_with(model, weights, x)
            found = dict(outputs)
        yield {name: channels_second(found[name], name, len(inputs), channel_axis) for name in names}


def channels_second(output: Tensor, name: str, examples: int, channel_axis: ChannelAxis = None) -> Tensor:
    """The output of layer ``name`` on so many ``examples`` as (N, C, *positions), a view where possible."""
    return output.movedim(channel_position(tuple(output.shape), name, examples, channel_axis), 1)


def channel_position(shape: tuple[int, ...], name: str, examples: int, channel_axis: ChannelAxis = None) -> int:
    """The axis of channels of an output of layer ``name``; raises unless examples stand on axis 0."""
    if len(shape) < 2 or shape[0] != examples:
        raise InputError(
            f"layer '{name}' gives an output of shape {shape} for {examples} examples; expected examples on axis 0 and "
            f"channels on another"
        )
    axis = channel_axis.get(name) if isinstance(channel_axis, Mapping) else channel_axis
    if axis is None:
        axis = 2 if len(shape) == 3 else 1
    if not isinstance(axis, int) or isinstance(axis, bool) or not -len(shape) < axis < len(shape) or axis == 0:
        raise InputError(
            f"channel_axis is {axis!r} for layer '{name}', whose output has shape {shape}; expected an axis of it "
            f"other than 0, where examples stand"
        )
    return axis % len(shape)


def inputs_of(data: Inputs | Split, model: nn.Module | None = None) -> Inputs:
    """Data in whatever form they are given as tensors or batches (``coset.data.given``)."""
    found: Inputs = given(data, model)
    return found
