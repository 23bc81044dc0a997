"""Tiny10: a small convolutional network without padding, of which trained CIFAR-10 copies are published."""

from torch import Tensor, nn

from coset.models._arguments import check_count

# (output channels, kernel, stride) of conv1 ... conv8.
_LAYERS = ((16, 3, 1), (16, 3, 1), (32, 3, 2), (32, 3, 1), (32, 3, 1), (64, 3, 2), (64, 3, 1), (64, 1, 1))


class Tiny10(nn.Module):
    """Eight convolutions with bias, batch normalisation and ReLU, a mean over positions, a linear layer.

    (N, 3, 32, 32) to (N, classes). The layers ``conv1`` ... ``conv8``, ``bn1`` ... ``bn8``, ``fc`` are named as in the
    networks of Csiszárik et al., "Similarity and Matching of Neural Network Representations", 2021.
    """

    def __init__(self, *, in_channels: int = 3, classes: int = 10) -> None:
        super().__init__()
        before = check_count("in_channels", in_channels)
        for index, (after, kernel, stride) in enumerate(_LAYERS, start=1):
            self.add_module(f"conv{index}", nn.Conv2d(before, after, kernel, stride))
            self.add_module(f"bn{index}", nn.BatchNorm2d(after))
            self.add_module(f"relu{index}", nn.ReLU())
            before = after
        self.fc = nn.Linear(before, check_count("classes", classes))
        self.input_shape: tuple[int, ...] = (in_channels, 32, 32)

    def forward(self, x: Tensor) -> Tensor:
        for index in range(1, len(_LAYERS) + 1):
            for kind in ("conv", "bn", "relu"):
                x = self.get_submodule(f"{kind}{index}")(x)
        output: Tensor = self.fc(x.mean((-2, -1)))
        return output
