"""Linear maps on the channels of features: (N, C), tokens (N, T, C), images (N, C, H, W)."""

from torch import Tensor
from torch.nn import functional as F

from coset.errors import InputError


def find_axis(features: Tensor, axis: int | None = None) -> int:
    """Where the channels of ``features`` stand: the last of (N, C) and (N, T, C), the second of (N, C, H, W).

    ``axis`` says it for other layouts, sequences (N, C, T) for instance.
    """
    if features.ndim < 2:
        raise InputError(f"features have shape {tuple(features.shape)}; expected examples and channels at least")
    if axis is None:
        return 2 if features.ndim == 3 else 1
    if not -features.ndim < axis < features.ndim or axis == 0:
        raise InputError(
            f"channel_axis is {axis}; expected an axis of features of shape {tuple(features.shape)} behind the examples"
        )
    return axis % features.ndim


def on_channels(matrix: Tensor, features: Tensor, bias: Tensor | None = None, axis: int | None = None) -> Tensor:
    """``matrix`` (D, C), and ``bias`` (D), applied to the C channels of ``features``: a 1×1 convolution."""
    place = find_axis(features, axis)
    if features.shape[place] != matrix.shape[1]:
        raise InputError(
            f"the map has {matrix.shape[1]} input channels; features of shape {tuple(features.shape)} have "
            f"{features.shape[place]}"
        )
    matrix = matrix.to(features)
    if place == features.ndim - 1:
        return F.linear(features, matrix, None if bias is None else bias.to(features))
    # Positions in one axis behind the channels: products of matrices, and nothing is transposed.
    mapped = matrix @ features.flatten(place + 1)
    mapped = mapped if bias is None else mapped + bias.to(features)[:, None]
    return mapped.reshape(*mapped.shape[:-1], *features.shape[place + 1 :])


def as_rows(features: Tensor, axis: int | None = None) -> Tensor:
    """Features as a matrix (examples · positions, C)."""
    moved = features.movedim(find_axis(features, axis), -1)
    return moved.reshape(-1, moved.shape[-1])
