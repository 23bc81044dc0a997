"""Calibration: does a network that is 80 % sure say the right label 80 % of the time? (Guo et al. 2017)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from coset._checks import check_choice, check_count
from coset._show.tables import text_table
from coset.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BINS = 15
_ROUNDING = 1e-4
"""Probabilities may miss a sum of 1 by so much: single precision over many classes."""


@dataclass(frozen=True)
class ReliabilityCurve:
    """Points grouped by the probability of the label said, their ``confidence``.

    For each bin (``edges[k]``, ``edges[k+1]``]: mean ``confidence``, share of right labels ``accuracy`` (both NaN where
    no point lies) and ``count``.
    """

    edges: tuple[float, ...]
    confidence: tuple[float, ...]
    accuracy: tuple[float, ...]
    count: tuple[int, ...]

    @cached_property
    def gaps(self) -> tuple[float, ...]:
        """Accuracy − confidence of each bin with points: below 0 where too sure."""
        bins = zip(self.accuracy, self.confidence, self.count, strict=True)
        return tuple(accuracy - confidence for accuracy, confidence, count in bins if count)

    @property
    def ece(self) -> float:
        """Expected calibration error Σ_k (n_k/N) |accuracy_k − confidence_k|."""
        counts = [count for count in self.count if count]
        return sum(n * abs(gap) for n, gap in zip(counts, self.gaps, strict=True)) / sum(counts)

    @property
    def largest_gap(self) -> float:
        """Maximum calibration error max_k |accuracy_k − confidence_k|."""
        return max(map(abs, self.gaps))

    def __str__(self) -> str:
        bins = zip(self.edges, self.edges[1:], self.count, self.confidence, self.accuracy, strict=False)
        rows = [
            [f"{low:.3f}…{high:.3f}", str(count), f"{confidence:.4f}", f"{accuracy:.4f}"]
            for low, high, count, confidence, accuracy in bins
            if count
        ]
        return text_table(["confidence", "points", "mean", "accuracy"], rows, right=(1, 2, 3))


def reliability(probabilities: Tensor, y: Tensor, bins: int = BINS, scheme: str = "width") -> ReliabilityCurve:
    """Confidence against accuracy: ``probabilities`` (N, C), labels ``y`` (N,); at most ``bins`` groups by ``scheme``.

    "width": bins of equal width (k/B, (k+1)/B], confidence 0 in the first. "mass": as many points in each, as far as
    equal confidences, which always share a bin, allow it; some may then be empty.
    """
    check_labels(probabilities, y)
    check_count("bins", bins)
    check_choice("scheme", scheme, SCHEMES)
    # In its own type: 0.6 in single precision lies at the edge 3/5, and not above it.
    confidence, said = probabilities.max(1)
    # Rounding can lift a probability above 1.
    confidence = confidence.clamp(max=1)
    inner = SCHEMES[scheme](confidence, bins)
    index = torch.bucketize(confidence, inner)
    right = (said == y.to(said.device)).double()
    count = torch.bincount(index, minlength=bins)
    means = [torch.bincount(index, part, bins) / count for part in (confidence.double(), right)]
    return ReliabilityCurve(
        (0.0, *inner.tolist(), 1.0), tuple(means[0].tolist()), tuple(means[1].tolist()), tuple(count.tolist())
    )


def ece(probabilities: Tensor, y: Tensor, bins: int = BINS, scheme: str = "width") -> float:
    """Expected calibration error Σ_k (n_k/N) |accuracy_k − confidence_k|, see ``reliability``."""
    return reliability(probabilities, y, bins, scheme).ece


def _equal_width(confidence: Tensor, bins: int) -> Tensor:
    return torch.arange(1, bins, dtype=confidence.dtype, device=confidence.device) / bins


def _equal_mass(confidence: Tensor, bins: int) -> Tensor:
    """The largest confidence of each bin but the last: the ⌈kN/B⌉-th smallest of all."""
    last = torch.arange(1, bins, device=confidence.device) * len(confidence)
    places = (last + bins - 1) // bins - 1
    return confidence.sort().values[places]


SCHEMES: dict[str, Callable[[Tensor, int], Tensor]] = {"width": _equal_width, "mass": _equal_mass}
"""Name → the inner edges of that many bins, from the confidences (N,)."""


def check_labels(probabilities: Tensor, y: Tensor) -> None:
    """Raise unless ``probabilities`` (N, C) are some and ``y`` (N,) are labels for them, N ≥ 1."""
    if not isinstance(probabilities, Tensor) or probabilities.ndim != 2 or 0 in probabilities.shape:
        found = tuple(probabilities.shape) if isinstance(probabilities, Tensor) else type(probabilities).__name__
        raise InputError(f"probabilities are {found}; expected a tensor (N, C) with at least one point")
    sums = probabilities.double().sum(1)
    if not bool((probabilities >= 0).all()) or not bool(((sums - 1).abs() <= _ROUNDING).all()):
        raise InputError("probabilities has rows that are negative or do not sum to 1; expected those of each label")
    if not isinstance(y, Tensor) or y.shape != probabilities.shape[:1] or y.is_floating_point() or y.is_complex():
        kind = f"{y.dtype} {tuple(y.shape)}" if isinstance(y, Tensor) else type(y).__name__
        raise InputError(f"y is {kind}; expected labels, whole numbers ({len(probabilities)},)")
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= probabilities.shape[1]:
        raise InputError(f"y has labels from {low} to {high}; there are {probabilities.shape[1]} classes")


def plot_reliability(curves: ReliabilityCurve | Mapping[str, ReliabilityCurve]) -> "Figure":
    """Reliability diagram, a line for each curve: {"network": …, "posterior": …}; above, where its points lie.

    On the diagonal confidence is accuracy; below it, predictions are too sure. Save it with ``figure.savefig(path)``.
    """
    lines = {"": curves} if isinstance(curves, ReliabilityCurve) else dict(curves)
    if not lines:
        raise InputError("curves is empty; expected at least one, as reliability gives them")
    # matplotlib takes long to import, and only this needs it.
    from coset.figures import GREY, PALETTE, new_figure, styled

    with styled():
        figure = new_figure(3.2, 4.6)
        shares, axes = figure.subplots(2, 1, sharex=True, height_ratios=(1, 3))
        axes.plot([0, 1], [0, 1], color=GREY, lw=0.8, ls=":")
        for number, (label, curve) in enumerate(lines.items()):
            _draw(axes, shares, label, curve, PALETTE[number % len(PALETTE)], "osD^vP"[number % 6])
        axes.set_xlabel("confidence")
        axes.set_ylabel("accuracy")
        axes.set_xlim(0, 1.02)
        axes.set_ylim(-0.02, 1.02)
        shares.set_ylabel("points (%)")
        # Below the panel, for lines may go anywhere in it.
        axes.legend(
            title="expected calibration error", title_fontsize=8.0, loc="upper center", bbox_to_anchor=(0.5, -0.2)
        )
    return figure


def _draw(axes: "Axes", shares: "Axes", label: str, curve: ReliabilityCurve, colour: str, marker: str) -> None:
    filled = [k for k, count in enumerate(curve.count) if count]
    x = [curve.confidence[k] for k in filled]
    name = f"{label}: {curve.ece:.4f}" if label else f"{curve.ece:.4f}"
    axes.plot(x, [curve.accuracy[k] for k in filled], color=colour, marker=marker, label=name)
    total = sum(curve.count)
    shares.plot(x, [100 * curve.count[k] / total for k in filled], color=colour, marker=marker, lw=1.0)
