"""What the study of the two-weight network measured, and the numbers its text names."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from coset.study import Scalar
from coset_studies.gelberg.two_weights._claims import KEYS
from coset_studies.gelberg.two_weights._fits import Measured, Sampled, Task
from coset_studies.gelberg.two_weights._grid import Grid
from coset_studies.gelberg.two_weights._scan import (
    ALPHAS,
    MARGIN,
    Axes,
    Values,
    distance_to_bounds,
    distance_to_errors,
    largest_divisor,
    largest_printed_gain,
    orders,
)

Key = tuple[str, float]
"""Method and α."""


@dataclass(frozen=True)
class Outcomes:
    """All that was measured: runs (as the paper does, and exactly) and optima at one setting, scans, posteriors."""

    task: Task
    draws: Mapping[Key, Sampled]
    runs: Mapping[Key, Measured]
    optima: Mapping[Key, Measured]
    axes: Axes
    scan: Values
    converged: Values
    grids: Mapping[float, Grid]


def numbers(found: Outcomes, drawn: float) -> dict[str, Scalar]:
    """Everything measured that the text names; ``drawn``: the α of the figure."""
    gaps = [float((found.draws[key].total - one.total).abs().max()) for key, one in found.runs.items()]
    values: dict[str, Scalar] = {
        "gap": max(one.gap for part in (found.runs, found.optima) for one in part.values()),
        "sampling_gap": max(gaps),
        "printed_gain": largest_printed_gain(),
        "largest_gain_by_points": math.log(2) / len(found.task.train),
        "largest_divisor": largest_divisor(),
    }
    for (method, alpha), one in found.runs.items():
        place = f"{KEYS[method]}_{ALPHAS.index(alpha)}"
        values[f"error_{place}"] = float(found.draws[method, alpha].error.mean())
        values[f"spread_{place}"] = float(found.draws[method, alpha].error.std())
        values |= _measures(one, place)
        end = found.optima[method, alpha]
        values[f"optimum_error_{place}"] = float(end.error)
        values |= _measures(end, place, "optimum_")
    shown = found.runs["MFVI", drawn]
    values["drawn_alpha"] = drawn
    values["drawn_information"] = float(shown.total[0] - shown.plain[0]) / math.log(2)
    return values | _scan_numbers(found)


def _measures(one: Measured, place: str, prefix: str = "") -> dict[str, Scalar]:
    return {
        f"{prefix}kl_{place}": float(one.divergence.mean()),
        f"{prefix}kl_symmetrized_{place}": float(one.symmetrized_divergence.mean()),
        f"{prefix}median_kl_symmetrized_{place}": float(one.symmetrized_divergence.quantile(0.5)),
        f"{prefix}information_{place}": float((one.total - one.plain).mean()) / math.log(2),
    }


def _scan_numbers(found: Outcomes) -> dict[str, Scalar]:
    kept, ended = orders(found.scan), orders(found.converged)
    values: dict[str, Scalar] = {"settings": kept.all.numel(), "pairs": ended.all.numel()}
    for name, order in (("error", kept.error), ("total", kept.total), ("plain", kept.plain)):
        values[f"settings_{name}"] = int(order.all(-1).sum())
    values["settings_all"] = int(kept.all.sum())
    assert found.scan.clear is not None, "the scan has seeds"
    values["settings_clear"] = int(found.scan.clear.bool().all(-1).all(-1).sum())
    values["settings_bounds"] = int((kept.total & kept.plain).all(-1).sum())
    values["pairs_error"] = int(ended.error.all(-1).sum())
    values["pairs_worse"] = int((found.converged.error[..., 1] - found.converged.error[..., 0] > MARGIN).any(-1).sum())
    values["pairs_all"] = int(ended.all.sum())
    places = {"errors": distance_to_errors(found.scan)}
    for name, evidence in (("nats", False), ("kl", True)):
        places[name], divisor = distance_to_bounds(found.scan, evidence=evidence)
        values[f"nearest_{name}_divisor"] = float(divisor.flatten()[places[name].argmin()])
    if values["settings_all"]:
        places["ordered"] = torch.where(kept.all, places["errors"], torch.inf)
    for name, distance in places.items():
        index = torch.unravel_index(distance.argmin(), distance.shape)
        values[f"nearest_{name}"] = float(distance.min())
        for what, value in zip(("noise", "prior", "std", "mean"), setting(found.axes, index), strict=True):
            values[f"nearest_{name}_{what}"] = value
    nearest = torch.unravel_index(places["errors"].argmin(), places["errors"].shape)
    values["smallest_mean"] = min(found.axes.means)
    smallest = torch.tensor(found.axes.means.index(min(found.axes.means)))
    for place in range(len(ALPHAS)):
        values[f"nearest_error_{place}"] = float(found.scan.error[nearest][place, 0])
        values[f"settled_error_{place}"] = float(found.scan.error[(*nearest[:3], smallest)][place, 0])
    return values


def setting(axes: Axes, index: Sequence[Tensor | int]) -> tuple[float, ...]:
    lines = (axes.noises, axes.priors, axes.stds, axes.means)
    return tuple(line[int(place)] for line, place in zip(lines, index, strict=True))
