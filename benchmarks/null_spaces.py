"""The null space of the Jacobian of small transformers, beside the group and the translations that discovery finds.

``python -m benchmarks.null_spaces`` prints a line for each model: what formulas count, what discovery finds, and how
many singular values of ∂f/∂θ over many inputs vanish, with the largest that does and the smallest that does not. Names
of models as arguments choose some of them. Models and Jacobian are those of the tests.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

import coset
from coset._show.tables import text_table

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from jacobian_null_space import singular_values
from rotary_networks import RotaryModel
from translated_networks import HEADS, HIDDEN, LENGTH, TYPES, WORDS, Bert, D, gpt2, tokens

WIDTH = D // HEADS
VANISHING = 1e-12


def llama(layers: int, keys: int = HEADS) -> int:
    """d(d−1)/2 + (2L+1)d + L·(n_kv·(d_h² + d_h) + d_ff); there are no translations without biases."""
    return D * (D - 1) // 2 + (2 * layers + 1) * D + layers * (keys * (WIDTH**2 + WIDTH) + HIDDEN)


def llama_with_norms(layers: int) -> int:
    """Queries and keys keep the gains of each pair, d_h/2 in all heads together, of their d_h a head."""
    return llama(layers) - layers * (HEADS * WIDTH - WIDTH // 2)


def llama_tied(layers: int) -> int:
    """Without the rotations of the stream and the gain in front of the head."""
    return llama(layers) - D * (D - 1) // 2 - D


def of_gpt2(layers: int, *, tied: bool) -> int:
    """L(2n_h·d_h² + 2d) and T + L(8d + 2d_ff + 2); untied also (d−1)(d−2)/2 + d and V + 2d − 1."""
    whole = layers * (2 * HEADS * WIDTH**2 + 2 * D) + LENGTH + layers * (8 * D + 2 * HIDDEN + 2)
    return whole if tied else whole + (D - 1) * (D - 2) // 2 + D + WORDS + 2 * D - 1


def bert(layers: int) -> int:
    """2L·n_h·d_h² + d and (2L+2)d + T + K + L(d + d_ff + 2) + (d−1) + L(3d + d_ff) + d + 2Ld + 1."""
    offsets = (2 * layers + 2) * D + LENGTH + TYPES + layers * (D + HIDDEN + 2)
    others = D - 1 + layers * (3 * D + HIDDEN) + D + 2 * layers * D + 1
    return 2 * layers * HEADS * WIDTH**2 + D + offsets + others


MODELS: dict[str, tuple[Callable[[], nn.Module], int, int]] = {
    **{f"llama-{n}": (partial(RotaryModel, layers=n), WORDS, llama(n)) for n in (1, 2, 3)},
    "llama-grouped-2": (partial(RotaryModel, layers=2, shared=2), WORDS, llama(2, keys=1)),
    "llama-norms-1": (partial(RotaryModel, normed=True), WORDS, llama_with_norms(1)),
    "llama-tied-1": (partial(RotaryModel, tied=True), WORDS, llama_tied(1)),
    **{f"gpt2-{n}": (partial(gpt2, n), WORDS, of_gpt2(n, tied=True)) for n in (1, 2, 3)},
    "gpt2-untied-2": (partial(gpt2, 2, tied=False), WORDS, of_gpt2(2, tied=False)),
    **{f"bert-{n}": (partial(Bert, n), WORDS * TYPES, bert(n)) for n in (1, 2, 3)},
}
"""A model, how many kinds of tokens it reads, and the dimension counted by hand: d = 8, two heads of 4, 6 hidden units,
12 words, 6 places; the number in a name is that of the layers.
"""


def row(name: str) -> tuple[str, ...]:
    build, kinds, counted = MODELS[name]
    torch.manual_seed(0)
    model = build().double().eval()
    sym = coset.discover(model, tokens(1, kinds))
    count = sum(tensor.numel() for tensor in model.parameters())
    per_input = model(tokens(1, kinds)).numel()
    values: Tensor = singular_values(model, tokens(2 * -(-count // per_input), kinds))
    null = int((values < VANISHING).sum())
    largest, smallest = values[values < VANISHING].max(), values[values >= VANISHING].min()
    parts = (sym.continuous_dimension, sym.translation_dimension)
    same = "yes" if counted == sum(parts) == null else "NO"
    return (name, *map(str, (count, counted, *parts, null)), f"{largest:.0e}", f"{smallest:.0e}", same)


def main(names: list[str]) -> None:
    if unknown := [name for name in names if name not in MODELS]:
        raise SystemExit(f"no model is called {unknown[0]!r}; there are: {', '.join(MODELS)}")
    head = ("model", "parameters", "counted", "group", "translations", "null space", "zeros ≤", "others ≥", "equal")
    rows = [row(name) for name in names or MODELS]
    print(text_table(head, rows))
    if any(line[-1] != "yes" for line in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
