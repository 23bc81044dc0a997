"""Small transformers as GPT-2 and BERT are, with all their biases, whose null directions are known."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mixing_networks import Block, LanguageModel

D, HEADS, HIDDEN, WORDS, LENGTH, TYPES = 8, 2, 6, 12, 6, 2


def gpt2(layers: int, *, tied: bool = True) -> nn.Module:
    return LanguageModel(nn.LayerNorm, layers, tied, D, WORDS, heads=HEADS, hidden=HIDDEN)


class Bert(nn.Module):
    """Post-norm, with types of tokens and a head that is tied to the words; types follow from tokens."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, D), nn.Embedding(LENGTH, D)
        self.types, self.norm = nn.Embedding(TYPES, D), nn.LayerNorm(D, eps=1e-2)
        self.blocks = nn.ModuleList(
            Block(nn.LayerNorm, D, heads=HEADS, hidden=HIDDEN, after=True) for _ in range(layers)
        )
        self.transform, self.last = nn.Linear(D, D), nn.LayerNorm(D, eps=1e-2)
        self.bias = nn.Parameter(torch.zeros(WORDS))

    def forward(self, both: Tensor) -> Tensor:
        """``both``: tokens and, in front of them by WORDS, their types."""
        tokens, types = both % WORDS, both // WORDS
        x = self.words(tokens) + self.places(torch.arange(both.shape[1])) + self.types(types)
        x = self.norm(x)
        for block in self.blocks:
            x = block(x)
        x = self.last(F.gelu(self.transform(x)))
        return F.linear(x, self.words.weight, self.bias)


def tokens(count: int, kinds: int = WORDS, seed: int = 0) -> Tensor:
    return torch.randint(kinds, (count, LENGTH), generator=torch.Generator().manual_seed(seed))


class Attending(nn.Module):
    """Heads with biases in front of a tanh; ``how`` scores are made decides what may be added to keys and values."""

    def __init__(self, how: str = "plain", out_bias: bool = True) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(4, 4) for _ in range(3))
        self.o, self.last, self.how = nn.Linear(4, 4, bias=out_bias), nn.Linear(4, 3), how

    def turned(self, x: Tensor) -> Tensor:
        """Pairs (i, i + half) by angles that grow with the place."""
        half = x.shape[-1] // 2
        angles = torch.arange(5, dtype=x.dtype)[:, None] * torch.tensor([1.0, 0.1], dtype=x.dtype)[:half].repeat(2)
        return x * angles.cos() + torch.cat([-x[..., half:], x[..., :half]], -1) * angles.sin()

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x) for part in (self.q, self.k, self.v))
        if self.how == "rotary":
            q, k = self.turned(q), self.turned(k)
        if self.how == "partly rotary":
            q, k = (torch.cat([self.turned(part[..., :2]), part[..., 2:]], -1) for part in (q, k))
        if self.how == "normed":
            q, k = (F.rms_norm(part, (4,), eps=1e-2) for part in (q, k))
        if self.how == "zero key":
            k, v = (torch.cat([part, torch.zeros_like(part[:, :1])], 1) for part in (k, v))
        if self.how in ("plain", "written out", "capped"):
            scores = q @ k.transpose(-2, -1) / 2
            scores = 3 * torch.tanh(scores / 3) if self.how == "capped" else scores
            mask = torch.ones(5, 5, dtype=torch.bool).triu(1)
            mixed = torch.softmax(scores.masked_fill(mask, float("-inf")), -1) @ v
        else:
            mixed = F.scaled_dot_product_attention(q, k, v)
        return self.last(torch.tanh(self.o(mixed)))


class Batched(nn.Module):
    """Convolutions with biases in front of batch norms, and one linear bottleneck, padded or not."""

    def __init__(self, padding: int = 0) -> None:
        super().__init__()
        self.one, self.norm1 = nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)
        self.two, self.norm2 = nn.Conv2d(3, 4, 3, padding=padding, bias=False), nn.BatchNorm2d(4)
        self.last = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm2(self.two(self.norm1(self.one(x)))))
        return self.last(x.mean((2, 3)))


class Vision(nn.Module):
    """Patches, a token of the class, positions, one block without biases of queries, keys and values, norms first."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(2, 6, 2, stride=2)
        self.first, self.places = nn.Parameter(torch.randn(1, 1, 6)), nn.Parameter(torch.randn(1, 5, 6))
        self.norm, self.qkv, self.o = nn.LayerNorm(6, eps=1e-2), nn.Linear(6, 9, bias=False), nn.Linear(3, 6)
        self.final, self.last = nn.LayerNorm(6, eps=1e-2), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(x), -1, -1), x], 1) + self.places
        q, k, v = self.qkv(self.norm(x)).view(len(x), 5, 3, 1, 3).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return self.last(self.final(x).mean(1))


class Placed(nn.Module):
    """Positions for ``length`` tokens, of which inputs of five read the first."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.one, self.places = nn.Linear(4, 5), nn.Parameter(torch.randn(length, 5))
        self.norm, self.two = nn.LayerNorm(5, eps=1e-2), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.norm(self.one(x) + self.places[: x.shape[1]]))


class WrittenOut(nn.Module):
    """A linear map into a norm that is written out."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(x)
        x = x - x.mean(-1, keepdim=True)
        return self.two(x / (x.square().mean(-1, keepdim=True) + 1e-2).sqrt())
