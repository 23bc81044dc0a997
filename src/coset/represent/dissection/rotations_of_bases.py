"""Interpretable units along the way from the basis of units to random rotations of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from coset._checks import check_choice, check_count
from coset._show.tables import csv_table
from coset.errors import InputError
from coset.represent._features import feature_chunks
from coset.represent.dissection._dissect import NEURONS, dissect
from coset.represent.dissection.bases import rotation_powers, special_rotation
from coset.represent.dissection.images import AnnotatedImages, checked_batches
from coset.represent.dissection.result import Dissection
from coset.represent.similarity.resampling import Interval
from coset.represent.stitching.penalties import bootstrap_mean

POWERS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


@dataclass(frozen=True, eq=False)
class RotatedDissections:
    """The dissections of a layer in the bases Q^t: ``found[r][i]`` for rotation r and t = ``powers[i]``."""

    layer: str
    powers: tuple[float, ...]
    found: tuple[tuple[Dissection, ...], ...]

    @property
    def categories(self) -> tuple[str, ...]:
        """The categories of concepts."""
        return tuple(self.found[0][0].unique)

    def fractions(self) -> Tensor:
        """The share of interpretable units, (rotations, powers)."""
        return torch.tensor([[one.fraction for one in line] for line in self.found], dtype=torch.float64)

    def unique(self, category: str | None = None) -> Tensor:
        """How many different concepts have a unit, (rotations, powers): of one ``category``, or of all."""
        if category is not None:
            check_choice("category", category, self.categories)
        return torch.tensor(
            [
                [sum(count for name, count in one.unique.items() if category in (None, name)) for one in line]
                for line in self.found
            ],
            dtype=torch.float64,
        )

    def interval(self, values: Tensor, power: int, *, level: float = 0.95, seed: int = 0) -> Interval:
        """The mean over rotations of ``values`` (rotations, powers) at one of the powers; rotations are resampled."""
        return bootstrap_mean(values[:, power], level=level, seed=seed)

    def to_dict(self) -> dict[str, object]:
        """All numbers, ready for JSON."""
        return {
            "layer": self.layer,
            "powers": list(self.powers),
            "found": [[one.to_dict() for one in line] for line in self.found],
        }

    def to_csv(self) -> str:
        """A row for each rotation and power."""
        rows = [
            [number, power, one.fraction, *one.unique.values()]
            for number, line in enumerate(self.found)
            for power, one in zip(self.powers, line, strict=True)
        ]
        return csv_table(["rotation", "power", "interpretable", *(f"unique {name}" for name in self.categories)], rows)


def dissect_rotations(
    model: nn.Module,
    layer: str,
    data: AnnotatedImages,
    *,
    seed: int,
    powers: Sequence[float] = POWERS,
    rotations: int = 5,
    **options: Any,
) -> RotatedDissections:
    """``dissect`` in the bases Q^t for t in ``powers`` and uniform random ``rotations`` Q of determinant 1.

    ``options``: those of ``dissect``. t = 0 is the basis of units, which all rotations share.
    """
    check_count("rotations", rotations)
    if "bases" in options:
        raise InputError("bases are the powers of random rotations here; dissect takes others")
    channels = _channels(model, layer, data, options)
    generator = torch.Generator().manual_seed(seed)
    # By their places: powers may be as close as they like.
    names = [
        [NEURONS if power == 0 else f"rotation {number}, power {place}" for place, power in enumerate(powers)]
        for number in range(rotations)
    ]
    bases: dict[str, Tensor] = {}
    for line in names:
        bases |= dict(zip(line, rotation_powers(special_rotation(channels, generator), powers), strict=True))
    found = dissect(model, layer, data, bases=bases, **options)
    return RotatedDissections(layer, tuple(powers), tuple(tuple(found[name] for name in line) for line in names))


def _channels(model: nn.Module, layer: str, data: AnnotatedImages, options: Mapping[str, Any]) -> int:
    """How many channels the layer has, from the first of the images."""
    for inputs, _, _ in checked_batches(data):
        chosen = {name: options[name] for name in ("params", "channel_axis") if name in options}
        return int(next(feature_chunks(model, inputs[:1], [layer], **chosen))[layer].shape[1])
    raise InputError("the annotated images hold no batches; expected at least one")
