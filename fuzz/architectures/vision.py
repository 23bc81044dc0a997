"""Models of ``transformers`` that look at images."""

from typing import Any

import torch

from fuzz.architectures.architecture import Architecture, Inputs, images, of_transformers, tokens

IMAGE: dict[str, Any] = {
    "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40, "image_size": 32,
    "patch_size": 8,
}  # fmt: skip


def _sees(
    model: str, config: str, settings: dict[str, Any], side: int = 32, others: tuple[tuple[int, int], ...] | None = None
) -> Architecture:
    """``others``: for models that take images of one size only, other images and other batches of that size."""
    return Architecture(
        of_transformers(model, config, settings), images(), (2, side), others or ((2, side), (3, side), (1, side))
    )


def _text_and_image(generator: torch.Generator, batch: int, length: int) -> Inputs:
    return {
        "input_ids": tokens(generator, batch, length),
        "pixel_values": torch.randn(batch, 3, 32, 32, generator=generator),
    }


def _points_on_image(generator: torch.Generator, batch: int, points: int) -> Inputs:
    return {
        "pixel_values": torch.randn(batch, 3, 32, 32, generator=generator),
        "input_points": 32 * torch.rand(batch, 1, points, 2, generator=generator),
        "multimask_output": True,
    }


SIZES = ((2, 32), (3, 32), (1, 48), (2, 64))
LARGE = ((2, 64), (3, 64), (1, 96))
CLIP: dict[str, Any] = {
    "text_config": {"vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 40, "max_position_embeddings": 20, "projection_dim": 12, "bos_token_id": 0,
        "eos_token_id": 49, "pad_token_id": 1},
    "vision_config": {**IMAGE, "projection_dim": 12},
    "projection_dim": 12,
}  # fmt: skip

VISION: dict[str, Architecture] = {
    "ViT": _sees("ViTForImageClassification", "ViTConfig", IMAGE),
    "DeiT": _sees("DeiTForImageClassificationWithTeacher", "DeiTConfig", IMAGE),
    "BEiT": _sees("BeitForImageClassification", "BeitConfig", {**IMAGE, "use_relative_position_bias": True,
        "vocab_size": 50}),
    "Swin": _sees("SwinForImageClassification", "SwinConfig", {"image_size": 32, "patch_size": 4, "embed_dim": 8,
        "depths": [2, 1], "num_heads": [2, 4], "window_size": 4}),
    "Swin-v2": _sees("Swinv2ForImageClassification", "Swinv2Config", {"image_size": 32, "patch_size": 4,
        "embed_dim": 8, "depths": [2, 1], "num_heads": [2, 4], "window_size": 4}),
    "DINOv2": _sees("Dinov2ForImageClassification", "Dinov2Config", {**IMAGE, "mlp_ratio": 2}, others=SIZES),
    "ViT-MSN": _sees("ViTMSNForImageClassification", "ViTMSNConfig", IMAGE),
    "ConvNeXt": _sees("ConvNextForImageClassification", "ConvNextConfig", {"hidden_sizes": [8, 12, 16, 20],
        "depths": [1, 1, 2, 1]}, 64, LARGE),
    "ConvNeXt-v2": _sees("ConvNextV2ForImageClassification", "ConvNextV2Config", {"hidden_sizes": [8, 12, 16, 20],
        "depths": [1, 1, 2, 1]}, 64, LARGE),
    "ResNet": _sees("ResNetForImageClassification", "ResNetConfig", {"embedding_size": 8, "hidden_sizes": [16,
        24], "depths": [1, 2], "layer_type": "bottleneck"}, 32, SIZES),
    "RegNet": _sees("RegNetForImageClassification", "RegNetConfig", {"embedding_size": 8, "hidden_sizes": [8, 16],
        "depths": [1, 1], "groups_width": 4, "layer_type": "y"}, 32, SIZES),
    "MobileNetV2": _sees("MobileNetV2ForImageClassification", "MobileNetV2Config", {"depth_multiplier": 0.25,
        "image_size": 32, "min_depth": 4, "depth_divisible_by": 4, "finegrained_output": False}, 64, LARGE),
    "SegFormer": _sees("SegformerForSemanticSegmentation", "SegformerConfig", {"depths": [1, 1, 1, 1],
        "hidden_sizes": [8, 8, 16, 16], "num_attention_heads": [1, 2, 2, 4], "sr_ratios": [4, 2, 1, 1],
        "decoder_hidden_size": 12, "mlp_ratios": [2, 2, 2, 2], "num_labels": 5}, 64, LARGE),
    "MobileViT": _sees("MobileViTForImageClassification", "MobileViTConfig", {"image_size": 128,
        "hidden_sizes": [16, 16, 16], "neck_hidden_sizes": [8, 8, 12, 12, 16, 16, 24], "num_attention_heads": 2,
        "expand_ratio": 2.0}, 128, ((2, 128), (3, 128), (1, 192))),
    "PoolFormer": _sees("PoolFormerForImageClassification", "PoolFormerConfig", {"hidden_sizes": [8, 8, 12, 12],
        "depths": [1, 1, 1, 1], "mlp_ratio": 2.0}, 64, LARGE),
    "YOLOS": _sees("YolosForObjectDetection", "YolosConfig", {**IMAGE, "image_size": [32, 32],
        "num_detection_tokens": 5, "use_mid_position_embeddings": False}),
    "CLIP": Architecture(of_transformers("CLIPModel", "CLIPConfig", CLIP), _text_and_image, (2, 7), ((2, 7), (3,
        5), (1, 12))),
    "SAM": Architecture(
        of_transformers("SamModel", "SamConfig", {
            "vision_config": {"hidden_size": 24, "output_channels": 16, "num_hidden_layers": 2,
                "num_attention_heads": 4, "image_size": 32, "patch_size": 8, "mlp_dim": 40, "window_size": 2,
                "global_attn_indexes": [1], "num_pos_feats": 8},
            "prompt_encoder_config": {"hidden_size": 16, "image_size": 32, "patch_size": 8, "mask_input_channels": 4},
            "mask_decoder_config": {"hidden_size": 16, "mlp_dim": 24, "num_hidden_layers": 1,
                "num_attention_heads": 2, "attention_downsample_rate": 2, "num_multimask_outputs": 3,
                "iou_head_depth": 2, "iou_head_hidden_dim": 12},
        }),
        _points_on_image, (2, 2), ((2, 2), (3, 1), (1, 3)),
    ),
    "DETR": _sees("DetrForObjectDetection", "DetrConfig", {
        "use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None,
        "backbone_config": {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 12], "depths": [1,
            1], "layer_type": "basic", "out_features": ["stage2"]},
        "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4,
            "decoder_attention_heads": 4, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "num_queries": 5,
            "num_labels": 4,
    }, 32, SIZES[:3]),
}  # fmt: skip
