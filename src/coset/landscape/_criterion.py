"""What is averaged over data: losses by name or the user's own, and the classifications that are wrong."""

import math
from collections.abc import Callable

from torch import Tensor

from coset.errors import InputError
from coset.train.loss import LOSSES

Criterion = str | Callable[[Tensor, Tensor], Tensor]
"""A name in ``coset.train``'s losses ("cross-entropy", "mse", "binary-cross-entropy"), or a function of outputs and
targets that gives their mean (a scalar) or one value for each example (n, …)."""

Mean = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) of a batch → the mean over its examples, a scalar."""


def mean_loss(criterion: Criterion) -> Mean:
    """The criterion as a mean over a batch."""
    if callable(criterion):
        return lambda outputs, targets: _mean_of(criterion(outputs, targets), len(outputs))
    loss = LOSSES[check_name(criterion)]
    return lambda outputs, targets: loss.mean(outputs, loss.fit_targets(targets, outputs, "targets"), 0.0)


RIGHT: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross-entropy": lambda outputs, labels: outputs.argmax(-1) == labels,
    "binary-cross-entropy": lambda outputs, bits: (outputs > 0) == (bits > 0.5),
}
"""Losses of classifiers: (outputs, targets) → which answers are right, (n,) or (n, …)."""


def mean_accuracy(criterion: str) -> Mean:
    """The share of right answers, in float64: of classes, or of bits for "binary-cross-entropy"."""
    if check_name(criterion) not in RIGHT:
        raise InputError(f"criterion is {criterion!r}, which classifies nothing; expected {' or '.join(RIGHT)}")
    right, fit_targets = RIGHT[criterion], LOSSES[criterion].fit_targets

    def mean(outputs: Tensor, targets: Tensor) -> Tensor:
        answers = right(outputs, fit_targets(targets, outputs, "targets")).double()
        # NaN has an argmax, too, but no answer.
        return answers.mean() if bool(outputs.isfinite().all()) else answers.new_tensor(math.nan)

    return mean


def check_name(criterion: object) -> str:
    """The name of a loss that is known."""
    if not isinstance(criterion, str) or criterion not in LOSSES:
        raise InputError(
            f"criterion is {criterion!r}; expected {', '.join(LOSSES)} or a function of outputs and targets"
        )
    return criterion


def _mean_of(value: object, count: int) -> Tensor:
    if not isinstance(value, Tensor) or (value.ndim > 0 and len(value) != count):
        found = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"type {type(value).__name__}"
        raise InputError(
            f"criterion gave a value of {found} for {count} examples; expected a tensor, their mean or one value each"
        )
    return value.mean()
