"""Plain convolutional networks for CIFAR-10: the Myrtle CNN, and Tiny10, of which trained copies are published."""

from torch import Tensor, nn

from coset.models._activations import ActivationSpec
from coset.models._arguments import check_count, check_flag
from coset.models._normalization import image_activation, image_norm


class MyrtleCNN(nn.Module):
    """Four 3×3 convolutions, each with normalisation and ReLU, and a linear layer: (N, 3, 32, 32) to (N, classes).

    Godfrey et al. 2022, fig. 26, after Page, "How to train your ResNet", 2018. Channels ``width`` × (1, 2, 4, 8), width
    64 unless told; with ``constant=True`` all four have ``width`` channels, 512 unless told (appendix D.8). Maximum
    pooling by 2 follows the second, third and fourth convolution, by 4 the last of these. With ``norm="none"`` the
    convolutions have biases, otherwise the normalisation's shift takes their place.

    Layers: ``conv1`` to ``conv4``, ``norm1`` to ``norm4``, ``activation1`` to ``activation4``, ``pool2`` to ``pool4``,
    ``pool``, ``fc``.
    """

    def __init__(
        self,
        *,
        width: int | None = None,
        constant: bool = False,
        norm: str = "batch",
        activation: ActivationSpec = "relu",
        in_channels: int = 3,
        classes: int = 10,
    ) -> None:
        super().__init__()
        multiples = (1, 1, 1, 1) if check_flag("constant", constant) else (1, 2, 4, 8)
        if width is None:
            width = 512 if constant else 64
        channels = [check_count("width", width) * multiple for multiple in multiples]
        before = check_count("in_channels", in_channels)
        for index, after in enumerate(channels, start=1):
            conv = nn.Conv2d(before, after, kernel_size=3, padding=1, bias=norm == "none")
            self.add_module(f"conv{index}", conv)
            self.add_module(f"norm{index}", image_norm(norm, after))
            self.add_module(f"activation{index}", image_activation(norm, activation, after))
            if index > 1:
                self.add_module(f"pool{index}", nn.MaxPool2d(2))
            before = after
        self.pool = nn.MaxPool2d(4)
        self.fc = nn.Linear(before, check_count("classes", classes))
        self.input_shape: tuple[int, ...] = (in_channels, 32, 32)

    def forward(self, x: Tensor) -> Tensor:
        for index in range(1, 5):
            for kind in ("conv", "norm", "activation", "pool") if index > 1 else ("conv", "norm", "activation"):
                x = self.get_submodule(f"{kind}{index}")(x)
        output: Tensor = self.fc(self.pool(x).flatten(1))
        return output


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
