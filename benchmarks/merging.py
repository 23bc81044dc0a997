"""Two character transformers to be merged from the command line, and the losses of what was merged.

``python -m benchmarks.merging train FOLDER`` writes a.safetensors and b.safetensors there, from the store if it has
them; ``python -m benchmarks.merging losses FOLDER`` prints the loss on all test windows of every file in it.
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from coset.data import load
from coset.models import build
from coset.store import Store
from coset.study import Context
from coset.train import Recipe, evaluate

RECIPE = Recipe(
    epochs=2, batch_size=32, learning_rate=5e-3, optimizer="adamw",
    weight_decay=0.1, schedule="triangular", peak=0.1, clip=1.0,
)  # fmt: skip
OPTIONS = {"context": 64, "dim": 128}


def train(folder: Path) -> None:
    context = Context(0, torch.device("cpu"), Store(), False)
    for seed, name in enumerate("ab"):
        network = context.trained(
            model="transformer", data="tinyshakespeare", recipe=RECIPE, seed=seed,
            options=OPTIONS, data_options={"window": 64},
        )  # fmt: skip
        save_file(dict(network.params), folder / f"{name}.safetensors")


def losses(folder: Path) -> None:
    data, model = load("tinyshakespeare", window=64), build("transformer", **OPTIONS).eval()
    for path in sorted(folder.glob("*.safetensors")):
        print(f"{path.stem}: {evaluate(model, data.test.x, data.test.y, params=load_file(path)).loss:.4f}")


if __name__ == "__main__":
    {"train": train, "losses": losses}[sys.argv[1]](Path(sys.argv[2]))
