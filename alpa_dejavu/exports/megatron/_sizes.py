"""A transformer's sizes as Megatron's arguments, and back."""

from __future__ import annotations

import ast
import math
import re
from typing import Any, Final

from alpa_dejavu.exports._command_line import MOST_DIGITS
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
    "moe-router-enable-expert-bias": ("router_bias", True),
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
OPTIMIZERS: Final = {"adam": "adamw", "adamw": "adamw", "sgd": "sgd", "muon": "muon", "dist_muon": "muon"}
"""Optimizers by Megatron's names; "dist_muon" shares states and steps among data-parallel devices."""
_COUNTS: Final = {
    "num-experts": "num_experts", "moe-router-topk": "experts_per_token",
    "moe-shared-expert-intermediate-size": "shared_feed_forward", "mtp-num-layers": "predicted",
}  # fmt: skip
"""Arguments with a number that are left out where the field they say is 0."""
_LATENT: Final = {
    "q-lora-rank": ("query_rank", 0), "kv-lora-rank": ("latent_rank", 32), "qk-head-dim": ("head_size", 128),
    "qk-pos-emb-head-dim": ("rotary_size", 64), "v-head-dim": ("value_size", 128),
}  # fmt: skip
"""Arguments of latent attention, with the field that they say, and its value where they are left out."""
_TRAINED: Final = ("bf16", "fp16", "fp8-format", "fp8-recipe", "fp4-format", "fp8-param-gather")
"""Arguments that say how a model is trained."""
_FREQUENCY = re.compile(r"[\d,\[\]()+* ]{1,500}")
_WINDOW = re.compile(r"\(?(\d{1,9}), ?0\)?")
_MOST_BLOCKS = 100_000
_UNIT = 128


def size_arguments(model: Transformer) -> dict[str, str | None]:
    """Returns Megatron's arguments for a transformer's sizes, by name; None for those without a value."""
    latent = model.latent_rank > 0
    arguments: dict[str, object] = {
        "num-layers": model.num_blocks,
        "hidden-size": model.hidden,
        "ffn-hidden-size": model.dense_feed_forward or model.feed_forward,
        "num-attention-heads": model.num_heads,
        **({} if latent else {"kv-channels": model.head_size}),
        "seq-length": model.sequence,
        "max-position-embeddings": model.positions or model.sequence,
        "vocab-size": model.vocabulary,
        "position-embedding-type": "rope" if model.rotary else "learned_absolute",
        "normalization": "RMSNorm" if model.rms_norm else "LayerNorm",
    }
    if model.rotary:
        arguments |= {"rotary-base": model.rotary_base}
    if latent:
        yarn = model.rotary_scaling > 1
        arguments |= {"multi-latent-attention": None, "rope-type": "yarn" if yarn else "rope"}
        arguments |= {"rotary-scaling-factor": model.rotary_scaling} if yarn else {}
        arguments |= {name: value for name, (field, _) in _LATENT.items() if (value := getattr(model, field))}
    elif model.rotary_scaling > 1:
        arguments |= {"use-rope-scaling": None, "rope-scaling-factor": model.rotary_scaling}
    if model.rotated:
        arguments |= {"rotary-percent": model.rotated / model.head_size}
    if model.window:
        arguments |= {"window-size": f"{model.window - 1},0"}
        arguments |= {"window-attn-skip-freq": model.global_every} if model.global_every else {}
    if model.kv_heads < model.num_heads:
        arguments |= {"group-query-attention": None, "num-query-groups": model.kv_heads}
    arguments |= {name: value for name, field in _COUNTS.items() if (value := getattr(model, field))}
    if model.num_experts:
        arguments |= {"moe-ffn-hidden-size": model.feed_forward, "moe-grouped-gemm": None}
    if model.capacity:
        arguments |= {"moe-expert-capacity-factor": model.capacity, "moe-pad-expert-input-to-capacity": None}
    if model.dense_blocks and model.experts_every == 1:
        arguments |= {"moe-layer-freq": f"([0]*{model.dense_blocks}+[1]*{model.num_blocks - model.dense_blocks})"}
    elif model.experts_every > 1:
        arguments |= {"moe-layer-freq": f"[{','.join(str(int(n)) for n in _with_experts(model))}]"}
    arguments |= _NARROW.get(model.precision, {})
    flags = {name: getattr(model, field) == value for name, (field, value) in _FLAGS.items()}
    flags["qk-layernorm"] |= latent  # those of the latent vectors
    if model.router_bias:
        arguments |= {"moe-router-score-function": "sigmoid"}
    flags["squared-relu"] = model.activation == "relu2"
    biases = {"disable-bias-linear": model.biases != "all", "add-qkv-bias": model.biases == "qkv"}
    mixed = model.precision == "bfloat16" or model.precision in _NARROW
    precisions = {"fp16": model.precision == "float16", "bf16": mixed, "fp8-param-gather": bool(model.gather)}
    swiglu = {"swiglu": flags.pop("swiglu")}
    arguments |= {name: None for name, is_set in (swiglu | biases | flags | precisions).items() if is_set}
    arguments |= {"softmax-type": "learnable"} if model.sinks else {}
    return {name: None if value is None else str(value) for name, value in arguments.items()}


