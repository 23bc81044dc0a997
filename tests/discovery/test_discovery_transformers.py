"""Models of the library ``transformers``, built from small configurations: verified, their groups counted by hand."""

import os
from collections import Counter
from functools import cache

import pytest
import torch
from groups import found_group, group

from coset.symmetry import discover

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
transformers = pytest.importorskip("transformers")

TEXT = {
    "vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40,
    "max_position_embeddings": 20, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
GROUPED = {**TEXT, "num_key_value_heads": 2, "head_dim": 6, "use_cache": False}
IMAGE = {
    "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40, "image_size": 32,
    "patch_size": 8,
}  # fmt: skip
GPT2 = {"vocab_size": 50, "n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 16, "use_cache": False}
T5 = {"vocab_size": 50, "d_model": 24, "d_kv": 6, "d_ff": 40, "num_layers": 2, "num_heads": 4}
BLOOM = {"vocab_size": 50, "hidden_size": 24, "n_layer": 2, "n_head": 4, "use_cache": False}
OPT = {
    "vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 40,
    "max_position_embeddings": 16, "word_embed_proj_dim": 24, "use_cache": False,
}  # fmt: skip
FALCON = {
    "vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "use_cache": False,
}  # fmt: skip
RESNET = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 2], "layer_type": "basic"}
CONVNEXT = {"hidden_sizes": [8, 12, 16, 20], "depths": [1, 1, 2, 1]}
SWIN = {"image_size": 32, "patch_size": 4, "embed_dim": 8, "depths": [2], "num_heads": [2], "window_size": 4}
REGNET = {"embedding_size": 8, "hidden_sizes": [8], "depths": [1], "groups_width": 4, "layer_type": "y"}
SQUEEZE = {
    "vocab_size": 50, "hidden_size": 24, "embedding_size": 24, "num_hidden_layers": 1, "num_attention_heads": 4,
    "intermediate_size": 48, "max_position_embeddings": 20,
}  # fmt: skip
RWKV = {
    "vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "attention_hidden_size": 16, "intermediate_size": 32,
    "context_length": 16, "use_cache": False,
}  # fmt: skip
HEADS = 2 * (24 + 24)  # two layers, queries/keys and values/outputs, four heads of six dimensions

