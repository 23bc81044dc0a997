"""Weights in files: safetensors or PyTorch files in, safetensors out; refused when they are not what they should be."""

from coset.checkpoints._matching import as_stored, match_checkpoint
from coset.checkpoints._writing import output_file, write_checkpoint, write_checkpoints
from coset.checkpoints.reading import Checkpoint, read_checkpoint

__all__ = [
    "Checkpoint",
    "as_stored",
    "match_checkpoint",
    "output_file",
    "read_checkpoint",
    "write_checkpoint",
    "write_checkpoints",
]
