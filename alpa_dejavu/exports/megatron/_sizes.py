"""A transformer's sizes as Megatron's arguments, and back."""

from __future__ import annotations

import ast
import re
from typing import Any, Final

from alpa_dejavu.exports._settings import Configuration
from alpa_dejavu.layers.models import Transformer

_NUMBERS: Final = {
    "num-layers": "num_blocks", "hidden-size": "hidden", "num-attention-heads": "num_heads", "seq-length": "sequence",
}  # fmt: skip
"""The arguments that must be there, with the fields of a transformer that they say."""
_FLAGS: Final = {
    "swiglu": ("gated", True),
    "qk-layernorm": ("qk_norm", True),
    "untie-embeddings-and-output-weights": ("tied", False),
    "moe-shared-expert-gate": ("shared_gate", True),
}
"""Arguments without a value, with the field that they say, and what it is where they are there."""
_RECIPES: Final = {
    "delayed": "float8", "tensorwise": "float8", "blockwise": "fp8-blockwise", "mxfp8": "mxfp8",
}  # fmt: skip
"""The precision of each recipe of FP8."""
_NARROW: Final[dict[str, dict[str, object]]] = {
    "float8": {"fp8-format": "hybrid"}, "fp8-blockwise": {"fp8-format": "e4m3", "fp8-recipe": "blockwise"},
    "mxfp8": {"fp8-format": "e4m3", "fp8-recipe": "mxfp8"}, "nvfp4": {"fp4-format": "e2m1"},
}  # fmt: skip
"""The arguments of precisions with products in fewer than 16 bits."""
_OPTIMIZERS: Final = {"adam": "adamw", "adamw": "adamw", "sgd": "sgd", "muon": "muon", "dist_muon": "muon"}
_FREQUENCY = re.compile(r"[\d,\[\]()+* ]{1,500}")
_MOST_BLOCKS = 100_000
_UNIT = 128


def size_arguments(model: Transformer) -> dict[str, str | None]:
    """Returns Megatron's arguments for a transformer's sizes, by name; None for those without a value."""
    arguments: dict[str, object] = {
        "num-layers": model.num_blocks,
        "hidden-size": model.hidden,
        "ffn-hidden-size": model.dense_feed_forward or model.feed_forward,
        "num-attention-heads": model.num_heads,
        "kv-channels": model.head_size,
        "seq-length": model.sequence,
        "max-position-embeddings": model.sequence,
        "vocab-size": model.vocabulary,
        "position-embedding-type": "rope" if model.rotary else "learned_absolute",
        "normalization": "RMSNorm" if model.rms_norm else "LayerNorm",
    }
    if model.rotary:
        arguments |= {"rotary-base": model.rotary_base}
    if model.rotary_scaling > 1:
        arguments |= {"use-rope-scaling": None, "rope-scaling-factor": model.rotary_scaling}
    if model.kv_heads < model.num_heads:
        arguments |= {"group-query-attention": None, "num-query-groups": model.kv_heads}
    if model.num_experts:
        arguments |= {"num-experts": model.num_experts, "moe-router-topk": model.experts_per_token}
        arguments |= {"moe-ffn-hidden-size": model.feed_forward}
    if model.dense_blocks:
        arguments |= {"moe-layer-freq": f"([0]*{model.dense_blocks}+[1]*{model.num_blocks - model.dense_blocks})"}
    if model.shared_feed_forward:
        arguments |= {"moe-shared-expert-intermediate-size": model.shared_feed_forward}
    arguments |= _NARROW.get(model.precision, {}) | ({"optimizer": "sgd"} if model.optimizer == "sgd" else {})
    flags = {name: getattr(model, field) == value for name, (field, value) in _FLAGS.items()}
    biases = {"disable-bias-linear": model.biases != "all", "add-qkv-bias": model.biases == "qkv"}
    mixed = model.precision == "bfloat16" or model.precision in _NARROW
    precisions = {"fp16": model.precision == "float16", "bf16": mixed, "fp8-param-gather": bool(model.gather)}
    swiglu = {"swiglu": flags.pop("swiglu")}
    arguments |= {name: None for name, is_set in (swiglu | biases | flags | precisions).items() if is_set}
    return {name: None if value is None else str(value) for name, value in arguments.items()}


def sizes_of_arguments(config: Configuration) -> Transformer:
    """Returns the transformer that Megatron's arguments say; ValueError if one is missing or wrong."""
    for name in _NUMBERS:
        if name not in config:
            why = f"--{name} is missing, but must be there to know the model; add it, or give --model"
            raise config.wrong(name, why)
    numbers = {field: config.number(name) for name, field in _NUMBERS.items()}
    hidden, blocks, experts = numbers["hidden"], numbers["num_blocks"], config.number("num-experts", 0)
    # Megatron takes two thirds of the usual width for a gate, in multiples of 64.
    usual = int(4 * hidden * 2 / 3 / 64) * 64 if "swiglu" in config else 4 * hidden
    wide = config.number("ffn-hidden-size", usual)
    biases = "all" if "disable-bias-linear" not in config else "qkv" if "add-qkv-bias" in config else "none"
    if experts and biases == "all":
        why = "experts with biases aren't planned; add --disable-bias-linear if there are none"
        raise config.wrong("num-experts", why)
    dense, rotary = _dense_blocks(config, blocks) if experts else 0, _rotary(config)
    fields: dict[str, Any] = dict(
        **numbers,
        vocabulary=_vocabulary(config),
        kv_heads=config.number("num-query-groups", 1) if "group-query-attention" in config else 0,
        head_size=config.number("kv-channels", 0),
        feed_forward=config.number("moe-ffn-hidden-size", wide) if experts else wide,
        rotary=rotary,
        rotary_base=config.number("rotary-base", 10000) if rotary else 10000,
        rotary_scaling=_factor(config) if rotary and "use-rope-scaling" in config else 1.0,
        rms_norm=config.one_of("normalization", ("LayerNorm", "RMSNorm"), "LayerNorm") == "RMSNorm",
        biases=biases,
        num_experts=experts,
        experts_per_token=config.number("moe-router-topk", 2) if experts else 0,
        shared_feed_forward=config.number("moe-shared-expert-intermediate-size", 0) if experts else 0,
        dense_blocks=dense,
        dense_feed_forward=wide if dense else 0,
        **training_of(config),
        **{field: (name in config) == value for name, (field, value) in _FLAGS.items()},
    )
    try:
        return Transformer(**fields)
    except ValueError as error:
        raise config.wrong("", str(error)) from None


