"""Losses by name: what is minimised, how success is counted, and which targets fit which outputs."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from coset.errors import InputError


@dataclass(frozen=True)
class Loss:
    """A loss.

    ``mean(outputs, targets, label_smoothing)`` is the mean over the batch; ``score(outputs, targets)`` the sum over the
    batch of correct answers or squared errors, reported as ``measure``; ``fit_targets(targets, outputs, name)`` returns
    the targets in the type the loss wants, or raises :class:`InputError` where they do not suit the model's outputs.
    """

    measure: str
    mean: Callable[[Tensor, Tensor, float], Tensor]
    score: Callable[[Tensor, Tensor], Tensor]
    fit_targets: Callable[[Tensor, Tensor, str], Tensor]


def _cross_entropy(outputs: Tensor, targets: Tensor, label_smoothing: float) -> Tensor:
    return functional.cross_entropy(outputs.flatten(0, -2), targets.flatten(), label_smoothing=label_smoothing)


def _squared_error(outputs: Tensor, targets: Tensor, label_smoothing: float) -> Tensor:
    return functional.mse_loss(outputs, targets)


def _binary_cross_entropy(outputs: Tensor, targets: Tensor, label_smoothing: float) -> Tensor:
    return functional.binary_cross_entropy_with_logits(outputs, targets)


def _shares_cross_entropy(outputs: Tensor, targets: Tensor, label_smoothing: float) -> Tensor:
    # Minus the least value that it has, the entropy of the targets, which has no gradient.
    least = torch.special.entr(targets) + torch.special.entr(1 - targets)
    value: Tensor = functional.binary_cross_entropy_with_logits(outputs, targets) - least.mean()
    return value


def _count_correct(outputs: Tensor, targets: Tensor) -> Tensor:
    right = outputs.argmax(-1) == targets
    # Of sequences every position counts as its share of one example.
    return right.sum() if right.dim() == 1 else right.flatten(1).float().mean(1).sum()


def _sum_squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().reshape(len(outputs), -1).mean(1).sum()


def _sum_squares_of_shares(outputs: Tensor, targets: Tensor) -> Tensor:
    return _sum_squares(outputs.sigmoid(), targets)


def _count_right_bits(outputs: Tensor, targets: Tensor) -> Tensor:
    return ((outputs > 0) == (targets > 0.5)).reshape(len(outputs), -1).float().mean(1).sum()


def _class_labels(targets: Tensor, outputs: Tensor, name: str) -> Tensor:
    if outputs.dim() < 2:
        raise InputError(
            f"model: its outputs have shape {_shape(outputs)}, cross-entropy expects (examples, …, classes)"
        )
    inner = tuple(outputs.shape[1:-1])
    whole = not (targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool)
    if tuple(targets.shape[1:]) != inner or targets.dim() == 0 or not whole:
        expected = ", ".join(["examples", *map(str, inner)]) + ("" if inner else ",")
        raise InputError(
            f"{name} has shape {_shape(targets)} and type {targets.dtype}, "
            f"cross-entropy expects integer labels of shape ({expected})"
        )
    classes, lowest, highest = outputs.shape[-1], int(targets.min()), int(targets.max())
    if lowest < 0 or highest >= classes:
        raise InputError(
            f"{name} has labels from {lowest} to {highest}, the model's {classes} outputs allow 0 to {classes - 1}"
        )
    return targets.long()


def _real_targets(targets: Tensor, outputs: Tensor, name: str) -> Tensor:
    _require_same_shape(targets, outputs, name)
    if targets.dtype != outputs.dtype:
        raise InputError(f"{name} has type {targets.dtype}, the model's outputs have type {outputs.dtype}")
    if not bool(targets.isfinite().all()):
        raise InputError(f"{name} has values that are not finite, squared error expects finite targets")
    return targets


def _binary_targets(targets: Tensor, outputs: Tensor, name: str) -> Tensor:
    _require_same_shape(targets, outputs, name)
    if not bool(((targets == 0) | (targets == 1)).all()):
        raise InputError(f"{name} has values other than 0 and 1, binary cross-entropy expects only these")
    return targets.to(outputs.dtype)


def _shares(targets: Tensor, outputs: Tensor, name: str) -> Tensor:
    _require_same_shape(targets, outputs, name)
    if not targets.is_floating_point() or not bool(((targets >= 0) & (targets <= 1)).all()):
        raise InputError(f"{name} has values that are no shares; the loss 'shares' expects numbers from 0 to 1")
    return targets.to(outputs.dtype)


def _require_same_shape(targets: Tensor, outputs: Tensor, name: str) -> None:
    # Equal shapes, not broadcastable ones: (N,) against (N, 1) would silently compare all pairs.
    if targets.shape[1:] != outputs.shape[1:]:
        raise InputError(
            f"{name} has shape {_shape(targets)}, "
            f"expected one value for each of the model's outputs, {(len(targets), *outputs.shape[1:])}"
        )


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)


LOSSES: dict[str, Loss] = {
    "cross-entropy": Loss("accuracy", _cross_entropy, _count_correct, _class_labels),
    "mse": Loss("rmse", _squared_error, _sum_squares, _real_targets),
    "binary-cross-entropy": Loss("accuracy", _binary_cross_entropy, _count_right_bits, _binary_targets),
    "shares": Loss("rmse", _shares_cross_entropy, _sum_squares_of_shares, _shares),
}
"""Losses by name. "shares": targets p in [0, 1] such as accuracies, KL(p ‖ σ(output)) of each, in nats."""
