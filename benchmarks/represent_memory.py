"""The peak memory of a max-kernel CKA, as a process of its own: ``python -m benchmarks.represent_memory [--small]``."""

import argparse
import json
import time

import torch

from benchmarks.align_memory import current_peak, start_of_peak
from benchmarks.represent import features, shape_of_max
from coset.represent import cka


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.represent_memory")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    shape = shape_of_max(options.small)
    x, y = features(0, shape), features(1, shape)
    # What is loaded and set up once is no part of it.
    few = 600 if not options.small else 20
    cka(x[:few, :2], y[:few, :2], group="permutation")
    before, since = start_of_peak(), time.perf_counter()
    cka(x, y, group="permutation")
    seconds = time.perf_counter() - since
    extra = max(current_peak() - before, 0)
    print(json.dumps({"extra": extra, "tiles": 2 * 8 * shape[0] ** 2, "seconds": seconds}))


if __name__ == "__main__":
    main()
