"""What a loaded dataset is: two parts of tensors, and what is known about them."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from coset.data.normalization import Normalization
from coset.errors import InputError

Task = Literal["classification", "regression"]


@dataclass(frozen=True, eq=False)
class Split:
    """Examples: inputs ``x`` (N, ...) and, row by row, labels ``y`` (N,) in int64 or targets (N, 1).

    Windows of a text have a label for each of their characters, (N, T).
    """

    x: Tensor
    y: Tensor

    def __post_init__(self) -> None:
        if self.x.ndim == 0 or self.y.ndim == 0 or len(self.x) != len(self.y):
            raise InputError(f"x {tuple(self.x.shape)} and y {tuple(self.y.shape)} differ in their number of examples")

    def __len__(self) -> int:
        return len(self.x)

    def take(self, indices: Tensor) -> "Split":
        """The examples at ``indices`` (int64), in that order."""
        return Split(self.x[indices.to(self.x.device)], self.y[indices.to(self.y.device)])


@dataclass(frozen=True, eq=False)
class Dataset:
    """A dataset in memory.

    ``classes`` names the labels and is empty for regression. ``x_normalization`` and ``y_normalization`` were fitted to
    the train part and have been applied to both parts; they are identities after ``load(..., normalize=False)``, and
    labels have none. ``unlabelled`` (M, ...) are inputs published without targets, normalized like the others: the test
    inputs of Snelson's curve, whose ``test`` part therefore has no examples. ``fingerprint`` is a SHA-256 of the
    content: it changes with any value, with the split and with the options of ``load``, but not with the device or the
    folder.
    """

    name: str
    task: Task
    train: Split
    test: Split
    classes: tuple[str, ...]
    x_normalization: Normalization
    y_normalization: Normalization | None
    fingerprint: str
    unlabelled: Tensor | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.train.x.shape[1:])

    @property
    def outputs(self) -> int:
        """How many numbers a network has to put out: one per class, or one per target."""
        return len(self.classes) if self.task == "classification" else self.train.y.shape[1]
