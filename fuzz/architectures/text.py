"""Encoders, decoders and recurrences of ``transformers`` that read tokens."""

from dataclasses import replace
from typing import Any

import torch

from fuzz.architectures.architecture import Architecture, Inputs, Maker, of_transformers, tokens

TEXT: dict[str, Any] = {
    "vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40,
    "max_position_embeddings": 20, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
GROUPED: dict[str, Any] = {**TEXT, "num_key_value_heads": 2, "head_dim": 6}
GPT: dict[str, Any] = {"vocab_size": 50, "n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 20}
SEQUENCES: dict[str, Any] = {
    "vocab_size": 50, "d_model": 24, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40, "max_position_embeddings": 20,
    "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2,
}  # fmt: skip
EXPERTS: dict[str, Any] = {**GROUPED, "num_experts_per_tok": 2, "output_router_logits": False}
NO_CACHE: dict[str, Any] = {"use_cache": False}


def _sentences(generator: torch.Generator, batch: int, length: int) -> Inputs:
    return {"input_ids": tokens(generator, batch, length)}


def _two_sentences(generator: torch.Generator, batch: int, length: int) -> Inputs:
    """What an encoder and a decoder read; the second one is shorter."""
    return {
        "input_ids": tokens(generator, batch, length),
        "decoder_input_ids": tokens(generator, batch, length - 2),
    }


def _reads(
    model: str,
    config: str,
    settings: dict[str, Any],
    inputs: Maker = _sentences,
    example: tuple[int, int] = (2, 7),
    others: tuple[tuple[int, int], ...] = ((2, 7), (3, 5), (1, 12)),
) -> Architecture:
    return Architecture(of_transformers(model, config, settings), inputs, example, others)


def _routes(model: str, config: str, settings: dict[str, Any]) -> Architecture:
    """A mixture of experts: the kernel that it calls by default does not take float64, the loop over experts does."""
    return replace(_reads(model, config, settings), in_double=(("set_experts_implementation", "eager"),))


ENCODERS: dict[str, Architecture] = {
    "BERT": _reads("BertForMaskedLM", "BertConfig", TEXT),
    "RoBERTa": _reads("RobertaForMaskedLM", "RobertaConfig", TEXT),
    "DistilBERT": _reads(
        "DistilBertForMaskedLM",
        "DistilBertConfig",
        {"vocab_size": 50, "dim": 24, "n_layers": 2, "n_heads": 4, "hidden_dim": 40, "max_position_embeddings": 20},
    ),
    "ALBERT": _reads("AlbertForMaskedLM", "AlbertConfig", {**TEXT, "embedding_size": 16}),
    "ELECTRA": _reads("ElectraForMaskedLM", "ElectraConfig", {**TEXT, "embedding_size": 16}),
    "DeBERTa-v2": _reads(
        "DebertaV2ForMaskedLM",
        "DebertaV2Config",
        {**TEXT, "relative_attention": True, "position_buckets": 4, "pos_att_type": ["p2c", "c2p"],
            "norm_rel_ebd": "layer_norm"},
    ),
    "MPNet": _reads("MPNetForMaskedLM", "MPNetConfig", TEXT),
    "SqueezeBERT": _reads(
        "SqueezeBertForMaskedLM",
        "SqueezeBertConfig",
        {**TEXT, "embedding_size": 24, "q_groups": 2, "k_groups": 2, "v_groups": 2, "post_attention_groups": 1,
         "intermediate_groups": 4, "output_groups": 4},
    ),
    "FNet": _reads(
        "FNetForMaskedLM", "FNetConfig", {key: value for key, value in TEXT.items() if key != "num_attention_heads"}
    ),
    "Longformer": _reads("LongformerForMaskedLM", "LongformerConfig", {**TEXT, "max_position_embeddings": 40,
        "attention_window": 4}, example=(2, 8), others=((2, 8), (3, 4), (1, 16))),
    "BigBird": _reads("BigBirdForMaskedLM", "BigBirdConfig", {**TEXT, "attention_type": "original_full"}),
    "Funnel": _reads(
        "FunnelForMaskedLM", "FunnelConfig",
        {"vocab_size": 50, "block_sizes": [1, 1], "num_decoder_layers": 1, "d_model": 24, "n_head": 4,
            "d_head": 6, "d_inner": 40},
        example=(2, 8), others=((2, 8), (3, 6), (1, 12)),
    ),
    "XLNet": _reads("XLNetLMHeadModel", "XLNetConfig", {"vocab_size": 50, "d_model": 24, "n_layer": 2,
        "n_head": 4, "d_inner": 40, "use_mems_eval": False, **NO_CACHE}),
    "ConvBERT": _reads("ConvBertModel", "ConvBertConfig", {**TEXT, "embedding_size": 24, "head_ratio": 2,
        "conv_kernel_size": 3}),
    "ModernBERT": _reads("ModernBertForMaskedLM", "ModernBertConfig", {**TEXT, "local_attention": 4,
        "cls_token_id": 0, "sep_token_id": 0}),
}  # fmt: skip

DECODERS: dict[str, Architecture] = {
    "GPT-2": _reads("GPT2LMHeadModel", "GPT2Config", {**GPT, **NO_CACHE}),
    "GPT-2 with its cache": _reads("GPT2LMHeadModel", "GPT2Config", GPT),
    "GPT-Neo": _reads("GPTNeoForCausalLM", "GPTNeoConfig", {"vocab_size": 50, "hidden_size": 24, "num_layers": 2,
        "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 4, "intermediate_size": 40,
        "max_position_embeddings": 20, **NO_CACHE}),
    "GPT-NeoX": _reads("GPTNeoXForCausalLM", "GPTNeoXConfig", {**TEXT, "rotary_pct": 1 / 3, **NO_CACHE}),
    "GPT-J": _reads("GPTJForCausalLM", "GPTJConfig", {**GPT, "rotary_dim": 4, **NO_CACHE}),
    "CodeGen": _reads("CodeGenForCausalLM", "CodeGenConfig", {**GPT, "rotary_dim": 4, **NO_CACHE}),
    "OPT": _reads("OPTForCausalLM", "OPTConfig", {"vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 2,
        "num_attention_heads": 4, "ffn_dim": 40, "max_position_embeddings": 20, "word_embed_proj_dim": 24,
        **NO_CACHE}),
    "BLOOM": _reads("BloomForCausalLM", "BloomConfig", {"vocab_size": 50, "hidden_size": 24, "n_layer": 2,
        "n_head": 4, **NO_CACHE}),
    "Falcon": _reads("FalconForCausalLM", "FalconConfig", {"vocab_size": 50, "hidden_size": 24,
        "num_hidden_layers": 2, "num_attention_heads": 4, **NO_CACHE}),
    "Llama": _reads("LlamaForCausalLM", "LlamaConfig", {**GROUPED, **NO_CACHE}),
    "Mistral": _reads("MistralForCausalLM", "MistralConfig", {**GROUPED, "sliding_window": 4, **NO_CACHE}),
    "Mixtral": _routes("MixtralForCausalLM", "MixtralConfig", {**EXPERTS, "num_local_experts": 4, **NO_CACHE}),
    "Qwen2": _reads("Qwen2ForCausalLM", "Qwen2Config", {**GROUPED, **NO_CACHE}),
    "Qwen2-MoE": _routes("Qwen2MoeForCausalLM", "Qwen2MoeConfig", {**EXPERTS, "num_experts": 4,
        "moe_intermediate_size": 20, "shared_expert_intermediate_size": 28, **NO_CACHE}),
    "Qwen3": _reads("Qwen3ForCausalLM", "Qwen3Config", {**GROUPED, **NO_CACHE}),
    "DeepSeek-V3": _routes("DeepseekV3ForCausalLM", "DeepseekV3Config", {**TEXT, "num_key_value_heads": 4,
        "moe_intermediate_size": 20, "n_routed_experts": 4, "n_group": 2, "topk_group": 1,
        "num_experts_per_tok": 2, "n_shared_experts": 1, "kv_lora_rank": 8, "q_lora_rank": 10,
        "qk_rope_head_dim": 4, "qk_nope_head_dim": 6, "v_head_dim": 6, "first_k_dense_replace": 1, **NO_CACHE}),
    "GPT-OSS": _routes("GptOssForCausalLM", "GptOssConfig", {**GROUPED, "num_local_experts": 4,
        "num_experts_per_tok": 2, "sliding_window": 4, "rope_scaling": None, **NO_CACHE}),
    "Gemma2": _reads("Gemma2ForCausalLM", "Gemma2Config", {**GROUPED, "sliding_window": 4, **NO_CACHE}),
    "Phi3": _reads("Phi3ForCausalLM", "Phi3Config", {**GROUPED, **NO_CACHE}),
    "Cohere": _reads("CohereForCausalLM", "CohereConfig", {**GROUPED, **NO_CACHE}),
    "OLMo2": _reads("Olmo2ForCausalLM", "Olmo2Config", {**GROUPED, **NO_CACHE}),
    "StableLM": _reads("StableLmForCausalLM", "StableLmConfig", {**GROUPED, "partial_rotary_factor": 2 / 3,
        **NO_CACHE}),
    "Mamba": _reads("MambaForCausalLM", "MambaConfig", {"vocab_size": 50, "hidden_size": 16, "state_size": 4,
        "num_hidden_layers": 1, "conv_kernel": 3, "time_step_rank": 4, **NO_CACHE}),
    "Mamba2": _reads("Mamba2ForCausalLM", "Mamba2Config", {"vocab_size": 50, "hidden_size": 16, "state_size": 4,
        "num_hidden_layers": 1, "conv_kernel": 3, "num_heads": 4, "head_dim": 8, "n_groups": 2, "chunk_size": 4,
        **NO_CACHE}),
    "RWKV": _reads("RwkvForCausalLM", "RwkvConfig", {"vocab_size": 50, "hidden_size": 16,
        "attention_hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 24, "context_length": 20,
        **NO_CACHE}, example=(2, 5), others=((2, 5), (3, 4), (1, 8))),
}  # fmt: skip

ENCODER_DECODERS: dict[str, Architecture] = {
    "T5": _reads("T5ForConditionalGeneration", "T5Config", {"vocab_size": 50, "d_model": 24, "d_kv": 6,
        "d_ff": 40, "num_layers": 2, "num_heads": 4, **NO_CACHE}, _two_sentences),
    "BART": _reads("BartForConditionalGeneration", "BartConfig", {**SEQUENCES, **NO_CACHE}, _two_sentences),
    "Pegasus": _reads("PegasusForConditionalGeneration", "PegasusConfig", {**SEQUENCES, **NO_CACHE}, _two_sentences),
    "Marian": _reads("MarianMTModel", "MarianConfig", {**SEQUENCES, **NO_CACHE}, _two_sentences),
}  # fmt: skip

TEXTS = {**ENCODERS, **DECODERS, **ENCODER_DECODERS}
