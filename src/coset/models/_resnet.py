"""Residual networks for CIFAR, with a choice of width, normalisation and activation."""

from collections import OrderedDict
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from coset.errors import InputError
from coset.models._activations import ActivationSpec
from coset.models._arguments import check_count, check_counts, check_flag, scaled_count
from coset.models._normalization import image_activation, image_norm


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut: σ(norm(conv2(σ(norm(conv1(x))))) + shortcut(x)).

    The shortcut is the identity, or a 1×1 convolution with normalisation where the shape changes ("option B" of
    He et al. 2016). (N, before, H, W) to (N, after, H / stride, W / stride).

    With ``norm="frn"`` the first convolution is followed by FRN and TLU, the second by FRN alone since no ReLU stands
    there; a TLU with a threshold of its own takes the place of the ReLU after the addition. With
    ``final_activation=False`` nothing follows the addition (Godfrey et al. 2022, F.3).
    """

    def __init__(
        self,
        before: int,
        after: int,
        stride: int,
        *,
        norm: str = "batch",
        activation: ActivationSpec = "relu",
        final_activation: bool = True,
    ) -> None:
        super().__init__()
        bias = norm == "none"
        self.conv1 = nn.Conv2d(before, after, kernel_size=3, stride=stride, padding=1, bias=bias)
        self.norm1 = image_norm(norm, after)
        self.activation1 = image_activation(norm, activation, after)
        self.conv2 = nn.Conv2d(after, after, kernel_size=3, padding=1, bias=bias)
        self.norm2 = image_norm(norm, after)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            conv = nn.Conv2d(before, after, kernel_size=1, stride=stride, bias=bias)
            self.shortcut = nn.Sequential(OrderedDict(conv=conv, norm=image_norm(norm, after)))
        last = check_flag("final_activation", final_activation)
        self.activation2 = image_activation(norm, activation, after) if last else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        update = self.activation1(self.norm1(self.conv1(x)))
        update = self.norm2(self.conv2(update))
        output: Tensor = self.activation2(update + self.shortcut(x))
        return output


class ResNet(nn.Module):
    """A residual network of basic blocks: (N, in_channels, H, W) to (N, classes).

    He et al. 2016. A 3×3 convolution of stride 1 without pooling, then for each of ``stages`` (its channels, times
    ``width``) a number of ``blocks``; every stage but the first halves height and width. The mean over the remaining
    positions (8×8 of them for three stages and 32×32 images) goes to a linear layer.

    ``norm`` is "batch", "frn" (which needs ``activation="relu"`` and replaces it by TLU), "layer" (over the channels of
    each position) or "none". Convolutions have a bias only with "none".

    Convolutions start from He et al. 2015 (normal, variance 2 / fan-in), their biases from 0. With "none" the second
    convolution of each of the B blocks starts smaller by 1/√B: a block then adds the share 2/B to the second moment of
    its stream, which stays of order one, and the network trains without normalisation.

    Parameters: ``stem.conv``, ``stem.norm``, ``stages.s.b.conv1``, ``.norm1``, ``.conv2``, ``.norm2``,
    ``.shortcut.conv``, ``.shortcut.norm``, ``fc``; thresholds of FRN: ``stem.activation.tau``,
    ``stages.s.b.activation1.tau`` and ``.activation2.tau``.
    """

    def __init__(
        self,
        stages: Sequence[int] = (16, 32, 64),
        blocks: int | Sequence[int] = 3,
        *,
        width: float = 1,
        norm: str = "batch",
        activation: ActivationSpec = "relu",
        final_activation: bool = True,
        in_channels: int = 3,
        classes: int = 10,
    ) -> None:
        super().__init__()
        channels = [scaled_count("width", stage, width) for stage in check_counts("stages", stages)]
        counts = check_counts("blocks", [blocks] * len(channels) if isinstance(blocks, int) else blocks)
        if not channels or len(counts) != len(channels):
            raise InputError(
                f"stages must name one or more stages and blocks one number for each; found {stages=}, {blocks=}"
            )
        conv = nn.Conv2d(
            check_count("in_channels", in_channels), channels[0], kernel_size=3, padding=1, bias=norm == "none"
        )
        self.stem = nn.Sequential(
            OrderedDict(
                conv=conv,
                norm=image_norm(norm, channels[0]),
                activation=image_activation(norm, activation, channels[0]),
            )
        )
        block = partial(BasicBlock, norm=norm, activation=activation, final_activation=final_activation)
        self.stages = nn.Sequential()
        before = channels[0]
        for index, (after, count) in enumerate(zip(channels, counts, strict=True)):
            first = block(before, after, stride=1 if index == 0 else 2)
            self.stages.append(nn.Sequential(first, *(block(after, after, stride=1) for _ in range(count - 1))))
            before = after
        self.fc = nn.Linear(before, check_count("classes", classes))
        self.input_shape: tuple[int, ...] = (in_channels, 32, 32)
        self.branch_scale = sum(counts) ** -0.5 if norm == "none" else 1.0
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw all convolutions; norms, thresholds and the linear layer start as they do by themselves."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        for module in self.modules():
            if isinstance(module, BasicBlock):
                module.conv2.weight.mul_(self.branch_scale)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stages(self.stem(x))
        output: Tensor = self.fc(x.mean((-2, -1)))
        return output


def ResNet20(
    *,
    width: float = 1,
    norm: str = "batch",
    activation: ActivationSpec = "relu",
    final_activation: bool = True,
    in_channels: int = 3,
    classes: int = 10,
) -> ResNet:
    """ResNet20 of He et al. 2016 with "option B" shortcuts: three stages 16-32-64 of three blocks.

    272,474 parameters with batch normalisation. Options as of :class:`ResNet`.
    """
    return ResNet(
        (16, 32, 64),
        3,
        width=width,
        norm=norm,
        activation=activation,
        final_activation=final_activation,
        in_channels=in_channels,
        classes=classes,
    )


def ResNet18(
    *,
    stages: Sequence[int] = (64, 128, 256),
    width: float = 1,
    norm: str = "batch",
    activation: ActivationSpec = "relu",
    final_activation: bool = True,
    in_channels: int = 3,
    classes: int = 10,
) -> ResNet:
    """ResNet18 of Godfrey et al. 2022, D.1: three stages of two blocks.

    The usual one for CIFAR has ``stages=(64, 128, 256, 512)``. Options as of :class:`ResNet`.
    """
    return ResNet(
        stages,
        2,
        width=width,
        norm=norm,
        activation=activation,
        final_activation=final_activation,
        in_channels=in_channels,
        classes=classes,
    )