def training_of(config: Configuration) -> dict[str, Any]:
    """Returns the fields of a transformer that say how arguments train it."""
    precision, name = precision_of(config), "fp8-param-gather"
    if name in config and "fp8-format" not in config:
        raise config.wrong(name, f"--{name} is without --fp8-format, but must be beside it; leave it out")
    optimizer = _OPTIMIZERS[config.one_of("optimizer", tuple(_OPTIMIZERS), "adam")]
    return {"precision": precision, "gather": "fp8" if name in config else "", "optimizer": optimizer}


def precision_of(config: Configuration) -> str:
    """Returns the dtype that arguments train in: single precision without one of Megatron's."""
    if "bf16" in config and "fp16" in config:
        raise config.wrong("fp16", "--fp16 is beside --bf16, but must be alone; leave one out")
    for name, formats in (("fp8-format", ("hybrid", "e4m3")), ("fp4-format", ("e2m1",))):
        if name in config:
            config.one_of(name, formats)
            if "bf16" not in config:
                raise config.wrong(name, f"--{name} is without --bf16, which isn't priced; add --bf16")
            recipe = config.one_of("fp8-recipe", tuple(_RECIPES), "delayed")
            return "nvfp4" if name == "fp4-format" else _RECIPES[recipe]
    return "bfloat16" if "bf16" in config else "float16" if "fp16" in config else "float32"


def _rotary(config: Configuration) -> bool:
    kind = config.one_of("position-embedding-type", ("learned_absolute", "rope"), "learned_absolute")
    if "use-rotary-position-embeddings" in config or kind == "rope":
        return True
    name = "no-position-embedding"
    if name in config:
        raise config.wrong(name, f"--{name} is of a model without positions, which isn't planned; leave it out")
    name, tokens = "max-position-embeddings", config.number("seq-length")
    rows = config.number(name, tokens)
    if rows != tokens:
        why = f"--{name} is {rows}, but must be --seq-length, {tokens}, to be planned; make them equal"
        raise config.wrong(name, why)
    return False


def _vocabulary(config: Configuration) -> int:
    """The rows of the table of embeddings, as far as padding to multiples of 128 doesn't follow from them."""
    unit = config.number("tensor-model-parallel-size", 1) * _UNIT
    name = "padded-vocab-size"
    if name in config:
        rows = config.number(name)
    elif "vocab-size" in config:
        tokens = config.number("vocab-size")
        name, step = "make-vocab-size-divisible-by", config.number("make-vocab-size-divisible-by", _UNIT, least=0)
        step *= unit // _UNIT
        rows = -(-tokens // step) * step if step else 0
        if not step or rows == -(-tokens // unit) * unit:
            return tokens
    else:
        raise config.wrong(
            "vocab-size", "--vocab-size is missing, but must be there to know the model, since no tokenizer is read; "
            "add it, or give --model",
        )  # fmt: skip
    if rows % unit:
        why = f"--{name} makes {rows} rows, but must make a multiple of {unit} to be planned; leave it out"
        raise config.wrong(name, why)
    return rows


def _dense_blocks(config: Configuration, blocks: int) -> int:
    """How many of the first blocks have no experts."""
    name = "moe-layer-freq"
    text = str(config.get(name, "1"))
    if text == "1":
        return 0
    wrong = config.must_be(
        name, f"1 or as '([0]*1+[1]*{max(blocks - 1, 1)})', with experts in all blocks but the first ones"
    )
    if not _FREQUENCY.fullmatch(text) or "[" not in text:
        raise wrong
    try:
        pattern = _repeated(ast.parse(text, mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError, ValueError):
        raise wrong from None
    dense = pattern.index(1) if isinstance(pattern, list) and 1 in pattern else 0
    if pattern != [0] * dense + [1] * (blocks - dense):
        raise wrong
    return dense


def _repeated(node: ast.expr) -> list[int] | int:
    """Returns what a list's expression of numbers, sums and products stands for."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.List):
        return [number for number in map(_repeated, node.elts) if isinstance(number, int)]
    if isinstance(node, ast.BinOp):
        left, right = _repeated(node.left), _repeated(node.right)
        if isinstance(node.op, ast.Add) and isinstance(left, list) and isinstance(right, list):
            return left + right
        if isinstance(node.op, ast.Mult) and isinstance(left, list) and isinstance(right, int):
            return left * min(right, _MOST_BLOCKS // max(len(left), 1))
    raise ValueError("another expression")


def _factor(config: Configuration) -> float:
    try:
        return float(config.get("rope-scaling-factor", "8.0"))
    except ValueError:
        raise config.must_be("rope-scaling-factor", "a number") from None
