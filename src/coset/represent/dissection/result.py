"""What a dissection found: the concept of each unit, and how many concepts there are."""

from dataclasses import dataclass, fields

from torch import Tensor

from coset._show.tables import csv_table
from coset.represent.dissection.images import Concept


@dataclass(frozen=True, eq=False)
class Dissection:
    """The units of one layer, in one basis, against all concepts.

    ``iou`` (units, K): intersection over union of the pixels at which the unit's map exceeds its threshold and those
    of the concept, over all images that are annotated for the concept's category. ``thresholds`` (units,); ``shares``
    (units,): of the layer's activations on all images, how many exceed it: the share asked for, or less where values
    are equal (a unit that rests at 0). ``error``: by so much the streamed threshold may miss the share.
    ``annotated_shares`` (K,): of all pixels, those on images that are annotated for the concept's category;
    ``concept_shares`` (K,): of these, the concept's; of a concept that covers much, no unit can have a large part. A
    unit is interpretable if its best IoU is greater than ``least_iou``.
    """

    layer: str
    concepts: tuple[Concept, ...]
    iou: Tensor
    thresholds: Tensor
    shares: Tensor
    concept_shares: Tensor
    annotated_shares: Tensor
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
        """About the largest IoU that a unit can have with each concept: its map covers a ``share`` p of all pixels.

        With a the share of pixels on annotated images and s that of the concept among these: p/(a·s) where that is
        less than 1, and else 1 as long as the rest of the map has room on other images, a·s/(p − (1 − a)) beyond.
        """
        found = {}
        rows = zip(self.concepts, self.concept_shares.tolist(), self.annotated_shares.tolist(), strict=True)
        for concept, among, annotated in rows:
            own = annotated * among
            # A concept without pixels cannot be met.
            found[concept] = min(self.share, own) / max(own, self.share - (1 - annotated)) if own > 0 else 0.0
        return found

    def _by_category(self, counts: dict[Concept, int]) -> dict[str, int]:
        found: dict[str, int] = {}
        for concept, count in counts.items():
            found[concept.category] = found.get(concept.category, 0) + count
        return found

    def to_dict(self) -> dict[str, object]:
        """All numbers, ready for JSON."""
        concepts = [[concept.name, concept.category] for concept in self.concepts]
        parts = {field.name: getattr(self, field.name) for field in fields(self)} | {"concepts": concepts}
        return {name: part.tolist() if isinstance(part, Tensor) else part for name, part in parts.items()}

    def to_csv(self) -> str:
        """A row for each unit: its best concept, whether or not that is enough, and the IoU."""
        rows = []
        thresholds = self.thresholds.tolist()
        for unit, place in enumerate(self.iou.argmax(1).tolist()):
            concept, value = self.concepts[place], float(self.iou[unit, place])
            rows.append([unit, concept.name, concept.category, value, value > self.least_iou, thresholds[unit]])
        return csv_table(["unit", "concept", "category", "iou", "interpretable", "threshold"], rows)
