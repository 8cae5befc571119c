"""A transformer's sizes as Megatron's arguments, and back."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any, final

from alpa_dejavu.exports._command_line import MOST_DIGITS
from alpa_dejavu.exports._settings import short
from alpa_dejavu.layers.models import Transformer

_NEEDED = ("num-layers", "hidden-size", "num-attention-heads", "seq-length")
_FREQUENCY = re.compile(r"[\d,\[\]()+* ]{1,500}")
_MOST_BLOCKS = 100_000
_UNIT = 128


@final
class WrongArgumentError(ValueError):
    """An argument has a value that can't be planned.

    Args:
        name: the argument's name, without dashes.
        said: what is wrong, with the remedy.
    """

    def __init__(self, name: str, why: str) -> None:
        super().__init__(why)
        self.name = name


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
    if model.precision == "float8":
        arguments |= {"fp8-format": "hybrid"}
    flags = {
        "swiglu": model.gated,
        "disable-bias-linear": model.biases != "all",
        "add-qkv-bias": model.biases == "qkv",
        "qk-layernorm": model.qk_norm,
        "untie-embeddings-and-output-weights": not model.tied,
        "moe-shared-expert-gate": model.shared_gate,
        "fp16": model.precision == "float16",
        "bf16": model.precision in ("bfloat16", "float8"),
    }
    arguments |= {name: None for name, is_set in flags.items() if is_set}
    return {name: None if value is None else str(value) for name, value in arguments.items()}


def sizes_of_arguments(arguments: Mapping[str, Any]) -> Transformer:
    """Returns the transformer that Megatron's arguments say, by name.

    Raises:
        WrongArgumentError: one that is needed is missing, or isn't a number, or says another kind of model.
    """
    missing = [name for name in _NEEDED if name not in arguments]
    if missing:
        why = f"--{missing[0]} is missing, but must be there to know the model; add it, or give --model"
        raise WrongArgumentError(missing[0], why)
    experts = _number(arguments, "num-experts", 0)
    hidden, blocks = _number(arguments, "hidden-size"), _number(arguments, "num-layers")
    swiglu = "swiglu" in arguments
    # Megatron takes two thirds of the usual width for a gate, in multiples of 64.
    wide = _number(arguments, "ffn-hidden-size", int(4 * hidden * 2 / 3 / 64) * 64 if swiglu else 4 * hidden)
    bias = "none" if "disable-bias-linear" in arguments else "all"
    if experts and bias == "all":
        why = "experts with biases aren't planned; add --disable-bias-linear if there are none"
        raise WrongArgumentError("num-experts", why)
    dense = _dense_blocks(arguments, blocks) if experts else 0
    rotary = _rotary(arguments)
    return Transformer(
        hidden=hidden,
        num_blocks=blocks,
        num_heads=_number(arguments, "num-attention-heads"),
        vocabulary=_vocabulary(arguments),
        sequence=_number(arguments, "seq-length"),
        kv_heads=_number(arguments, "num-query-groups", 1) if "group-query-attention" in arguments else 0,
        head_size=_number(arguments, "kv-channels", 0),
        feed_forward=_number(arguments, "moe-ffn-hidden-size", wide) if experts else wide,
        gated=swiglu,
        rotary=rotary,
        rotary_base=_number(arguments, "rotary-base", 10000) if rotary else 10000,
        rotary_scaling=_factor(arguments) if rotary and "use-rope-scaling" in arguments else 1.0,
        rms_norm=_one_of(arguments, "normalization", ("LayerNorm", "RMSNorm")) == "RMSNorm",
        biases="qkv" if bias == "none" and "add-qkv-bias" in arguments else bias,
        qk_norm="qk-layernorm" in arguments,
        tied="untie-embeddings-and-output-weights" not in arguments,
        num_experts=experts,
        experts_per_token=_number(arguments, "moe-router-topk", 2) if experts else 0,
        shared_feed_forward=_number(arguments, "moe-shared-expert-intermediate-size", 0) if experts else 0,
        shared_gate="moe-shared-expert-gate" in arguments,
        dense_blocks=dense,
        dense_feed_forward=wide if dense else 0,
        precision=precision_of(arguments),
    )


def precision_of(arguments: Mapping[str, Any]) -> str:
    """Returns the dtype that arguments train in: single precision without one of Megatron's."""
    if "bf16" in arguments and "fp16" in arguments:
        raise WrongArgumentError("fp16", "--fp16 is beside --bf16, but must be alone; leave one out")
    if "fp8-format" in arguments:
        _one_of(arguments, "fp8-format", ("hybrid", "e4m3"))
        if "bf16" not in arguments:
            raise WrongArgumentError("fp8-format", "--fp8-format is without --bf16, which isn't priced; add --bf16")
        return "float8"
    return "bfloat16" if "bf16" in arguments else "float16" if "fp16" in arguments else "float32"


