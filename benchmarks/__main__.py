"""Run the benchmarks: ``./dev bench [NAME …] [--small] [--json] [--strict] [--threads N]``."""

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict

import torch

from benchmarks import (
    act,
    align,
    canonical,
    chains,
    discovery,
    geometry,
    landscape,
    metanet,
    predictive,
    represent,
    sampling,
    stacks,
    symmetrized,
    train_step,
    variational,
    zoo,
)
from benchmarks.measure import Ratio
from coset._show.tables import text_table

BENCHMARKS: dict[str, Callable[[bool], list[Ratio]]] = {
    "act": act.run,
    "align": align.run,
    "canonical": canonical.run,
    "chains": chains.run,
    "discovery": discovery.run,
    "geometry": geometry.run,
    "landscape": landscape.run,
    "metanet": metanet.run,
    "predictive": predictive.run,
    "represent": represent.run,
    "sampling": sampling.run,
    "stacks": stacks.run,
    "train_step": train_step.run,
    "variational": variational.run,
    "symmetrized": symmetrized.run,
    "zoo": zoo.run,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev bench", description="Ratios against a reference in the same run.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)} [all]")
    parser.add_argument("--small", action="store_true", help="small sizes, few repetitions: does it run?")
    parser.add_argument("--json", action="store_true", help="JSON for machines")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch [1]")
    parser.add_argument("--strict", action="store_true", help="exit with code 1 if a ratio is over what is wanted")
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in BENCHMARKS]:
        parser.error(f"no benchmark is called {unknown[0]!r}; there are: {', '.join(BENCHMARKS)}")
    torch.set_num_threads(options.threads)
    results = [result for name in options.names or BENCHMARKS for result in BENCHMARKS[name](options.small)]
    _print(results, options.json)
    if options.strict and any(result.ratio > result.bound for result in results):
        raise SystemExit(1)


def _print(results: list[Ratio], as_json: bool) -> None:
    if as_json:
        print(json.dumps([asdict(result) for result in results], indent=1))
        return
    rows = [
        [
            r.what,
            f"{r.milliseconds:.1f}",
            f"{r.ratio:.2f} × {r.reference}",
            f"{r.spread[0]:.2f}…{r.spread[1]:.2f}",
            f"≤ {r.bound:g}",
            "" if r.ratio <= r.bound else "over",
        ]
        for r in results
    ]
    print(text_table(["what", "ms", "median ratio", "spread", "wanted", ""], rows, right=[1]))


if __name__ == "__main__":
    main()
