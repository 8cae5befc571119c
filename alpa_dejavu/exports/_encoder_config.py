"""The sizes of models with an encoder, BERT, T5 and ViT, from the config.json that Hugging Face has of them."""

from __future__ import annotations

import logging
from typing import Any, Final

from alpa_dejavu.exports._settings import Configuration, short
from alpa_dejavu.layers.models import TextSizes, model_size

_LOGGER = logging.getLogger(__name__)
ENCODERS: Final = {
    "bert": ("ForMaskedLM",), "t5": ("ForConditionalGeneration", "WithLMHeadModel"), "vit": ("ForImageClassification",)
}  # fmt: skip
"""The kinds of models, and how the classes' names end of those that are planned."""
_KEYS: Final = {
    "bert": "hidden=hidden_size blocks=num_hidden_layers heads=num_attention_heads feed_forward=intermediate_size "
    "vocabulary=vocab_size kinds=type_vocab_size",
    "t5": "hidden=d_model blocks=num_layers heads=num_heads head_size=d_kv feed_forward=d_ff vocabulary=vocab_size",
    "vit": "hidden=hidden_size blocks=num_hidden_layers heads=num_attention_heads feed_forward=intermediate_size "
    "patch=patch_size image=image_size",
}
"""The sizes as a text has them, each with its key in the file."""


def encoder_sizes(config: Configuration, kind: str, sequence: int | None) -> TextSizes:
    """Returns the sizes that a configuration of one of `ENCODERS` has; ValueError if these aren't planned."""
    sizes: dict[str, Any] = {}
    for pair in _KEYS[kind].split():
        name, _, key = pair.partition("=")
        sizes[name] = config.number(key)
    if kind == "t5":
        gated = config.one_of("feed_forward_proj", ("relu", "gated-gelu")) == "gated-gelu"
        tied = config.flag("tie_word_embeddings", True)
        sizes |= {"gated": "yes" if gated else "no", "tied": "yes" if tied else "no"}
        sizes["decoder_blocks"] = config.number("num_decoder_layers", sizes["blocks"])
        sizes["sequence"] = sequence or config.number("n_positions", 512)
    elif not str(config.get("hidden_act")).startswith("gelu"):
        raise config.must_be("hidden_act", "gelu to be planned")
    if kind == "bert":
        sizes["sequence"] = config.tokens("max_position_embeddings", sequence)
    if kind == "vit":
        if sequence is not None:
            raise ValueError(f"sequence is {sequence}, but must be left out for a ViT, whose samples are images")
        labels = config.get("id2label", {})
        if not isinstance(labels, dict):
            raise config.must_be("id2label", "an object")
        sizes["classes"] = len(labels) or config.number("num_labels", 2)
    dtype = config.get("dtype", config.get("torch_dtype", "float16"))
    if str(dtype).removeprefix("torch.") not in ("float16", "bfloat16"):
        _LOGGER.warning("the file's dtype is %s, but it is planned in half precision with masters", short(dtype))
    size = model_size(f"{kind}:" + ",".join(f"{name}={value}" for name, value in sizes.items()))
    assert isinstance(size, TextSizes)
    return size
