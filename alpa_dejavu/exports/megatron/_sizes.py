"""A transformer's sizes as Megatron's arguments, and back."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any, final

from alpa_dejavu.exports._command_line import MOST_DIGITS
from alpa_dejavu.exports._target import short
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

    def __init__(self, name: str, said: str) -> None:
        super().__init__(said)
        self.name = name


def size_arguments(model: Transformer) -> dict[str, str | None]:
    """Returns Megatron's arguments for a transformer's sizes, by name; None for those without a value."""
    given: dict[str, object] = {
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
        given |= {"rotary-base": model.rotary_base}
    if model.rotary_scaling > 1:
        given |= {"use-rope-scaling": None, "rope-scaling-factor": model.rotary_scaling}
    if model.kv_heads < model.num_heads:
        given |= {"group-query-attention": None, "num-query-groups": model.kv_heads}
    if model.num_experts:
        given |= {"num-experts": model.num_experts, "moe-router-topk": model.experts_per_token}
        given |= {"moe-ffn-hidden-size": model.feed_forward}
    if model.dense_blocks:
        given |= {"moe-layer-freq": f"([0]*{model.dense_blocks}+[1]*{model.num_blocks - model.dense_blocks})"}
    if model.shared_feed_forward:
        given |= {"moe-shared-expert-intermediate-size": model.shared_feed_forward}
    if model.precision == "float8":
        given |= {"fp8-format": "hybrid"}
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
    given |= {name: None for name, there in flags.items() if there}
    return {name: None if value is None else str(value) for name, value in given.items()}


def sizes_of_arguments(given: Mapping[str, Any]) -> Transformer:
    """Returns the transformer that Megatron's arguments say, by name.

    Raises:
        WrongArgumentError: one that is needed is missing, or isn't a number, or says another kind of model.
    """
    missing = [name for name in _NEEDED if name not in given]
    if missing:
        said = f"--{missing[0]} is missing, but must be there to know the model; add it, or give --model"
        raise WrongArgumentError(missing[0], said)
    experts = _number(given, "num-experts", 0)
    hidden, blocks = _number(given, "hidden-size"), _number(given, "num-layers")
    swiglu = "swiglu" in given
    # Megatron takes two thirds of the usual width for a gate, in multiples of 64.
    wide = _number(given, "ffn-hidden-size", int(4 * hidden * 2 / 3 / 64) * 64 if swiglu else 4 * hidden)
    bias = "none" if "disable-bias-linear" in given else "all"
    if experts and bias == "all":
        said = "experts with biases aren't planned; add --disable-bias-linear if there are none"
        raise WrongArgumentError("num-experts", said)
    dense = _dense_blocks(given, blocks) if experts else 0
    rotary = _rotary(given)
    return Transformer(
        hidden=hidden,
        num_blocks=blocks,
        num_heads=_number(given, "num-attention-heads"),
        vocabulary=_vocabulary(given),
        sequence=_number(given, "seq-length"),
        kv_heads=_number(given, "num-query-groups", 1) if "group-query-attention" in given else 0,
        head_size=_number(given, "kv-channels", 0),
        feed_forward=_number(given, "moe-ffn-hidden-size", wide) if experts else wide,
        gated=swiglu,
        rotary=rotary,
        rotary_base=_number(given, "rotary-base", 10000) if rotary else 10000,
        rotary_scaling=_factor(given) if rotary and "use-rope-scaling" in given else 1.0,
        rms_norm=_one_of(given, "normalization", ("LayerNorm", "RMSNorm")) == "RMSNorm",
        biases="qkv" if bias == "none" and "add-qkv-bias" in given else bias,
        qk_norm="qk-layernorm" in given,
        tied="untie-embeddings-and-output-weights" not in given,
        num_experts=experts,
        experts_per_token=_number(given, "moe-router-topk", 2) if experts else 0,
        shared_feed_forward=_number(given, "moe-shared-expert-intermediate-size", 0) if experts else 0,
        shared_gate="moe-shared-expert-gate" in given,
        dense_blocks=dense,
        dense_feed_forward=wide if dense else 0,
        precision=precision_of(given),
    )


def precision_of(given: Mapping[str, Any]) -> str:
    """Returns the dtype that arguments train in: single precision without one of Megatron's."""
    if "bf16" in given and "fp16" in given:
        raise WrongArgumentError("fp16", "--fp16 is beside --bf16, but must be alone; leave one out")
    if "fp8-format" in given:
        _one_of(given, "fp8-format", ("hybrid", "e4m3"))
        if "bf16" not in given:
            raise WrongArgumentError("fp8-format", "--fp8-format is without --bf16, which isn't priced; add --bf16")
        return "float8"
    return "bfloat16" if "bf16" in given else "float16" if "fp16" in given else "float32"


