"""Networks of cells, with normed weights, on graphs, on frequencies, of cosines; their maximal groups by hand."""

import torch
import torch.nn.functional as F
from groups import Case, group
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm


class Unrolled(nn.Module):
    """Two cells on top of each other, step by step from zeros; the state of the second is read by a linear map."""

    def __init__(self, kind, **options):
        super().__init__()
        self.first, self.second, self.fc = kind(3, 5, **options), kind(5, 4, **options), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        one = two = None
        for step in x.unbind(1):
            one = self.first(step, one)
            two = self.second(one[0] if isinstance(one, tuple) else one, two)
        return self.fc(two[0] if isinstance(two, tuple) else two)


class Decoder(nn.Module):
    """A GRU cell that reads what it wrote, from a learned state."""

    def __init__(self):
        super().__init__()
        self.start, self.cell, self.out = nn.Parameter(torch.randn(5)), nn.GRUCell(3, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        state, words = self.start.expand(x.shape[0], 5), [x]
        for _ in range(2):
            state = self.cell(words[-1], state)
            words.append(self.out(state))
        return torch.stack(words[1:], 1)


class Critic(nn.Module):
    """Three spectrally normed layers with leaky ReLUs between them."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = spectral_norm(nn.Conv2d(2, 4, 3)), spectral_norm(nn.Conv2d(4, 5, 2))
        self.fc = spectral_norm(nn.Linear(5 * 4, 2))

    def forward(self, x: Tensor) -> Tensor:
        x = F.leaky_relu(self.conv2(F.leaky_relu(self.conv1(x), 0.1)), 0.1)
        return self.fc(x.flatten(1))


class MessagePassing(nn.Module):
    """Messages along five edges between four nodes, summed or averaged at the nodes they reach."""

    def __init__(self, average: bool):
        super().__init__()
        self.average = average
        self.embed, self.message = nn.Linear(3, 5), nn.Linear(10, 6)
        self.update, self.fc = nn.Linear(5 + 6, 7), nn.Linear(7, 2)
        self.register_buffer("edges", torch.tensor([[0, 1, 2, 3, 0], [1, 2, 3, 0, 2]]))

    def forward(self, x: Tensor) -> Tensor:
        nodes = F.relu(self.embed(x))
        source, target = self.edges[0], self.edges[1]
        messages = self.message(torch.cat([nodes[:, source], nodes[:, target]], -1))
        if self.average:
            index = target[:, None].expand(x.shape[0], 5, 6)
            sums = x.new_zeros(x.shape[0], 4, 6).scatter_reduce(1, index, messages, "mean")
        else:
            sums = x.new_zeros(x.shape[0], 4, 6).index_add(1, target, F.relu(messages))
        return self.fc(F.relu(self.update(torch.cat([nodes, sums], -1))).mean(1))


class FourierOperator(nn.Module):
    """One layer of a Fourier neural operator: complex weights on three modes beside a pointwise linear map."""

    def __init__(self):
        super().__init__()
        self.lift, self.pointwise = nn.Linear(1, 4), nn.Conv1d(4, 5, 1)
        self.modes = nn.Parameter(torch.randn(4, 5, 3, dtype=torch.cdouble))
        self.project, self.out = nn.Linear(5, 6), nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.lift(x).transpose(1, 2)
        spectrum = torch.fft.rfft(x)
        kept = torch.zeros(x.shape[0], 5, spectrum.shape[-1], dtype=spectrum.dtype)
        kept[..., :3] = torch.einsum("bim,iom->bom", spectrum[..., :3], self.modes)
        x = F.gelu(torch.fft.irfft(kept, n=x.shape[-1]) + self.pointwise(x))
        return self.out(F.gelu(self.project(x.transpose(1, 2))))


class CosineHead(nn.Module):
    """Cosines of an embedding with learned prototypes, written with norms or as one operation."""

    def __init__(self, fused: bool):
        super().__init__()
        self.fused, self.first, self.embed = fused, nn.Linear(4, 5), nn.Linear(5, 6)
        self.prototypes = nn.Parameter(torch.randn(3, 6))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(F.relu(self.first(x)))
        if self.fused:
            return 10 * F.cosine_similarity(x[:, None], self.prototypes, dim=-1)
        return 10 * F.normalize(x, dim=-1) @ F.normalize(self.prototypes, dim=-1).T


FURTHER: dict[str, Case] = {
    # As the recurrent networks of as many layers: tanh lets signs through, the sigmoids nothing.
    "lstm cells": (lambda: Unrolled(nn.LSTMCell), [(3, 3)], group("5 4", scales=0, signs=5 + 4)),
    "gru cells": (lambda: Unrolled(nn.GRUCell, bias=False), [(3, 3)], group("5 4", scales=0, signs=5 + 4)),
    "rnn cells, relu": (lambda: Unrolled(nn.RNNCell, nonlinearity="relu"), [(3, 3)], group("5 4", scales=9, signs=0)),
    "gru decoder": (Decoder, [(3,)], group("5", scales=0, signs=5)),
    # W/(uᵀWv), three times: a scale of every unit (in W, u, the bias and what reads it, its v included); W alone, which
    # ends there, and u against v. Of the last two each has a sign, too.
    "spectral norm": (Critic, [(2, 5, 5)], group("4 5", scales=4 + 5 + 3 * 2, signs=3 * 2)),
    # ReLU behind the embedding and in the update; behind the messages, or nothing but their sum.
    "message passing": (lambda: MessagePassing(False), [(4, 3)], group("5 6 7", scales=5 + 6 + 7, signs=0)),
    "message passing, mean": (lambda: MessagePassing(True), [(4, 3)], group("5 6 7", scales=5 + 6 + 7, signs=6)),
    # The lifted units are read linearly, by the modes and pointwise; GELU lets nothing through.
    "fourier operator": (FourierOperator, [(8, 1)], group("4 5 6", scales=4, signs=4)),
    # ReLU; the embedding's signs go with the prototypes', its scales end at the norms' ε.
    "cosine head": (lambda: CosineHead(False), [(4,)], group("5 6", scales=5, signs=6)),
    "cosine head, fused": (lambda: CosineHead(True), [(4,)], group("5 6", scales=5, signs=6)),
}  # fmt: skip
