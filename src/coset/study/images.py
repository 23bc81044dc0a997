"""The images of a data set that networks see: all of them, or fewer, smaller and moved ones where time is short."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from coset.data import Dataset, Normalization, Split, subset
from coset.data.catalog import CIFAR100
from coset.data.cifar import PIXELS, read_records
from coset.data.normalization import identity
from coset.errors import InputError
from coset.train.augment import AUGMENTATIONS, move

if TYPE_CHECKING:
    from coset.study._study import Context

GENERATED = "generated-100"
"""Made here, in the format of CIFAR-100, for machines without it."""
REACH = 2
"""The farthest translation of a moved image in pixels, as in ``coset.train.Recipe``."""


@dataclass(frozen=True)
class Images:
    """What the networks see of ``data``.

    ``train``, ``test``: how many images of each part, drawn at random with every class in its share; None is all.
    ``pool``: the side of the squares of pixels that are averaged, 1 for none. ``copies``: how often every train image
    is there, each time moved anew by ``augmentation``; 1 is once, as it is. ``flat``: as vectors.
    ``raw``: pixels from 0 to 1 as they are.
    """

    data: str = "cifar10"
    train: int | None = None
    test: int | None = None
    pool: int = 1
    copies: int = 1
    augmentation: str = "shift-flip"
    flat: bool = field(default=False, repr=False)
    raw: bool = field(default=False, repr=False)


def load_images(context: "Context", choice: Images) -> Dataset:
    """The images of ``choice``, every channel of mean 0 and deviation 1 over the train part unless they are raw."""
    full = generated_images() if choice.data == GENERATED else context.data(choice.data, normalize=False)
    parts = [
        _pooled(_drawn(full.train, choice.train), choice.pool),
        _pooled(_drawn(full.test, choice.test), choice.pool),
    ]
    normalization = Normalization.fit(parts[0].x)
    if choice.raw:
        normalization = identity(len(normalization.mean))
    train, test = (Split(normalization.apply(part.x), part.y) for part in parts)
    train = _moved(train, choice)
    if choice.flat:
        train, test = (Split(part.x.flatten(1), part.y) for part in (train, test))
    form = " flat" * choice.flat + " raw" * choice.raw
    return Dataset(
        name=f"{full.name} {parts[0].x.shape[2]}×{parts[0].x.shape[3]}{form}",
        task=full.task,
        train=train,
        test=test,
        classes=full.classes,
        x_normalization=normalization,
        y_normalization=None,
        fingerprint=hashlib.sha256(f"{full.fingerprint} {choice}{form}".encode()).hexdigest(),
    )


def _drawn(part: Split, count: int | None) -> Split:
    return part if count is None or count == len(part) else subset(part, count, seed=0, stratify=True)


def _pooled(part: Split, side: int) -> Split:
    if part.x.ndim != 4 or any(size % side for size in part.x.shape[2:]):
        raise InputError(f"images have shape {tuple(part.x.shape[1:])}; expected height and width to divide by {side}")
    return part if side == 1 else Split(avg_pool2d(part.x, side), part.y)


def _moved(part: Split, choice: Images) -> Split:
    if choice.copies == 1:
        return part
    generator = torch.Generator().manual_seed(0)
    x: list[Tensor] = []
    for _ in range(choice.copies):
        motions = AUGMENTATIONS[choice.augmentation](len(part), REACH, generator)
        x.append(part.x if motions is None else move(part.x, motions, 0))
    return Split(torch.cat(x), part.y.repeat(choice.copies))


def generated_images(train: int = 600, test: int = 200, seed: int = 0) -> Dataset:
    """A pattern for each of a hundred classes under noise, written as records of CIFAR-100 and read back."""
    generator = torch.Generator().manual_seed(seed)
    patterns = 255 * torch.rand(len(CIFAR100), PIXELS, generator=generator)
    fine = torch.arange(train + test) % len(CIFAR100)
    pixels = 0.7 * patterns[fine] + 0.3 * 255 * torch.rand(train + test, PIXELS, generator=generator)
    records = torch.cat([(fine // 5)[:, None], fine[:, None], pixels.round().long()], 1).to(torch.uint8)
    content = records.numpy().tobytes()
    kinds = {"coarse label": 20, "fine label": 100}
    x, labels = read_records(Path(GENERATED), kinds, train + test, read=lambda _: content)
    images = torch.from_numpy(x).float() / 255
    y = torch.from_numpy(labels[:, 1]).long()
    parts = Split(images[:train], y[:train]), Split(images[train:], y[train:])
    fingerprint = hashlib.sha256(content).hexdigest()
    return Dataset(GENERATED, "classification", *parts, CIFAR100, identity(3), None, fingerprint)
