"""A model's sizes from the files that other tools have of it: Hugging Face's config.json, or Megatron's arguments."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from typing import Any, Final

from alpa_dejavu._util.json_file import CheckedFile, read_checked
from alpa_dejavu._util.near_names import near
from alpa_dejavu.exports._settings import Configuration, settings_of
from alpa_dejavu.exports.megatron import megatron_sizes
from alpa_dejavu.layers.models import Transformer

_REMEDY = "give the config.json of a Llama, Mistral, Mixtral, Qwen or GPT-2, as Hugging Face has it"
_SILU, _GELU = ("silu", "swish"), ("gelu_new", "gelu", "gelu_pytorch_tanh", "gelu_fast", "gelu_python")
_PRECISIONS = ("bfloat16", "float16", "float32")
_SETTINGS: Final = settings_of("hugging_face")
"""By kinds of models what the class of each has where a key is missing; "" has the keys of other models than are
planned.
"""
_KINDS: Final = [kind for kind in _SETTINGS if kind]


def read_model(path: str | os.PathLike[str], sequence: int | None = None) -> Transformer:
    """Returns the sizes of the transformer that a Hugging Face `config.json`, or a script with Megatron's arguments,
    has.

    `sequence` is the tokens of a sample; None: as many as the file says. Raises ValueError if the file can't be read,
    or describes a model of another kind; says which key is wrong.
    """
    file = pathlib.Path(path)
    if file.suffix == ".json":
        return _hugging_face(read_checked(file, dict[str, Any], _REMEDY), sequence)
    sizes = megatron_sizes(file)
    return sizes if sequence is None else dataclasses.replace(sizes, sequence=sequence)


def _hugging_face(file: CheckedFile[dict[str, Any]], sequence: int | None) -> Transformer:
    data = file.data
    kind = data.get("model_type")
    if not isinstance(kind, str) or kind not in _KINDS:
        why = f"model_type is {kind!r}, but must be one of {', '.join(_KINDS)}{near(str(kind), _KINDS)}"
        raise file.problem(("model_type",), why)
    for key, setting in _SETTINGS[""].items():
        if not setting.leaves(data.get(key)):
            raise file.problem((key,), f"{key} is of another model than one of blocks alike, which alone is planned")
    heads = data.get("architectures") or []
    if not isinstance(heads, list) or not all(str(name).endswith(("ForCausalLM", "LMHeadModel")) for name in heads):
        raise file.problem(("architectures",), f"architectures is {heads!r}, but must be that of a ...ForCausalLM")
    usual = {key: setting.default for key, setting in _SETTINGS[kind].items()}
    config = Configuration(usual | data, lambda name, why: file.problem((name,) if name else (), why))
    try:
        return _gpt2(config, sequence) if kind == "gpt2" else _llama(config, kind, sequence)
    except ValueError as error:
        if str(error).startswith("transformer: "):
            raise config.wrong("", str(error).removeprefix("transformer: ")) from None
        raise


def _precision(config: Configuration) -> str:
    """Returns the dtype of the parameters; half precision where none is said."""
    key = "torch_dtype" if config.get("dtype") is None else "dtype"
    value = str(config.get(key, "bfloat16")).removeprefix("torch.")
    if value not in _PRECISIONS:
        raise config.must_be(key, f"one of {', '.join(_PRECISIONS)}")
    return value


def _check_activation(config: Configuration, key: str, allowed: tuple[str, ...]) -> None:
    """Checks the function between the products of feed-forward layers."""
    if config.get(key) not in (None, *allowed):
        raise config.must_be(key, f"{allowed[0]} to be planned")


def _llama(config: Configuration, kind: str, sequence: int | None) -> Transformer:
    experts = config.number("num_local_experts", 0) or config.number("num_experts", 0)
    blocks, wide = config.number("num_hidden_layers"), config.number("intermediate_size")
    dense = config.get("mlp_only_layers", [])
    if experts and dense != [*range(len(dense) if isinstance(dense, list) else 0)]:
        raise config.must_be("mlp_only_layers", "the first blocks alone")
    _check_activation(config, "hidden_act", _SILU)
    tokens = sequence or config.number("max_position_embeddings")
    _check_window(config, kind, tokens, blocks)
    base, scaling = _rotary(config)
    shared = config.number("shared_expert_intermediate_size", 0) if experts else 0
    return Transformer(
        hidden=config.number("hidden_size"),
        num_blocks=blocks,
        num_heads=config.number("num_attention_heads"),
        vocabulary=config.number("vocab_size"),
        sequence=tokens,
        kv_heads=config.number("num_key_value_heads", 0),
        head_size=config.number("head_dim", 0),
        feed_forward=config.number("moe_intermediate_size", wide) if experts else wide,
        biases=_biases(config, kind),
        qk_norm=kind in ("qwen3", "qwen3_moe"),
        tied=config.flag("tie_word_embeddings"),
        num_experts=experts,
        experts_per_token=config.number("num_experts_per_tok", 2) if experts else 0,
        shared_feed_forward=shared,
        shared_gate=kind == "qwen2_moe" and shared > 0,
        dense_blocks=len(dense) if experts else 0,
        dense_feed_forward=wide if experts and dense else 0,
        rotary_base=base,
        rotary_scaling=scaling,
        precision=_precision(config),
    )


def _biases(config: Configuration, kind: str) -> str:
    """Which products have a bias: what a kind's class doesn't read changes nothing."""
    if kind in ("qwen2", "qwen2_moe"):
        return "qkv" if kind == "qwen2" or config.flag("qkv_bias", True) else "none"
    attention = kind in ("llama", "qwen3", "qwen3_moe") and config.flag("attention_bias")
    if kind == "llama" and config.flag("mlp_bias"):
        return "all" if attention else "feed_forward"
    return "attention" if attention else "none"


def _check_window(config: Configuration, kind: str, tokens: int, blocks: int) -> None:
    """Checks that each token sees all before it: windows of attention aren't planned."""
    if kind in ("mistral", "mixtral"):
        first = 0
    elif kind.startswith("qwen") and config.flag("use_sliding_window"):
        first = config.number("max_window_layers", 0)
    else:
        first = blocks
    types = config.get("layer_types")
    if types is not None:
        if not isinstance(types, list) or not all(layer in ("full_attention", "sliding_attention") for layer in types):
            raise config.wrong("layer_types", "layer_types has other layers than full_attention and sliding_attention")
        first = types.index("sliding_attention") if "sliding_attention" in types else blocks
    window = config.number("sliding_window", 0)
    if window and first < blocks and tokens > window:
        raise config.wrong(
            "sliding_window",
            f"sliding_window is {window} in layers from {first}, but must be at least a sample's {tokens} tokens, "
            f"since windows of attention aren't planned: give --sequence {window} or fewer, or shorter prompts",
        )