# name -> (configuration, its settings, image side or 0 for tokens, group)
MODELS = {
    # Post-norm; the hidden states are an output, so that the stream keeps its order. A common sign of every stretch of
    # the stream from norm to norm: the embeddings' sum and four more.
    "BertModel": ("BertConfig", TEXT, 0, group("2*4 4*4x6 2*40", scales=HEADS, signs=HEADS + 5)),
    "RobertaModel": ("RobertaConfig", TEXT, 0, group("2*4 4*4x6 2*40", scales=HEADS, signs=HEADS + 5)),
    # Pre-norm, tied embeddings: the stream permutes and has a common sign; four norms are read by linear maps alone.
    "GPT2LMHeadModel": (
        "GPT2Config", GPT2, 0, group("24 2*4 4*4x6 2*96", scales=HEADS + 4 * 24, signs=HEADS + 4 * 24 + 1),
    ),
    # As GPT-2, with ReLU.
    "OPTForCausalLM": (
        "OPTConfig", OPT, 0, group("24 2*4 4*4x6 2*40", scales=HEADS + 4 * 24 + 2 * 40, signs=HEADS + 4 * 24 + 1),
    ),
    # Key-value heads with two queries each; of six rotary dimensions three pairs, in order, with a common scale; the
    # gated MLP's linear branch; five RMS norms read linearly; a sign for every unit of the stream.
    "LlamaForCausalLM": (
        "LlamaConfig", GROUPED, 0,
        group("24 2*2 2*2x2 2*2x6 2*40", scales=5 * 24 + 2 * (12 + 6 + 40), signs=6 * 24 + 2 * (12 + 6 + 40)),
    ),
    # The same group with queries, keys and values, and both branches of the MLP, from one matrix each.
    "Phi3ForCausalLM": (
        "Phi3Config", GROUPED, 0,
        group("24 2*2 2*2x2 2*2x6 2*40", scales=5 * 24 + 2 * (12 + 6 + 40), signs=6 * 24 + 2 * (12 + 6 + 40)),
    ),
    # Four of six dimensions are rotary, in two pairs of neighbours; the other two permute. One norm a layer, which
    # attention and MLP read side by side; the last one is read by a head of its own.
    "GPTJForCausalLM": (
        "GPTJConfig", {**GPT2, "rotary_dim": 4}, 0,
        group("24 2*4 2*4x2 2*4x6 2*96", scales=3 * 24 + 2 * 4 * (2 + 2 + 6), signs=3 * 24 + 2 * 4 * (2 + 2 + 6) + 1),
    ),
    # The same with a LayerNorm written out, tied embeddings, a gated MLP and grouped queries.
    "CohereForCausalLM": (
        "CohereConfig", GROUPED, 0,
        group("24 2*2 2*2x2 2*2x6 2*40", scales=2 * (24 + 12 + 6 + 40), signs=2 * (24 + 12 + 6 + 40) + 1),
    ),
    # One key-value head for all queries, fused with them: heads permute, all with the same six dimensions inside.
    "FalconForCausalLM": (
        "FalconConfig", FALCON, 0, group("24 2*4 2*6 2*96", scales=2 * (24 + 3 + 6), signs=2 * (24 + 3 + 6) + 1),
    ),
    # Gains of the form 1 + w carry neither scale nor sign; tied embeddings keep the stream's signs.
    "Gemma2ForCausalLM": (
        "Gemma2Config", GROUPED, 0,
        group("24 2*2 2*2x2 2*2x6 2*40", scales=2 * (12 + 6 + 40), signs=24 + 2 * (12 + 6 + 40)),
    ),
    # ALiBi tells heads apart: they keep their order, with free units inside. The tied embeddings stand before a norm of
    # their own: two common signs.
    "BloomForCausalLM": (
        "BloomConfig", BLOOM, 0, group("24 4*4x6 2*96", scales=HEADS + 4 * 24, signs=HEADS + 4 * 24 + 2),
    ),
    # All layers share one table of relative biases, and so their heads; RMS norms; ReLU; the stream is an output.
    "T5EncoderModel": (
        "T5Config", T5, 0, group("4 4*4x6 2*40", scales=HEADS + 4 * 24 + 2 * 40, signs=HEADS + 4 * 24 + 24),
    ),
    "ViTModel": ("ViTConfig", IMAGE, 32, group("2*4 4*4x6 2*40", scales=HEADS + 4 * 24, signs=HEADS + 4 * 24 + 1)),
    # The first stream (8) and its block, two blocks inside the second stream, which is an output; nine convolutions
    # before their norms, ReLU behind the first stream and inside each block.
    "ResNetModel": (
        "ResNetConfig", RESNET, 32, group("2*8 2*16", scales=8 + 16 + 5 * 16 + 2 * 8 + 2 * 16, signs=8 + 16 + 5 * 16),
    ),
    # Per block the norm before the expansion and the layer-scale, per downsampling its norm; common signs of the stem,
    # of three streams and of five depthwise outputs.
    "ConvNextModel": (
        "ConvNextConfig", CONVNEXT, 64,
        group(
            "8 12 16 32 48 2*64 80", scales=2 * (8 + 12 + 2 * 16 + 20) + 8 + 12 + 16,
            signs=2 * (8 + 12 + 2 * 16 + 20) + 8 + 12 + 16 + 1 + 3 + 5,
        ),
    ),
    # Windows, shifted in the second block, with a relative bias table per block whose columns are the heads.
    "SwinModel": (
        "SwinConfig", SWIN, 32, group("2*2 4*2x4 2*32", scales=2 * (16 + 16), signs=2 * (16 + 16) + 1 + 1),
    ),
    # Convolutions of four groups where others have linear maps, and four heads: the hidden states are an output, so
    # that groups keep their order; heads are groups, and so are the blocks of twelve inside the MLP. One common sign of
    # every stretch of the stream: of the embeddings' sum and behind two norms.
    "SqueezeBertModel": (
        "SqueezeBertConfig", SQUEEZE, 0, group("2*4x6 4x12", scales=2 * 24, signs=2 * 24 + 3),
    ),
    # Weights that are rescaled in place; the state goes on from token to token. Five norms read linearly; values and
    # outputs of attention in between (time_decay and time_first tell no scale); ReLU² in the MLP; a common sign of the
    # stream and one of the embeddings with the norm behind them.
    "RwkvForCausalLM": (
        "RwkvConfig", RWKV, 0,
        group("16 2*16 2*32", scales=5 * 16 + 2 * 16 + 2 * 32, signs=5 * 16 + 2 * 16 + 2),
    ),
    # A squeeze-excite gate behind a grouped convolution of two groups of four; five convolutions before their norms,
    # three of them with ReLU behind it, and the gate's inside. The last stream is an output.
    "RegNetModel": (
        "RegNetConfig", REGNET, 32,
        group("8 2 2 2*2x4", scales=5 * 8 + 3 * 8 + 2, signs=5 * 8),
    ),
}  # fmt: skip


