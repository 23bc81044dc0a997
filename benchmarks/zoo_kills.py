"""Kill the training of a zoo at random moments, go on, and compare its bytes with those of a run that nobody stopped.

``python -m benchmarks.zoo_kills [KILLS]``: exit code 1 if a byte differs.
"""

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
    "recipe": {"epochs": 20, "batch_size": 32, "optimizer": "adam", "keep": "best"},
    "grid": {"recipe": {"learning_rate": {"low": 1e-3, "high": 1e-1, "log": True}}},
    "seeds": 48,
    "group": 16,
    "snapshots": {"epochs": [0, 10, 20]},
}


def content(folder: Path) -> dict[str, bytes]:
    """The bytes of all files."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def train(folder: Path) -> None:
    """One run, or what is left of it."""
    train_zoo(SPEC, folder, show=False, checkpoint_seconds=0.2)


def killed(folder: Path, moment: float) -> bool:
    """Train in a process of its own, and kill it after so many seconds; False if it was done before."""
    process = get_context("fork").Process(target=train, args=(folder,))
    process.start()
    process.join(moment)
    if process.is_alive():
        process.kill()
    process.join()
    return process.exitcode == -signal.SIGKILL


def main(kills: int) -> int:
    """The number of zoos that differ."""
    torch.set_num_threads(1)
    draw, wrong, done = random.Random(0), 0, 0
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        train(Path(folder) / "whole")
        seconds, expected = time.perf_counter() - begun, content(Path(folder) / "whole")
        while done < kills:
            with tempfile.TemporaryDirectory(dir=folder) as zoo:
                moment = draw.uniform(0, seconds)
                if not killed(Path(zoo), moment):
                    seconds = moment  # an upper bound that the load of the machine had hidden
                    continue
                files = sorted(content(Path(zoo)))
                train(Path(zoo))
                same = content(Path(zoo)) == expected
            done, wrong = done + 1, wrong + (not same)
            state = "the same bytes" if same else "differs"
            print(f"killed after {moment:.2f} s with {len(files)} of {len(expected)} files: {state}", flush=True)
    print(f"{kills - wrong} of {kills} zoos have the same bytes")
    return wrong


if __name__ == "__main__":
    sys.exit(1 if main(int(sys.argv[1]) if len(sys.argv) > 1 else 20) else 0)
