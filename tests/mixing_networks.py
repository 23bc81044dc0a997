"""Small networks with classes that matrices may mix."""

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coset.symmetry import discover
from discoveries import shared
from rotary_networks import RotaryModel, as_complex, side_by_side


class LowRankAdapter(nn.Module):
    """W + BA."""

    def __init__(self):
        super().__init__()
        self.whole, self.last = nn.Linear(5, 6), nn.Linear(6, 3)
        self.down, self.up = nn.Linear(5, 2, bias=False), nn.Linear(2, 6, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.whole(x) + self.up(self.down(x))))


class Gained(nn.Module):
    """Two linear maps with a gain between them."""

    def __init__(self):
        super().__init__()
        self.down, self.gain, self.up = nn.Linear(6, 3), nn.Parameter(torch.randn(3)), nn.Linear(3, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(self.gain * self.down(x))


class CosineHead(nn.Module):
    """Features and prototypes on the sphere."""

    def __init__(self):
        super().__init__()
        self.features, self.prototypes = nn.Linear(5, 6), nn.Parameter(torch.randn(4, 6))

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(self.features(x), dim=-1) @ F.normalize(self.prototypes, dim=-1).T


class Heads(nn.Module):
    """torch's own attention, with one weight for queries, keys and values."""

    def __init__(self):
        super().__init__()
        self.attention, self.last = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.attention(x, x, x, need_weights=False)[0]))


class Block(nn.Module):
    """A layer of a transformer, norms first, with queries on fewer keys if ``shared``."""

    def __init__(self, norm, d=8, heads=2, hidden=6, shared=1, after=False):
        super().__init__()
        self.norm1, self.norm2 = norm(d, eps=1e-2), norm(d, eps=1e-2)
        self.q, self.o = nn.Linear(d, d), nn.Linear(d, d)
        self.k, self.v = nn.Linear(d, d // shared), nn.Linear(d, d // shared)
        self.up, self.down = nn.Linear(d, hidden), nn.Linear(hidden, d)
        self.heads, self.shared, self.after = heads, shared, after

    def attend(self, y: Tensor) -> Tensor:
        b, t, d = y.shape
        q, k, v = (part(y).view(b, t, -1, d // self.heads).transpose(1, 2) for part in (self.q, self.k, self.v))
        k, v = (part.repeat_interleave(self.shared, 1) for part in (k, v))
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d))

    def forward(self, x: Tensor) -> Tensor:
        if self.after:
            x = self.norm1(x + self.attend(x))
            return self.norm2(x + self.down(F.gelu(self.up(x))))
        x = x + self.attend(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class LanguageModel(nn.Module):
    """Tokens in, scores of tokens out."""

    def __init__(self, norm=nn.LayerNorm, layers=1, tied=False, d=8, words=12, **block):
        super().__init__()
        self.words, self.places = nn.Embedding(words, d), nn.Embedding(6, d)
        self.blocks = nn.ModuleList(Block(norm, d, **block) for _ in range(layers))
        self.norm, self.head = norm(d, eps=1e-2), nn.Linear(d, words, bias=False)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class PlainRMS(nn.Module):
    """x·γ/√(mean x² + ε), written out as many do."""

    def __init__(self, d, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(d)), eps

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


def flat(*shape):
    return lambda generator: torch.randn(*shape, generator=generator, dtype=torch.float64)


def tokens(generator):
    return torch.randint(12, (2, 6), generator=generator)


NETWORKS = {
    "deep linear": (lambda: nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3), nn.Linear(3, 2)), flat(3, 5)),
    "linear autoencoder": (lambda: nn.Sequential(nn.Linear(5, 2), nn.Linear(2, 5)), flat(3, 5)),
    "bottleneck": (
        lambda: nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3), nn.Linear(3, 7), nn.ReLU(), nn.Linear(7, 5)),
        flat(3, 5),
    ),
    "convolutions": (lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.Conv2d(4, 3, 1), nn.ReLU()), flat(2, 2, 6, 6)),
    "low-rank adapter": (LowRankAdapter, flat(3, 5)),
    "gain between maps": (Gained, flat(3, 6)),
    "cosine head": (CosineHead, flat(3, 5)),
    "heads": (Heads, flat(2, 4, 8)),
    "layer norm": (LanguageModel, tokens),
    "layer norm, two layers": (lambda: LanguageModel(layers=2), tokens),
    "layer norm, tied": (lambda: LanguageModel(tied=True), tokens),
    "rms norm": (lambda: LanguageModel(nn.RMSNorm), tokens),
    "rms norm, written out": (lambda: LanguageModel(PlainRMS), tokens),
    "rms norm, tied": (lambda: LanguageModel(nn.RMSNorm, tied=True), tokens),
    "grouped queries": (lambda: LanguageModel(nn.RMSNorm, shared=2), tokens),
    "norms behind": (lambda: LanguageModel(after=True), tokens),
    "rotary halves": (RotaryModel, tokens),
    "rotary neighbours": (lambda: RotaryModel(side_by_side, d=16, heads=4, shared=2), tokens),
    "rotary, one key": (lambda: RotaryModel(layers=2, shared=2), tokens),
    "rotary in part": (lambda: RotaryModel(as_complex, d=16, rotary=4, bias=True), tokens),
    "rotary, norms of queries": (lambda: RotaryModel(normed=True), tokens),
    "rotary, tied": (lambda: RotaryModel(tied=True), tokens),
}


@lru_cache
def setting(name):
    """A network in general position, its symmetry and inputs that discovery has not seen."""
    build, inputs = NETWORKS[name]
    torch.manual_seed(0)
    model = build().double().eval()
    generator = torch.Generator().manual_seed(1)
    x = inputs(generator)
    sym = shared(f"mixing: {name}", model, lambda: discover(model, x))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
            if parameter.ndim == 1:
                parameter.add_(1.5 * torch.where(parameter < 0, -1, 1))
    return model, sym, dict(model.state_dict()), inputs(generator)


def outputs(model, params, x):
    owners = {name: params[name] for name, _ in (*model.named_parameters(), *model.named_buffers())}
    with torch.no_grad():
        return torch.func.functional_call(model, owners, (x,))
