"""Probes of rules about places: indices, order, positions of images and signals, steps of recurrences."""

import torch
import torch.nn.functional as F
from groups import group
from probes import Probe, image, plain, tokens
from torch import Tensor

UNITS = {"a": (5, 4), "b": (3, 5)}
ROWS = torch.tensor([0, 1, 1])  # of three messages the nodes they go to


def _everywhere(index: Tensor, units: int) -> Tensor:
    """(messages) → (batch, messages, units)."""
    return index[:, None].expand(2, len(index), units)


def _filters(function, scales: int, signs: int) -> Probe:
    """A function between two 1×1 convolutions over three channels."""
    return image(
        lambda x, a, b: F.conv2d(function(F.conv2d(x, a), x), b), "3", scales, signs, a=(3, 2, 1, 1), b=(1, 3, 1, 1)
    )


def _sorted(function) -> Probe:
    """A number for each row, of hidden units in any order and of one scale, as a factor of a linear map."""
    return plain(lambda x, a, b: function(x @ a.T) * x @ b.T, "5", 1, 0, b=(3, 4))


def _steps(function, count: int, scales: int, signs: int) -> Probe:
    """Two steps of a cell from a state of zeros, its state read by a linear map."""
    shapes = {"i": (count * 5, 4), "h": (count * 5, 5), "p": (count * 5,), "q": (count * 5,), "b": (3, 5)}
    return tokens(function, "5", scales, signs, **shapes)


def _twice(cell):
    def states(x, i, h, p, q, b):
        state = x.new_zeros(2, 5)
        for t in (0, 1):
            state = cell(x[:, t], state, i, h, p, q)
        return state @ b.T

    return states


def _lstm(x, i, h, p, q, b):
    states = (x.new_zeros(2, 5), x.new_zeros(2, 5))
    for t in (0, 1):
        states = torch.lstm_cell(x[:, t], states, i, h, p, q)
    return states[0] @ b.T


def _signals(x, a):
    """Five signals of three times as (batch · signals, times)."""
    return (x @ a.T).transpose(1, 2).flatten(0, 1)


