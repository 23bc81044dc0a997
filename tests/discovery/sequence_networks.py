"""Networks over tokens, sequences and plain features, each with the order of its maximal group worked out by hand."""

import torch
import torch.nn.functional as F
from groups import Case, group
from torch import Tensor, nn


class Mixer(nn.Module):
    """One MLP-Mixer block: a perceptron across tokens, one across channels, each behind a LayerNorm."""

    def __init__(self, tokens=4, width=5):
        super().__init__()
        self.embed, self.norm1, self.norm2 = nn.Linear(6, width), nn.LayerNorm(width), nn.LayerNorm(width)
        self.token1, self.token2 = nn.Linear(tokens, 7), nn.Linear(7, tokens)
        self.channel1, self.channel2 = nn.Linear(width, 8), nn.Linear(8, width)
        self.final, self.fc = nn.LayerNorm(width), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        x = x + self.token2(F.gelu(self.token1(self.norm1(x).mT))).mT
        x = x + self.channel2(F.gelu(self.channel1(self.norm2(x))))
        return self.fc(self.final(x).mean(1))


class Encoder(nn.Module):
    """nn.TransformerEncoderLayer between a linear embedding and a linear read-out."""

    def __init__(self, norm_first: bool, batch_first: bool = True):
        super().__init__()
        self.embed = nn.Linear(3, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 12, norm_first=norm_first, batch_first=batch_first)
        self.fc = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.layer(self.embed(x)).mean(1))