def _rotary(arguments: Mapping[str, Any]) -> bool:
    kind = _one_of(arguments, "position-embedding-type", ("learned_absolute", "rope"))
    if "use-rotary-position-embeddings" in arguments or kind == "rope":
        return True
    if "no-position-embedding" in arguments:
        why = "--no-position-embedding is of a model without positions, which isn't planned; leave it out"
        raise WrongArgumentError("no-position-embedding", why)
    rows, tokens = (
        _number(arguments, "max-position-embeddings", _number(arguments, "seq-length")),
        arguments["seq-length"],
    )
    if str(rows) != str(tokens):
        why = f"--max-position-embeddings is {rows}, but must be --seq-length, {tokens}, to be planned; make them equal"
        raise WrongArgumentError("max-position-embeddings", why)
    return False


def _vocabulary(arguments: Mapping[str, Any]) -> int:
    """The rows of the table of embeddings, as far as padding to multiples of 128 doesn't follow from them."""
    unit = _number(arguments, "tensor-model-parallel-size", 1) * _UNIT
    name = "padded-vocab-size"
    if name in arguments:
        rows = _number(arguments, name)
    elif "vocab-size" in arguments:
        rows = _number(arguments, "vocab-size")
        name, step = "make-vocab-size-divisible-by", _number(arguments, "make-vocab-size-divisible-by", _UNIT)
        if not step or step == _UNIT:
            return rows
        step *= unit // _UNIT
        usual, rows = -(-rows // unit) * unit, -(-rows // step) * step
        if rows == usual:
            return _number(arguments, "vocab-size")
    else:
        raise WrongArgumentError(
            "vocab-size",
            "--vocab-size is missing, but must be there to know the model, since no tokenizer is read; add it, or give "
            "--model",
        )
    if rows % unit:
        why = f"--{name} makes {rows} rows, but must make a multiple of {unit} to be planned; leave it out"
        raise WrongArgumentError(name, why)
    return rows


def _dense_blocks(arguments: Mapping[str, Any], blocks: int) -> int:
    """How many of the first blocks have no experts."""
    name, text = "moe-layer-freq", str(arguments.get("moe-layer-freq", "1"))
    if text == "1":
        return 0
    wrong = WrongArgumentError(
        name, f"--{name} is {short(text)}, but must be 1 or as '([0]*1+[1]*{max(blocks - 1, 1)})', with experts in all "
        "blocks but the first ones; mend it",
    )  # fmt: skip
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
        return [
            element.value
            for element in node.elts
            if isinstance(element, ast.Constant) and isinstance(element.value, int)
        ]
    if not isinstance(node, ast.BinOp):
        raise ValueError("another expression")
    left, right = _repeated(node.left), _repeated(node.right)
    if isinstance(node.op, ast.Add) and isinstance(left, list) and isinstance(right, list):
        return left + right
    if isinstance(node.op, ast.Mult) and isinstance(left, list) and isinstance(right, int):
        return left * min(right, _MOST_BLOCKS // max(len(left), 1))
    raise ValueError("another expression")


def _factor(arguments: Mapping[str, Any]) -> float:
    value = arguments.get("rope-scaling-factor", "8.0")
    try:
        return float(value)
    except ValueError:
        why = f"--rope-scaling-factor is {short(value)}, but must be a number; mend it"
        raise WrongArgumentError("rope-scaling-factor", why) from None


def _one_of(arguments: Mapping[str, Any], name: str, choices: tuple[str, ...]) -> str:
    value = arguments.get(name, choices[0])
    if value not in choices:
        why = f"--{name} is {short(value)}, but must be {' or '.join(choices)} to be planned; change it"
        raise WrongArgumentError(name, why)
    return str(value)


def _number(arguments: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = arguments.get(name, default)
    if isinstance(value, int):
        return value
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= MOST_DIGITS:
        return int(value)
    raise WrongArgumentError(name, f"--{name} is {short(value)}, but must be a whole number; mend it")
