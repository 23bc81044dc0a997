"""Zoos: many trained networks in a folder, trained side by side, opened lazily, checked when read."""

from coset.zoo._evaluate import evaluate_zoo, zoo_task
from coset.zoo._foreign import export_zoo, import_zoo, save_zoo
from coset.zoo._frame import align_zoo, canonicalize_zoo
from coset.zoo._spec import DataSpec, Range, ZooSpec, read_spec
from coset.zoo._train import train_zoo
from coset.zoo._zoo import Zoo, ZooDataset, open_zoo

__all__ = [
    "DataSpec",
    "Range",
    "Zoo",
    "ZooDataset",
    "ZooSpec",
    "align_zoo",
    "canonicalize_zoo",
    "evaluate_zoo",
    "export_zoo",
    "import_zoo",
    "open_zoo",
    "read_spec",
    "save_zoo",
    "train_zoo",
    "zoo_task",
]
