"""What is averaged over data: losses by name or the user's own, and the classifications that are wrong."""

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


def mean_accuracy(criterion: str) -> Mean:
    """The share of right answers, in float64: of classes, or of bits for "binary-cross-entropy"."""
    loss = LOSSES[check_name(criterion)]
    if loss.measure != "accuracy":
        classifying = [name for name, other in LOSSES.items() if other.measure == "accuracy"]
        raise InputError(f"criterion is {criterion!r}, which classifies nothing; expected {' or '.join(classifying)}")
    return lambda outputs, targets: (
        loss.score(outputs, loss.fit_targets(targets, outputs, "targets")).double() / len(outputs)
    )


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
