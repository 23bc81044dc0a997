"""The convolutional network whose channels are scaled."""

from torch import Tensor, nn
from torch.nn import functional


class SmallCNN(nn.Module):
    """Two 3×3 convolutions with stride 2 and a linear layer on all positions: (N, 1, 28, 28) to (N, 10).

    Images are first averaged over squares of ``pool`` pixels; ``size``: their sides before.
    """

    def __init__(self, *, width: int = 8, pool: int = 2, size: int = 28) -> None:
        super().__init__()
        self.pool = pool
        self.conv1 = nn.Conv2d(1, width, 3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(width, width, 3, stride=2, padding=1)
        side = -(-(size // pool) // 4)
        self.fc = nn.Linear(width * side * side, 10)
        self.input_shape: tuple[int, ...] = (1, size, size)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.avg_pool2d(x, self.pool)
        x = self.conv2(self.conv1(x).relu()).relu()
        output: Tensor = self.fc(x.flatten(1))
        return output
