"""What it costs to change a network, in accuracy on held-out data, with confidence intervals over its examples."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from coset.errors import InputError
from coset.represent._cut import CHUNK, index_batches, suited_to
from coset.represent.similarity.resampling import Interval, check_draws, percentile_interval
from coset.represent.stitching._stitch import Stitching, check_labelled
from coset.train.loss import LOSSES
from coset.train.metrics import evaluation_mode

DRAWS = 2000
"""Resamples of a bootstrap unless told."""

# So many numbers of examples are held at a time.
_HELD = 1 << 20


@dataclass(frozen=True)
class Penalty:
    """The accuracy that is lost, in [−1, 1]: ``value`` = ``before`` − ``after``, with its interval.

    ``before`` is the accuracy that counts as no loss, the mean of the two networks where they are stitched; ``after``
    that of the changed one. ``count``: held-out examples, which are what is resampled, for all networks at once.
    """

    value: float
    low: float
    high: float
    level: float
    before: float
    after: float
    count: int


def stitching_penalty(
    stitching: Stitching,
    held_out: tuple[Tensor, Tensor],
    *,
    level: float = 0.95,
    draws: int = DRAWS,
    seed: int = 0,
) -> Penalty:
    """(acc(f) + acc(f̃))/2 − acc(S(f, f̃, l, φ)) on ``held_out`` (inputs and labels), Godfrey et al. 2022, (4.3).

    The held-out data must not be those that the map was trained on, nor chosen by: there is no best epoch here.
    """
    first = correct(stitching.cut.below, held_out)
    second = correct(stitching.above, held_out)
    return penalty_between((first + second) / 2, correct(stitching, held_out), level, draws, seed)


def correct(network: nn.Module | Stitching, data: tuple[Tensor, Tensor]) -> Tensor:
    """For each example of ``data`` (inputs, labels) 1 if its label has the largest output, else 0: (N), float64."""
    x, y = check_labelled(data, "held_out")
    parts: list[Tensor] = []
    for indices in index_batches(len(x), CHUNK):
        outputs = _outputs(network, x[indices])
        labels = LOSSES["cross-entropy"].fit_targets(y[indices], outputs, "labels of held_out")
        parts.append((outputs.argmax(1).cpu() == labels.cpu()).double())
    return torch.cat(parts)


def penalty_between(before: Tensor, after: Tensor, level: float, draws: int, seed: int) -> Penalty:
    """The penalty of example-wise results ``before`` and ``after`` (N), each in [0, 1]."""
    interval = bootstrap_mean(before - after, level=level, draws=draws, seed=seed)
    return Penalty(
        interval.value, interval.low, interval.high, level, float(before.mean()), float(after.mean()), len(before)
    )


def bootstrap_mean(
    values: Tensor | Sequence[float], *, level: float = 0.95, draws: int = DRAWS, seed: int = 0
) -> Interval:
    """The mean of ``values`` (N) with the percentiles of means of N of them drawn with replacement."""
    values = torch.as_tensor(values, dtype=torch.float64)
    if values.ndim != 1 or len(values) == 0:
        raise InputError(f"values have shape {tuple(values.shape)}; expected a row of one at least")
    check_draws(draws, level)
    generator = torch.Generator().manual_seed(seed)
    means = torch.empty(draws, dtype=torch.float64)
    for indices in index_batches(draws, max(1, _HELD // len(values))):
        drawn = torch.randint(len(values), (len(indices), len(values)), generator=generator)
        means[indices] = values[drawn].mean(1)
    return percentile_interval(float(values.mean()), means, level)


def _outputs(network: nn.Module | Stitching, inputs: Tensor) -> Tensor:
    if isinstance(network, Stitching):
        return network(inputs)
    with torch.no_grad(), evaluation_mode(network):
        outputs: Tensor = network(suited_to(network, inputs))
    return outputs
