"""The data of a zoo: parts to train on, to validate on and to test on."""

from dataclasses import dataclass

import torch

from coset.data import Split, load, split, subset
from coset.errors import InputError
from coset.train.randomness import stream
from coset.zoo._spec import DataSpec

PARTS = ("train", "validation", "test")


@dataclass(frozen=True, eq=False)
class Data:
    """Parts of a data set by name, those that have examples, and its fingerprint."""

    parts: dict[str, Split]
    fingerprint: str

    @property
    def train(self) -> Split:
        """What the networks are trained on."""
        return self.parts["train"]

    def describe(self) -> dict[str, object]:
        """Plain values for the index."""
        return {"fingerprint": self.fingerprint, **{name: len(part) for name, part in self.parts.items()}}


def load_data(spec: DataSpec, dtype: torch.dtype) -> Data:
    """The parts that a specification asks for."""
    whole = load(
        spec.name,
        split=spec.split,
        seed=spec.seed,
        dtype=dtype,
        normalize=spec.normalize,
        flatten=spec.flatten,
        window=spec.window,
    )
    train = whole.train
    stratify = train.y.ndim == 1 and not train.y.is_floating_point()
    if spec.subset is not None and spec.subset != len(train):
        train = subset(train, spec.subset, seed=spec.cut_seed, stratify=stratify)
    parts = {"train": train}
    if spec.validation:
        if not 0 < round(spec.validation * len(train)) < len(train):
            raise InputError(f"data: validation {spec.validation} of {len(train)} examples leaves a part empty")
        parts["train"], parts["validation"] = split(train, spec.validation, seed=spec.cut_seed, stratify=stratify)
    if spec.label_noise:
        parts["train"] = _mislabelled(parts["train"], spec)
    if len(whole.test):
        parts["test"] = whole.test
    return Data(parts, whole.fingerprint)


def _mislabelled(part: Split, spec: DataSpec) -> Split:
    """A share of the labels replaced, each by one of the other labels with equal chance."""
    if part.y.ndim != 1 or part.y.is_floating_point():
        raise InputError(f"data: label_noise is {spec.label_noise}, and {spec.name} has no labels of classes")
    classes = int(part.y.max()) + 1
    if classes < 2:
        raise InputError(f"data: label_noise is {spec.label_noise}, and {spec.name} has only one class here")
    generator = stream("zoo label noise", spec.cut_seed, 0)
    wrong = torch.randperm(len(part), generator=generator)[: round(spec.label_noise * len(part))]
    labels = part.y.clone()
    labels[wrong] = (labels[wrong] + torch.randint(1, classes, (len(wrong),), generator=generator)) % classes
    return Split(part.x, labels)
