"""What counts how much in matching on weights, between character transformers of seeds no study reports.

``python -m benchmarks.weighting`` trains four networks with RMSNorm and rotary positions and three with LayerNorm, of
width 64, by the recipe of the study of transformers (or finds them in the store), matches all pairs of each, and prints
the barrier halfway as a share of the one of the networks as they are. ``--wide`` adds two networks of width 128.
"""

import statistics
import sys
from collections.abc import Mapping
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

import coset
from benchmarks.merging import RECIPE
from coset._show.tables import text_table
from coset.data import load
from coset.models import build, example_input
from coset.store import Store
from coset.study import Context
from coset.train import evaluate

TEXT = {"vocabulary": 65, "context": 64}
LLAMA = {"norm": "rms", "positions": "rotary", "bias": False}
SETTINGS: dict[str, tuple[Mapping[str, Any], int]] = {
    "RMSNorm, rotary, d = 64": ({**TEXT, "dim": 64, **LLAMA}, 4),
    "LayerNorm, d = 64": ({**TEXT, "dim": 64}, 3),
}
WAYS = ("plain", "even", "directed")
WIDE: dict[str, tuple[Mapping[str, Any], int]] = {"LayerNorm, d = 128": ({**TEXT, "dim": 128}, 2)}
FIRST, WINDOWS = 5001, 250
"""The seed of the first network; the test windows on which losses are measured."""


def shares(options: Mapping[str, Any], count: int) -> list[dict[str, float]]:
    """For every pair the barrier halfway of every weighting over the naive one."""
    context = Context(0, torch.device("cpu"), Store(), False)
    trained = [
        context.trained(
            model="transformer", data="tinyshakespeare", recipe=RECIPE, seed=FIRST + number,
            options=options, data_options={"window": 64},
        ).params
        for number in range(count)
    ]  # fmt: skip
    data, model = load("tinyshakespeare", window=64), build("transformer", **options).eval()
    sym = coset.discover(model, example_input(model))

    def loss(params: Mapping[str, Tensor]) -> float:
        return evaluate(model, data.test.x[:WINDOWS], data.test.y[:WINDOWS], params=dict(params)).loss

    found = []
    for one, two in combinations(trained, 2):
        ends = (loss(one) + loss(two)) / 2
        moved = {way: coset.align(sym, one, two, weighting=way, show=False).params for way in WAYS}
        halfway = {way: loss({name: (one[name] + end[name]) / 2 for name in one}) for way, end in moved.items()}
        naive = loss({name: (one[name] + two[name]) / 2 for name in one}) - ends
        found.append({way: (value - ends) / naive for way, value in halfway.items()})
    return found


def main(*, wide: bool) -> None:
    rows = []
    for name, (options, count) in {**SETTINGS, **(WIDE if wide else {})}.items():
        found = shares(options, count)
        for way in WAYS:
            values = [pair[way] for pair in found]
            shown = (statistics.mean(values), min(values), max(values))
            rows.append((name, way, str(len(values)), *(f"{100 * value:.0f} %" for value in shown)))
    print(text_table(("networks", "weights", "pairs", "mean", "least", "greatest"), rows))


if __name__ == "__main__":
    main(wide="--wide" in sys.argv[1:])
