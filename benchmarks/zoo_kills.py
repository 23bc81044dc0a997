"""Kill the training of a zoo at random moments, go on, and compare its bytes with those of a run that nobody stopped.

``python -m benchmarks.zoo_kills [KILLS]``: exit code 1 if a byte differs.
"""

import os
import random
import signal
import sys
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path

import torch

from coset.zoo import train_zoo

SPEC = {
    "model": "mlp",
    "options": {"in_features": 30, "out_features": 2, "widths": [16, 16], "norm": "batch"},
    "data": {"name": "breast-cancer", "validation": 0.1},
    "recipe": {"epochs": 40, "batch_size": 32, "optimizer": "adam", "keep": "best"},
    "grid": {"recipe": {"learning_rate": {"low": 1e-3, "high": 1e-1, "log": True}}},
    "seeds": 48,
    "group": 16,
    "snapshots": {"epochs": [0, 10, 40]},
}


def content(folder: Path) -> dict[str, bytes]:
    """The bytes of all files."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def train(folder: Path) -> None:
    """One run, or what is left of it."""
    train_zoo(SPEC, folder, show=False, checkpoint_seconds=0.2)


def main(kills: int) -> int:
    """The number of zoos that differ."""
    torch.set_num_threads(1)
    draw, wrong = random.Random(0), 0
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        train(Path(folder) / "whole")
        seconds, expected = time.perf_counter() - begun, content(Path(folder) / "whole")
        for kill in range(kills):
            zoo = Path(folder) / f"killed-{kill}"
            process = get_context("fork").Process(target=train, args=(zoo,))
            process.start()
            moment = draw.uniform(0, 0.8 * seconds)
            time.sleep(moment)
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            train(zoo)
            same = content(zoo) == expected
            wrong += not same
            state = "the same bytes" if same else "differs"
            print(f"killed after {moment:.2f} s of {seconds:.2f} s (code {process.exitcode}): {state}", flush=True)
    print(f"{kills - wrong} of {kills} zoos have the same bytes")
    return wrong


if __name__ == "__main__":
    sys.exit(1 if main(int(sys.argv[1]) if len(sys.argv) > 1 else 20) else 0)