def size_values(model: Transformer) -> dict[str, Any]:
    """Returns the values of Megatron's arguments for a transformer's sizes, but not for how it is trained."""
    arguments = {name: value for name, value in size_arguments(model).items() if name not in _TRAINED}
    if not model.positions:
        del arguments["max-position-embeddings"]
    return {name: True if value is None else value_of(value) for name, value in arguments.items()}


def value_of(value: str) -> int | str:
    """Returns an argument's value, as a number where it is a whole one."""
    return int(value) if value.isascii() and value.isdigit() and len(value) <= MOST_DIGITS else value


def _with_experts(model: Transformer) -> list[int]:
    return [int(model.has_experts(number)) for number in range(model.num_blocks)]


def sizes_of_arguments(config: Configuration) -> Transformer:
    """Returns the transformer that Megatron's arguments say; ValueError if one is missing or wrong."""
    for name in _NUMBERS:
        if name not in config:
            why = f"--{name} is missing, but must be there to know the model; add it, or give --model"
            raise config.wrong(name, why)
    fields: dict[str, Any] = {field: config.number(name) for name, field in _NUMBERS.items()}
    fields |= {field: config.number(name, 0) for name, field in _COUNTS.items()}
    hidden, blocks, experts = fields["hidden"], fields["num_blocks"], fields["num_experts"]
    # Megatron takes two thirds of the usual width for a gate, in multiples of 64.
    usual = int(4 * hidden * 2 / 3 / 64) * 64 if "swiglu" in config else 4 * hidden
    wide = config.number("ffn-hidden-size", usual)
    biases = "all" if "disable-bias-linear" not in config else "qkv" if "add-qkv-bias" in config else "none"
    if experts and biases == "all":
        why = "experts with biases aren't planned; add --disable-bias-linear if there are none"
        raise config.wrong("num-experts", why)
    dense, every = _blocks_without_experts(config, blocks) if experts else (0, 1)
    fields |= dict(
        vocabulary=_vocabulary(config),
        kv_heads=config.number("num-query-groups", 1) if "group-query-attention" in config else 0,
        feed_forward=config.number("moe-ffn-hidden-size", wide) if experts else wide,
        rms_norm=config.one_of("normalization", ("LayerNorm", "RMSNorm"), "LayerNorm") == "RMSNorm",
        biases=biases,
        experts_per_token=config.number("moe-router-topk", 2) if experts else 0,
        capacity=_capacity(config),
        dense_blocks=dense,
        experts_every=every,
        dense_feed_forward=wide if dense or every > 1 else 0,
        activation="relu2" if "squared-relu" in config else "",
        sinks=config.one_of("softmax-type", ("vanilla", "learnable"), "vanilla") == "learnable",
        **training_of(config),
        **{field: (name in config) == value for name, (field, value) in _FLAGS.items()},
    )
    for name in _COUNTS:
        if name.startswith("moe") and name in config and not experts:
            raise config.wrong(name, f"--{name} is without --num-experts; add that, or leave it out")
    for part in (_attention(config), _positions(config, fields["sequence"]), _windows(config, blocks)):
        fields |= part
    try:
        return Transformer(**fields)
    except ValueError as error:
        raise config.wrong("", str(error)) from None


def training_of(config: Configuration) -> dict[str, Any]:
    """Returns the fields of a transformer that say how arguments train it."""
    precision, name = precision_of(config), "fp8-param-gather"
    if name in config and "fp8-format" not in config:
        raise config.wrong(name, f"--{name} is without --fp8-format, but must be beside it; leave it out")
    optimizer = OPTIMIZERS[config.one_of("optimizer", OPTIMIZERS, "adam")]
    return {"precision": precision, "gather": "fp8" if name in config else "", "optimizer": optimizer}


def precision_of(config: Configuration) -> str:
    """Returns the dtype that arguments train in: single precision without one of Megatron's."""
    if "bf16" in config and "fp16" in config:
        raise config.wrong("fp16", "--fp16 is beside --bf16, but must be alone; leave one out")
    for name, formats in (("fp8-format", ("hybrid", "e4m3")), ("fp4-format", ("e2m1",))):
        if name in config:
            config.one_of(name, formats)
            if "bf16" not in config:
                why = "is without bf16 beside it, which isn't priced; train in bf16, or leave it out"
                raise config.wrong(name, f"--{name} {why}")
            recipe = config.one_of("fp8-recipe", tuple(_RECIPES), "delayed")
            return "nvfp4" if name == "fp4-format" else _RECIPES[recipe]
    return "bfloat16" if "bf16" in config else "float16" if "fp16" in config else "float32"


