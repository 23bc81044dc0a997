"""Round-to-nearest 4-bit weights of a character transformer before and after randomised Hadamard rotations.

``python -m benchmarks.quantisation`` trains two networks on TinyShakespeare (``COSET_DATA/tinyshakespeare/input.txt``),
one as usual and one whose stream begins with two large channels, and prints the table of docs/quantisation.md.
"""

import argparse
import math
import os
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import coset
from coset._show.tables import text_table
from coset.symmetry import Symmetry

Params = dict[str, Tensor]
WAYS = {"one step a row": True, "one step a matrix": False}
PLANTED, SIZE = (3, 11), 20.0


class Attention(nn.Module):
    """Causal attention with heads, without biases."""

    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(d, d, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        return self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2))


class Characters(nn.Module):
    """A pre-norm transformer on characters: RMSNorm, learned positions, read-out of its own."""

    def __init__(self, words: int, *, d: int = 128, heads: int = 4, layers: int = 3, places: int = 64) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, d), nn.Embedding(places, d)
        self.norms = nn.ModuleList(nn.RMSNorm(d, eps=1e-5) for _ in range(2 * layers))
        self.attention = nn.ModuleList(Attention(d, heads) for _ in range(layers))
        self.up = nn.ModuleList(nn.Linear(d, 4 * d, bias=False) for _ in range(layers))
        self.down = nn.ModuleList(nn.Linear(4 * d, d, bias=False) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(d, eps=1e-5), nn.Linear(d, words, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for layer, attend in enumerate(self.attention):
            x = x + attend(self.norms[2 * layer](x))
            x = x + self.down[layer](F.gelu(self.up[layer](self.norms[2 * layer + 1](x))))
        return self.head(self.norm(x))

    def readers(self) -> dict[str, list[str]]:
        """Name of each norm → the matrices that read behind it."""
        found = {"norm.weight": ["head.weight"]}
        for layer in range(len(self.up)):
            found[f"norms.{2 * layer}.weight"] = [f"attention.{layer}.{part}.weight" for part in "qkv"]
            found[f"norms.{2 * layer + 1}.weight"] = [f"up.{layer}.weight"]
        return found


def folded(model: Characters) -> Params:
    """The same function with gains of 1: rotations then act on the readers themselves."""
    params = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    for gain, readers in model.readers().items():
        for reader in readers:
            params[reader] *= params[gain]
        params[gain] = torch.ones_like(params[gain])
    return params


def quantised(params: Mapping[str, Tensor], *, by_row: bool, bits: int = 4) -> Params:
    """Matrices rounded to the nearest of 2^bits − 1 numbers k·s, s = max|w|/(2^(bits−1) − 1) of a row or a matrix."""
    top = 2 ** (bits - 1) - 1
    result = dict(params)
    for name, tensor in params.items():
        if tensor.ndim == 2:
            largest = tensor.abs().amax(1, keepdim=True) if by_row else tensor.abs().max()
            step = largest / top
            result[name] = (tensor / step).round() * step
    return result


@dataclass(frozen=True)
class Outliers:
    """Of all matrices: the largest max/rms, and the mean kurtosis (3 for normal entries)."""

    peak: float
    kurtosis: float


def outliers(params: Mapping[str, Tensor]) -> Outliers:
    """How far the entries of matrices are from normal ones."""
    matrices = [tensor.double() for tensor in params.values() if tensor.ndim == 2]
    peaks = [float(m.abs().max() / m.square().mean().sqrt()) for m in matrices]
    kurtoses = [float(m.pow(4).mean() / m.square().mean().square()) for m in matrices]
    return Outliers(max(peaks), statistics.mean(kurtoses))


def read_text() -> Tensor:
    """TinyShakespeare as numbers of characters."""
    text = (Path(os.environ["COSET_DATA"]) / "tinyshakespeare" / "input.txt").read_text()
    known = {letter: number for number, letter in enumerate(sorted(set(text)))}
    return torch.tensor([known[letter] for letter in text])


def batch(text: Tensor, size: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    starts = torch.randint(len(text) - length - 1, (size,), generator=generator)
    rows = torch.stack([text[start : start + length + 1] for start in starts.tolist()])
    return rows[:, :-1], rows[:, 1:]


def trained(text: Tensor, *, planted: bool, steps: int, seed: int = 0, **sizes: int) -> Characters:
    """AdamW with a cosine schedule; ``planted``: two channels of the stream begin ``SIZE`` times as large."""
    torch.manual_seed(seed)
    model = Characters(int(text.max()) + 1, **sizes)
    with torch.no_grad():
        if planted:
            for part in (model.words.weight, model.places.weight):
                part[:, list(PLANTED)] *= SIZE
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        x, y = batch(text, 16, 64, generator)
        optimizer.zero_grad()
        F.cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
        optimizer.step()
        schedule.step()
    return model.eval()


@torch.no_grad()
def loss(model: nn.Module, params: Mapping[str, Tensor], data: tuple[Tensor, Tensor]) -> float:
    """Cross-entropy in nats a character."""
    scores = torch.func.functional_call(model, dict(params), (data[0],))
    return float(F.cross_entropy(scores.flatten(0, 1), data[1].flatten()))


def table(model: Characters, sym: Symmetry, data: tuple[Tensor, Tensor], draws: int) -> list[list[str]]:
    """Rows: the network as trained, with gains folded, and rotated (mean and deviation of ``draws`` rotations)."""
    plain = dict(model.state_dict())
    flat = folded(model)
    turned = [sym.act(sym.hadamard(torch.Generator().manual_seed(seed)), flat) for seed in range(draws)]
    rows = []
    for label, group in (("as trained", [plain]), ("gains folded", [flat]), ("rotated", turned)):
        measured = [outliers(params) for params in group]
        cells = [
            f"{statistics.mean(item.peak for item in measured):.1f}",
            f"{statistics.mean(item.kurtosis for item in measured):.1f}",
            f"{statistics.mean(loss(model, params, data) for params in group):.3f}",
        ]
        for by_row in WAYS.values():
            found = [loss(model, quantised(params, by_row=by_row), data) for params in group]
            spread = f" ± {statistics.stdev(found):.3f}" if len(found) > 1 else ""
            cells.append(f"{statistics.mean(found):.3f}{spread}")
        rows.append([label, *cells])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--draws", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    text = read_text()
    split = math.floor(0.9 * len(text))
    data = batch(text[split:], 128, 64, torch.Generator().manual_seed(1))
    for planted in (False, True):
        model = trained(text[:split], planted=planted, steps=options.steps)
        sym = coset.discover(model, data[0][:2])
        print("two large channels at the start" if planted else "trained as usual")
        columns = ["weights", "max/rms", "kurtosis", "loss", *(f"4 bits, {way}" for way in WAYS)]
        print(text_table(columns, table(model, sym, data, options.draws)))


if __name__ == "__main__":
    main()
