"""What training returns and reports."""

from dataclasses import dataclass

from torch import Tensor, nn

from coset import callbacks
from coset.train.metrics import Metrics


@dataclass(frozen=True)
class Epoch:
    """One epoch: ``train`` averaged over its steps, while the weights moved; ``validation`` of the weights at its end.

    Under mixup and CutMix each of the two labels counts by its weight in the training accuracy.
    """

    train: Metrics
    validation: Metrics | None
    learning_rate: float
    """At the first step of the epoch."""
    seconds: float


@dataclass(frozen=True)
class TrainResult:
    """The trained weights and how they came about."""

    params: dict[str, Tensor]
    """Names as in ``state_dict()``, running statistics of normalisation included; owned by the receiver."""
    history: tuple[Epoch, ...]
    best_epoch: int | None
    """Index of the first epoch with the best validation accuracy (or RMSE); None without validation data."""
    steps: int


@dataclass(frozen=True)
class Moment:
    """What a callback is told: after each step, and once more at the end of each epoch, with its ``record``."""

    epoch: int
    step: int
    """Steps done since the start of the run."""
    loss: Tensor
    """Of the last batch, or the epoch's mean at its end; a tensor, so that only looking at it waits for the device."""
    model: nn.Module
    """The model in training: to be looked at, not to be changed."""
    record: Epoch | None = None


Callback = callbacks.Callback[Moment]
"""Called after every step and every epoch; returning True ends the run with that epoch."""
