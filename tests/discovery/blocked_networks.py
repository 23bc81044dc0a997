"""Networks in which blocks cut across blocks: shuffled channels, grouped convolutions of several kinds."""

import torch
from groups import Case, group
from torch import Tensor, nn


class ShuffleUnit(nn.Module):
    """The branch of a unit of ShuffleNet (Zhang et al. 2018): grouped convolution, shuffle, depthwise, grouped."""

    def __init__(self, shuffle="view"):
        super().__init__()
        self.stem, self.first = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 1, groups=2)
        self.depth, self.last = nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Conv2d(8, 4, 1, groups=2)
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(2))
        self.shuffle = shuffle

    def shuffled(self, x: Tensor) -> Tensor:
        if self.shuffle == "op":
            return torch.channel_shuffle(x, 2)
        n, c, h, w = x.shape
        return x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)

    def forward(self, x: Tensor) -> Tensor:
        y = self.shuffled(torch.relu(self.norms[0](self.first(torch.relu(self.stem(x))))))
        return self.last(self.norms[1](self.depth(y)))


class ShuffleUnitWithShortcut(ShuffleUnit):
    """The unit as it is published: what comes in is added to what comes out, so that both see the same groups."""

    def __init__(self):
        super().__init__()
        self.last, self.head = nn.Conv2d(8, 8, 1, groups=2), nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        y = self.shuffled(torch.relu(self.norms[0](self.first(x))))
        return self.head(torch.relu(x + self.last(self.norms[1](self.depth(y)))))


# Channel (g, k, m) stands at (k, m, g) behind the shuffle. The outputs tell the groups k of the last convolution apart;
# the groups g of the first one permute, with four channels in each before it; m permutes in every g and k by itself.
# Scales before and behind both norms and behind the stem; signs before both norms and behind the second one.
_UNIT = group("2 2x4 4x2", scales=5 * 8, signs=3 * 8)


class Grouped(nn.Module):
    """Two groups, then four, then all of them; or the outputs of the four."""

    def __init__(self, ends_in_groups):
        super().__init__()
        self.stem, self.two, self.four = nn.Conv1d(3, 8, 1), nn.Conv1d(8, 8, 1, groups=2), nn.Conv1d(8, 8, 1, groups=4)
        self.head = nn.Identity() if ends_in_groups else nn.Conv1d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.four(torch.relu(self.two(torch.relu(self.stem(x)))))))


BLOCKED: dict[str, Case] = {
    # Two blocks, in each four units before the first and two blocks behind it, of two units before and behind the last.
    "groups 2, then 4": (lambda: Grouped(False), [(3, 5)], group("2 2x4 2x2 4x2 4x2", scales=24, signs=0)),
    # The outputs keep the order of all blocks.
    "groups 2, then 4, then out": (lambda: Grouped(True), [(3, 5)], group("2x4 4x2", scales=16, signs=0)),
    "shuffle unit": (ShuffleUnit, [(3, 4, 4)], _UNIT),
    "shuffle unit, the operation": (lambda: ShuffleUnit(shuffle="op"), [(3, 4, 4)], _UNIT),
}
