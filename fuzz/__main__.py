"""Run the fuzzers: ``./dev fuzz [models|files] --minutes N --seed S``."""

import argparse
import importlib

import torch

FUZZERS = ("models", "files")


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev fuzz", description="Random models and damaged files against coset.")
    parser.add_argument("what", nargs="?", choices=FUZZERS, help="one of the fuzzers [both, in turn]")
    parser.add_argument("--minutes", type=float, default=1.0, help="how long, for all of them together [1]")
    parser.add_argument("--seed", type=int, default=0, help="of the first case; the n-th has seed + n [0]")
    parser.add_argument("--show", type=int, metavar="SEED", help="print the model of one seed and what comes of it")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.show is not None:
        importlib.import_module("fuzz.models").show(options.show)
        return
    chosen = [options.what] if options.what else list(FUZZERS)
    sound = [
        importlib.import_module(f"fuzz.{name}").run(options.minutes * 60 / len(chosen), options.seed) for name in chosen
    ]
    raise SystemExit(0 if all(sound) else 1)


if __name__ == "__main__":
    main()
