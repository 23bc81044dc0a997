"""Batch normalisation above a cut: in training by the batch, in evaluation by statistics of a pass over the data."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from coset.represent._crossing_features import CHUNK, CrossingFeatures, index_batches
from coset.represent._cut import Change, Cut


@contextmanager
def batch_statistics(joined: Cut, on: bool = True) -> Iterator[None]:
    """While it is open, batch normalisations above the cut are in training mode, if ``on``; then in evaluation mode."""
    try:
        for norm in joined.norms:
            norm.train(on)
        yield
    finally:
        for norm in joined.norms:
            norm.eval()


@torch.no_grad()
def refresh_norms(joined: Cut, source: CrossingFeatures, change: Change, generator: torch.Generator) -> None:
    """Give the batch normalisations above the cut the statistics of the stitched network on the data (D.2.1).

    One pass without gradients in shuffled batches, as with a map that took another's place (a permutation, that of
    its relaxation) their own statistics are those of a network no longer in use. Means and variances are those of
    batches, averaged with the number of examples as weight. Only the copy in ``joined`` is changed.
    """
    norms = [norm for norm in joined.norms if isinstance(norm, _BatchNorm) and norm.track_running_stats]
    momenta = [norm.momentum for norm in norms]
    if not norms:
        return
    batches = [part for part in index_batches(len(source), CHUNK, generator) if len(part) > 1]
    try:
        with batch_statistics(joined):
            seen = 0
            for norm in norms:
                norm.reset_running_stats()
            for indices in batches:
                seen += len(indices)
                for norm in norms:
                    norm.momentum = len(indices) / seen
                inputs, features = source.at(indices)
                joined.run(inputs, features, change)
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
