"""The small convolutional network of the zoos."""

from torch import Tensor, nn


class GreyCNN(nn.Module):
    """Three 3×3 convolutions with stride 2, a mean over positions and a linear layer: (N, C, H, W) to (N, 10).

    Images of several channels are averaged to grey first. With ``width`` 16 it has 4,970 parameters, as the networks of
    the Small CNN Zoo (Unterthiner et al. 2020). With ``norm`` "batch", convolutions are normalised and have no biases.
    ``padding`` lets it take images of fewer than 15 pixels.
    """

    def __init__(self, *, width: int = 16, norm: str = "none", padding: int = 0) -> None:
        super().__init__()
        before = 1
        for number in range(1, 4):
            conv = nn.Conv2d(before, width, 3, stride=2, padding=padding, bias=norm == "none")
            self.add_module(f"conv{number}", conv)
            self.add_module(f"norm{number}", nn.BatchNorm2d(width) if norm == "batch" else nn.Identity())
            before = width
        self.fc = nn.Linear(width, 10)
        self.input_shape: tuple[int, ...] = (1, 28, 28)

    def forward(self, x: Tensor) -> Tensor:
        x = x.mean(1, keepdim=True)
        for number in range(1, 4):
            x = self.get_submodule(f"norm{number}")(self.get_submodule(f"conv{number}")(x)).relu()
        output: Tensor = self.fc(x.mean((-2, -1)))
        return output


class Probabilities(GreyCNN):
    """The same network, giving the probabilities of classes."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).softmax(-1)
