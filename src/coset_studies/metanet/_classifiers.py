"""Readers that tell classes of networks: a head on standardised features, and graphs that are made once."""

import hashlib
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from coset.metanet import NeuralGraph, Reader
from coset.symmetry import Symmetry

Read = Callable[[Symmetry, Mapping[str, Tensor]], NeuralGraph]

CALIBRATED = 256
"""Typical sizes of weights are taken of so many networks."""


def reading(reader: Reader, known: dict[str, NeuralGraph]) -> Read:
    """A function that reads networks in the gauge of a reader, those it has seen before from ``known``.

    Canonical forms take longer than a pass of the reader, and several readers read the same networks.
    """

    def read(sym: Symmetry, stack: Mapping[str, Tensor]) -> NeuralGraph:
        digest = hashlib.sha256(reader.gauge.encode())
        for name, tensor in stack.items():
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().contiguous().numpy().tobytes())
        key = digest.hexdigest()
        if key not in known:
            known[key] = reader.read(stack, sym=sym)
        return known[key]

    return read


class Standardized(nn.Module):
    """Classes of networks from all features of a reader: their means and root mean squares over every layer of units
    and every matrix of weights, each standardised over networks, then a perceptron.

    Networks that have begun at the same weights differ by a hundredth of these features. Without the standardisation
    several hundred steps pass before a reader sees any difference. In evaluation mode it is one affine map for all
    networks, so that what does not change under the group stays so.
    """

    def __init__(self, reader: Reader, read: Read, graph: NeuralGraph, channels: int, outputs: int, seed: int) -> None:
        super().__init__()
        self.reader, self.reading = reader, read
        width = 2 * channels * (len(graph.layout.sets) + len(graph.layout.edges))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.norm = nn.BatchNorm1d(width)
            self.top = nn.Sequential(
                nn.Dropout(0.2), nn.Linear(width, 128), nn.GELU(), nn.Dropout(0.2), nn.Linear(128, outputs)
            )

    def calibrate(self, stack: Mapping[str, Tensor], *, sym: Symmetry) -> None:
        """Take the typical sizes of weights from networks."""
        self.reader.calibrate(self.reader.read({name: t[:CALIBRATED] for name, t in stack.items()}, sym=sym))

    def read(self, stack: Mapping[str, Tensor], *, sym: Symmetry) -> NeuralGraph:
        """Networks as the reader reads them."""
        return self.reading(sym, stack)

    def forward(self, networks: Mapping[str, Tensor] | NeuralGraph, *, sym: Symmetry) -> Tensor:
        """Scores of classes, (N, outputs)."""
        graph = networks if isinstance(networks, NeuralGraph) else self.read(networks, sym=sym)
        nodes, edges, _ = self.reader.features(graph)
        parts = [nodes[:, item.start : item.start + item.count] for item in graph.layout.sets]
        parts += [edges[block.name].flatten(1, -2) for block in graph.layout.edges]
        rows = [torch.cat([part.mean(1), (part.square().mean(1) + 1e-6).sqrt()], -1) for part in parts]
        scores: Tensor = self.top(self.norm(torch.cat(rows, 1)))
        return scores
