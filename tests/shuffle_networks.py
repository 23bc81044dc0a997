"""Units of ShuffleNet: channels between two grouped convolutions lie in groups of both."""

import torch
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


class ShuffleUnitInside(ShuffleUnit):
    """The branch before a convolution over all channels: the groups of both convolutions permute, each by itself."""

    def __init__(self):
        super().__init__()
        self.head = nn.Conv2d(4, 2, 1)

    def forward(self, x):
        return self.head(torch.relu(super().forward(x)))
