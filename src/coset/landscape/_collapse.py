"""Variance collapse: how much of the variance of units' activations is left along a path (Jordan et al. 2023, §3.1)."""

import copy
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from coset._batches import BATCH_SIZE, Inputs, check_repeatable, input_batches
from coset._checks import check_count
from coset._magnitudes import squares_hold
from coset._show.progress import progress
from coset._show.tables import csv_table
from coset._values import freeze
from coset.data import given
from coset.errors import InputError
from coset.landscape._path import Path, check_tau
from coset.posterior.prediction.draws import draws_of
from coset.running import check_layers, check_model, outputs_with, recording, suited, whole_weights
from coset.running.moments import Moments, merged, moments_of

POINTS = 25
SAMPLES = 32


@dataclass(frozen=True, eq=False)
class VarianceProfile:
    """``variances``: layer → (T, U), the variance over the data of each of U units' activations at each of T ``taus``.

    Units that do not vary at either end (dead ones) are left out of all ratios.
    """

    taus: tuple[float, ...]
    variances: Mapping[str, Tensor]

    def __post_init__(self) -> None:
        freeze(self, "variances")
        for layer, values in self.variances.items():
            if values.ndim != 2 or len(values) != len(self.taus):
                raise InputError(
                    f"variances of layer '{layer}' have shape {tuple(values.shape)}; expected (τ, units) with "
                    f"{len(self.taus)} τ"
                )
            if not bool((self._ends(values) > 0).any()):
                raise InputError(f"no unit of layer '{layer}' varies over the data at either end; expected one to")

    @property
    def layers(self) -> tuple[str, ...]:
        """The layers' names."""
        return tuple(self.variances)

    @property
    def ratios(self) -> dict[str, tuple[float, ...]]:
        """Layer → at each τ, the mean variance of its units over the mean of that at the two ends.

        A mean over units does not ask which unit of one network is which of the other.
        """
        found = {}
        for layer, values in self.variances.items():
            live = values[:, self._ends(values) > 0].mean(1)
            found[layer] = tuple((live / self._ends(live)).tolist())
        return found

    @property
    def lowest(self) -> dict[str, float]:
        """Layer → the least ratio along the path."""
        return {layer: min(ratios) for layer, ratios in self.ratios.items()}

    def unit_ratios(self, layer: str) -> Tensor:
        """(T, U): each unit's variance over the mean of its variances at the two ends; NaN for dead units."""
        if layer not in self.variances:
            raise InputError(f"layer '{layer}' was not measured; expected one of {', '.join(self.variances)}")
        values = self.variances[layer]
        ends = self._ends(values)
        return torch.where(ends > 0, values / ends, torch.full_like(values, torch.nan))

    def _ends(self, values: Tensor) -> Tensor:
        return (values[0] + values[-1]) / 2

    def to_dict(self) -> dict[str, object]:
        """All numbers, ready for JSON."""
        variances = {layer: values.tolist() for layer, values in self.variances.items()}
        ratios = {layer: list(values) for layer, values in self.ratios.items()}
        return {"taus": list(self.taus), "ratios": ratios, "lowest": self.lowest, "variances": variances}

    def to_csv(self) -> str:
        """A line for each τ, a column with the ratios of each layer; numbers as exact as they are."""
        return csv_table(["tau", *self.layers], zip(self.taus, *self.ratios.values(), strict=True))


def activation_variances(
    model: nn.Module,
    path: Path[Any] | Sequence[Any],
    x: Inputs,
    *,
    layers: Sequence[str] | None = None,
    unit_axis: int | Mapping[str, int] | None = None,
    points: int = POINTS,
    taus: Sequence[float] | None = None,
    samples: int = SAMPLES,
    seed: int = 0,
    batch_size: int = BATCH_SIZE,
    show: bool | None = None,
) -> VarianceProfile:
    """The variance of each unit's activation over the data ``x`` and all positions, at points of a path.

    ``path``: a function of τ, taken at ``points`` evenly spaced τ or at ``taus`` (with 0 and 1 in any case); or the
    points themselves, evenly spaced from one end to the other. Networks or posteriors: of these, activations are
    marginalised, E_q[a(x; θ)] by the mean over ``samples`` draws, and vary over the data alone (Rossi et al. 2023,
    section 5.4); draw j has the same random numbers all along the path.

    ``layers``: names of modules, whose outputs are meant, or of calls ("relu#1"), as in ``recording``; by default
    all modules, but the model itself, that have a weight with two or more axes of their own: linear maps and
    convolutions, before the activation function.
    ``unit_axis``: the axis of the output on which units stand, for all layers or by name: 1 unless told otherwise, as
    of (examples, units) and (examples, channels, height, width). Outputs with three axes may be either; it must be
    told. All other axes are positions. Variances are over n, not n − 1, and in float64. ``samples`` networks are held
    in memory.
    """
    check_model(model)
    x = given(x, model, what="x")
    check_count("samples", samples)
    check_repeatable(x, "x")
    grid, at = _points(path, points, taus)
    network = copy.deepcopy(model).eval()
    names = _layers(network, layers)
    variances: dict[str, list[Tensor]] = {name: [] for name in names}
    with torch.no_grad(), progress("activations along the path", len(grid), show=show) as bar:
        for tau in grid:
            found = _variances(network, at(tau), x, names, unit_axis, samples, seed, batch_size)
            for name, values in found.items():
                if not bool(values.isfinite().all()):
                    raise InputError(f"activations of layer '{name}' at τ = {tau:.4g} are not finite; expected numbers")
                variances[name].append(values)
            bar.advance(note=f"τ = {tau:.3g}")
    return VarianceProfile(grid, {name: torch.stack(values) for name, values in variances.items()})


