"""What makes two runs the same run: a flat, plain description to compare a checkpoint with."""

import re
import zlib
from typing import Any

import torch
from torch import Tensor, nn

from coset.train.recipe import Recipe


def identity(
    model: nn.Module,
    data: dict[str, Tensor],
    recipe: Recipe,
    *,
    seed: int,
    channels_last: bool,
) -> dict[str, Any]:
    """Everything that decides the bits of a run's result, apart from the machine and the versions of its software.

    Data and initial weights enter by a checksum: resuming with others would give what no uninterrupted run gives.
    """
    described: dict[str, Any] = {f"recipe {name}": value for name, value in recipe.to_dict().items()}
    described |= {"seed": seed, "channels_last": channels_last}
    # Addresses in the text of lambdas and the like change from one process to the next.
    structure = re.sub(r" at 0x[0-9a-fA-F]+", "", repr(model))
    described["model structure"] = f"{zlib.crc32(structure.encode()):08x}"
    checksum = 0
    for name, tensor in model.state_dict(keep_vars=True).items():
        use = "trained" if tensor.requires_grad else "fixed"
        described[f"model {name}"] = f"{_kind(tensor)} {use}"
        checksum = _checksum(tensor, checksum)
    described["model initial weights"] = f"checksum {checksum:08x}"
    described |= {f"data {name}": f"{_kind(tensor)} checksum {_checksum(tensor):08x}" for name, tensor in data.items()}
    return described


def differences(found: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """One phrase per entry that differs between the description in a checkpoint and that of this run."""
    names = [*expected, *(name for name in found if name not in expected)]
    absent = "absent"
    return [
        f"{name} is {found.get(name, absent)!r} there and {expected.get(name, absent)!r} here"
        for name in names
        if found.get(name, absent) != expected.get(name, absent)
    ]


def _kind(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def _checksum(tensor: Tensor, start: int = 0) -> int:
    """CRC-32 of the bytes of a tensor, continued from ``start``."""
    content = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return zlib.crc32(content.numpy().data, start)
