"""The config.json files that today's decoders have beside their weights say the same sizes as their names do."""

import json

import pytest

from alpa_dejavu.exports import read_model
from alpa_dejavu.layers.models import model_size, transformer_size

COMMON = {
    "architectures": ["XForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.02,
    "rms_norm_eps": 1e-06, "use_cache": True, "torch_dtype": "bfloat16", "transformers_version": "4.55.0",
    "attention_dropout": 0.0,
}  # fmt: skip


def sizes(hidden, blocks, heads, keys, wide, vocabulary, tokens, **more):
    named = {
        "hidden_size": hidden, "num_hidden_layers": blocks, "num_attention_heads": heads, "num_key_value_heads": keys,
        "intermediate_size": wide, "vocab_size": vocabulary, "max_position_embeddings": tokens,
    }  # fmt: skip
    return COMMON | {key: value for key, value in named.items() if value is not None} | more


_DEEPSEEK = {
    "attention_bias": False, "aux_loss_alpha": 0.001, "ep_size": 1, "hidden_act": "silu", "kv_lora_rank": 512,
    "moe_layer_freq": 1, "n_group": 8, "norm_topk_prob": True, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128, "rope_theta": 10000, "routed_scaling_factor": 16.0, "scoring_func": "softmax", "seq_aux": True,
    "tie_word_embeddings": False, "topk_group": 3, "topk_method": "group_limited_greedy", "pretraining_tp": 1,
    "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV2Config"},
    "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
                     "original_max_position_embeddings": 4096, "type": "yarn"},
}  # fmt: skip
_ALTERNATE = ["sliding_attention", "full_attention"] * 12
CONFIGS = {
    "llama-3.1-8b": {"model_type": "llama"} | sizes(
        4096, 32, 32, 8, 14336, 128256, 131072, attention_bias=False, mlp_bias=False, pretraining_tp=1,
        hidden_act="silu", tie_word_embeddings=False, rope_theta=500000.0,
        rope_scaling={"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_type": "llama3",
                      "original_max_position_embeddings": 8192}),
    "qwen2.5-7b": {"model_type": "qwen2"} | sizes(
        3584, 28, 28, 4, 18944, 152064, 131072, hidden_act="silu", max_window_layers=28, rope_theta=1000000.0,
        sliding_window=131072, tie_word_embeddings=False, use_mrope=False, use_sliding_window=False),
    "qwen3-30b-a3b": {"model_type": "qwen3_moe"} | sizes(
        2048, 48, 32, 4, 6144, 151936, 32768, attention_bias=False, decoder_sparse_step=1, head_dim=128,
        hidden_act="silu", max_window_layers=48, mlp_only_layers=[], moe_intermediate_size=768, norm_topk_prob=True,
        num_experts=128, num_experts_per_tok=8, output_router_logits=False, rope_scaling=None, rope_theta=1000000.0,
        router_aux_loss_coef=0.001, sliding_window=None, tie_word_embeddings=False, use_sliding_window=False),
    "mistral-7b": {"model_type": "mistral"} | sizes(
        4096, 32, 32, 8, 14336, 32000, 32768, hidden_act="silu", rope_theta=10000.0, sliding_window=4096,
        tie_word_embeddings=False),
    "mixtral-8x22b": {"model_type": "mixtral"} | sizes(
        6144, 56, 48, 8, 16384, 32000, 65536, num_experts_per_tok=2, num_local_experts=8, rope_theta=1000000,
        output_router_logits=False, router_aux_loss_coef=0.001, sliding_window=None, tie_word_embeddings=False,
        router_jitter_noise=0.0, hidden_act="silu"),
    "gemma-2-9b": {"model_type": "gemma2"} | sizes(
        3584, 42, 16, 8, 14336, 256000, 8192, attention_bias=False, attn_logit_softcapping=50.0,
        cache_implementation="hybrid", final_logit_softcapping=30.0, head_dim=256, hidden_act="gelu_pytorch_tanh",
        hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=256, rope_theta=10000.0, sliding_window=4096,
        sliding_window_size=None),
    "gemma-3-1b": {"model_type": "gemma3_text"} | sizes(
        1152, 26, 4, 1, 6912, 262144, 32768, attention_bias=False, attn_logit_softcapping=None, head_dim=256,
        final_logit_softcapping=None, hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=256,
        rope_local_base_freq=10000, rope_scaling=None, rope_theta=1000000, sliding_window=512,
        sliding_window_pattern=6, cache_implementation="hybrid"),
    # With images: what its text_config doesn't say is as the class has it.
    "gemma-3-4b": {
        "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "boi_token_index": 255999,
        "eoi_token_index": 256000, "eos_token_id": [1, 106], "image_token_index": 262144, "mm_tokens_per_image": 256,
        "initializer_range": 0.02, "torch_dtype": "bfloat16", "vision_config": {"hidden_size": 1152},
        "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
                        "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                        "sliding_window": 1024}},
    "phi-3-mini": {"model_type": "phi3"} | sizes(
        3072, 32, 32, 32, 8192, 32064, 4096, embd_pdrop=0.0, resid_pdrop=0.0, hidden_act="silu", rope_scaling=None,
        original_max_position_embeddings=4096, rope_theta=10000.0, sliding_window=2047, attention_bias=False,
        tie_word_embeddings=False),
    "phi-4-mini": {"model_type": "phi3"} | sizes(
        3072, 32, 24, 8, 8192, 200064, 131072, embd_pdrop=0.0, resid_pdrop=0.0, hidden_act="silu", mlp_bias=False,
        original_max_position_embeddings=4096, partial_rotary_factor=0.75, rope_theta=10000.0, sliding_window=262144,
        tie_word_embeddings=True, attention_bias=False, full_attn_mod=1, interpolate_factor=1, lm_head_bias=False,
        rope_scaling={"long_factor": [1, 1.1], "short_factor": [1.0, 1.0], "type": "longrope"}),
    "gpt-oss-20b": {"model_type": "gpt_oss"} | sizes(
        2880, 24, 64, 8, 2880, 201088, 131072, attention_bias=True, experts_per_token=4, head_dim=64,
        hidden_act="silu", initial_context_length=4096, layer_types=_ALTERNATE, num_experts_per_tok=4,
        num_local_experts=32, output_router_logits=False, router_aux_loss_coef=0.9, sliding_window=128,
        swiglu_limit=7.0, tie_word_embeddings=False, rope_theta=150000, quantization_config={"quant_method": "mxfp4"},
        rope_scaling={"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "rope_type": "yarn", "truncate": False,
                      "original_max_position_embeddings": 4096}),
    "deepseek-v2-lite": {"model_type": "deepseek_v2"} | _DEEPSEEK | sizes(
        2048, 27, 16, 16, 10944, 102400, 163840, first_k_dense_replace=1, moe_intermediate_size=1408,
        n_routed_experts=64, n_shared_experts=2, num_experts_per_tok=6, q_lora_rank=None),
    "deepseek-v3": {"model_type": "deepseek_v3"} | _DEEPSEEK | sizes(
        7168, 61, 128, 128, 18432, 129280, 163840, first_k_dense_replace=3, moe_intermediate_size=2048,
        n_routed_experts=256, n_shared_experts=1, num_experts_per_tok=8, q_lora_rank=1536, num_nextn_predict_layers=1,
        quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]}, topk_method="noaux_tc"),
    "olmo-2-7b": {"model_type": "olmo2"} | sizes(
        4096, 32, 32, 32, 11008, 100352, 4096, attention_bias=False, hidden_act="silu", pad_token_id=100277,
        rope_scaling=None, rope_theta=500000, tie_word_embeddings=False),
    "nemotron-4-15b": {"model_type": "nemotron"} | sizes(
        6144, 32, 48, 8, 24576, 256000, 4096, attention_bias=False, hidden_act="relu2", mlp_bias=False, norm_eps=1e-5,
        partial_rotary_factor=0.5, rope_theta=10000, tie_word_embeddings=False, head_dim=128),
    "mpt-7b": {"model_type": "mpt", "architectures": ["MPTForCausalLM"], "d_model": 4096, "n_heads": 32,
               "n_layers": 32, "expansion_ratio": 4, "max_seq_len": 2048, "vocab_size": 50432, "no_bias": True,
               "learned_pos_emb": True, "norm_type": "low_precision_layernorm", "emb_pdrop": 0, "resid_pdrop": 0,
               "embedding_fraction": 1.0, "logit_scale": None, "torch_dtype": "bfloat16", "verbose": 0,
               "attn_config": {"alibi": True, "attn_type": "multihead_attention", "qk_ln": False, "clip_qkv": None}},
}  # fmt: skip


