"""CKA against the products it is made of, and against the formula of the max kernel as it is written; its memory."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import torch
from torch import Tensor

from benchmarks.align_memory import MEASURABLE
from benchmarks.measure import Ratio, ratio
from coset.represent import cka

LINEAR, MAX, BATCHED, MEMORY = 1.3, 1 / 20, 1.0, 1.0
"""The most that is wanted: of the three products; of the direct form, of a batched one; of two matrices N×N."""

ROWS = 2
"""Of the direct form so many rows of each kernel are timed, and that is multiplied: whole, it takes minutes."""


def run(small: bool) -> list[Ratio]:
    """Linear CKA at N = 10,000, C = 400; max-kernel CKA at N = 1000, C = 64, 16×16 positions."""
    repeat = 2 if small else 9
    return [_linear((200, 20) if small else (10_000, 400), repeat), *_max(small, repeat)]


def features(seed: int, shape: tuple[int, ...]) -> Tensor:
    """Random features in float64."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def shape_of_max(small: bool) -> tuple[int, int, int, int]:
    """(N, C, height, width) for the max kernel."""
    return (300, 4, 2, 2) if small else (1000, 64, 16, 16)


def _linear(shape: tuple[int, int], repeat: int) -> Ratio:
    x, y = features(0, shape), features(1, shape)
    return ratio(
        f"represent, linear CKA: N = {shape[0]}, C = {shape[1]}",
        lambda: cka(x, y),
        "XᵀY, XᵀX and YᵀY in float64",
        lambda: (x.mT @ y, x.mT @ x, y.mT @ y),
        bound=LINEAR,
        repeat=repeat,
    )


def _max(small: bool, repeat: int) -> list[Ratio]:
    shape = shape_of_max(small)
    x, y = features(0, shape), features(1, shape)
    n = shape[0]
    label = f"N = {n}, C = {shape[1]}, {shape[2]}×{shape[3]}"
    slices = ratio(
        f"represent, max-kernel CKA: {label}",
        lambda: cka(x, y, group="permutation"),
        f"its formula, {ROWS} of {n} rows times {n // ROWS}",
        lambda: [_direct_row(z, row) for z in (x.flatten(2), y.flatten(2)) for row in range(ROWS)],
        bound=MAX,
        repeat=2 if small else 5,
    )
    share = ROWS / n
    direct = replace(slices, ratio=slices.ratio * share, spread=(slices.spread[0] * share, slices.spread[1] * share))
    batched = ratio(
        f"represent, max-kernel CKA: {label}",
        lambda: cka(x, y, group="permutation"),
        "one batched product, N×N×C held",
        lambda: [_batched(z) for z in (x.flatten(2), y.flatten(2))],
        bound=BATCHED,
        repeat=2 if small else 5,
    )
    return [direct, batched, *([_memory(small, label)] if MEASURABLE else [])]


def _direct_row(z: Tensor, row: int) -> Tensor:
    """K_mn = max_c Σ_p z_mcp·z_ncp for one m and all n, with all of its products as they are written."""
    return (z[row] * z).sum(-1).amax(-1)


def _batched(z: Tensor) -> Tensor:
    """K with the products of all channels at once, the quickest that libraries give in one line."""
    return torch.einsum("mcp,ncp->cmn", z, z).amax(0)


def _memory(small: bool, label: str) -> Ratio:
    """The most memory that CKA takes beyond its two features, over two matrices N×N, in a process of its own."""
    # Freed blocks go back to the system at once, so that what is counted is what is in use.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    command = [sys.executable, "-m", "benchmarks.represent_memory", *(["--small"] if small else [])]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    found = json.loads(done.stdout)
    share = found["extra"] / found["tiles"]
    what = f"represent, max-kernel CKA, peak memory: {label}"
    return Ratio(what, "two N×N matrices", 1e3 * found["seconds"], share, (share, share), MEMORY)