def _attention(config: Configuration) -> dict[str, Any]:
    """The sizes of heads, and those of latent attention."""
    if "multi-latent-attention" in config:
        if "qk-layernorm" not in config:
            why = "latent attention without norms of its vectors isn't planned; add --qk-layernorm"
            raise config.wrong("multi-latent-attention", why)
        sizes = {field: config.number(name, usual) for name, (field, usual) in _LATENT.items()}
        return {**sizes, "kv_heads": 0, "qk_norm": False}
    for name in _LATENT:
        if name in config:
            raise config.wrong(name, f"--{name} is without --multi-latent-attention; add that, or leave it out")
    return {"head_size": config.number("kv-channels", 0)}


def _positions(config: Configuration, tokens: int) -> dict[str, Any]:
    kind = config.one_of("position-embedding-type", ("learned_absolute", "rope"), "learned_absolute")
    if "use-rotary-position-embeddings" in config or kind == "rope":
        latent = "multi-latent-attention" in config
        fields: dict[str, Any] = {"rotary": True, "rotary_base": config.number("rotary-base", 10000)}
        yarn = config.one_of("rope-type", ("rope", "yarn") if latent else ("rope",), "yarn" if latent else "rope")
        factor = real_of(config, "rotary-scaling-factor", 1.0)
        if yarn == "yarn" and factor > 1:
            return {**fields, "rotary_scaling": factor, "rotary_scaling_kind": "yarn"}
        if factor != 1:
            raise config.must_be("rotary-scaling-factor", "1.0 without yarn and latent attention")
        if "use-rope-scaling" in config:
            fields["rotary_scaling"] = real_of(config, "rope-scaling-factor", 8.0)
        share = real_of(config, "rotary-percent", 1.0)
        if share != 1:
            hidden, heads = config.number("hidden-size"), config.number("num-attention-heads")
            fields["rotated"] = int(config.number("kv-channels", hidden // heads) * share)
        return fields
    name = "no-position-embedding"
    if name in config:
        raise config.wrong(name, f"--{name} is of a model without positions, which isn't planned; leave it out")
    rows = config.number("max-position-embeddings", tokens)
    return {"rotary": False, "positions": 0 if rows == tokens else rows}


def _windows(config: Configuration, blocks: int) -> dict[str, int]:
    """The tokens that each attends to, and how often a block attends to all of them."""
    size, often = "window-size", "window-attn-skip-freq"
    if size not in config:
        if often in config:
            raise config.wrong(often, f"--{often} is without --{size}; add that, or leave it out")
        return {}
    match = _WINDOW.fullmatch(str(config.get(size)))
    if match is None:
        raise config.must_be(size, "as 'N,0': the tokens before each one, and none behind it")
    every = config.get(often, 0)
    if not isinstance(every, int):
        pattern = _pattern(config, often)
        every = pattern.index(0) + 1 if 0 in pattern else 0
        if pattern != [int(not every or (n + 1) % every > 0) for n in range(blocks)]:
            raise config.must_be(often, f"N, or a list of {blocks} in which every Nth is 0")
    return {"window": int(match[1]) + 1, "global_every": every}


def _capacity(config: Configuration) -> float:
    name, pads = "moe-expert-capacity-factor", "moe-pad-expert-input-to-capacity"
    if (name in config) != (pads in config):
        raise config.wrong(name if name in config else pads, f"--{name} is planned with --{pads} alone; give both")
    return real_of(config, name, 0.0)


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


def _blocks_without_experts(config: Configuration, blocks: int) -> tuple[int, int]:
    """How many of the first blocks have no experts, and every how manieth of the others has."""
    name = "moe-layer-freq"
    text = str(config.get(name, "1"))
    if text == "1":
        return 0, 1
    pattern = _pattern(config, name)
    first, *more = [n for n, has in enumerate(pattern) if has == 1][:2] or [0]
    every = more[0] - first if more else 1
    dense = first + 1 - every
    if pattern != [int(n >= dense and (n + 1) % every == 0) for n in range(blocks)]:
        raise config.must_be(
            name, f"1 or as '([0]*1+[1]*{max(blocks - 1, 1)})', with experts in all blocks but the first ones, or in "
            "every Nth",
        )  # fmt: skip
    return dense, every


def _pattern(config: Configuration, name: str) -> list[int]:
    """Returns the numbers of a list that an argument writes out as Python does."""
    text = str(config.get(name))
    try:
        if not _FREQUENCY.fullmatch(text):
            raise ValueError("another expression")
        pattern = _repeated(ast.parse(text, mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError, ValueError):
        pattern = 0
    return pattern if isinstance(pattern, list) else []


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


def real_of(config: Configuration, name: str, usual: float) -> float:
    """Returns an argument's finite number, or the usual one; ValueError for another value."""
    try:
        value = float(config.get(name, usual))
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise config.must_be(name, "a number")
    return value
