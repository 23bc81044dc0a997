"""Networks trained side by side against a loop of ``coset.train.fit`` over them, per network: processor time."""

import tempfile
import time
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.measure import Ratio, ratio
from coset._show.progress import SILENT
from coset.data import Split
from coset.train import fit
from coset.zoo import ZooSpec
from coset.zoo._data import Data
from coset.zoo._group import Task, train_stack
from coset.zoo._members import group_size, members, new_model


class SmallCNN(nn.Module):
    """Three convolutions with 16 channels, a mean over positions and a linear layer: 4,970 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, stride=2)
        self.conv2 = nn.Conv2d(16, 16, 3, stride=2)
        self.conv3 = nn.Conv2d(16, 16, 3, stride=2)
        self.fc = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        for conv in (self.conv1, self.conv2, self.conv3):
            x = conv(x).relu()
        output: Tensor = self.fc(x.mean((-2, -1)))
        return output


CASES = (
    ("MLP 30-16-16-2", "mlp", {"in_features": 30, "widths": [16, 16], "out_features": 2}, (30,), 2, 32, "own", 0.1),
    ("MLP 784-10-10", "mlp", {"widths": [10]}, (784,), 10, 64, "own", 0.2),
    ("MLP 784-10-10", "mlp", {"widths": [10]}, (784,), 10, 64, "shared", 0.2),
    ("CNN of 4,970 parameters", "benchmarks.zoo:SmallCNN", {}, (1, 28, 28), 10, 32, "own", 0.5),
    ("CNN of 4,970 parameters", "benchmarks.zoo:SmallCNN", {}, (1, 28, 28), 10, 64, "own", 0.5),
)


def run(small: bool) -> list[Ratio]:
    """A group, and a few networks of it one after the other, from their first weights on."""
    return [
        _case(*case, most=4 if small else 512, steps=2 if small else 60, repeat=1 if small else 5) for case in CASES
    ]


def _case(
    label: str,
    model: str,
    options: dict[str, object],
    shape: tuple[int, ...],
    classes: int,
    batch: int,
    order: str,
    bound: float,
    *,
    most: int,
    steps: int,
    repeat: int,
) -> Ratio:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(batch * steps, *shape, generator=generator)
    y = torch.randint(0, classes, (len(x),), generator=generator)
    data = Data({"train": Split(x, y)}, "random")
    recipe = {"epochs": 1, "batch_size": batch, "learning_rate": 1e-3, "optimizer": "adam"}
    content = {"model": model, "options": options, "data": "digits", "recipe": recipe, "seeds": 512, "order": order}
    spec = ZooSpec.from_dict(content)
    first = new_model(spec, {}, 0)
    count = min(group_size(first, x, batch), most)
    chosen = members(spec)[:count]
    few = max(count // 32, 1)

    def together() -> None:
        """More networks than the loop has: the times are divided by their numbers below."""
        with tempfile.TemporaryDirectory() as folder:
            task = Task(spec, chosen, data, Path(folder) / "none", 1e9, lambda *_: None, SILENT, lambda: None)
            train_stack(task)

    def loop() -> None:
        for member in chosen[:few]:
            fit(new_model(spec, {}, member.seed), x, y, member.recipe, seed=member.seed, show=False)

    found = ratio(f"zoo, {label}, {order} order, {count} at once, batch {batch}, per network", together,
                  "loop of fit", loop, bound=bound, repeat=repeat, clock=time.process_time)  # fmt: skip
    share = few / count
    spread = (found.spread[0] * share, found.spread[1] * share)
    return Ratio(found.what, found.reference, found.milliseconds / count, found.ratio * share, spread, bound)
