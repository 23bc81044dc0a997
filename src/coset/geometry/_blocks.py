"""Many networks in blocks that stay in the cache between the passes of a step."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from coset.symmetry.gather import is_plain

_BLOCK = 2**19
"""So many numbers of one point are taken at once: with a vector and a result 6 MB in single precision. Smaller blocks
were measured to cost more in operations that start than they save.
"""

Point = Mapping[str, Tensor]


def blocks(points: Sequence[Point], shapes: Mapping[str, tuple[int, ...]]) -> list[list[dict[str, Tensor]]]:
    """Points (…) of parameters with these ``shapes``, cut along the first leading axis; [] where they stay whole.

    Each block is a part of every point, as views; points without leading axes are in all blocks. Points stay whole on
    other devices than a CPU, where derivatives or transforms follow them, where their axes broadcast, and where they
    are small.
    """
    leads = {tuple(t.shape[: t.ndim - len(shapes[name])]) for point in points for name, t in point.items()} - {()}
    if len(leads) != 1:
        return []
    (lead,) = leads
    entries = max(sum(tensor.numel() for tensor in point.values()) for point in points)
    step = max(1, _BLOCK * lead[0] // max(entries, 1))
    if 2 * step > lead[0] or not all(_may_be_cut(tensor) for point in points for tensor in point.values()):
        return []
    whole = [all(tensor.ndim == len(shapes[name]) for name, tensor in point.items()) for point in points]
    return [
        [
            dict(point) if stays else {name: tensor[start : start + step] for name, tensor in point.items()}
            for point, stays in zip(points, whole, strict=True)
        ]
        for start in range(0, lead[0], step)
    ]


def _may_be_cut(tensor: Tensor) -> bool:
    """Writing into parts of a result cannot be followed by derivatives and transforms."""
    plain = type(tensor) in (Tensor, nn.Parameter) and tensor.device.type == "cpu"
    return plain and is_plain(tensor if torch.is_grad_enabled() else tensor.detach())
