"""A model's sizes from the files that other tools have of it: Hugging Face's config.json, or Megatron's arguments."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from alpa_dejavu._util.json_file import CheckedFile, read_checked
from alpa_dejavu._util.near_names import near
from alpa_dejavu.exports.megatron import megatron_sizes
from alpa_dejavu.layers.models import Transformer

__all__ = ["LONGEST", "read_model"]

LONGEST = 4096
"""A sample has no more tokens where a configuration allows more, and nobody says how many."""
_REMEDY = "give the config.json of a Llama, Mistral, Mixtral, Qwen or GPT-2, as Hugging Face has it"
_LLAMA = {"llama": "none", "mistral": "none", "mixtral": "none", "qwen2": "qkv", "qwen2_moe": "qkv", "qwen3": "none",
          "qwen3_moe": "none"}  # fmt: skip
"""Kinds of models like Llama, with the products of a block that have a bias."""
_KINDS = (*_LLAMA, "gpt2")


def read_model(path: str | os.PathLike[str], sequence: int | None = None) -> Transformer:
    """Returns the sizes of the transformer that a file describes: a Hugging Face `config.json`, or else a script or a
    command line with Megatron's arguments.

    Args:
        path: the file.
        sequence: the tokens of a sample; None: as many as the file says, of a `config.json` at most 4096.

    Raises:
        ValueError: the file can't be read, or describes a model of another kind; says which key is wrong.
    """
    file = pathlib.Path(path)
    if file.suffix == ".json":
        return _hugging_face(read_checked(file, dict[str, Any], _REMEDY), sequence)
    sizes = megatron_sizes(file)
    return sizes if sequence is None else dataclasses.replace(sizes, sequence=sequence)


def _hugging_face(file: CheckedFile[dict[str, Any]], sequence: int | None) -> Transformer:
    data = file.data
    kind = data.get("model_type")
    if kind not in _KINDS:
        said = f"model_type is {kind!r}, but must be one of {', '.join(_KINDS)}{near(str(kind), _KINDS)}"
        raise file.problem(("model_type",), said)
    try:
        return _gpt2(file, data, sequence) if kind == "gpt2" else _llama(file, data, sequence)
    except ValueError as error:
        if str(error).startswith("transformer: "):
            raise file.problem((), str(error).removeprefix("transformer: ")) from None
        raise


def _llama(file: CheckedFile[dict[str, Any]], data: Mapping[str, Any], sequence: int | None) -> Transformer:
    kind = data["model_type"]
    experts = _number(file, "num_local_experts", 0) or _number(file, "num_experts", 0)
    for key, plain in (("decoder_sparse_step", 1), ("mlp_only_layers", [])):
        if experts and data.get(key, plain) != plain:
            raise file.problem((key,), f"{key} is {data[key]!r}, but must be {plain!r}: blocks are planned alike")
    wide = _number(file, "intermediate_size")
    if experts:
        wide = _number(file, "moe_intermediate_size", wide)
    biases = data.get("attention_bias", _LLAMA[kind])
    return Transformer(
        hidden=_number(file, "hidden_size"),
        num_blocks=_number(file, "num_hidden_layers"),
        num_heads=_number(file, "num_attention_heads"),
        vocabulary=_number(file, "vocab_size"),
        sequence=sequence or min(_number(file, "max_position_embeddings"), LONGEST),
        kv_heads=_number(file, "num_key_value_heads", 0),
        head_size=_number(file, "head_dim", 0),
        feed_forward=wide,
        biases={True: "qkv", False: "none"}.get(biases, _LLAMA[kind]),
        qk_norm=kind in ("qwen3", "qwen3_moe"),
        tied=bool(data.get("tie_word_embeddings", False)),
        num_experts=experts,
        experts_per_token=_number(file, "num_experts_per_tok", 2) if experts else 0,
        shared_feed_forward=_number(file, "shared_expert_intermediate_size", 0) if experts else 0,
    )


def _gpt2(file: CheckedFile[dict[str, Any]], data: Mapping[str, Any], sequence: int | None) -> Transformer:
    return Transformer(
        hidden=_number(file, "n_embd"),
        num_blocks=_number(file, "n_layer"),
        num_heads=_number(file, "n_head"),
        vocabulary=_number(file, "vocab_size"),
        sequence=sequence or _number(file, "n_positions"),
        feed_forward=_number(file, "n_inner", 0),
        gated=False,
        rotary=False,
        rms_norm=False,
        biases="all",
        tied=bool(data.get("tie_word_embeddings", True)),
    )


def _number(file: CheckedFile[dict[str, Any]], key: str, default: int | None = None) -> int:
    value = file.data.get(key)
    if value is None and default is not None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < (1 if default is None else 0):
        raise file.problem((key,), f"{key} is {value!r}, but must be a whole number of at least 1")
    return value
