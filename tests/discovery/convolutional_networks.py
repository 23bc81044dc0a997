"""Convolutional networks of every structure, each with the order of its maximal group worked out by hand."""

import torch
import torch.nn.functional as F
from groups import Case, group
from torch import Tensor, nn


class Vgg(nn.Module):
    """conv → ReLU → conv → BatchNorm → ReLU → pool → flatten → linear → ReLU → linear."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3, padding=1)
        self.conv2 = nn.Conv2d(4, 6, 3, padding=1)
        self.bn = nn.BatchNorm2d(6)
        self.fc1 = nn.Linear(6 * 4, 5)
        self.fc2 = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.bn(self.conv2(x))), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


class DenseBlock(nn.Module):
    """Each layer reads the concatenation of all before it through its own BatchNorm."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(n) for n in (4, 7, 10))
        self.convs = nn.ModuleList(nn.Conv2d(n, 3, 3, padding=1, bias=False) for n in (4, 7))
        self.fc = nn.Linear(10, 2)

    def forward(self, x: Tensor) -> Tensor:
        features = [self.stem(x)]
        for norm, conv in zip(self.norms, self.convs, strict=False):
            features.append(conv(F.relu(norm(torch.cat(features, 1)))))
        return self.fc(F.relu(self.norms[2](torch.cat(features, 1))).mean((2, 3)))


class InvertedResidual(nn.Module):
    """expand → ReLU6 → depthwise → ReLU6 → project, each with BatchNorm, on a linear stream (MobileNetV2)."""

    def __init__(self):
        super().__init__()

        def conv(before: int, after: int, kernel: int, groups: int = 1) -> nn.Module:
            layer = nn.Conv2d(before, after, kernel, padding=kernel // 2, groups=groups, bias=False)
            return nn.Sequential(layer, nn.BatchNorm2d(after))

        self.stem, self.expand = conv(3, 4, 3), conv(4, 12, 1)
        self.depthwise, self.project = conv(12, 12, 3, groups=12), conv(12, 4, 1)
        self.fc = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.project(F.relu6(self.depthwise(F.relu6(self.expand(x)))))
        return self.fc(x.mean((2, 3)))


class ResNeXtBlock(nn.Module):
    """1×1 → grouped 3×3 → 1×1, each with BatchNorm, on a ReLU stream."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3)
        self.conv1, self.bn1 = nn.Conv2d(8, 6, 1, bias=False), nn.BatchNorm2d(6)
        self.conv2, self.bn2 = nn.Conv2d(6, 6, 3, padding=1, groups=3, bias=False), nn.BatchNorm2d(6)
        self.conv3, self.bn3 = nn.Conv2d(6, 8, 1, bias=False), nn.BatchNorm2d(8)
        self.fc = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        y = F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))
        return self.fc(F.relu(x + self.bn3(self.conv3(y))).mean((2, 3)))


class SqueezeExcite(nn.Module):
    """A gate computed from channel means multiplies every position of its channel."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)
        self.squeeze, self.excite = nn.Conv2d(6, 2, 1), nn.Conv2d(2, 6, 1)
        self.fc = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv(x))
        gate = torch.sigmoid(self.excite(F.relu(self.squeeze(F.adaptive_avg_pool2d(x, 1)))))
        return self.fc((x * gate).mean((2, 3)))


