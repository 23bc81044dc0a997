"""Procrustes distances of resamples, at the element of the group that all examples have.

The distance of all examples is the least over the group; that of a resample is taken at the element which attains it.
At the best element the distance is stationary, so that to first order nothing is lost, while an element found anew
would fit each resample's own noise: every resample would look closer than the examples it is drawn from. With the
element held, a resample is a weighted sum of a few numbers for each example, or for each batch of them where batches
are resampled.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from coset.represent.channels import wide_chunks
from coset.represent.similarity._procrustes import CrossMoments, Procrustes, piece_factors


@dataclass(frozen=True)
class MatchedSums:
    """Of each of N examples or batches, sums over positions at the element of a group.

    ``matched`` (N, C): x with what is matched to it; (N, 1) for a rotation, which matches all channels together.
    ``squares_x`` (N, C), ``squares_y`` (N, C'): each with itself.
    """

    matched: Tensor
    squares_x: Tensor
    squares_y: Tensor


def sums_by_example(x: Tensor, y: Tensor, found: Procrustes) -> MatchedSums:
    """The sums of single examples, of features x (N, C, P) and y (N, C', P) at the element that was ``found``."""
    parts = []
    for a, b in wide_chunks(x, y):
        if found.rotation is not None:
            matched = (a * (found.rotation.mT @ b)).sum(2)
            matched = matched.sum(1, keepdim=True) if found.order is None else matched
        else:
            order, signs = found.matched
            matched = (a * b[:, order]).sum(2) * signs
        parts.append((matched, a.square().sum(2), b.square().sum(2)))
    return MatchedSums(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))


def sums_by_batch(batches: Sequence[CrossMoments], found: Procrustes) -> MatchedSums:
    """The sums of whole batches, from what ``cross_moments`` makes of them."""
    cross = torch.stack([batch.cross for batch in batches])
    if found.rotation is not None:
        matched = (cross * found.rotation.mT).sum(2)
        matched = matched.sum(1, keepdim=True) if found.order is None else matched
    else:
        order, signs = found.matched
        matched = cross[:, torch.arange(len(order), device=order.device), order] * signs
    squares_x, squares_y = (torch.stack([getattr(batch, f"squares_{side}") for batch in batches]) for side in "xy")
    return MatchedSums(matched, squares_x, squares_y)


def resampled_distances(weights: Tensor, sums: MatchedSums, found: Procrustes) -> Tensor:
    """The distances (B,) of resamples in which examples or batches stand so often: ``weights`` (B, N).

    Norms are those of the resample. They are exact to about 1e-8, a root of rounding.
    """
    weights = weights.to(sums.matched)
    products, own_x, own_y = (weights @ part for part in (sums.matched, sums.squares_x, sums.squares_y))
    over_x, over_y = (piece_factors(found.group, squares) for squares in (own_x, own_y))
    if found.order is None:
        # One piece, and so one norm for all channels.
        products = products * over_x[:, :1] * over_y[:, :1]
    else:
        products = products * over_x * over_y[:, found.order]
    squares = (own_x * over_x.square()).sum(1) + (own_y * over_y.square()).sum(1)
    return ((squares - 2 * products.sum(1)).clamp_min(0.0) / (4 * len(set(found.group.scaled)))).sqrt()
