"""Alignment: its time against a straightforward loop, its memory against the parameters."""

import itertools
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from benchmarks.align_memory import MEASURABLE, MODELS, WHOLE
from benchmarks.measure import Ratio, ratio
from coset.alignment import align
from coset.data import load
from coset.errors import InputError
from coset.models import MLP
from coset.store import Store
from coset.study.networks import trained_network
from coset.symmetry import discover
from coset.train import RECIPES

Params = Mapping[str, Tensor]
Result = TypeVar("Result")

ASCENT, DEFAULT, MEMORY, LONGER = 0.8, 4.0, 2.0, 2.0
NO_WORSE = 1 + 1e-6
"""The objective of the loop over ours: rounding only."""


def run(small: bool) -> list[Ratio]:
    """Two trained MLPs, and the memory of a ResNet and of a transformer."""
    if not MEASURABLE:
        print("align: its memory is left out, which is measured on Linux only", file=sys.stderr)
    chosen = list(MODELS)[-2:] if small else list(MODELS)
    # In the small form, which shows only that it runs, one process is enough for all.
    processes = [chosen] if small else [[name] for name in chosen]
    return [*_times(small), *(row for names in processes if MEASURABLE for row in _memory(names, small))]


def _times(small: bool) -> Iterator[Ratio]:
    widths, inputs = ([48] * 3, 64) if small else ([512] * 3, 784)
    try:
        a, b = _initial(inputs, widths) if small else _trained(widths)
    except InputError as missing:
        print(f"align: left out, for want of two trained networks: {missing}", file=sys.stderr)
        return
    sym = discover(MLP(inputs, widths, 10).eval(), torch.zeros(2, inputs))
    label = f"MLP {'-'.join(map(str, (inputs, *widths, 10)))}{'' if small else ', trained'}"
    for what, bound, options in (("one ascent", ASCENT, {"relax": False}), ("default", DEFAULT, {})):
        ours, results = _seeded(lambda seed, chosen=options: align(sym, a, b, seed=seed, **chosen))
        theirs, found = _seeded(lambda seed: loop(a, b, seed))
        timed = ratio(f"align, {what}: {label}", ours, "plain loop", theirs, bound=bound, repeat=3 if small else 7)
        yield replace(timed, what=f"{timed.what} ({_split(results[-1].seconds)})")
        reached = [result.objective for result in results]
        yield no_worse(f"align, {what}", reached, [objective(a, b, orders) for orders in found])


def _split(seconds: Mapping[str, float]) -> str:
    return f"{seconds['scores']:.2g} s scores, {seconds['assignment']:.2g} s assignment"


def loop(a: Params, b: Params, seed: int) -> list[Tensor]:
    """The straightforward way: gathers, float32 products for all terms in every step, scipy's assignment.

    Classes in random order until a sweep changes nothing (Ainsworth et al. 2023, algorithm 1). Returns the permutation
    of every hidden layer.
    """
    generator = torch.Generator().manual_seed(seed)
    last = len(a) // 2 - 1
    orders = [torch.arange(len(a[f"layers.{layer}.bias"])) for layer in range(last)]
    changed = True
    while changed:
        changed = False
        for layer in torch.randperm(last, generator=generator).tolist():
            before, after = b[f"layers.{layer}.weight"], b[f"layers.{layer + 1}.weight"]
            before = before if layer == 0 else before[:, orders[layer - 1]]
            after = after if layer + 1 == last else after[orders[layer + 1]]
            score = a[f"layers.{layer}.weight"] @ before.T + a[f"layers.{layer + 1}.weight"].T @ after
            score += torch.outer(a[f"layers.{layer}.bias"], b[f"layers.{layer}.bias"])
            found = torch.from_numpy(linear_sum_assignment(score.numpy(), maximize=True)[1])
            rows = torch.arange(len(found))
            if float(score[rows, found].sum() - score[rows, orders[layer]].sum()) > 1e-4:
                orders[layer], changed = found, True
    return orders


def objective(a: Params, b: Params, orders: list[Tensor]) -> float:
    """Σ ⟨a | moved b⟩ over the parameters that move."""
    total = 0.0
    for layer in range(len(orders) + 1):
        weight, bias = b[f"layers.{layer}.weight"], b[f"layers.{layer}.bias"]
        weight = weight if layer == 0 else weight[:, orders[layer - 1]]
        if layer < len(orders):
            weight = weight[orders[layer]]
            total += float((a[f"layers.{layer}.bias"].double() * bias[orders[layer]]).sum())
        total += float((a[f"layers.{layer}.weight"].double() * weight).sum())
    return total


def _seeded(task: Callable[[int], Result]) -> tuple[Callable[[], None], list[Result]]:
    """``task`` with a new seed at each call, and what it gave."""
    seeds, given = itertools.count(), list[Result]()
    return lambda: given.append(task(next(seeds))), given


def no_worse(what: str, ours: list[float], theirs: list[float]) -> Ratio:
    """The loop's objective over ours, by their medians: a faster search must not find less."""
    mine, other = statistics.median(ours), statistics.median(theirs)
    ratios = [their / our for our, their in zip(ours, theirs, strict=True)]
    label = f"{what}: objective of the plain loop, {other:.2f}"
    return Ratio(label, f"ours, {mine:.2f}", 0.0, other / mine, (min(ratios), max(ratios)), NO_WORSE)


def _trained(widths: list[int]) -> tuple[Params, Params]:
    """Two MLPs trained on MNIST, from the store or, the first time, into it."""
    dataset = load("mnist", flatten=True)
    entries = [
        trained_network(
            Store(),
            dataset,
            model="mlp",
            options={"widths": widths},
            recipe=RECIPES["mnist-mlp"],
            seed=seed,
            device=torch.device("cpu"),
            show=None,
        )
        for seed in (0, 1)
    ]
    return entries[0].params, entries[1].params


def _initial(inputs: int, widths: list[int]) -> tuple[Params, Params]:
    networks = []
    for seed in (0, 1):
        generator = torch.Generator().manual_seed(seed)
        weights = MLP(inputs, widths, 10).state_dict()
        networks.append({name: torch.randn(tensor.shape, generator=generator) for name, tensor in weights.items()})
    return networks[0], networks[1]


def _memory(names: list[str], small: bool) -> Iterator[Ratio]:
    """The most memory the default alignment takes beyond the two networks, over the size of one, in a process for
    ``names``; over the whole group also its time over that of permutations alone.
    """
    # Freed blocks go back to the system at once, so that what is counted is what is in use.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    command = [sys.executable, "-m", "benchmarks.align_memory", *names, *(["--small"] if small else [])]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    for name, line in zip(names, done.stdout.splitlines(), strict=True):
        yield from _rows_of_memory(name, json.loads(line))


def _rows_of_memory(name: str, found: dict[str, float]) -> Iterator[Ratio]:
    share = found["extra"] / found["parameters"]
    label = f"align, peak memory: {name}, {found['count'] / 1e6:.1f}M ({_split(found)})"
    yield Ratio(label, "parameters", 1e3 * found["seconds"], share, (share, share), MEMORY)
    if name == WHOLE:
        longer = found["seconds"] / found["permutations"]
        label = f"align, whole group: {name}, {found['count'] / 1e6:.1f}M"
        yield Ratio(label, "permutations alone", 1e3 * found["seconds"], longer, (longer, longer), LONGER)
