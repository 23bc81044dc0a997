"""Networks that others trained, from files: their weights, and how the pixels that they see are normalised."""

import os
from pathlib import Path

from torch import Tensor, nn

from coset.checkpoints import match_checkpoint, read_checkpoint
from coset.data import Normalization
from coset.errors import InputError

PIXELS = Normalization((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
"""By these the images of CIFAR-10 were normalised on which the networks were trained."""


def published_weights(model: str, number: int, network: nn.Module) -> dict[str, Tensor]:
    """The weights in ``<model>-seed<number>.safetensors`` in the folder COSET_CHECKPOINTS, matched to a network."""
    name = f"{model}-seed{number}"
    folder = os.environ.get("COSET_CHECKPOINTS")
    if not folder:
        raise InputError(f"COSET_CHECKPOINTS is not set; expected a folder with {name}.safetensors")
    return match_checkpoint(read_checkpoint(Path(folder) / f"{name}.safetensors"), network.state_dict(), name)
