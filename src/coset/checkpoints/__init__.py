"""Weights in files and folders: safetensors or PyTorch, in and out; refused when they are not what they should be."""

from coset.checkpoints._matching import as_stored, match_checkpoint
from coset.checkpoints._writing import output_file, output_place, write_checkpoint, write_checkpoints, write_like
from coset.checkpoints.reading import Checkpoint, read_checkpoint

__all__ = [
    "Checkpoint",
    "as_stored",
    "match_checkpoint",
    "output_file",
    "output_place",
    "read_checkpoint",
    "write_checkpoint",
    "write_checkpoints",
    "write_like",
]
