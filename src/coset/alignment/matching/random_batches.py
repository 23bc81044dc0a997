"""Labelled batches without end, and a fixed few of them to measure by."""

from collections.abc import Iterable, Iterator

import torch

from coset._batches import Labelled, is_pair, labelled_batches
from coset.alignment.matching.losses import Batch


def again(data: Labelled) -> Labelled:
    """The same data, such that one can go through them as often as one likes: an iterator is read into a list."""
    if not isinstance(data, tuple) and isinstance(data, Iterable) and iter(data) is data:
        return list(data)
    return data


def endless(data: Labelled, batch_size: int, generator: torch.Generator) -> Iterator[Batch]:
    """Batch after batch: tensors shuffled anew for every pass, without a smaller last batch; a loader over and over."""
    while True:
        if not is_pair(data):
            yield from labelled_batches(data, batch_size)
            continue
        x, y = data
        order = torch.randperm(len(x), generator=generator)
        whole = order[: max(len(order) - len(order) % batch_size, min(batch_size, len(order)))]
        for first in range(0, len(whole), batch_size):
            chosen = whole[first : first + batch_size]
            yield x[chosen.to(x.device)], y[chosen.to(y.device)]


def fixed(data: Labelled, batch_size: int, examples: int, generator: torch.Generator) -> list[Batch]:
    """Batches with ``examples`` examples in all: a random draw from tensors, the first batches of a loader."""
    if is_pair(data):
        x, y = data
        chosen = torch.randperm(len(x), generator=generator)[:examples]
        data = x[chosen.to(x.device)], y[chosen.to(y.device)]
    batches: list[Batch] = []
    for batch in labelled_batches(data, batch_size):
        batches.append(batch)
        if sum(len(x) for x, _ in batches) >= examples:
            break
    return batches
