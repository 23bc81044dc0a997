"""A small Vision Transformer: patches of an image as tokens of a pre-norm transformer."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coset.errors import InputError
from coset.models._activations import ActivationSpec
from coset.models._arguments import check_choice, check_count, check_flag
from coset.models._transformer import EPSILON, NORMS, PreNormBlock, reset_linear


class VisionTransformer(nn.Module):
    """Vision Transformer: (N, in_channels, image_size, image_size) to (N, classes).

    Dosovitskiy et al., "An Image is Worth 16x16 Words", 2021, with the mean over tokens in place of a token for the
    class. Patches of ``patch`` × ``patch`` pixels are mapped to the stream by one linear map, learned positions are
    added; ``depth`` pre-norm blocks, a norm ("layer" or "rms"), the mean over tokens, a linear layer. Weights start as
    those of ``Transformer``.

    Parameters: ``patches``, ``positions`` (tokens, dim), ``blocks.i`` as in ``Transformer``, ``norm``, ``head``.
    """

    def __init__(
        self,
        *,
        patch: int = 4,
        dim: int = 64,
        depth: int = 2,
        heads: int = 4,
        mlp_ratio: int = 4,
        norm: str = "layer",
        activation: ActivationSpec = "gelu",
        bias: bool = True,
        image_size: int = 32,
        in_channels: int = 3,
        classes: int = 10,
    ) -> None:
        super().__init__()
        if check_count("dim", dim) % check_count("heads", heads):
            raise InputError(f"dim must be a multiple of heads, found dim={dim} and heads={heads}")
        if check_count("image_size", image_size) % check_count("patch", patch):
            raise InputError(f"image_size must be a multiple of patch, found {image_size} and {patch}")
        check_choice("norm", norm, NORMS)
        check_flag("bias", bias)
        inner = dim * check_count("mlp_ratio", mlp_ratio)
        self.patch = patch
        self.input_shape: tuple[int, ...] = (check_count("in_channels", in_channels), image_size, image_size)
        self.patches = nn.Linear(in_channels * patch**2, dim)
        self.positions = nn.Parameter(torch.empty((image_size // patch) ** 2, dim))
        self.blocks = nn.ModuleList(
            PreNormBlock(dim, heads, inner, norm=norm, activation=activation, causal=False, bias=bias)
            for _ in range(check_count("depth", depth))
        )
        self.norm = NORMS[norm](dim, eps=EPSILON)
        self.head = nn.Linear(dim, check_count("classes", classes))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all weights; the norms start as they do by themselves."""
        nn.init.normal_(self.positions, std=0.1)
        reset_linear(self, len(self.blocks))

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(F.unfold(x, self.patch, stride=self.patch).transpose(1, 2)) + self.positions
        for block in self.blocks:
            x = block(x)
        output: Tensor = self.head(self.norm(x).mean(1))
        return output

    def extra_repr(self) -> str:
        return f"patch={self.patch}"