@cache
def discovered(name):
    """A model and what is discovered of it: once for all tests of a process."""
    config, settings, side, _ = MODELS[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = getattr(transformers, name)(getattr(transformers, config)(**settings)).eval()
    generator = torch.Generator().manual_seed(0)
    x = (
        torch.randn(2, 3, side, side, generator=generator)
        if side
        else torch.randint(2, 50, (2, 7), generator=generator)
    )
    return model, discover(model, x)


@pytest.mark.parametrize("name", MODELS)
def test_the_group_of(name):
    _, sym = discovered(name)
    assert not sym.pinned
    assert found_group(sym) == MODELS[name][-1]


# Of models with rotary positions: the kinds of two layers, and the dimension of the connected group. A pair has a scale
# and an angle, six values in a head have GL(6); the stream turns where it is untied and no gain is written to it.
TURNING = {
    "LlamaForCausalLM": ("2*GL(6) O(24) 2*U(1)^3", 276 + 5 * 24 + 2 * (2 * (6 + 36) + 40)),
    "Phi3ForCausalLM": ("2*GL(6) O(24) 2*U(1)^3", 276 + 5 * 24 + 2 * (2 * (6 + 36) + 40)),
    "GPTJForCausalLM": ("2*GL(2) 2*GL(6) O(23) 2*U(1)^2", 253 + 3 * 24 + 2 * 4 * (4 + 4 + 36)),
    "CohereForCausalLM": ("2*GL(6) 2*U(1)^3", 2 * (24 + 2 * (6 + 36) + 40)),
    "FalconForCausalLM": ("2*GL(6) 2*U(1)^3", 2 * (24 + 6 + 36)),
    "Gemma2ForCausalLM": ("2*GL(6) 2*U(1)^3", 2 * (2 * (6 + 36) + 40)),
}


def mixed_by(sym):
    """The kinds of classes that mix, each with its number."""
    kinds = Counter(item.named(sym.classes[name].size) for name, item in sym.continuous.items())
    return " ".join(f"{count}*{kind}" if count > 1 else kind for kind, count in sorted(kinds.items()))


@pytest.mark.parametrize("name", TURNING)
def test_rotary_pairs_turn(name):
    _, sym = discovered(name)
    assert (mixed_by(sym), sym.continuous_dimension) == TURNING[name]


@pytest.mark.parametrize(
    ("name", "settings", "kinds", "dimension"),
    [
        # Norms of queries and keys: no angle, and of scales those of their gains, one for every pair and layer.
        ("Qwen3", GROUPED, "2*GL(6) O(24)", 276 + 5 * 24 + 2 * (2 * 36 + 3 + 40)),
        # Four of six coordinates rotate; queries, keys and values of a head stand together in one weight.
        (
            "GPTNeoX", {**TEXT, "rotary_pct": 0.667, "use_cache": False},
            "2*GL(2) 2*GL(6) O(23) 2*U(1)^2", 253 + 5 * 24 + 2 * 4 * (4 + 4 + 36),
        ),
    ],
)  # fmt: skip
def test_models_with_norms_of_queries_or_rotary_parts(name, settings, kinds, dimension):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = getattr(transformers, f"{name}Config")(**settings)
        model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    sym = discover(model, torch.randint(2, 50, (2, 7), generator=torch.Generator().manual_seed(0)))
    assert (mixed_by(sym), sym.continuous_dimension) == (kinds, dimension)


def test_sam():
    """Queries, keys and values from one matrix, reshaped together and then taken apart; relative positions by head."""
    settings = {
        "hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 4, "image_size": 32, "patch_size": 8,
        "mlp_dim": 40, "output_channels": 8, "window_size": 0, "global_attn_indexes": [0],
    }  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.SamVisionModel(transformers.SamVisionConfig(**settings)).eval()
    sym = discover(model, torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)))
    assert not sym.pinned
    # The stream permutes; both norms of the layer are read linearly. Heads permute, each with values of its own;
    # queries and keys move alike in all heads, which share the tables of relative positions. The neck's first norm is
    # read linearly, too. Common signs: of the stream, and of both convolutions of the neck before their norms.
    assert found_group(sym) == group("24 4 6 4x6 40 8", scales=2 * 24 + 6 + 24 + 8, signs=2 * 24 + 6 + 24 + 8 + 3)


def test_keyword_inputs():
    """An encoder and a decoder: heads of each are tied by its own table of relative biases."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.T5Model(transformers.T5Config(**T5, use_cache=False)).eval()
    ids = torch.randint(2, 50, (2, 7), generator=torch.Generator().manual_seed(0))
    sym = discover(model, (), kwargs={"input_ids": ids, "decoder_input_ids": ids})
    assert not sym.pinned
    # Self-attention of two encoder and two decoder layers, cross-attention of the latter, of which each has its heads.
    # The norm at the end of the encoder is an output, and so is that of the decoder; ten norms are read linearly.
    assert found_group(sym) == group("4 4 2*4 12*4x6 4*40", scales=6 * 48 + 10 * 24 + 4 * 40, signs=6 * 48 + 11 * 24)


def test_an_operation_without_a_rule_pins_and_is_reported():
    settings = {key: value for key, value in TEXT.items() if key != "num_attention_heads"}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.FNetModel(transformers.FNetConfig(**settings)).eval()
    sym = discover(model, torch.randint(2, 50, (2, 7), generator=torch.Generator().manual_seed(0)))
    assert any("fft" in line and "encoder.layer.0.fourier" in line for line in sym.pinned)
    assert sym.scale_dimension > 0 or sym.permuting
