"""Networks in which blocks cut across blocks: shuffled channels, grouped convolutions of several kinds."""

import torch
from groups import Case, group
from torch import Tensor, nn

from shuffle_networks import ShuffleUnit, ShuffleUnitInside, ShuffleUnitWithShortcut

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
    # Of the published unit, with its shortcut, both convolutions have the groups g of the stream: k is one of them.
    # The scales of the stem are those of the stream.
    "shuffle unit with its shortcut": (ShuffleUnitWithShortcut, [(3, 4, 4)], _UNIT),
    # Before a convolution over all channels k permutes, too, with two channels of the output in each.
    "shuffle unit inside": (ShuffleUnitInside, [(3, 4, 4)], group("2 2 2x4 4x2 2x2", scales=5 * 8 + 4, signs=3 * 8)),
    "shuffle unit, the operation": (lambda: ShuffleUnit(shuffle="op"), [(3, 4, 4)], _UNIT),
}
