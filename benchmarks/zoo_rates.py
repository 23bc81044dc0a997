"""How many network-samples a second zoos train on one core: ``python -m benchmarks.zoo_rates``.

A group of every architecture for 60 steps of Adam, random data; processor time, so that others on the machine count
little. A network-sample is one example seen by one network.
"""

import tempfile
import time
from pathlib import Path

import torch

from coset._show.progress import SILENT
from coset.data import Split
from coset.zoo import ZooSpec
from coset.zoo._data import Data
from coset.zoo._group import Task, train_stack
from coset.zoo._members import group_size, members, new_model

STEPS = 60

CASES = (
    ("MLP 30-16-16-2", "mlp", {"in_features": 30, "widths": [16, 16], "out_features": 2}, (30,), 2, 32),
    ("MLP 784-10-10", "mlp", {"widths": [10]}, (784,), 10, 64),
    ("MLP 784-16-10", "mlp", {"widths": [16]}, (784,), 10, 64),
    ("MLP 784-32-32-10", "mlp", {"widths": [32, 32]}, (784,), 10, 64),
    ("CNN of 4,970 parameters, 28×28", "benchmarks.zoo:SmallCNN", {}, (1, 28, 28), 10, 32),
)


def rate(
    model: str, options: dict[str, object], shape: tuple[int, ...], classes: int, batch: int, order: str
) -> tuple[int, float]:
    """How many networks a group has, and network-samples per second of processor time."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(batch * STEPS, *shape, generator=generator)
    data = Data({"train": Split(x, torch.randint(0, classes, (len(x),), generator=generator))}, "random")
    recipe = {"epochs": 1, "batch_size": batch, "learning_rate": 1e-3, "optimizer": "adam"}
    content = {"model": model, "options": options, "data": "digits", "recipe": recipe, "seeds": 512, "order": order}
    spec = ZooSpec.from_dict(content)
    count = group_size(new_model(spec, {}, 0), x, batch)
    with tempfile.TemporaryDirectory() as folder:
        task = Task(
            spec, members(spec)[:count], data, Path(folder) / "none", 1e9, lambda *_: None, SILENT, lambda: None
        )
        train_stack(task)
        start = time.process_time()
        train_stack(task)
    return count, count * len(x) / (time.process_time() - start)


def main() -> None:
    """Print a line for each architecture and order."""
    torch.set_num_threads(1)
    for label, *case in CASES:
        for order in ("own", "shared"):
            count, found = rate(*case, order)  # type: ignore[arg-type]
            print(f"{label}, {order} order, {count} at once: {found:,.0f} network-samples per second of one core")


if __name__ == "__main__":
    main()
