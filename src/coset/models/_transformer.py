"""A small pre-norm transformer on tokens, with either norm and either kind of positions, and text drawn from it."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coset.errors import InputError
from coset.models._activations import ActivationSpec, make_activation
from coset.models._arguments import check_choice, check_count, check_flag

NORMS: dict[str, type[nn.LayerNorm] | type[nn.RMSNorm]] = {"layer": nn.LayerNorm, "rms": nn.RMSNorm}

EPSILON = 1e-5
"""Of either norm: PyTorch's own default for RMSNorm depends on the floating point type."""

ROTARY_BASE = 10_000.0
"""The slowest pair of rotary positions turns by nearly 1 / base per token (Su et al. 2021)."""


class Attention(nn.Module):
    """softmax(q kᵀ / √d_h) v per head, then a projection; (N, T, dim) to the same.

    ``causal``: no token sees later ones. ``rotary`` of length T turns queries and keys by their positions: coordinates
    i and i + d_h/2 are one pair, turned by t · base^(−2i/d_h) at token t.
    """

    cosines: Tensor
    sines: Tensor

    def __init__(self, dim: int, heads: int, *, causal: bool, bias: bool, rotary: int | None = None) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.query, self.key, self.value, self.projection = (nn.Linear(dim, dim, bias=bias) for _ in range(4))
        self.rotary = rotary is not None
        if rotary is not None:
            angles = _angles(rotary, dim // heads)
            self.register_buffer("cosines", angles.cos(), persistent=False)
            self.register_buffer("sines", angles.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (self._split(part(x)) for part in (self.query, self.key, self.value))
        if self.rotary:
            query, key = self._turn(query), self._turn(key)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        output: Tensor = self.projection(mixed.transpose(-3, -2).flatten(-2))
        return output

    def extra_repr(self) -> str:
        return f"heads={self.heads}, causal={self.causal}, rotary={self.rotary}"

    def _split(self, x: Tensor) -> Tensor:
        """(N, T, dim) to (N, heads, T, d_h)."""
        return x.view(*x.shape[:-1], self.heads, x.shape[-1] // self.heads).transpose(-3, -2)

    def _turn(self, x: Tensor) -> Tensor:
        """Each pair (a, b) of (N, heads, T, d_h) becomes (a cos − b sin, b cos + a sin)."""
        count = x.shape[-2]
        first, second = x.chunk(2, dim=-1)
        cosines, sines = self.cosines[:count], self.sines[:count]
        return torch.cat([first * cosines - second * sines, second * cosines + first * sines], dim=-1)


class PreNormBlock(nn.Module):
    """x ← x + attention(norm1(x)), x ← x + contract(σ(expand(norm2(x)))); (N, T, dim) to the same."""

    def __init__(
        self,
        dim: int,
        heads: int,
        inner: int,
        *,
        norm: str,
        activation: ActivationSpec,
        causal: bool,
        bias: bool,
        rotary: int | None = None,
    ) -> None:
        super().__init__()
        self.norm1 = NORMS[norm](dim, eps=EPSILON)
        self.attention = Attention(dim, heads, causal=causal, bias=bias, rotary=rotary)
        self.norm2 = NORMS[norm](dim, eps=EPSILON)
        self.expand = nn.Linear(dim, inner, bias=bias)
        self.activation = make_activation(activation)
        self.contract = nn.Linear(inner, dim, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        output: Tensor = x + self.contract(self.activation(self.expand(self.norm2(x))))
        return output


class Transformer(nn.Module):
    """Pre-norm transformer that predicts the next token: tokens (N, T) to logits (N, T, vocabulary), T ≤ context.

    An embedding, ``depth`` blocks, a norm and a linear map, ``head``, with weights of its own. ``norm`` is "layer" or
    "rms". ``positions`` are "learned", added to the embedding (GPT-2), or "rotary", turning queries and keys (Su et
    al. 2021). ``bias`` of the linear maps inside the blocks; ``head`` has none.

    Weights start from normals of deviation 1/√(width of their input), those that write to the stream divided by
    √(2·depth); embedding and positions from deviation 0.1, biases from 0.

    Parameters: ``embedding``, ``positions`` (context, dim; if learned), ``blocks.i.norm1``, ``.attention.query``,
    ``.key``, ``.value``, ``.projection``, ``.norm2``, ``.expand``, ``.contract``, ``norm``, ``head``.
    """

    def __init__(
        self,
        *,
        vocabulary: int = 65,
        context: int = 128,
        dim: int = 128,
        depth: int = 2,
        heads: int = 4,
        mlp_ratio: int = 4,
        norm: str = "layer",
        positions: str = "learned",
        activation: ActivationSpec = "gelu",
        bias: bool = True,
    ) -> None:
        super().__init__()
        if check_count("dim", dim) % check_count("heads", heads):
            raise InputError(f"dim must be a multiple of heads, found dim={dim} and heads={heads}")
        rotary = check_choice("positions", positions, ("learned", "rotary")) == "rotary"
        if rotary and dim // heads % 2:
            raise InputError(f"rotary positions turn pairs: dim / heads must be even, found {dim // heads}")
        check_choice("norm", norm, NORMS)
        check_flag("bias", bias)
        inner = dim * check_count("mlp_ratio", mlp_ratio)
        self.vocabulary = check_count("vocabulary", vocabulary)
        self.input_shape: tuple[int, ...] = (check_count("context", context),)
        self.embedding = nn.Embedding(vocabulary, dim)
        self.positions = None if rotary else nn.Parameter(torch.empty(context, dim))
        turned = context if rotary else None
        self.blocks = nn.ModuleList(
            PreNormBlock(dim, heads, inner, norm=norm, activation=activation, causal=True, bias=bias, rotary=turned)
            for _ in range(check_count("depth", depth))
        )
        self.norm = NORMS[norm](dim, eps=EPSILON)
        self.head = nn.Linear(dim, vocabulary, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all weights; the norms start as they do by themselves."""
        nn.init.normal_(self.embedding.weight, std=0.1)
        if self.positions is not None:
            nn.init.normal_(self.positions, std=0.1)
        reset_linear(self, len(self.blocks))

    def forward(self, x: Tensor) -> Tensor:
        count = x.shape[-1]
        x = self.embedding(x)
        if self.positions is not None:
            x = x + self.positions[:count]
        for block in self.blocks:
            x = block(x)
        output: Tensor = self.head(self.norm(x))
        return output


def reset_linear(model: nn.Module, depth: int) -> None:
    """Draw the linear maps of a model of ``depth`` blocks: normals of deviation 1/√(width of the input), biases 0.

    Those that write to the stream are divided by √(2·depth), so that it does not grow with the depth.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            shrink = (2 * depth) ** -0.5 if name.endswith(("projection", "contract")) else 1.0
            nn.init.normal_(module.weight, std=shrink * module.in_features**-0.5)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def generate(model: nn.Module, prompt: Tensor, length: int, *, generator: torch.Generator) -> Tensor:
    """``prompt`` (T,) of whole numbers and ``length`` more tokens, each drawn from what ``model`` predicts.

    Token t + 1 has the probabilities softmax(model(tokens up to t))_t. The model sees as many of the last tokens as its
    ``input_shape`` says, or all; it runs in the mode it is in, without gradients.
    """
    check_count("length", length)
    if prompt.dim() != 1 or len(prompt) == 0 or prompt.is_floating_point():
        raise InputError(f"prompt must be whole numbers of shape (T,), found {prompt.dtype} of {tuple(prompt.shape)}")
    context = getattr(model, "input_shape", (len(prompt) + length,))[0]
    tokens = prompt.long()
    with torch.no_grad():
        for _ in range(length):
            logits = model(tokens[-context:].unsqueeze(0))[0, -1]
            drawn = torch.multinomial(logits.softmax(-1).cpu(), 1, generator=generator)
            tokens = torch.cat([tokens, drawn.to(tokens.device)])
    return tokens


def _angles(count: int, width: int) -> Tensor:
    """(count, width/2): t · base^(−2i/width) at place t and pair i."""
    rates = ROTARY_BASE ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    return torch.outer(torch.arange(count, dtype=torch.float64), rates).to(torch.get_default_dtype())
