"""A model's sizes from the files that other tools have of it: Hugging Face's config.json, or Megatron's arguments."""

from __future__ import annotations

import dataclasses
import logging
import os
import pathlib
from collections.abc import Sequence
from typing import Any, Final

from alpa_dejavu._util.json_file import CheckedFile, read_checked
from alpa_dejavu._util.near_names import near
from alpa_dejavu.exports._encoder_config import ENCODERS, encoder_sizes
from alpa_dejavu.exports._settings import Configuration, settings_of, short, unknown_setting
from alpa_dejavu.exports.megatron import megatron_sizes
from alpa_dejavu.layers.models import TextSizes, Transformer
from alpa_dejavu.problem.limits import MOST_LAYERS, at_most

_LOGGER = logging.getLogger(__name__)
_REMEDY = "give a config.json as Hugging Face has it, or the sizes as 'transformer:hidden=N,...'"
_ACTIVATIONS: Final = dict.fromkeys(
    ("gelu_new", "gelu", "gelu_pytorch_tanh", "gelu_fast", "gelu_python"), "gelu"
) | {"silu": "silu", "swish": "silu", "relu": "relu", "relu2": "relu2"}  # fmt: skip
_PRECISIONS = ("bfloat16", "float16", "float32")
_SETTINGS: Final = settings_of("hugging_face")
"""By kinds of models what a reader does with each key; "" has the keys of all kinds."""
_KINDS: Final = [kind for kind in _SETTINGS if kind]
_FACTS: Final[dict[str, dict[str, Any]]] = {
    "gemma2": {"norms": "sandwich"},
    "gemma3_text": {"norms": "sandwich", "qk_norm": True},
    "olmo2": {"norms": "post", "qk_norm": True, "wide_qk_norm": True},
    "qwen3": {"qk_norm": True},
    "qwen3_moe": {"qk_norm": True},
    "gpt_oss": {"sinks": True, "router_bias": True, "expert_biases": True},
    "deepseek_v3": {"router_bias": True},
    "nemotron": {"gated": False, "rms_norm": False},
}
"""What a kind's class has whatever its config says."""
_EXPERTS: Final = {
    "mixtral": "num_local_experts", "gpt_oss": "num_local_experts", "qwen2_moe": "num_experts",
    "qwen3_moe": "num_experts", "deepseek_v2": "n_routed_experts", "deepseek_v3": "n_routed_experts",
}  # fmt: skip
_NO_BIASES = ("mistral", "mixtral", "phi3")
"""The kinds whose classes don't read that there are biases."""
_OUTER = ("dtype", "torch_dtype", "tie_word_embeddings")
"""The keys that a model with images has outside its text_config, too."""
_SCALED: Final = {
    "rope_type", "type", "rope_theta", "factor", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow",
    "mscale", "mscale_all_dim", "short_mscale", "long_mscale", "short_factor", "long_factor", "attention_factor",
    "original_max_position_embeddings", "truncate", "finetuned", "partial_rotary_factor",
}  # fmt: skip


def read_model(path: str | os.PathLike[str], sequence: int | None = None) -> TextSizes:
    """Returns the sizes of the transformer that a Hugging Face `config.json`, or a script with Megatron's arguments,
    has.

    `sequence` is the tokens of a sample; None: as many as the file says. Raises ValueError if the file can't be read,
    describes a model of another kind, or one of fewer tokens; says which key is wrong.
    """
    file = pathlib.Path(path)
    if file.suffix == ".json":
        return _hugging_face(read_checked(file, dict[str, Any], _REMEDY), sequence)
    sizes = megatron_sizes(file)
    return sizes if sequence is None else dataclasses.replace(sizes, sequence=sequence)


