"""Models of ``diffusers``: denoisers and autoencoders."""

from collections.abc import Callable
from typing import Any

import torch

from fuzz.architectures.architecture import Architecture, Inputs, Maker, images, of_diffusers

BLOCKS: dict[str, Any] = {"block_out_channels": (8, 16), "norm_num_groups": 4, "layers_per_block": 1}
Extra = Callable[[torch.Generator, int], Inputs]


def _noisy(channels: int, name: str, extra: Extra) -> Maker:
    """Noisy images at random times, and what else a denoiser is told."""

    def make(generator: torch.Generator, batch: int, side: int) -> Inputs:
        times = {"timestep": torch.randint(0, 1000, (batch,), generator=generator)}
        return images(channels, name)(generator, batch, side) | times | extra(generator, batch)

    return make


def _nothing(generator: torch.Generator, batch: int) -> Inputs:
    return {}


def _words(width: int) -> Extra:
    return lambda generator, batch: {"encoder_hidden_states": torch.randn(batch, 5, width, generator=generator)}


def _words_and_summary(width: int, summary: int) -> Extra:
    def extra(generator: torch.Generator, batch: int) -> Inputs:
        return _words(width)(generator, batch) | {
            "pooled_projections": torch.randn(batch, summary, generator=generator)
        }

    return extra


def _label(generator: torch.Generator, batch: int) -> Inputs:
    return {"class_labels": torch.randint(0, 10, (batch,), generator=generator)}


def _no_resolution(width: int) -> Extra:
    return lambda generator, batch: (
        _words(width)(generator, batch) | {"added_cond_kwargs": {"resolution": None, "aspect_ratio": None}}
    )


def _flux(generator: torch.Generator, batch: int, side: int) -> Inputs:
    """Patches in a row with their places, as Flux takes them."""
    rows = torch.arange(side).repeat_interleave(side)
    columns = torch.arange(side).repeat(side)
    return {
        "hidden_states": torch.randn(batch, side * side, 4, generator=generator),
        "encoder_hidden_states": torch.randn(batch, 5, 12, generator=generator),
        "pooled_projections": torch.randn(batch, 10, generator=generator),
        "timestep": torch.rand(batch, generator=generator),
        "img_ids": torch.stack([torch.zeros(side * side), rows, columns], 1),
        "txt_ids": torch.zeros(5, 3),
    }


def _made(model: str, settings: dict[str, Any], inputs: Maker, side: int, *others: tuple[int, int]) -> Architecture:
    return Architecture(of_diffusers(model, settings), inputs, (2, side), ((2, side), (3, side), *others))


DIFFUSION: dict[str, Architecture] = {
    "UNet2DModel": _made(
        "UNet2DModel",
        {**BLOCKS, "sample_size": 16, "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
            "up_block_types": ("AttnUpBlock2D", "UpBlock2D"), "attention_head_dim": 4},
        _noisy(3, "sample", _nothing), 16, (1, 24),
    ),
    "UNet2DConditionModel": _made(
        "UNet2DConditionModel",
        {**BLOCKS, "sample_size": 16, "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
            "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"), "attention_head_dim": 2,
            "cross_attention_dim": 12},
        _noisy(4, "sample", _words(12)), 16, (1, 24),
    ),
    "AutoencoderKL": _made(
        "AutoencoderKL",
        {**BLOCKS, "down_block_types": ("DownEncoderBlock2D", "DownEncoderBlock2D"),
            "up_block_types": ("UpDecoderBlock2D", "UpDecoderBlock2D"), "latent_channels": 4},
        images(3, "sample"), 16, (1, 24),
    ),
    "VQModel": _made(
        "VQModel",
        {**BLOCKS, "down_block_types": ("DownEncoderBlock2D", "DownEncoderBlock2D"),
            "up_block_types": ("UpDecoderBlock2D", "UpDecoderBlock2D"), "latent_channels": 4,
            "num_vq_embeddings": 12},
        images(3, "sample"), 16, (1, 24),
    ),
    "AutoencoderTiny": _made(
        "AutoencoderTiny",
        {"encoder_block_out_channels": (8, 8), "decoder_block_out_channels": (8, 8), "num_encoder_blocks": (1, 1),
            "num_decoder_blocks": (1, 1), "latent_channels": 4},
        images(3, "sample"), 16, (1, 24),
    ),
    "DiTTransformer2DModel": _made(
        "DiTTransformer2DModel",
        {"num_attention_heads": 4, "attention_head_dim": 6, "in_channels": 4, "out_channels": 8, "num_layers": 2,
            "sample_size": 8, "patch_size": 2, "num_embeds_ada_norm": 10, "norm_num_groups": 4},
        _noisy(4, "hidden_states", _label), 8,
    ),
    "PixArtTransformer2DModel": _made(
        "PixArtTransformer2DModel",
        {"num_attention_heads": 4, "attention_head_dim": 6, "in_channels": 4, "out_channels": 8, "num_layers": 2,
            "sample_size": 8, "patch_size": 2, "cross_attention_dim": 24, "caption_channels": 12,
            "norm_num_groups": 4},
        _noisy(4, "hidden_states", _no_resolution(12)), 8,
    ),
    "SD3Transformer2DModel": _made(
        "SD3Transformer2DModel",
        {"sample_size": 8, "patch_size": 2, "in_channels": 4, "num_layers": 2, "attention_head_dim": 6,
            "num_attention_heads": 4, "joint_attention_dim": 12, "caption_projection_dim": 24,
            "pooled_projection_dim": 10, "out_channels": 4, "pos_embed_max_size": 8},
        _noisy(4, "hidden_states", _words_and_summary(12, 10)), 8, (1, 12),
    ),
    "FluxTransformer2DModel": _made(
        "FluxTransformer2DModel",
        {"patch_size": 1, "in_channels": 4, "num_layers": 1, "num_single_layers": 1, "attention_head_dim": 8,
            "num_attention_heads": 3, "joint_attention_dim": 12, "pooled_projection_dim": 10,
            "axes_dims_rope": (2, 2, 4)},
        _flux, 3, (1, 4),
    ),
}  # fmt: skip