class CrossAttention(nn.Module):
    """nn.MultiheadAttention of one input on another, its averaged weights as a second output."""

    def __init__(self, need_weights: bool):
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 3, kdim=4, vdim=5, batch_first=True)
        self.need_weights = need_weights

    def forward(self, x: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        out, weights = self.attention(x, k, v, need_weights=self.need_weights)
        return (out,) if weights is None else (out, weights)


class FusedAttention(nn.Module):
    """Two heads of three dimensions; queries, keys and values from one linear map, taken apart in one of three ways."""

    def __init__(self, way: str):
        super().__init__()
        self.way, self.qkv, self.out = way, nn.Linear(5, 18), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        if self.way == "chunk":
            q, k, v = (part.view(b, t, 2, 3).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        elif self.way == "3,h,d":
            q, k, v = self.qkv(x).view(b, t, 3, 2, 3).permute(2, 0, 3, 1, 4).unbind(0)
        else:
            q, k, v = (part.transpose(1, 2) for part in self.qkv(x).view(b, t, 2, 3, 3).unbind(3))
        scores = torch.softmax(q @ k.transpose(-2, -1) / 3**0.5, -1)
        return self.out((scores @ v).transpose(1, 2).reshape(b, t, 6))


class TiedAutoencoder(nn.Module):
    """Decoder weights are the transposed encoder weights; two layers or one."""

    def __init__(self, activation, deep: bool):
        super().__init__()
        self.activation = activation
        self.first = nn.Linear(6, 5)
        self.second = nn.Linear(5, 4) if deep else None
        self.back = nn.Parameter(torch.zeros(5))
        self.out = nn.Parameter(torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.activation(self.first(x))
        if self.second is not None:
            hidden = self.activation(self.second(hidden) @ self.second.weight + self.back)
        return F.linear(hidden, self.first.weight.t(), self.out)


class Polynomial(nn.Module):
    """Squares, cubes, and a product of two linear maps."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(4, 5), nn.Linear(5, 3), nn.Linear(6, 2)
        self.left, self.right = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        powers = self.second(self.first(x) ** 2) ** 3
        return self.third(torch.cat([powers, self.left(x) * self.right(x)], -1))


class TwoInTwoOut(nn.Module):
    """Two inputs meet in one layer; the outputs read it, one of them beside a branch."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 5), nn.Linear(2, 4)
        self.join_a, self.join_b = nn.Linear(5, 6), nn.Linear(4, 6, bias=False)
        self.one, self.two = nn.Linear(6, 2), nn.Linear(10, 3)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        a, b = F.relu(self.a(x)), torch.tanh(self.b(y))
        z = F.relu(self.join_a(a) + self.join_b(b))
        return {"one": self.one(z), "two": self.two(torch.cat([z, b], -1))}


class Recurrent(nn.Module):
    """A recurrent network whose last state is read by a linear map."""

    def __init__(self, kind, **options):
        super().__init__()
        self.cells = kind(3, 5, **options)
        width = options.get("proj_size", 5) * (2 if options.get("bidirectional") else 1)
        self.fc = nn.Linear(width, 2)
        self.axis = 1 if options.get("batch_first") else 0

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.cells(x)[0].select(self.axis, -1))


class FinalState(nn.Module):
    """Learned initial states; the final ones of both layers are read."""

    def __init__(self):
        super().__init__()
        self.cells = nn.LSTM(3, 4, num_layers=2, batch_first=True)
        self.h0, self.c0 = nn.Parameter(torch.randn(2, 1, 4)), nn.Parameter(torch.randn(2, 1, 4))
        self.fc = nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        states = tuple(state.expand(2, x.shape[0], 4).contiguous() for state in (self.h0, self.c0))
        _, (h, c) = self.cells(x, states)
        return self.fc(torch.cat([h[0], h[1], c[0], c[1]], -1))


SEQUENCE: dict[str, Case] = {
    # The token perceptron's GELU lets no channel's scale through, only one common to what its norm gives; the other two
    # norms are read linearly; the stream has a common sign.
    "mlp-mixer": (Mixer, [(4, 6)], group("5 7 8", scales=5 + 5 + 1, signs=5 + 5 + 1 + 1)),
    # Heads, queries/keys and values inside; ReLU; the last norm is read linearly, before each norm a common sign.
    "encoder layer, post-norm": (
        lambda: Encoder(False), [(4, 3)], group("8 2 2x4 2x4 12", scales=8 + 8 + 12 + 8, signs=8 + 8 + 8 + 2),
    ),
    # Both norms are read linearly; one sign common to the stream.
    "encoder layer, pre-norm": (
        lambda: Encoder(True), [(4, 3)], group("8 2 2x4 2x4 12", scales=8 + 8 + 12 + 16, signs=8 + 8 + 16 + 1),
    ),
    "encoder layer, batch second": (
        lambda: Encoder(True, False), [(4, 3)], group("8 2 2x4 2x4 12", scales=8 + 8 + 12 + 16, signs=8 + 8 + 16 + 1),
    ),
    "multihead attention": (
        lambda: CrossAttention(False), [(4, 6), (3, 4), (3, 5)], group("3 3x2 3x2", scales=6 + 6, signs=6 + 6),
    ),
    "multihead attention, weights": (
        lambda: CrossAttention(True), [(4, 6), (3, 4), (3, 5)], group("3 3x2 3x2", scales=6 + 6, signs=6 + 6),
    ),
    **{
        f"fused attention, {way}": (
            lambda way=way: FusedAttention(way), [(4, 5)], group("2 2x3 2x3", scales=6 + 6, signs=6 + 6),
        )
        for way in ("chunk", "3,h,d", "h,3,d")
    },
    # d on the way in and d on the way out: d² = 1.
    "tied autoencoder, relu": (lambda: TiedAutoencoder(F.relu, False), [(6,)], group("5", scales=0, signs=0)),
    "tied autoencoder, tanh": (lambda: TiedAutoencoder(torch.tanh, False), [(6,)], group("5", scales=0, signs=5)),
    # The hidden units of encoder and decoder are one class with scales d and 1/d; the code itself keeps its signs.
    "tied autoencoder, deep": (lambda: TiedAutoencoder(F.relu, True), [(6,)], group("5 4", scales=5, signs=4)),
    # x²: a sign that ends there; x³: one that passes; a product: two of each.
    "polynomial": (Polynomial, [(4,)], group("5 3 3", scales=5 + 3 + 2 * 3, signs=5 + 3 + 2 * 3)),
    "two inputs, two outputs": (TwoInTwoOut, [(3,), (2,)], group("5 4 6", scales=5 + 6, signs=4)),
    # The cell's tanh lets signs through, the sigmoids nothing.
    "lstm": (lambda: Recurrent(nn.LSTM), [(4, 3)], group("5", scales=0, signs=5)),
    "lstm, two layers, both ways": (
        lambda: Recurrent(nn.LSTM, num_layers=2, bidirectional=True, batch_first=True), [(4, 3)],
        group("4*5", scales=0, signs=20),
    ),
    # The projected state is read by linear maps alone.
    "lstm, projected": (
        lambda: Recurrent(nn.LSTM, proj_size=3, batch_first=True), [(4, 3)], group("5 3", scales=3, signs=5 + 3),
    ),
    # One parameter holds the initial states of both layers on one axis, which can only carry one class.
    "lstm, learned states": (FinalState, [(5, 3)], group("4", scales=0, signs=4)),
    "gru": (lambda: Recurrent(nn.GRU, num_layers=2, bias=False), [(4, 3)], group("5 5", scales=0, signs=10)),
    "rnn, tanh": (lambda: Recurrent(nn.RNN, batch_first=True), [(4, 3)], group("5", scales=0, signs=5)),
    "rnn, relu": (lambda: Recurrent(nn.RNN, nonlinearity="relu"), [(4, 3)], group("5", scales=5, signs=0)),
}  # fmt: skip
