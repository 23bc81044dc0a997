"""Models of ``transformers`` that listen."""

from typing import Any

import torch

from fuzz.architectures.architecture import Architecture, Inputs, of_transformers, tokens

WAVES: dict[str, Any] = {
    "vocab_size": 10, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40,
    "conv_dim": [8, 8], "conv_stride": [4, 2], "conv_kernel": [8, 4], "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2, "apply_spec_augment": False,
}  # fmt: skip
DURATIONS = ((2, 80), (3, 64), (1, 120))


def _spectrogram_and_words(generator: torch.Generator, batch: int, length: int) -> Inputs:
    """Whisper hears a fixed number of frames; the sentences differ in length."""
    return {
        "input_features": torch.randn(batch, 8, 24, generator=generator),
        "decoder_input_ids": tokens(generator, batch, length),
    }


def _wave(generator: torch.Generator, batch: int, length: int) -> Inputs:
    return {"input_values": torch.randn(batch, length, generator=generator)}


SPEECH: dict[str, Architecture] = {
    "Whisper": Architecture(
        of_transformers("WhisperForConditionalGeneration", "WhisperConfig", {
            "vocab_size": 50, "num_mel_bins": 8, "d_model": 24, "encoder_layers": 1, "decoder_layers": 1,
            "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 40,
            "decoder_ffn_dim": 40, "max_source_positions": 12, "max_target_positions": 20, "pad_token_id": 1,
            "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 2, "use_cache": False,
        }),
        _spectrogram_and_words, (2, 7), ((2, 7), (3, 5), (1, 12)),
    ),
    "Wav2Vec2": Architecture(of_transformers("Wav2Vec2ForCTC", "Wav2Vec2Config", WAVES), _wave, (2, 80), DURATIONS),
    "HuBERT": Architecture(of_transformers("HubertForCTC", "HubertConfig", WAVES), _wave, (2, 80), DURATIONS),
}  # fmt: skip