def _rotary(given: Mapping[str, Any]) -> bool:
    kind = _one_of(given, "position-embedding-type", ("learned_absolute", "rope"))
    if "use-rotary-position-embeddings" in given or kind == "rope":
        return True
    if "no-position-embedding" in given:
        said = "--no-position-embedding is of a model without positions, which isn't planned; leave it out"
        raise WrongArgumentError("no-position-embedding", said)
    rows, tokens = _number(given, "max-position-embeddings", _number(given, "seq-length")), given["seq-length"]
    if str(rows) != str(tokens):
        said = (
            f"--max-position-embeddings is {rows}, but must be --seq-length, {tokens}, to be planned; make them equal"
        )
        raise WrongArgumentError("max-position-embeddings", said)
    return False


def _vocabulary(given: Mapping[str, Any]) -> int:
    """The rows of the table of embeddings, as far as padding to multiples of 128 doesn't follow from them."""
    unit = _number(given, "tensor-model-parallel-size", 1) * _UNIT
    name = "padded-vocab-size"
    if name in given:
        rows = _number(given, name)
    elif "vocab-size" in given:
        rows = _number(given, "vocab-size")
        name, step = "make-vocab-size-divisible-by", _number(given, "make-vocab-size-divisible-by", _UNIT)
        if not step or step == _UNIT:
            return rows
        step *= unit // _UNIT
        usual, rows = -(-rows // unit) * unit, -(-rows // step) * step
        if rows == usual:
            return _number(given, "vocab-size")
    else:
        raise WrongArgumentError(
            "vocab-size",
            "--vocab-size is missing, but must be there to know the model, since no tokenizer is read; add it, or give "
            "--model",
        )
    if rows % unit:
        said = f"--{name} makes {rows} rows, but must make a multiple of {unit} to be planned; leave it out"
        raise WrongArgumentError(name, said)
    return rows


def _dense_blocks(given: Mapping[str, Any], blocks: int) -> int:
    """How many of the first blocks have no experts."""
    name, text = "moe-layer-freq", str(given.get("moe-layer-freq", "1"))
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
        return [each.value for each in node.elts if isinstance(each, ast.Constant) and isinstance(each.value, int)]
    if not isinstance(node, ast.BinOp):
        raise ValueError("another expression")
    left, right = _repeated(node.left), _repeated(node.right)
    if isinstance(node.op, ast.Add) and isinstance(left, list) and isinstance(right, list):
        return left + right
    if isinstance(node.op, ast.Mult) and isinstance(left, list) and isinstance(right, int):
        return left * min(right, _MOST_BLOCKS // max(len(left), 1))
    raise ValueError("another expression")


def _factor(given: Mapping[str, Any]) -> float:
    value = given.get("rope-scaling-factor", "8.0")
    try:
        return float(value)
    except ValueError:
        said = f"--rope-scaling-factor is {short(value)}, but must be a number; mend it"
        raise WrongArgumentError("rope-scaling-factor", said) from None


def _one_of(given: Mapping[str, Any], name: str, known: tuple[str, ...]) -> str:
    value = given.get(name, known[0])
    if value not in known:
        said = f"--{name} is {short(value)}, but must be {' or '.join(known)} to be planned; change it"
        raise WrongArgumentError(name, said)
    return str(value)


def _number(given: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = given.get(name, default)
    if isinstance(value, int):
        return value
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= MOST_DIGITS:
        return int(value)
    raise WrongArgumentError(name, f"--{name} is {short(value)}, but must be a whole number; mend it")