def _rotary(config: Configuration) -> tuple[int, float]:
    """The base of the wavelengths by which positions rotate, and the factor of long ones, as Llama 3.1 has it."""
    key = "rope_scaling" if config.get("rope_parameters") is None else "rope_parameters"
    scaling = config.get(key) or {}
    if not isinstance(scaling, dict):
        raise config.must_be(key, "an object, or null")
    base = scaling.get("rope_theta", config.get("rope_theta"))
    if isinstance(base, bool) or not isinstance(base, int | float) or base < 1 or base != int(base):
        raise config.wrong("rope_theta", f"rope_theta is {base!r}, but must be a whole number of at least 1")
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return int(base), 1.0
    usual = {"low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192}
    factor = scaling.get("factor")
    if kind != "llama3" or any(scaling.get(name, value) != value for name, value in usual.items()):
        raise config.must_be(key, "as Llama 3.1 has it, or null, to be planned")
    if isinstance(factor, bool) or not isinstance(factor, int | float):
        raise config.wrong(key, f"{key} has the factor {factor!r}, but must have a number")
    return int(base), float(factor)


def _gpt2(config: Configuration, sequence: int | None) -> Transformer:
    _check_activation(config, "activation_function", _GELU)
    rows = config.number("n_positions")
    if sequence is not None and sequence > rows:
        raise config.must_be("n_positions", f"at least the {sequence} tokens asked for")
    return Transformer(
        config.number("n_embd"), config.number("n_layer"), config.number("n_head"), config.number("vocab_size"),
        sequence or rows, feed_forward=config.number("n_inner", 0), gated=False, rotary=False, rms_norm=False,
        biases="all", tied=config.flag("tie_word_embeddings", True), precision=_precision(config),
    )  # fmt: skip