def _hugging_face(file: CheckedFile[dict[str, Any]], sequence: int | None) -> TextSizes:
    data, outer = file.data, tuple[str, ...]()
    kind = data.get("model_type")
    if not isinstance(kind, str) or kind not in _KINDS:
        why = f"model_type is {short(kind)}, but must be one of {', '.join(_KINDS)}{near(str(kind), _KINDS)}"
        raise file.problem(("model_type",), why)
    _check_keys(file, kind, data, outer)
    if kind == "gemma3":
        _LOGGER.warning("%s: its language model alone is planned, without the encoder of images", file.path)
        inner, outer, kind = data.get("text_config"), ("text_config",), "gemma3_text"
        if not isinstance(inner, dict):
            raise file.problem(outer, f"text_config is {short(inner)}, but must be an object of sizes")
        _check_keys(file, kind, inner, outer)
        data = {key: value for key, value in data.items() if key in _OUTER} | inner
    usual = {key: setting.default for key, setting in _SETTINGS[kind].items() if setting.use == "default"}
    config = Configuration(usual | data, lambda name, why: file.problem((*outer, name) if name else (), why))
    readers = {"gpt2": _gpt2, "mpt": _mpt, **dict.fromkeys(ENCODERS, encoder_sizes)}
    try:
        return readers.get(kind, _decoder)(config, kind, sequence)
    except ValueError as error:
        owner, _, why = str(error).partition(": ")
        if owner in ("transformer", *ENCODERS):
            raise config.wrong("", why) from None
        raise


def _check_keys(file: CheckedFile[dict[str, Any]], kind: str, data: dict[str, Any], outer: tuple[str, ...]) -> None:
    """Checks that each key is known, and that none is of what isn't planned."""
    settings = {**_SETTINGS[""], **_SETTINGS[kind]}
    for key, value in data.items():
        setting = settings.get(key)
        if setting is None and value is not None:
            raise file.problem((*outer, key), unknown_setting(key, key, settings))
        if setting is not None and setting.use == "off" and not setting.leaves(value):
            raise file.problem((*outer, key), f"{key} is {short(value)}, which isn't planned; {setting.remedy}")
    heads = data.get("architectures") or []
    endings = ENCODERS.get(kind, ("ForCausalLM", "LMHeadModel"))
    endings += ("ForConditionalGeneration",) if kind == "gemma3" else ()
    if not isinstance(heads, list) or not all(str(name).endswith(endings) for name in heads):
        raise file.problem(("architectures",), f"architectures is {heads!r}, but must be that of a ...{endings[0]}")


def _precision(config: Configuration) -> str:
    """Returns the dtype of the parameters; half precision where none is said."""
    key = "torch_dtype" if config.get("dtype") is None else "dtype"
    value = str(config.get(key, "bfloat16")).removeprefix("torch.")
    if value not in _PRECISIONS:
        raise config.must_be(key, f"one of {', '.join(_PRECISIONS)}")
    return value


def _activation(config: Configuration, default: str, *keys: str) -> str:
    """Returns the function between the products of feed-forward layers, which one of some keys says."""
    key = next((key for key in keys if config.get(key) is not None), keys[0])
    return _ACTIVATIONS[config.one_of(key, _ACTIVATIONS, default)]