def _points(
    path: Path[Any] | Sequence[Any], points: int, taus: Sequence[float] | None
) -> tuple[tuple[float, ...], Any]:
    """The τ at which a path is taken, and what gives the point at each."""
    if callable(path):
        check_count("points", points, least=2)
        if taus is not None and not isinstance(taus, Sized):
            raise InputError(f"taus is {taus!r}; expected numbers from 0 to 1")
        chosen = [index / (points - 1) for index in range(points)] if taus is None else [check_tau(tau) for tau in taus]
        return tuple(sorted({*chosen, 0.0, 1.0})), path
    if not isinstance(path, Sequence) or len(path) < 2:
        raise InputError(f"path is a {type(path).__name__}; expected a function of τ, or a list of two points or more")
    if taus is not None:
        raise InputError("taus is given and path is a list of points; expected a function of τ, or no taus")
    last = len(path) - 1
    return tuple(index / last for index in range(last + 1)), lambda tau: path[round(tau * last)]


def _layers(model: nn.Module, layers: Sequence[str] | None) -> tuple[str, ...]:
    if layers is not None:
        return check_layers(model, layers if isinstance(layers, str) else tuple(dict.fromkeys(layers)))
    weighty = [
        name
        for name, module in model.named_modules()
        if name and any(parameter.ndim > 1 for parameter in module.parameters(recurse=False))
    ]
    if not weighty:
        raise InputError("no module of the model has a weight with two axes; expected layers, by name")
    return tuple(weighty)


def _variances(
    model: nn.Module,
    point: Any,
    x: Inputs,
    names: Sequence[str],
    unit_axis: int | Mapping[str, int] | None,
    samples: int,
    seed: int,
    batch_size: int,
) -> dict[str, Tensor]:
    """The variances (U,) of each layer's units at one point."""
    draws = draws_of(point, samples, seed)
    weights = [whole_weights(model, draws.draw(number)) for number in range(draws.count)]
    first: dict[str, Tensor] = {}
    moments: dict[str, Moments] = {}
    for batch in input_batches(x, batch_size):
        inputs = suited(batch, weights[0])
        sums: dict[str, Tensor] = {}
        with recording(model, names) as outputs:
            for drawn in weights:
                outputs_with(model, drawn, inputs)
                for name, output in outputs.items():
                    sums[name] = sums[name] + output.double() if name in sums else output.double()
        for name in names:
            mean = sums[name] / draws.count
            values = mean.movedim(_axis(name, mean, unit_axis), 0).flatten(1)
            # About the first of each unit: what does not vary has variance 0.
            found = moments_of(values - first.setdefault(name, values[:, :1].clone()), 0)
            moments[name] = merged(moments[name], found) if name in moments else found
    return {name: _variance(found, name).cpu() for name, found in moments.items()}


def _axis(name: str, output: Tensor, unit_axis: int | Mapping[str, int] | None) -> int:
    axis = unit_axis.get(name) if isinstance(unit_axis, Mapping) else unit_axis
    if axis is None:
        if output.ndim == 3:
            raise InputError(
                f"the output of layer '{name}' has shape {tuple(output.shape)}, with units on axis 1 or 2; expected "
                f"unit_axis to say which"
            )
        axis = 1
    if not isinstance(axis, int) or not -output.ndim < axis < output.ndim or axis % output.ndim == 0:
        raise InputError(
            f"unit_axis of layer '{name}' is {axis!r}; its output has shape {tuple(output.shape)}, examples first"
        )
    return axis


def _variance(moments: Moments, layer: str) -> Tensor:
    """E[(a − E a)²], (U,), of activations about the first of each unit."""
    largest = moments.largest
    if bool(((largest > 0) & torch.isfinite(largest) & ~squares_hold(largest.square())).any()):
        raise InputError(
            f"layer '{layer}' has activations that differ by {float(largest.max()):.3g} at most, whose squares are "
            f"not all numbers in float64; expected activations nearer to 1"
        )
    return moments.squares / moments.count