PLACES: dict[str, list[Probe]] = {
    # Messages summed at their nodes: units pass, whatever else writes them.
    "put_along": [
        tokens(lambda x, a, b: torch.zeros(2, 2, 5).index_add(1, ROWS, x @ a.T) @ b.T, "5", 5, 5, **UNITS),
        tokens(lambda x, a, b, c: (x[:, :2] @ c.T).index_add(1, ROWS, torch.relu(x @ a.T)) @ b.T, "5", 5, 0, **UNITS,
               c=(5, 4)),
        tokens(lambda x, a, b: (x @ a.T).index_fill(1, ROWS[:1], 0.0) @ b.T, "5", 5, 5, **UNITS),
        tokens(lambda x, a, b: (x @ a.T).index_fill(1, ROWS[:1], 1.0) @ b.T, "5", 0, 0, **UNITS),
        tokens(lambda x, a, b, c: (x @ a.T).index_copy(1, ROWS[:1], x[:, 1:2] @ c.T) @ b.T, "5", 5, 5, **UNITS,
               c=(5, 4)),
        # The largest message keeps no sign; a product of messages unknown in number neither sign nor scale.
        tokens(lambda x, a, b: torch.zeros(2, 2, 5).scatter_add(1, _everywhere(ROWS, 5), x @ a.T) @ b.T, "5", 5, 5,
               **UNITS),
        tokens(lambda x, a, b, c: (x[:, :2] @ c.T).scatter_reduce(1, _everywhere(ROWS, 5), x @ a.T, "mean") @ b.T,
               "5", 5, 5, **UNITS, c=(5, 4)),
        tokens(lambda x, a, b, c: (x[:, :2] @ c.T).scatter_reduce(1, _everywhere(ROWS, 5), x @ a.T, "amax") @ b.T,
               "5", 5, 0, **UNITS, c=(5, 4)),
        tokens(lambda x, a, b, c: (x[:, :2] @ c.T).scatter_reduce(1, _everywhere(ROWS, 5), x @ a.T, "prod") @ b.T,
               "5", 0, 0, **UNITS, c=(5, 4)),
        tokens(lambda x, a, b: torch.zeros(2, 3, 5).scatter(1, _everywhere(ROWS[:2], 5), (x @ a.T)[:, :2]) @ b.T,
               "5", 5, 5, **UNITS),
        tokens(lambda x, a, b: (x @ a.T).scatter(1, _everywhere(ROWS[:1], 5), 2.0) @ b.T, "5", 0, 0, **UNITS),
    ],
    "put": [
        plain(lambda x, a, b: torch.zeros(4, 5).index_put((torch.tensor([3, 1]),), x @ a.T, True) @ b.T),
        plain(lambda x, a, b, c: (x @ a.T).index_put((torch.tensor([1]),), (x @ c.T)[:1]) @ b.T, c=(5, 4)),
        # A mask over rows, and a number that no scale leaves alone.
        plain(lambda x, a, b: (x @ a.T).index_put((x[:, 0] > 0,), torch.tensor(1.0)) @ b.T, "5", 0, 0),
    ],
    # Features of an image put where tokens stand for it.
    "masked_scatter": [tokens(
        lambda x, a, b, c: (x @ a.T).masked_scatter((x[..., :1] > 0).expand(2, 3, 5), x @ c.T) @ b.T, "5", 5, 5,
        **UNITS, c=(5, 4),
    )],
    "embedding_bag": [
        Probe(lambda x, a, b: F.embedding_bag((x > 0).long() + 1, a, mode="sum") @ b.T, [(4,)],
              {"a": (3, 5), "b": (3, 5)}, group("5", scales=5, signs=5)),
        Probe(lambda x, a, b: F.embedding_bag((x > 0).long() + 1, a, mode="max") @ b.T, [(4,)],
              {"a": (3, 5), "b": (3, 5)}, group("5", scales=5, signs=0)),
        # Weights that are inputs; the table's columns pass beside them.
        Probe(lambda x, a, b: F.embedding_bag((x > 0).long() + 1, a, mode="sum", per_sample_weights=x) @ b.T, [(4,)],
              {"a": (3, 5), "b": (3, 5)}, group("5", scales=5, signs=5)),
    ],
    # Sorted units may stand in any order before; their ranks are told apart; one positive scale passes.
    "ranked": [
        plain(lambda x, a, b: (x @ a.T).topk(3, 1)[0] @ b.T, "5", 1, 0, b=(3, 3)),
        plain(lambda x, a, b: (x @ a.T).sort(1)[0] @ b.T, "5", 1, 0),
        _sorted(lambda h: h.median(1, keepdim=True)[0]),
        _sorted(lambda h: h.median()),
        # Positions sorted, unit by unit: each has a positive scale.
        tokens(lambda x, a, b: (x @ a.T).sort(1)[0] @ b.T, "5", 5, 0, **UNITS),
        tokens(lambda x, a, b: (x @ a.T).cummax(1)[0] @ b.T, "5", 5, 0, **UNITS),
        # Which position is the largest does not depend on a unit's scale: none passes on to b.
        tokens(lambda x, a, b: (x @ a.T).argmax(1).to(x.dtype) @ b.T, "5", 5, 0, **UNITS),
    ],
    "quantile": [
        _sorted(lambda h: h.quantile(0.3, 1, keepdim=True)),
        # Two of them, of which each has its factor: one scale for both.
        plain(lambda x, a, b: (x @ a.T).quantile(torch.tensor([0.2, 0.7]), 1).T @ b.T, "5", 1, 0, b=(3, 2)),
    ],
    # Bounds of bins have one scale with what they bound.
    "binned": [plain(lambda x, a, b, c: torch.bucketize(x @ a.T, c.cumsum(0)).to(x.dtype) @ b.T, "5", 1, 0, c=(2,))],
    # Kernels turned by a right angle.
    "moved_along": [image(lambda x, a, b: F.conv2d(F.conv2d(x, a) + F.conv2d(x, a.rot90(1, (2, 3))), b), "3", 3, 3,
                          a=(3, 2, 3, 3), b=(1, 3, 1, 1))],
    # The three outputs tell the groups apart that the shuffled channels come in.
    "channel_shuffle": [image(
        lambda x, a, b: F.conv2d(F.channel_shuffle(F.conv2d(x, a), 2), b, groups=3), "3x2", 6, 6, a=(6, 2, 1, 1),
        b=(3, 2, 1, 1),
    )],
    "spread_out": [plain(lambda x, a, b, c: torch.mul(*torch.broadcast_tensors(x @ a.T, c)) @ b.T, "5", 10, 10,
                         c=(5,))],
    "windows": [tokens(lambda x, a, b: torch.einsum("bwcp,oc->bwop", (x @ a.T).unfold(1, 2, 1), b), "5", 5, 5,
                       **UNITS)],
    "unpooled": [_filters(lambda h, x: F.max_unpool2d(*F.max_pool2d(h, 2, return_indices=True), 2), 3, 0)],
    "sampled": [_filters(
        lambda h, x: F.grid_sample(h, torch.tanh(x.permute(0, 2, 3, 1)), align_corners=False), 3, 3)],
    # Both coordinates of a grid are the same function of their own rows.
    "affine_grid": [Probe(
        lambda x, a, b: F.affine_grid((x @ a.T).view(2, 2, 3), [2, 1, 2, 2], align_corners=False).flatten(1) @ b.T,
        [(4,)], {"a": (6, 4), "b": (3, 8)}, group("2", scales=2, signs=2),
    )],
    "stft": [tokens(
        lambda x, a, b: torch.einsum("bcft,oc->boft", torch.stft(
            _signals(x, a), 2, 1, window=torch.ones(2), center=False, return_complex=True).abs().unflatten(0, (2, 5)),
            b),
        "5", 5, 5, **UNITS,
    )],
    "cell": [
        _steps(_lstm, 4, 0, 5),
        _steps(_twice(torch.gru_cell), 3, 0, 5),
        _steps(_twice(torch.rnn_tanh_cell), 1, 0, 5),
        _steps(_twice(torch.rnn_relu_cell), 1, 5, 0),
    ],
}  # fmt: skip
