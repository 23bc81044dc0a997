"""The Compact Convolutional Transformer (CCT), with self-attention and stochastic depth in a plain form."""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coset.errors import InputError
from coset.models._activations import ActivationSpec, make_activation
from coset.models._arguments import check_choice, check_count, check_flag, check_rate

_TOKENIZER_CHANNELS = 64


class Tokenizer(nn.Module):
    """Convolutions that turn an image into tokens: (N, C, S, S) to (N, T, dim).

    Each of ``layers`` is a convolution without bias, a ReLU and a maximum pooling of size 3, stride 2, padding 1;
    stride and padding of the convolution follow from its kernel k as published, max(1, k // 2 - 1) and k // 2.
    """

    def __init__(self, in_channels: int, dim: int, kernel: int, layers: int) -> None:
        super().__init__()
        channels = [in_channels, *[_TOKENIZER_CHANNELS] * (layers - 1), dim]
        self.convolutions = nn.ModuleList(
            nn.Conv2d(before, after, kernel, max(1, kernel // 2 - 1), kernel // 2, bias=False)
            for before, after in pairwise(channels)
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the convolutions from He et al. 2015 (normal, variance 2 / fan-in)."""
        for conv in self.convolutions:
            nn.init.kaiming_normal_(conv.get_parameter("weight"))

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convolutions:
            x = F.max_pool2d(F.relu(conv(x)), kernel_size=3, stride=2, padding=1)
        return x.flatten(2).transpose(1, 2)


class SelfAttention(nn.Module):
    """Multi-head self-attention, softmax(q kᵀ / √d) v per head, then a projection; (N, T, dim) to the same.

    ``qkv`` is one linear map without bias whose 3·dim rows are the queries, then the keys, then the values, each with
    the ``heads`` one after another and d = dim / heads rows per head. ``projection`` has a bias.
    """

    def __init__(self, dim: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads = heads
        self.scale = (dim // heads) ** -0.5
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.projection = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (self._split(part) for part in self.qkv(x).chunk(3, dim=-1))
        scores = (query @ key.transpose(-2, -1)) * self.scale
        mixed = self.dropout(scores.softmax(dim=-1)) @ value
        output: Tensor = self.projection(mixed.transpose(-3, -2).flatten(-2))
        return output

    def extra_repr(self) -> str:
        return f"heads={self.heads}"

    def _split(self, x: Tensor) -> Tensor:
        """(N, T, dim) to (N, heads, T, d)."""
        return x.view(*x.shape[:-1], self.heads, x.shape[-1] // self.heads).transpose(-3, -2)


class StochasticDepth(nn.Module):
    """In training drop the whole update of a sample with probability ``rate``, else divide it by 1 - rate.

    Huang et al., "Deep Networks with Stochastic Depth", 2016. (N, T, dim) to the same; the identity in eval mode.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return x
        kept = torch.ones_like(x[:, :1, :1])
        return x * F.dropout(kept, self.rate)

    def extra_repr(self) -> str:
        return f"rate={self.rate}"


class EncoderBlock(nn.Module):
    """Attention and a two-layer perceptron, each added to the stream and reading it through a LayerNorm.

    x ← x + attention(norm1(x)), x ← x + contract(σ(expand(norm2(x)))); (N, T, dim) to the same. With
    ``renormalize_stream=True`` the second sum is norm2(x) + contract(σ(expand(norm2(x)))), as in the authors' code.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        inner: int,
        *,
        activation: ActivationSpec,
        dropout: float,
        attention_dropout: float,
        stochastic_depth: float,
        renormalize_stream: bool,
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attention = SelfAttention(dim, heads, attention_dropout)
        self.norm2 = nn.LayerNorm(dim)
        self.expand = nn.Linear(dim, inner)
        self.activation = make_activation(activation)
        self.contract = nn.Linear(inner, dim)
        self.dropout = nn.Dropout(dropout)
        self.stochastic_depth = StochasticDepth(stochastic_depth)
        self.renormalize_stream = check_flag("renormalize_stream", renormalize_stream)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.stochastic_depth(self.dropout(self.attention(self.norm1(x))))
        normalized: Tensor = self.norm2(x)
        update = self.contract(self.dropout(self.activation(self.expand(normalized))))
        output: Tensor = self.stochastic_depth(self.dropout(update)) + (normalized if self.renormalize_stream else x)
        return output

    def extra_repr(self) -> str:
        return f"renormalize_stream={self.renormalize_stream}"


class CCT(nn.Module):
    """Compact Convolutional Transformer: (N, in_channels, image_size, image_size) to (N, classes).

    Hassani et al., "Escaping the Big Data Paradigm with Compact Transformers", 2021. The defaults are CCT-6/3×1 with
    sinusoidal positions. Tokens from convolutions, ``depth`` encoder blocks, a LayerNorm, sequence pooling
    Σ_t softmax_t(pool(x))_t · x_t, a linear layer. Queries, keys and values come from one fused linear map without
    bias, as published.

    ``dropout`` (0), ``attention_dropout`` (0.1) and ``stochastic_depth`` (0 in the first block growing linearly to 0.1
    in the last) are as published and act in training mode only.

    The paper's blocks are pre-norm, as here by default. In the authors' code the second LayerNorm of a block also
    replaces the residual stream, and ``renormalize_stream=True`` does the same, with the parameters of the pre-norm
    block. The transformers of Godfrey et al. 2022, D.4, six blocks with sinusoidal positions, come from that code: they
    are the network with ``renormalize_stream=True``.

    Linear weights start from a truncated normal of deviation 0.02, biases from 0, convolutions from He et al. 2015,
    learnable positions from a truncated normal of deviation 0.2.

    Parameters: ``tokenizer.convolutions.i``, ``positions`` (T, dim; a buffer if "sine", a parameter if "learnable"),
    ``blocks.i.norm1``, ``.attention.qkv``, ``.attention.projection``, ``.norm2``, ``.expand``, ``.contract``, ``norm``,
    ``pool``, ``fc``. The bias of ``pool`` cancels in the softmax; it is kept because the published model has it.
    """

    positions: Tensor

    def __init__(
        self,
        *,
        dim: int = 256,
        depth: int = 6,
        heads: int = 4,
        mlp_ratio: int = 2,
        kernel: int = 3,
        convolutions: int = 1,
        positions: str = "sine",
        activation: ActivationSpec = "gelu",
        dropout: float = 0.0,
        attention_dropout: float = 0.1,
        stochastic_depth: float = 0.1,
        renormalize_stream: bool = False,
        image_size: int = 32,
        in_channels: int = 3,
        classes: int = 10,
    ) -> None:
        super().__init__()
        if check_count("dim", dim) % check_count("heads", heads):
            raise InputError(f"dim must be a multiple of heads, found dim={dim} and heads={heads}")
        if check_count("kernel", kernel) % 2 == 0:
            raise InputError(f"kernel must be odd, found {kernel}")
        check_rate("dropout", dropout)
        check_rate("attention_dropout", attention_dropout)
        last = max(check_count("depth", depth) - 1, 1)
        rates = [check_rate("stochastic_depth", stochastic_depth) * index / last for index in range(depth)]
        self.tokenizer = Tokenizer(
            check_count("in_channels", in_channels), dim, kernel, check_count("convolutions", convolutions)
        )
        with torch.no_grad():
            side = check_count("image_size", image_size)
            tokens = self.tokenizer(torch.zeros(1, in_channels, side, side)).shape[1]
        if check_choice("positions", positions, ("sine", "learnable")) == "sine":
            self.register_buffer("positions", sinusoids(tokens, dim))
        else:
            self.positions = nn.Parameter(torch.empty(tokens, dim))
        # Positions are drawn before the blocks are made, linear maps after: what a seed gives depends on the order.
        self._reset_positions()
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(
            EncoderBlock(
                dim,
                heads,
                dim * check_count("mlp_ratio", mlp_ratio),
                activation=activation,
                dropout=dropout,
                attention_dropout=attention_dropout,
                stochastic_depth=rate,
                renormalize_stream=renormalize_stream,
            )
            for rate in rates
        )
        self.norm = nn.LayerNorm(dim)
        self.pool = nn.Linear(dim, 1)
        self.fc = nn.Linear(dim, check_count("classes", classes))
        self.input_shape: tuple[int, ...] = (in_channels, image_size, image_size)
        self._reset_linear()

    def reset_parameters(self) -> None:
        """Draw positions and linear maps; the tokenizer draws its own, and the norms start as they do by themselves."""
        self._reset_positions()
        self._reset_linear()

    def forward(self, x: Tensor) -> Tensor:
        x = self.dropout(self.tokenizer(x) + self.positions)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        shares = self.pool(x).softmax(dim=1)
        output: Tensor = self.fc((shares.transpose(1, 2) @ x).squeeze(1))
        return output

    def _reset_positions(self) -> None:
        if isinstance(self.positions, nn.Parameter):
            nn.init.trunc_normal_(self.positions, std=0.2)

    def _reset_linear(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)


def sinusoids(tokens: int, dim: int) -> Tensor:
    """Return the positions of Vaswani et al. 2017, (tokens, dim).

    sin(t / 10000^(i/dim)) at even i, cos(t / 10000^((i-1)/dim)) at odd i.
    """
    index = torch.arange(dim)
    rate = 10000.0 ** (-(index - index % 2) / dim)
    angle = torch.arange(tokens).unsqueeze(1) * rate
    return torch.where(index % 2 == 0, angle.sin(), angle.cos())
