"""For every rule of discovery small functions that use its operation, with the group of each worked out by hand."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from groups import Group, group
from torch import Tensor, nn


class Function(nn.Module):
    """A function of parameters and inputs."""

    def __init__(self, function: Callable[..., Tensor], shapes: dict[str, tuple[int, ...]]):
        super().__init__()
        self.function = function
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.randn(shape)))

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(*inputs, *self.parameters())


@dataclass(frozen=True)
class Probe:
    """``function`` of inputs, then parameters; shapes of inputs without the batch of 2."""

    function: Callable[..., Tensor]
    inputs: list[tuple[int, ...]]
    shapes: dict[str, tuple[int, ...]]
    group: Group

    def model(self) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return Function(self.function, self.shapes).eval()

    def arguments(self) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(0)
        return tuple(torch.randn(2, *shape, generator=generator) for shape in self.inputs)


def plain(function, classes="5", scales=5, signs=5, **shapes) -> Probe:
    """A function of x (2, 4) and matrices a: 4 → 5, b: 5 → 3, and more."""
    return Probe(function, [(4,)], {"a": (5, 4), "b": (3, 5)} | shapes, group(classes, scales=scales, signs=signs))


def image(function, classes, scales, signs, **shapes) -> Probe:
    return Probe(function, [(2, 6, 6)], shapes, group(classes, scales=scales, signs=signs))


def tokens(function, classes, scales, signs, **shapes) -> Probe:
    return Probe(function, [(3, 4)], shapes, group(classes, scales=scales, signs=signs))


def _asymmetric(u: Tensor, v: Tensor, w: Tensor) -> Tensor:
    """A function that no sign and no exchange leaves alone."""
    return u + v + v * v + w + 2 * w * w


def _centred(x: Tensor) -> Tensor:
    return x - x.mean(1, keepdim=True)


def _of_length_one(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + 1e-5)


def _heads(x: Tensor, matrix: Tensor, heads: int) -> Tensor:
    return (x @ matrix).unflatten(-1, (heads, -1)).transpose(1, 2)


TWO = {"c": (5, 4)}

PROBES: dict[str, list[Probe]] = {
    "added": [
        plain(lambda x, a, b: (x @ a.T + 1) @ b.T, scales=0, signs=0),
        plain(lambda x, a, b, c: torch.maximum(x @ a.T, x @ c.T) @ b.T, signs=0, **TWO),
    ],
    "lerp": [plain(lambda x, a, b, w: torch.lerp(x @ a.T, (x * x) @ a.T, w) @ b.T, w=(5,))],
    "where": [
        plain(lambda x, a, b, c: torch.where(x[:, :1] > 0, x @ a.T, x @ c.T) @ b.T, **TWO),
        plain(lambda x, a, b: torch.where(x[:, :1] > 0, x @ a.T, 0.0) @ b.T),
        plain(lambda x, a, b: torch.where(x[:, :1] > 0, x @ a.T, 1.0) @ b.T, scales=0, signs=0),
    ],
    "masked_fill": [
        plain(lambda x, a, b: (x @ a.T).masked_fill(x[:, :1] > 0, 0.0) @ b.T),
        plain(lambda x, a, b: (x @ a.T).masked_fill(x[:, :1] > 0, 1.0) @ b.T, scales=0, signs=0),
    ],
    # Two factors, each with a scale and a sign.
    "multiplied": [
        plain(lambda x, a, b, c: (x @ a.T) * (x @ c.T) @ b.T, scales=10, signs=10, **TWO),
        plain(lambda x, a, b, c: (x @ a.T) / (x @ c.T) @ b.T, scales=10, signs=10, **TWO),
    ],
    "addcmul": [plain(lambda x, a, b, c, d: torch.addcmul(x @ a.T, x @ c.T, x @ d.T) @ b.T, scales=10, signs=10,
                       c=(5, 4), d=(5, 4))],
    "prelu": [plain(lambda x, a, b, s: F.prelu(x @ a.T, s) @ b.T, signs=0, s=(5,))],
    # Sums over the two positions of each of three units.
    "regrouped": [Probe(lambda x, a, b: (x @ a.T).view(-1, 2, 3).sum(1) @ b.T, [(4,)], {"a": (6, 4), "b": (3, 3)},
                        group("3 3x2", scales=3, signs=3))],
    "permuted": [tokens(lambda x, a, b: b @ (x @ a.T).transpose(1, 2), "5", 5, 5, a=(5, 4), b=(3, 5))],
    # Copies of a unit are interchangeable in what reads them.
    "repeat_interleave": [Probe(lambda x, a, b: (x @ a.T).repeat_interleave(2, 1) @ b.T, [(4,)],
                                {"a": (5, 4), "b": (3, 10)}, group("5 5x2", scales=5, signs=5))],
    "repeat": [Probe(lambda x, a, b: (x @ a.T).repeat(1, 2) @ b.T, [(4,)], {"a": (5, 4), "b": (3, 10)},
                     group("5 5x2", scales=5, signs=5))],
    "joined": [Probe(lambda x, a, b, c: torch.cat([x @ a.T, x @ c.T], 1) @ b.T, [(4,)],
                     {"a": (5, 4), "b": (3, 8), "c": (3, 4)}, group("5 3", scales=8, signs=8))],
    "stacked": [
        plain(lambda x, a, b, c: torch.tanh(torch.stack([x @ a.T, x @ c.T], 2)).sum(2) @ b.T, scales=0, **TWO),
        # A stack of stacks.
        plain(lambda x, a, b, c: torch.tanh(torch.stack([torch.stack([x @ a.T, x @ c.T], 2)] * 2, 3)).sum((2, 3)) @ b.T,
              scales=0, **TWO),
    ],
    "divided": [Probe(lambda x, a, b: torch.mul(*(x @ a.T).chunk(2, 1)) @ b.T, [(4,)], {"a": (10, 4), "b": (3, 5)},
                      group("5", scales=10, signs=10))],
    "sliced": [
        Probe(lambda x, a, b: ((x @ a.T)[:, :5] * (x @ a.T)[:, 5:]) @ b.T, [(4,)], {"a": (10, 4), "b": (3, 5)},
              group("5", scales=10, signs=10)),
        # A shifted sum ties every unit to its neighbour: a common sign is left, and no order.
        plain(lambda x, a, b: torch.tanh((x @ a.T)[:, 1:] + (x @ a.T)[:, :-1]) @ b.T, "", 0, 1, b=(3, 4)),
        # Every other unit, which moves and scales with the one behind it.
        Probe(lambda x, a, b: (x @ a.T)[:, ::2] @ b.T, [(4,)], {"a": (6, 4), "b": (3, 3)},
              group("3", scales=3, signs=3)),
    ],
    # Four units are never read and stay as they are; the first has a sign.
    "selected": [plain(lambda x, a, b: torch.tanh(x @ a.T).select(1, 0).unsqueeze(1) * x @ b.T, "", 0, 1, b=(3, 4))],
    # Two units that are replaced are not read.
    "scattered": [plain(lambda x, a, b, c: torch.slice_scatter(x @ a.T, x @ c.T, 1, 0, 2) @ b.T, "3 2", 5, 5,
                         c=(2, 4))],
    "unbound": [plain(lambda x, a, b: _asymmetric(*torch.tanh(x @ a.T).unbind(1))[:, None] * x @ b.T, "", 0, 0,
                       a=(3, 4), b=(3, 4))],
    "moved_along": [
        tokens(lambda x, a, b: ((x @ a.T).roll(1, 1) * (x @ a.T)) @ b.T, "5", 5, 5, a=(5, 4), b=(3, 5)),
        tokens(lambda x, a, b: torch.tanh((x @ a.T).cumsum(1)) @ b.T, "5", 0, 5, a=(5, 4), b=(3, 5)),
    ],
    "embedding": [Probe(lambda x, a, b: F.embedding((x > 0).long() + 1, a) @ b.T, [(4,)], {"a": (3, 5), "b": (3, 5)},
                        group("5", scales=5, signs=5))],
    "picked": [
        plain(lambda x, a, b: torch.tanh(x[:, :2] @ a.index_select(1, torch.tensor([3, 0])).T) @ b.T, scales=0),
        plain(lambda x, a, b: torch.tanh(x[:, :3] @ a.gather(1, torch.tensor([[3, 0, 0]]).expand(5, 3)).T) @ b.T,
               scales=0),
    ],
    "indexed": [plain(lambda x, a, b: torch.tanh(x[:, :3] @ a[:, torch.tensor([3, 0, 0])].T) @ b.T, "5", 0, 5)],
    "pixel_shuffle": [
        image(lambda x, a, b: F.conv2d(F.pixel_shuffle(F.conv2d(x, a), 2), b), "3", 3, 3, a=(12, 2, 1, 1),
               b=(1, 3, 1, 1)),
        image(lambda x, a, b: F.conv2d(F.pixel_unshuffle(F.conv2d(x, a), 2), b), "3", 3, 3, a=(3, 2, 1, 1),
               b=(1, 12, 1, 1)),
    ],
    # Zeros carry any scale; nothing notices the two columns of b that read them, which stay as they are.
    "constant": [
        plain(lambda x, a, b: torch.cat([x @ a.T, torch.zeros(2, 2)], 1) @ b.T, "5", 5, 5, b=(3, 7)),
        plain(lambda x, a, b: torch.where(x[:, :1] > 0, x @ a.T, torch.zeros(2, 5)) @ b.T),
    ],
    "softmax": [plain(lambda x, a, b: (x @ a.T).softmax(1) @ b.T, "5", 0, 0)],
    "extreme": [
        tokens(lambda x, a, b: (x @ a.T).max(1)[0] @ b.T, "5", 5, 0, a=(5, 4), b=(3, 5)),
        plain(lambda x, a, b: (x @ a.T).max(1, keepdim=True)[0] * x @ b.T, "5", 1, 0, b=(3, 4)),
    ],
    "reduced": [
        plain(lambda x, a, b: (x @ a.T).mean(1, keepdim=True) * x @ b.T, "5", 1, 1, b=(3, 4)),
        # A norm does not see signs.
        plain(lambda x, a, b: (x @ a.T).norm(dim=1, keepdim=True) * x @ b.T, "5", 1, 5, b=(3, 4)),
        plain(lambda x, a, b: (x @ a.T).logsumexp(1, keepdim=True) * x @ b.T, "5", 0, 0, b=(3, 4)),
        plain(lambda x, a, b: (x @ a.T).var(1, keepdim=True) * x @ b.T, "5", 1, 1, b=(3, 4)),
        # Norms written out. With the mean taken off only a common sign is left; without, every sign.
        plain(lambda x, a, b, g: g * _of_length_one(_centred(x @ a.T)) @ b.T, "5", 5, 6, g=(5,)),
        plain(lambda x, a, b, g: g * _of_length_one(x @ a.T) @ b.T, "5", 5, 10, g=(5,)),
    ],
    # One sign before the norm, a scale and a sign for each unit behind it.
    "layer_norm": [plain(lambda x, a, b, g: F.layer_norm(x @ a.T, (5,), g) @ b.T, "5", 5, 6, g=(5,))],
    "rms_norm": [plain(lambda x, a, b, g: F.rms_norm(x @ a.T, (5,), g) @ b.T, "5", 5, 10, g=(5,))],
    "group_norm": [image(lambda x, a, b: F.conv2d(F.group_norm(F.conv2d(x, a), 2), b), "2 2x3", 0, 2,
                          a=(6, 2, 1, 1), b=(1, 6, 1, 1))],
    "instance_norm": [image(lambda x, a, b: F.conv2d(F.instance_norm(F.conv2d(x, a)), b), "3", 0, 3,
                             a=(3, 2, 1, 1), b=(1, 3, 1, 1))],
    # Without statistics a batch norm keeps the signs of its channels, and no scale.
    "batch_norm": [plain(lambda x, a, b: F.batch_norm(x @ a.T, None, None, training=True) @ b.T, "5", 0, 5)],
    # The direction's length is free; the gain carries the unit's scale.
    "weight_norm": [plain(lambda x, a, b, g: x @ torch._weight_norm(a, g, 0).T @ b.T, "5", 10, 10, g=(5, 1))],
    "linear": [plain(lambda x, a, b: F.linear(F.linear(x, a), b))],
    "matmul": [plain(lambda x, a, b: torch.tanh(x @ a.T) @ b.T, scales=0)],
    "gated": [
        Probe(lambda x, a, b: F.glu(x @ a.T) @ b.T, [(4,)], {"a": (10, 4), "b": (3, 5)}, group("5", scales=5, signs=5)),
    ],
    "outer": [
        Probe(
            lambda x, a, b, c: torch.tanh(x @ torch.outer(a, b)) @ c.T,
            [(4,)], {"a": (4,), "b": (5,), "c": (3, 5)}, group("5", scales=1, signs=6),
        ),
    ],
    "bilinear": [
        Probe(
            lambda x, a, w, b: F.bilinear(torch.relu(x @ a.T), x, w) @ b.T,
            [(4,)], {"a": (5, 4), "w": (6, 5, 4), "b": (3, 6)}, group("5 6", scales=11, signs=6),
        ),
    ],
    "addmm": [plain(lambda x, a, b, c: torch.addmm(c, x, a.T) @ b.T, c=(5,))],
    "explicit_einsum": [tokens(lambda x, a, b: torch.einsum("bti,oi,po->pbt", x, a, b), "5", 5, 5, a=(5, 4),
                                b=(3, 5))],
    # The three outputs tell the groups apart.
    "convolution": [image(lambda x, a, b: F.conv2d(F.conv2d(x, a, padding=1), b, padding=1, groups=3), "3x2", 6, 6,
                           a=(6, 2, 3, 3), b=(3, 2, 3, 3))],
    "attention": [
        tokens(lambda x, q, k, v: F.scaled_dot_product_attention(x @ q, x @ k, x @ v), "5", 5, 5, q=(4, 5), k=(4, 5),
                v=(4, 3)),
        # Two key-value heads with two queries each; queries and keys of three dimensions, values of five.
        tokens(lambda x, q, k, v, o: F.scaled_dot_product_attention(
            _heads(x, q, 4), _heads(x, k, 2), _heads(x, v, 2), enable_gqa=True).transpose(1, 2).flatten(2) @ o,
            "2 2x2 2x3 2x5", 6 + 10, 6 + 10, q=(4, 12), k=(4, 6), v=(4, 10), o=(20, 2)),
    ],
    "by_positions": [
        image(lambda x, a, b: F.conv2d(F.max_pool2d(F.conv2d(x, a), 2), b), "3", 3, 0, a=(3, 2, 1, 1), b=(1, 3, 1, 1)),
        # Tokens two by two, units one by one.
        tokens(lambda x, a, b: F.avg_pool2d((x @ a.T)[:, None], (2, 1), (1, 1))[:, 0] @ b.T, "5", 5, 5, a=(5, 4),
               b=(3, 5)),
    ],
    # Two numbers before the units and three behind them: nothing notices who reads zeros, ones permute.
    "pad": [
        plain(lambda x, a, b: F.pad(x @ a.T, (2, 3)) @ b.T, "5", 5, 5, b=(3, 10)),
        plain(lambda x, a, b: F.pad(x @ a.T, (2, 3), value=1.0) @ b.T, "5 2 3", 0, 0, b=(3, 10)),
        image(lambda x, a, b: F.conv2d(F.pad(F.conv2d(x, a), (1, 1, 0, 2)), b), "3", 3, 3, a=(3, 2, 1, 1),
               b=(1, 3, 1, 1)),
    ],
    # Columns of b: three channels of four positions of a patch each.
    "unfolded": [
        image(lambda x, a, b: b @ F.unfold(F.conv2d(x, a), 2), "3", 3, 3, a=(3, 2, 1, 1), b=(2, 12)),
        image(lambda x, a, b: F.conv2d(F.fold(a @ x.flatten(2)[..., :9], (4, 4), 2), b), "3", 3, 3, a=(12, 2),
               b=(1, 3, 1, 1)),
    ],
    "recurrent": [tokens(
        lambda x, i, h, b: torch.rnn_tanh(x, torch.zeros(1, 2, 5), [i, h], False, 1, 0.0, False, False, True)[0] @ b.T,
        "5", 0, 5, i=(5, 4), h=(5, 5), b=(3, 5),
    )],
}  # fmt: skip
