"""What a dissection found: the concept of each unit, and how many concepts there are."""

import csv
import io
from dataclasses import dataclass

from torch import Tensor

from coset.represent.dissection_images import Concept


@dataclass(frozen=True, eq=False)
class Dissection:
    """The units of one layer, in one basis, against all concepts.

    ``iou`` (units, K): intersection over union of the pixels at which the unit's map exceeds its threshold and those
    of the concept, over the whole data set. ``thresholds`` (units,); ``shares`` (units,): of the layer's activations,
    how many exceed it: the share asked for, or less where values are equal (a unit that rests at 0). ``error``: by so
    much the streamed threshold may miss the share. ``concept_shares`` (K,): of all pixels, those of the concept; of a
    concept that covers much, no unit can have a large part. A unit is interpretable if its best IoU is greater than
    ``least_iou``.
    """

    layer: str
    concepts: tuple[Concept, ...]
    iou: Tensor
    thresholds: Tensor
    shares: Tensor
    concept_shares: Tensor
    error: float
    share: float
    least_iou: float

    @property
    def units(self) -> int:
        """How many units there are."""
        return len(self.iou)

    @property
    def best(self) -> Tensor:
        """The IoU of each unit with its best concept, (units,)."""
        return self.iou.amax(1)

    @property
    def interpretable(self) -> Tensor:
        """Whether each unit has a concept, (units,) bool."""
        return self.best > self.least_iou

    @property
    def fraction(self) -> float:
        """The share of interpretable units."""
        return float(self.interpretable.double().mean())

    @property
    def labels(self) -> tuple[Concept | None, ...]:
        """The concept of each unit, its best one; None for units that are not interpretable."""
        chosen = zip(self.iou.argmax(1).tolist(), self.interpretable.tolist(), strict=True)
        return tuple(self.concepts[place] if known else None for place, known in chosen)

    @property
    def detectors(self) -> dict[Concept, int]:
        """How many units have each concept; 0 for concepts without any."""
        labels = self.labels
        return {concept: sum(label == concept for label in labels) for concept in self.concepts}

    @property
    def unique(self) -> dict[str, int]:
        """How many different concepts of each category have a unit."""
        return self._by_category({concept: int(count > 0) for concept, count in self.detectors.items()})

    @property
    def units_by_category(self) -> dict[str, int]:
        """How many units have a concept of each category."""
        return self._by_category(self.detectors)

    @property
    def ceilings(self) -> dict[Concept, float]:
        """About the largest IoU that a unit can have with each concept: its map covers a ``share`` of all pixels.

        share/s for a concept on a share s of the pixels, s/share for one on fewer.
        """
        shares = self.concept_shares.tolist()
        return {c: min(self.share, s) / max(self.share, s) for c, s in zip(self.concepts, shares, strict=True)}

    def _by_category(self, counts: dict[Concept, int]) -> dict[str, int]:
        found: dict[str, int] = {}
        for concept, count in counts.items():
            found[concept.category] = found.get(concept.category, 0) + count
        return found

    def to_dict(self) -> dict[str, object]:
        """All numbers, ready for JSON."""
        return {
            "layer": self.layer,
            "concepts": [[concept.name, concept.category] for concept in self.concepts],
            "iou": self.iou.tolist(),
            "thresholds": self.thresholds.tolist(),
            "shares": self.shares.tolist(),
            "concept_shares": self.concept_shares.tolist(),
            "error": self.error,
            "share": self.share,
            "least_iou": self.least_iou,
        }

    def to_csv(self) -> str:
        """A row for each unit: its best concept, whether or not that is enough, and the IoU."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["unit", "concept", "category", "iou", "interpretable", "threshold"])
        thresholds = self.thresholds.tolist()
        for unit, place in enumerate(self.iou.argmax(1).tolist()):
            concept, value = self.concepts[place], float(self.iou[unit, place])
            row = [unit, concept.name, concept.category, value, value > self.least_iou, thresholds[unit]]
            writer.writerow(row)
        return text.getvalue()