class GroupNormed(nn.Module):
    """conv → GroupNorm(2) → ReLU → linear."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.fc = nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.relu(self.norm(self.conv(x))).mean((2, 3)))


class UNet(nn.Module):
    """Down, up, and the features of the way down concatenated on the way up."""

    def __init__(self, transposed: bool):
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 6, 3, padding=1)
        self.up = nn.ConvTranspose2d(6, 3, 2, stride=2) if transposed else None
        self.decode = nn.Conv2d(7 if transposed else 10, 5, 3, padding=1)
        self.out = nn.Conv2d(5, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip = F.relu(self.down1(x))
        low = F.relu(self.down2(F.max_pool2d(skip, 2)))
        if self.up is None:
            low = F.interpolate(low, scale_factor=2, mode="bilinear")
        else:
            low = self.up(low)
        return self.out(F.relu(self.decode(torch.cat([low, skip], 1))))


class ConvNeXtBlock(nn.Module):
    """Depthwise → LayerNorm → expand → GELU → contract → layer-scale, on a stream that a LayerNorm begins and ends."""

    def __init__(self):
        super().__init__()
        self.stem, self.stem_norm = nn.Conv2d(3, 6, 2, stride=2), nn.LayerNorm(6)
        self.depthwise, self.norm = nn.Conv2d(6, 6, 3, padding=1, groups=6), nn.LayerNorm(6)
        self.expand, self.contract = nn.Linear(6, 10), nn.Linear(10, 6)
        self.layer_scale = nn.Parameter(torch.full((6,), 0.1))
        self.final, self.fc = nn.LayerNorm(6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem_norm(self.stem(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.layer_scale * self.contract(F.gelu(self.expand(y)))
        x = x + y.permute(0, 3, 1, 2)
        return self.fc(self.final(x.mean((-2, -1))))


class Upscaler(nn.Module):
    """Sub-pixel convolution: blocks of r² channels become positions."""

    def __init__(self):
        super().__init__()
        self.conv, self.wide, self.out = nn.Conv2d(1, 3, 3), nn.Conv2d(3, 5 * 4, 1), nn.Conv2d(5, 1, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.relu(F.pixel_shuffle(self.wide(F.relu(self.conv(x))), 2)))


class InstanceNormed(nn.Module):
    """1-d and 3-d convolutions with instance norms, with and without gain."""

    def __init__(self):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv1d(2, 4, 3), nn.InstanceNorm1d(4, affine=True)
        self.conv2, self.norm2 = nn.Conv1d(4, 5, 3, bias=False), nn.InstanceNorm1d(5)
        self.lift = nn.ConvTranspose3d(5, 3, 2)
        self.fc = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm1(self.conv1(x)))
        x = torch.tanh(self.norm2(self.conv2(x)))
        return self.fc(torch.tanh(self.lift(x[..., None, None])).amax((2, 3, 4)))


# What is counted: permutations as sizes of classes (3x2: two units inside each of three blocks), scales, signs.
CONVOLUTIONAL: dict[str, Case] = {
    # Before the BatchNorm any non-zero number per channel, behind it and behind each ReLU a positive one.
    "vgg": (Vgg, [(3, 8, 8)], group("4 6 5", scales=4 + 6 + 6 + 5, signs=6)),
    # A segment has a number of its own, shared by all norms that read it, and one behind each of those norms.
    "dense block": (
        DenseBlock, [(2, 6, 6)], group("4 3 3", scales=4 * (1 + 3) + 3 * (1 + 2) + 3 * (1 + 1), signs=4 + 3 + 3),
    ),
    # Nothing passes ReLU6; each of the four convolutions is read by a norm; the stream itself is read linearly.
    "inverted residual": (InvertedResidual, [(3, 6, 6)], group("4 12", scales=4 + 12 + 12 + 4 + 4, signs=36)),
    # Groups with units in and out; three norms, two of them followed by ReLU, and the ReLU of the stream.
    "resnext block": (ResNeXtBlock, [(3, 6, 6)], group("8 3 3x2 3x2", scales=6 + 6 + 8 + 6 + 6 + 8, signs=6 + 6 + 8)),
    # The gate only broadcasts: the channel's scale passes beside it, and into the squeeze.
    "squeeze-excite": (SqueezeExcite, [(3, 6, 6)], group("6 2", scales=6 + 2, signs=0)),
    # One sign per group before the norm; a positive scale per channel behind it.
    "group norm": (GroupNormed, [(3, 5, 5)], group("2 2x4", scales=8, signs=2)),
    # What is upsampled by a transposed convolution is read by a linear map alone.
    "u-net, transposed": (lambda: UNet(True), [(1, 8, 8)], group("4 6 3 5", scales=4 + 6 + 3 + 5, signs=3)),
    "u-net, interpolated": (lambda: UNet(False), [(1, 8, 8)], group("4 6 5", scales=4 + 6 + 5, signs=0)),
    # γ, β of the inner and of the final norm and the layer-scale against their linear neighbours; three common signs:
    # of the stem before its norm, of the stream, of the depthwise output before its norm.
    "convnext block": (ConvNeXtBlock, [(3, 8, 8)], group("6 10", scales=6 + 6 + 6, signs=6 + 6 + 6 + 3)),
    # Channels of the wide convolution move in blocks of four, which share the scale of their ReLU.
    "pixel shuffle": (Upscaler, [(1, 6, 6)], group("3 5", scales=3 + 5, signs=0)),
    # Signs pass instance norms: into the gain of the first, through tanh behind the second; scales behind gains only.
    # The last tanh lets signs through, the maximum behind it does not.
    "instance norm": (InstanceNormed, [(2, 9)], group("4 5 3", scales=4, signs=4 + 5)),
}  # fmt: skip
