"""The sizes of a model that MaxText's settings say, or name, and how it is trained."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from alpa_dejavu.exports._settings import Configuration
from alpa_dejavu.exports.maxtext._settings import is_written, known_model
from alpa_dejavu.layers.models import Transformer

_BLOCKS: Final = ("llama2", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "deepseek", "gpt3")
"""Kinds of decoders whose sizes are read."""
_PRECISIONS: Final = {
    "": "", "fp8": "float8", "fp8_gpu": "float8", "te_fp8_delayedscaling": "float8", "te_fp8_currentscaling": "float8",
    "te_mxfp8": "mxfp8",
}  # fmt: skip
_OPTIMIZERS: Final = {"adamw": "adamw", "adam_pax": "adamw", "sgd": "sgd", "muon": "muon"}
_SCALE, _TOKENS, _MOST_TOKENS = "global_parameter_scale", "max_target_length", 2048


def model_sizes(config: Configuration, model: Transformer | None) -> Transformer:
    """Returns the model's sizes: those given, those of its name, or those that are written."""
    kind = config.one_of("quantization", _PRECISIONS)
    if kind and config.get("dtype") != "bfloat16":
        raise config.must_be("dtype", "bfloat16 beside a quantization")
    training: dict[str, Any] = {
        "precision": _PRECISIONS[kind] or config.one_of("dtype", ("bfloat16", "float32")),
        "optimizer": _OPTIMIZERS[config.one_of("opt_type", _OPTIMIZERS)],
    }
    training |= {"sequence": config.number(_TOKENS, _MOST_TOKENS)} if model is None or _TOKENS in config else {}
    sizes = model or known_model(config)
    if model is None and (sizes is None or is_written(sizes)):
        try:
            sizes = _written_sizes(config)
        except ValueError as error:
            owner, _, why = str(error).partition(": ")
            if owner == "transformer":
                raise config.wrong("", why) from None
            raise
    assert sizes is not None, "it is written, or named"
    return dataclasses.replace(sizes, gather="", **training)


def _written_sizes(config: Configuration) -> Transformer:
    block = config.one_of("decoder_block", _BLOCKS)
    activations = config.get("mlp_activations")
    if activations not in (["silu", "linear"], ["gelu", "linear"], ["gelu"]):
        raise config.must_be("mlp_activations", "silu and linear, gelu and linear, or gelu to be planned")
    latent = config.one_of("attention_type", ("global", "mla")) == "mla"
    if latent != (block == "deepseek"):
        raise config.must_be("attention_type", "mla with decoder_block deepseek, else global, to be planned")
    wider, more, deeper = _scales(config)
    experts, plain = config.number("num_experts"), block == "gpt3"
    wide = narrow = config.number("base_mlp_dim") * more
    if experts > 1 and config.get("base_moe_mlp_dim") != -1:
        narrow = config.number("base_moe_mlp_dim") * more
    fields: dict[str, Any] = {"feed_forward": narrow}
    if experts > 1:
        dense = config.number("first_num_dense_layers", 0)
        fields |= {
            "num_experts": experts, "experts_per_token": config.number("num_experts_per_tok"), "dense_blocks": dense,
            "dense_feed_forward": wide if dense else 0, "router_bias": config.flag("routed_bias"),
            "shared_feed_forward": config.number("shared_experts", 0) * narrow, "capacity": _capacity(config),
        }  # fmt: skip
    if latent:
        keys = {"head_size": "qk_nope_head_dim", "rotary_size": "qk_rope_head_dim", "value_size": "v_head_dim",
                "latent_rank": "kv_lora_rank"}  # fmt: skip
        fields |= {field: config.number(key) for field, key in keys.items()}
        fields |= {"query_rank": config.number("q_lora_rank", 0, least=0)}
    heads, biased = config.number("base_num_query_heads") * more, config.flag("attention_bias")
    fields |= {"rotary": False, "rms_norm": False} if plain else _rotary(config)
    positions, tokens = config.number("trainable_position_size", -1, least=-1), config.number(_TOKENS, _MOST_TOKENS)
    return Transformer(
        config.number("base_emb_dim") * wider, config.number("base_num_decoder_layers") * deeper, heads,
        config.number("vocab_size"), tokens, kv_heads=heads if latent else config.number("base_num_kv_heads") * more,
        gated=len(activations) > 1,
        **{"head_size": config.number("head_dim"), **fields},
        activation=activations[0], tied=config.flag("logits_via_embedding"), qk_norm=config.flag("use_qk_norm"),
        biases="all" if plain else "none" if not biased else "qkv" if block == "qwen2" else "attention",
        predicted=config.number("mtp_num_layers", 0, least=0),
        positions=positions if plain and positions not in (-1, tokens) else 0,
    )  # fmt: skip


def _scales(config: Configuration) -> tuple[int, int, int]:
    """Returns how many times as wide are hidden states, as many are heads and feed-forward sizes, and blocks."""
    scale = config.number(_SCALE)
    third, rest = divmod(scale.bit_length() - 1, 3)
    if scale.bit_count() != 1:
        raise config.must_be(_SCALE, "a power of two")
    return 2 ** (third + (rest > 1)), 2 ** (third + (rest > 0)), 2**third


def _capacity(config: Configuration) -> float:
    """Returns for how many tokens beyond an even share an expert has a place; 0: for all that come."""
    factor = config.real("capacity_factor")
    if config.flag("sparse_matmul"):
        return 0.0
    if factor <= 0:
        raise config.must_be("sparse_matmul", "true, or beside a capacity_factor: all experts compute all tokens else")
    return factor


def _rotary(config: Configuration) -> dict[str, Any]:
    """The fields that say how positions rotate heads."""
    kind, base = config.one_of("rope_type", ("default", "llama3.1", "yarn")), config.real("rope_max_timescale")
    if base < 1 or base != int(base):
        raise config.must_be("rope_max_timescale", "a whole number")
    fields: dict[str, Any] = {"rotary_base": int(base)}
    if kind == "yarn":
        return fields | {"rotary_scaling": config.real("rope_factor"), "rotary_scaling_kind": "yarn"}
    scaled = kind == "llama3.1" and config.flag("rope_use_scale")
    return fields | ({"rotary_scaling": 8.0, "rotary_scaling_kind": "llama3"} if scaled else {})
