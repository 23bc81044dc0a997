"""What makes two runs the same run: a description to compare a checkpoint with."""

import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from coset._files.sealed import checksum, kind
from coset.train._recipe import Recipe

# Equal outputs of two processes may differ by rounding, which varies with the number of threads: this many times ε.
ROUNDING = 100


@dataclass(frozen=True)
class Identity:
    """A run before its first step: plain ``settings``, and the ``outputs`` of the untrained model for a few inputs.

    The outputs tell apart models that differ in nothing but what they compute, such as the heads of an attention.
    """

    settings: dict[str, Any]
    outputs: Tensor


def identify(
    model: nn.Module,
    outputs: Tensor,
    data: Mapping[str, Tensor],
    recipe: Recipe,
    *,
    seed: int,
    channels_last: bool,
    still: Sequence[str],
) -> Identity:
    """Everything that decides the bits of a run's result, apart from the machine and the versions of its software.

    Data, initial weights and all buffers enter by a checksum: resuming with others would give what no uninterrupted
    run gives. ``still`` are the modules that stay in evaluation mode.
    """
    settings: dict[str, Any] = {f"recipe {name}": value for name, value in recipe.to_dict().items()}
    settings |= {"seed": seed, "channels_last": channels_last}
    # Addresses in the text of lambdas and the like change from one process to the next.
    structure = re.sub(r" at 0x[0-9a-fA-F]+", "", repr(model))
    settings["model structure"] = f"{zlib.crc32(structure.encode()):08x}"
    total = 0
    # Buffers again, for those outside the state_dict.
    for name, tensor in {**model.state_dict(keep_vars=True), **dict(model.named_buffers())}.items():
        use = "trained" if tensor.requires_grad else "fixed"
        settings[f"model {name}"] = f"{kind(tensor)} {use}"
        total = checksum(tensor, total)
    settings["model initial weights"] = f"checksum {total:08x}"
    settings["model modules in evaluation mode"] = list(still)
    settings |= {f"data {name}": f"{kind(tensor)} checksum {checksum(tensor):08x}" for name, tensor in data.items()}
    settings["model outputs"] = kind(outputs)
    return Identity(settings, outputs.detach())


def differences(found: Identity, expected: Identity) -> list[str]:
    """One phrase for each thing that differs between the run of a checkpoint and this one."""
    there, here = found.settings, expected.settings
    names = [*here, *(name for name in there if name not in here)]
    absent = "absent"
    phrases = [
        f"{name} is {there.get(name, absent)!r} there and {here.get(name, absent)!r} here"
        for name in names
        if there.get(name, absent) != here.get(name, absent)
    ]
    if found.outputs.shape == expected.outputs.shape:
        a, b = found.outputs.double().cpu(), expected.outputs.double().cpu()
        allowed = ROUNDING * torch.finfo(expected.outputs.dtype).eps * float(b.abs().nan_to_num(0.0, 0.0).max())
        if not torch.allclose(a, b, rtol=0.0, atol=allowed, equal_nan=True):
            phrases.append(
                f"the outputs of the untrained model for the first {len(b)} examples differ "
                f"by up to {float((a - b).abs().max()):.1e}, more than rounding"
            )
    return phrases