def _decoder(config: Configuration, kind: str, sequence: int | None) -> Transformer:
    blocks, wide = config.number("num_hidden_layers"), config.number("intermediate_size")
    at_most("transformer: num_blocks", blocks, MOST_LAYERS - 2, "plan fewer: each is a layer")
    heads, hidden = config.number("num_attention_heads"), config.number("hidden_size")
    tokens, experts = config.tokens("max_position_embeddings", sequence), 0
    window, every = _window(config, kind, tokens, blocks)
    fields: dict[str, Any] = {"kv_heads": config.number("num_key_value_heads", 0), "feed_forward": wide}
    head = config.number("head_dim", 0)
    if kind.startswith("deepseek"):
        fields |= _latent(config, heads)
        head = fields["head_size"]
    if kind in _EXPERTS and (experts := config.number(_EXPERTS[kind], 0)):
        fields |= _experts(config, kind, experts, wide)
    facts = _FACTS.get(kind, {})
    return Transformer(
        hidden, blocks, heads, config.number("vocab_size"), tokens,
        **{"head_size": head} | fields | facts,
        biases=_biases(config, kind),
        tied=config.flag("tie_word_embeddings"),
        activation=_activation(config, "silu", "hidden_activation", "hidden_act"),
        window=window,
        global_every=every,
        attention_cap=config.real("attn_logit_softcapping", 0.0),
        logit_cap=config.real("final_logit_softcapping", 0.0),
        predicted=config.number("num_nextn_predict_layers", 0),
        precision=_precision(config),
        **_rotary(config, head or hidden // heads, tokens),
    )  # fmt: skip


def _experts(config: Configuration, kind: str, experts: int, wide: int) -> dict[str, Any]:
    """The fields that say which blocks have which experts."""
    width = wide if kind in ("mixtral", "gpt_oss") else config.number("moe_intermediate_size", wide)
    listed = config.get("mlp_only_layers", [])
    if not isinstance(listed, list) or listed != [*range(len(listed))]:
        raise config.must_be("mlp_only_layers", "the first blocks alone")
    dense = len(listed) or config.number("first_k_dense_replace", 0)
    every = config.number("decoder_sparse_step", 1)
    shared = config.number("n_shared_experts", 0) * width if kind.startswith("deepseek") else (
        config.number("shared_expert_intermediate_size", 0) if kind == "qwen2_moe" else 0
    )  # fmt: skip
    return {
        "feed_forward": width, "num_experts": experts, "experts_per_token": config.number("num_experts_per_tok", 2),
        "shared_feed_forward": shared, "shared_gate": kind == "qwen2_moe" and shared > 0, "dense_blocks": dense,
        "experts_every": every, "dense_feed_forward": wide if dense or every > 1 else 0,
    }  # fmt: skip


def _latent(config: Configuration, heads: int) -> dict[str, Any]:
    """The fields of multi-head latent attention, in which each head has keys of its own."""
    keys = {"head_size": "qk_nope_head_dim", "rotary_size": "qk_rope_head_dim", "value_size": "v_head_dim",
            "latent_rank": "kv_lora_rank"}  # fmt: skip
    ranks = {field: config.number(key) for field, key in keys.items()}
    return ranks | {"query_rank": config.number("q_lora_rank", 0), "kv_heads": heads}


def _biases(config: Configuration, kind: str) -> str:
    """Which products have a bias: what a kind's class doesn't read changes nothing."""
    if kind in ("qwen2", "qwen2_moe"):
        return "qkv" if kind == "qwen2" or config.flag("qkv_bias", True) else "none"
    if kind in _NO_BIASES:
        return "none"
    attention = config.flag("attention_bias")
    if kind in ("llama", "nemotron") and config.flag("mlp_bias"):
        return "all" if attention else "feed_forward"
    return "attention" if attention else "none"


def _window(config: Configuration, kind: str, tokens: int, blocks: int) -> tuple[int, int]:
    """The tokens of a window that is shorter than a sample, and every how many blocks one has none; 0 for none."""
    window = config.number("sliding_window", 0)
    if kind.startswith("qwen"):
        first = config.number("max_window_layers", 0, least=0) if config.flag("use_sliding_window") else blocks
        local = [number >= first for number in range(blocks)]
    else:
        every = config.number("sliding_window_pattern", 0)
        has_any = kind in ("mistral", "mixtral", "phi3") or every > 0
        local = [has_any and not (every and (number + 1) % every == 0) for number in range(blocks)]
    types = config.get("layer_types")
    if types is not None:
        if not isinstance(types, list) or not all(of in ("full_attention", "sliding_attention") for of in types):
            raise config.wrong("layer_types", "layer_types has other layers than full_attention and sliding_attention")
        local = [of == "sliding_attention" for of in types]
    if not window or window >= tokens or not any(local):
        return 0, 0
    every = 0 if all(local) else local.index(False) + 1
    if local != [not every or (number + 1) % every > 0 for number in range(blocks)] or every == 1:
        raise config.wrong(
            "sliding_window",
            f"sliding_window is {window} in layers {_listed(local)} of {blocks}, but must be in all, or in all but "
            f"every so-manieth, to be planned; give --sequence {window} or fewer",
        )
    return window, every


def _listed(local: Sequence[bool]) -> str:
    return short([number for number, is_local in enumerate(local) if is_local])


def _rotary(config: Configuration, head: int, tokens: int) -> dict[str, Any]:
    """The fields that say how positions rotate heads of a width."""
    key = "rope_scaling" if config.get("rope_parameters") is None else "rope_parameters"
    scaling = config.get(key) or {}
    if isinstance(scaling, dict) and isinstance(scaling.get("full_attention"), dict):
        scaling = scaling["full_attention"]
    if not isinstance(scaling, dict) or not set(scaling) <= _SCALED:
        raise config.must_be(key, f"an object with none but {', '.join(sorted(_SCALED))}, or null")
    base = scaling.get("rope_theta", config.get("rope_theta"))
    if isinstance(base, bool) or not isinstance(base, int | float) or base < 1 or base != int(base):
        raise config.wrong("rope_theta", f"rope_theta is {short(base)}, but must be a whole number of at least 1")
    share = scaling.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise config.must_be("partial_rotary_factor", "above 0 and at most 1", 1.0)
    fields: dict[str, Any] = {"rotary_base": int(base), "rotated": int(head * share) if share < 1 else 0}
    kind = str(scaling.get("rope_type", scaling.get("type", "default")))
    if kind == "default":
        return fields
    kind = {"su": "longrope"}.get(kind, kind)
    usual = {"low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192}
    if kind == "llama3" and any(scaling.get(name, value) != value for name, value in usual.items()):
        raise config.must_be(key, "as Llama 3.1 has it, or null, to be planned")
    factor = scaling.get("factor")
    if kind == "longrope" and factor is None:
        before = config.number("original_max_position_embeddings", config.number("max_position_embeddings"))
        factor = max(config.number("max_position_embeddings") / before, 1.0)
    if isinstance(factor, bool) or not isinstance(factor, int | float):
        raise config.wrong(key, f"{key} has the factor {short(factor)}, but must have a number")
    return fields | {"rotary_scaling": float(factor), "rotary_scaling_kind": kind}


def _gpt2(config: Configuration, kind: str, sequence: int | None) -> Transformer:
    rows = config.number("n_positions")
    tokens = config.tokens("n_positions", sequence)
    return Transformer(
        config.number("n_embd"), config.number("n_layer"), config.number("n_head"), config.number("vocab_size"),
        tokens, feed_forward=config.number("n_inner", 0), gated=False, rotary=False, rms_norm=False, biases="all",
        tied=config.flag("tie_word_embeddings", True), precision=_precision(config),
        activation=_activation(config, "gelu_new", "activation_function"), positions=0 if rows == tokens else rows,
    )  # fmt: skip


def _mpt(config: Configuration, kind: str, sequence: int | None) -> Transformer:
    attention = config.get("attn_config", {})
    if not isinstance(attention, dict):
        raise config.must_be("attn_config", "an object")
    usual = {"attn_type": "multihead_attention", "alibi": True, "qk_ln": False}
    for name, value in usual.items():
        if attention.get(name, value) not in (value, "grouped_query_attention" if name == "attn_type" else value):
            why = f"attn_config has {name} {short(attention[name])}, but must have {value!r} to be planned"
            raise config.wrong("attn_config", why)
    hidden, no_bias = config.number("d_model"), config.flag("no_bias", True)
    keys = dataclasses.replace(config, values=attention).number("kv_n_heads", 0)
    return Transformer(
        hidden, config.number("n_layers"), config.number("n_heads"), config.number("vocab_size"),
        config.tokens("max_seq_len", sequence), kv_heads=keys,
        feed_forward=config.number("expansion_ratio") * hidden, gated=False, rotary=False, alibi=True, rms_norm=False,
        norm_bias=not no_bias, biases="none" if no_bias else "all", tied=config.flag("tie_word_embeddings", True),
        precision=_precision(config),
    )  # fmt: skip
