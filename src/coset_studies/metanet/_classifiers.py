"""Readers of the same networks: graphs are made once for all of them."""

import hashlib
from collections.abc import Callable, Mapping

from torch import Tensor, nn

from coset.metanet import NeuralGraph, Reader
from coset.symmetry import Symmetry

Read = Callable[[Symmetry, Mapping[str, Tensor]], NeuralGraph]


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


class Sharing(nn.Module):
    """A reader that shares the graphs it makes, by ``reading``, with others of its gauge."""

    def __init__(self, reader: Reader, read: Read) -> None:
        super().__init__()
        self.reader, self.reading = reader, read

    def calibrate(self, stack: Mapping[str, Tensor], *, sym: Symmetry) -> None:
        """Calibrate the reader."""
        self.reader.calibrate(self.read(stack, sym=sym))

    def read(self, stack: Mapping[str, Tensor], *, sym: Symmetry) -> NeuralGraph:
        """Networks as the reader reads them."""
        return self.reading(sym, stack)

    def forward(self, networks: Mapping[str, Tensor] | NeuralGraph, *, sym: Symmetry) -> Tensor:
        """What the reader says, (N, outputs)."""
        answers: Tensor = self.reader(networks if isinstance(networks, NeuralGraph) else self.read(networks, sym=sym))
        return answers
