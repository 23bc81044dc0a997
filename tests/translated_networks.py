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