def read(tmp_path, data, sequence=None):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(data, indent=1))
    return read_model(path, sequence)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_published_config_says_the_sizes_of_its_name(tmp_path, name, caplog):
    assert read(tmp_path, CONFIGS[name]) == transformer_size(name)
    assert [record.message.partition("json: ")[2] for record in caplog.records] == (
        ["its language model alone is planned, without the encoder of images"] if name == "gemma-3-4b" else []
    )


@pytest.mark.parametrize("name", CONFIGS)
def test_no_key_is_dropped_in_silence(tmp_path, name):
    inner = CONFIGS[name].get("text_config", CONFIGS[name])
    outer = {"text_config": inner | {"number_of_heads": 3}} if inner is not CONFIGS[name] else {"number_of_heads": 3}
    with pytest.raises(ValueError, match=r"number_of_heads isn't known, so it may change what is planned"):
        read(tmp_path, CONFIGS[name] | outer)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_sample_is_no_longer_than_the_model(tmp_path, name):
    most = transformer_size(name).sequence
    assert read(tmp_path, CONFIGS[name], most // 2).sequence == most // 2
    with pytest.raises(ValueError, match=rf" is {most}, but must be at least the {most + 1} tokens asked for"):
        read(tmp_path, CONFIGS[name], most + 1)


STRANGE = (None, True, -1, 1.5, 10**40, "x", [[1]], {"a": [{}]})


@pytest.mark.parametrize("name", ["deepseek-v3", "gemma-3-4b", "phi-4-mini", "qwen3-30b-a3b", "mpt-7b"])
def test_strange_values_are_refused_in_a_line(tmp_path, name):
    def strange(data):
        for key, value in data.items():
            yield from (data | {key: other} for other in STRANGE)
            if isinstance(value, dict):
                yield from (data | {key: other} for other in strange(value))

    more = {"attn_config": {"kv_n_heads": 4}} if name == "mpt-7b" else {}
    for data in strange(CONFIGS[name] | more):
        try:
            said = read(tmp_path, data).text
        except ValueError as error:
            said = str(error)
        assert said.startswith(("transformer:", str(tmp_path)))
        assert "\n" not in said


def test_the_parts_of_a_config_that_decide(tmp_path):
    every_second = {"decoder_sparse_step": 2, "mlp_only_layers": [0]}
    size = read(tmp_path, CONFIGS["qwen3-30b-a3b"] | every_second)
    assert (size.experts_every, size.dense_blocks, size.dense_feed_forward) == (2, 1, 6144)
    assert [size.has_experts(number) for number in range(4)] == [False, True, False, True]
    gemma = CONFIGS["gemma-2-9b"]
    assert read(tmp_path, gemma, 4096).window == 0  # no sample is longer than it
    types = {"layer_types": (["sliding_attention"] * 2 + ["full_attention"]) * 14}
    assert read(tmp_path, gemma | types).global_every == 3


ENCODERS = {
    "bert-large": {
        "architectures": ["BertForMaskedLM"], "model_type": "bert", "attention_probs_dropout_prob": 0.1,
        "gradient_checkpointing": False, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 1024,
        "initializer_range": 0.02, "intermediate_size": 4096, "layer_norm_eps": 1e-12, "max_position_embeddings": 512,
        "num_attention_heads": 16, "num_hidden_layers": 24, "pad_token_id": 0, "position_embedding_type": "absolute",
        "transformers_version": "4.6.0.dev0", "type_vocab_size": 2, "use_cache": True, "vocab_size": 30522},
    "t5-large": {
        "architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "d_ff": 4096, "d_kv": 64, "d_model": 1024,
        "decoder_start_token_id": 0, "dropout_rate": 0.1, "eos_token_id": 1, "initializer_factor": 1.0,
        "is_encoder_decoder": True, "layer_norm_epsilon": 1e-06, "n_positions": 512, "num_heads": 16, "num_layers": 24,
        "output_past": True, "pad_token_id": 0, "relative_attention_num_buckets": 32,
        "task_specific_params": {"summarization": {"max_length": 200}}, "vocab_size": 32128},
    "flan-t5-small": {
        "architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "d_ff": 1024, "d_kv": 64, "d_model": 512,
        "feed_forward_proj": "gated-gelu", "is_encoder_decoder": True, "n_positions": 512, "num_decoder_layers": 8,
        "num_heads": 6, "num_layers": 8, "tie_word_embeddings": False, "vocab_size": 32128, "torch_dtype": "float32"},
    "vit-h14": {
        "architectures": ["ViTForImageClassification"], "model_type": "vit", "hidden_size": 1280, "hidden_act": "gelu",
        "id2label": {str(number): f"LABEL_{number}" for number in range(1000)}, "image_size": 224, "patch_size": 14,
        "intermediate_size": 5120, "num_attention_heads": 16, "num_channels": 3, "num_hidden_layers": 32,
        "qkv_bias": True, "layer_norm_eps": 1e-12},
}  # fmt: skip


@pytest.mark.parametrize("name", ENCODERS)
def test_models_with_an_encoder_are_read_as_they_are_known_by_name(tmp_path, name, caplog):
    assert read(tmp_path, ENCODERS[name]) == model_size(name)
    dtypes = ["the file's dtype is 'float32', but it is planned in half precision with masters"]
    assert caplog.messages == (dtypes if name == "flan-t5-small" else [])


@pytest.mark.parametrize(
    ("name", "changes", "sequence", "message"),
    [
        ("t5-large", {"feed_forward_proj": "gated-silu"}, None, "feed_forward_proj is 'gated-silu', but must be relu"),
        ("t5-large", {"relative_attention_num_buckets": 64}, None, "relative_attention_num_buckets is 64, which isn't"),
        ("t5-large", {"num_attention_heads": 8, "num_head": 8}, None, "num_head isn't known.* did you mean"),
        ("bert-large", {"hidden_act": "relu"}, None, "hidden_act is 'relu', but must be gelu to be planned"),
        ("bert-large", {"architectures": ["BertModel"]}, None, "but must be that of a ...ForMaskedLM"),
        ("bert-large", {}, 513, "max_position_embeddings is 512, but must be at least the 513 tokens"),
        ("vit-h14", {"patch_size": 15}, None, "patch is 15, but must divide image, 224"),
        ("vit-h14", {}, 196, "sequence is 196, but must be left out for a ViT"),
    ],
)
def test_what_models_with_an_encoder_cannot_be(tmp_path, name, changes, sequence, message):
    with pytest.raises(ValueError, match=message):
        read(tmp_path, ENCODERS[name] | changes, sequence)
