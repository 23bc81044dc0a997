"""Seeded cuts of examples into parts."""

import torch
from torch import Tensor

from coset._checks import is_seed
from coset.data._dataset import Split
from coset.errors import InputError


def split(part: Split, fraction: float, *, seed: int, stratify: bool = False) -> tuple[Split, Split]:
    """Cut ``part`` at random into a train and a validation part.

    ``fraction`` of the examples, rounded, go to the second part; both keep the order of ``part``. With ``stratify``
    each label keeps its share in both. The same seed gives the same cut.
    """
    if not isinstance(fraction, int | float) or not 0.0 < fraction < 1.0:
        raise InputError(f"fraction is {fraction!r}, expected a number between 0 and 1")
    count = round(fraction * len(part))
    kept, held_out = partition(_labels(part) if stratify else len(part), count, seed=seed)
    return part.take(kept), part.take(held_out)


def subset(part: Split, count: int, *, seed: int, stratify: bool = False) -> Split:
    """``count`` examples of ``part`` drawn at random without replacement, in the order of ``part``.

    With ``stratify`` each label keeps its share. The same seed gives the same examples.
    """
    _, drawn = partition(_labels(part) if stratify else len(part), count, seed=seed)
    return part.take(drawn)


def partition(examples: int | Tensor, count: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Sorted indices of the examples that stay and of the ``count`` drawn; ``examples`` is how many, or their labels.

    With labels, label c of which there are n_c gets count · n_c / n of the places, by largest remainders.
    """
    total = examples if isinstance(examples, int) else len(examples)
    if type(count) is not int or not 0 < count < total:
        raise InputError(f"{count!r} of {total} examples were to be drawn, expected at least 1 and at most {total - 1}")
    # The CPU by name: the draw must not depend on a default device.
    generator = torch.Generator("cpu").manual_seed(check_seed(seed))
    order = torch.randperm(total, generator=generator, device="cpu")
    if isinstance(examples, int):
        drawn = order[:count]
    else:
        labels, counts = torch.unique(examples, return_counts=True)
        places = _shares(counts.tolist(), count)
        shuffled = examples[order]
        drawn = torch.cat([order[shuffled == label][:place] for label, place in zip(labels, places, strict=True)])
    chosen = torch.zeros(total, dtype=torch.bool, device="cpu")
    chosen[drawn] = True
    return torch.nonzero(~chosen)[:, 0], torch.nonzero(chosen)[:, 0]


def check_seed(seed: int) -> int:
    """``seed``, if it is one that a generator takes."""
    if not is_seed(seed):
        raise InputError(f"seed is {seed!r}, expected an integer from 0 to 2^63 - 1")
    return seed


def _shares(counts: list[int], places: int) -> list[int]:
    """``places`` divided in proportion to ``counts``: exact quotas rounded down, the rest to the largest remainders."""
    total = sum(counts)
    shares = [places * count // total for count in counts]
    remainders = [places * count % total for count in counts]
    by_remainder = sorted(range(len(counts)), key=lambda label: (-remainders[label], label))
    for label in by_remainder[: places - sum(shares)]:
        shares[label] += 1
    return shares


def _labels(part: Split) -> Tensor:
    if part.y.ndim != 1 or part.y.is_floating_point():
        raise InputError(f"stratify needs integer labels of shape (N,), got {part.y.dtype} {tuple(part.y.shape)}")
    return part.y.cpu()
