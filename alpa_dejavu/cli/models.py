"""`alpa-dejavu models`, and the model on a command line: a name, sizes, or a file of another tool's that has them."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, final

import click

from alpa_dejavu.cli.commands import Command, F, option
from alpa_dejavu.cli.output import console
from alpa_dejavu.cli.parameters import MODEL, LateChoice
from alpa_dejavu.cli.table import new_table

if TYPE_CHECKING:
    from alpa_dejavu.layers.models import Transformer

_FAMILIES = {
    "gpt": "GPT as Alpa's evaluation has it",
    "moe": "GPT with a mixture of experts in every other block, as Alpa's evaluation has it",
    "wresnet": "Wide-ResNet as Alpa's evaluation has it",
    "kraken": "Kraken: several ways side by side in each block, the last number",
    "gpt2": "standard transformers that Kraken is compared with",
    "bert": "BERT, an encoder that fills in words",
    "resnet": "ResNet, a classifier of images",
    "t5": "T5: an encoder, and a decoder whose blocks look at its result",
    "flan-t5": "Flan-T5, and T5 1.1: gated feed-forward, a head of its own",
    "vit": "ViT, a classifier of images in patches",
    "llama": "Llama 2 (without a number of its own) to 3.3",
    "qwen2.5": "Qwen 2.5: biases of queries, keys and values",
    "qwen3": "Qwen 3: norms of queries and keys; with experts, of which the last number are active",
    "mistral": "Mistral: 7b (v0.1) with a window of attention",
    "mixtral": "Mixtral: 8 experts in each block, 2 for a token",
    "gemma": "Gemma 2 and 3 (without images): windows in most blocks, norms on both sides",
    "phi": "Phi-3 and Phi-4",
    "gpt-oss": "gpt-oss: experts, every other block with a window of 128, sinks",
    "deepseek": "DeepSeek-V2 and V3: latent attention, shared and routed experts; V3 predicts two",
    "olmo": "OLMo 2: norms behind attention and feed-forward",
    "mpt": "MPT: positions as biases of scores, no other biases",
    "nemotron": "Nemotron-4: squared ReLU, rotates a half of each head",
}


@click.command(
    cls=Command,
    examples=("alpa-dejavu models", "alpa-dejavu models llama"),
    rests_on="Parameters are counted in the arrays that a train step is traced with.",
)
@click.argument("family", required=False)
def models(family: str | None) -> None:
    """Lists the known models with their parameters and blocks. With FAMILY, such as llama, it lists that family alone.

    The column "may be changed" names what a model takes beside `--batch`: with "layers" `--layers` (the others are
    planned for a framework, as by `--runtime megatron`), with "length" `--sequence`, with "serving" `plan --inference`.
    A model of your own is `--model module:function`: a function in `module.py`, in the current folder, that takes a
    batch size and returns a train step and its abstract arguments (for inference it takes a number of tokens, too, and
    returns a step without gradients).
    """
    from alpa_dejavu.layers.models import known_models

    names = [name for name in known_models() if family is None or _family(name) == family]
    if not names:
        import difflib

        near = difflib.get_close_matches(family or "", _FAMILIES, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}?" if near else "leave it out to see all"
        raise click.UsageError(f"family is {family!r}, but must be one of {', '.join(_FAMILIES)}; {hint}")
    to = console()
    for listed in dict.fromkeys(map(_family, names)):
        to.print(f"{_FAMILIES[listed]}:")
        table = new_table(("name",), ("parameters", "blocks", "sample"), ("may be changed",))
        for name in names:
            if _family(name) == listed:
                table.add_row(*_row(name))
        to.print(table)
        to.print()


def _family(name: str) -> str:
    return max((family for family in _FAMILIES if f"{name}-".startswith(f"{family}-")), key=len)


def _row(name: str) -> tuple[str, ...]:
    from alpa_dejavu.layers.models import is_served, model_size, num_parameters, transformer_size

    size = model_size(name)
    blocks = getattr(size, "num_blocks", None) or sum(size.blocks)  # type: ignore[union-attr]
    blocks += getattr(size, "decoder_blocks", 0)
    tokens = getattr(size, "sequence", None)
    sample = f"{tokens} tokens" if tokens else f"{size.image} x {size.image}"  # type: ignore[union-attr]
    is_traced = not getattr(size, "untraced", ())
    changes = {"layers": is_traced, "length": transformer_size(name), "serving": is_served(name)}
    changed = [what for what, may in changes.items() if may]
    return name, f"{num_parameters(name):,}", str(blocks), sample, ", ".join(changed)


def is_model_file(model: str) -> bool:
    """Returns whether the model of a command line is the path of a file with a transformer's sizes."""
    return pathlib.Path(model).suffix in (".json", ".sh", ".txt")


@final
class Fields(click.ParamType):
    """A type of command-line parameter: fields of `Transformer` as `name=value,...`.

    Args:
        name: how help shows it.
        fields: the fields by the names that they have here; that of the first value may be left out.
    """

    def __init__(self, name: str, fields: Mapping[str, str]) -> None:
        self.name, self._fields = name, fields

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, str | int]:
        """Returns the values of fields by their names; fails where one isn't known, or is there twice."""
        values: dict[str, str | int] = {}
        for n, part in enumerate(str(value).split(",")):
            key, equals, text = part.partition("=")
            if not equals and n == 0:
                key, text = next(iter(self._fields)), key
            field = self._fields.get(key, "")
            if not field or field in values or not text:
                self.fail(f"{value!r} must be as {self.name}", param, ctx)
            if field == "lora" and not (text.isascii() and text.isdigit() and int(text) > 0):
                self.fail(f"{value!r} must have a rank of at least 1, as {self.name}", param, ctx)
            values[field] = int(text) if field == "lora" else text
        if self._fields[next(iter(self._fields))] not in values:
            self.fail(f"{value!r} must be as {self.name}", param, ctx)
        return values


def is_function(model: str) -> bool:
    """Returns whether the model of a command line is a function, as "module:function"."""
    from alpa_dejavu.layers.models import known_name

    return ":" in model and known_name(model) is None


model_option = option(
    "--model", group=MODEL, required=True,
    help="Name (`alpa-dejavu models`), config.json, Megatron script, or module:function of your own.",
)  # fmt: skip
other_model_option = option("--model", group=MODEL, help="Model instead of the plan's: a name, or module:function.")
sequence_option = option(
    "--sequence", group=MODEL, type=click.IntRange(min=1),
    help="Tokens of a sample; of a function's model for --tokens.  [default: the most]",
)  # fmt: skip
_TRAINED = {
    "train_last": option(
        "--train-last", group=MODEL, rare=True, type=click.IntRange(min=1), metavar="N",
        help="Train only the last N blocks and the head; the others are frozen.",
    ),
    "lora": option(
        "--lora", group=MODEL, rare=True,
        type=Fields("rank=N[,targets=attention|all]", {"rank": "lora", "targets": "lora_targets"}),
        help="Train LoRA adapters of rank N on attention's products (or on all), with the model frozen.",
    ),
    "frozen": option(
        "--frozen", group=MODEL, rare=True, type=click.Choice(("bf16", "8bit", "4bit")),
        help="Precision in which frozen weights are kept.",
    ),
    "optimizer": option(
        "--optimizer", group=MODEL, rare=True, type=LateChoice("layers.models:OPTIMIZERS"),
        help="Optimizer of a transformer given by its sizes.  [default: adamw]",
    ),
    "precision": option(
        "--precision", group=MODEL, rare=True, metavar="TYPE[,gather=fp8]",
        type=Fields("bf16|fp16|fp32|tf32|fp8|fp8-blockwise|mxfp8|nvfp4[,gather=fp8]",
                    {"precision": "precision", "gather": "gather"}),
        help="Precision of matrix products: bf16, fp16, fp32, tf32, fp8, fp8-blockwise, mxfp8 or nvfp4; with "
        "gather=fp8 weights are gathered in 8 bits.  [default: the model's]",
    ),
}  # fmt: skip


def training_options(command: F) -> F:
    """Adds to a command the options for how a transformer by its sizes is trained, which it takes as one argument,
    `training`: the fields of `Transformer` that change.
    """

    @functools.wraps(command)
    def with_fields(*arguments: Any, **options: Any) -> Any:
        fields: dict[str, Any] = {}
        for name in _TRAINED:
            if (value := options.pop(name)) is not None:
                fields |= value if isinstance(value, dict) else {name: value}
        return command(*arguments, training=fields, **options)

    for add in reversed(_TRAINED.values()):
        with_fields = add(with_fields)
    return with_fields  # type: ignore[return-value]


def model_text(model: str, sequence: int | None = None, training: Mapping[str, Any] = MappingProxyType({})) -> str:
    """Returns the model of a command line as planning takes it: the sizes as text where a file has them, or its
    `sequence` changes, or other fields by how it is trained; else what was given, as a function is. Raises ValueError
    if the file can't be read, the sizes can't be changed so, or the model has none.
    """
    if not is_model_file(model) and not training and (sequence is None or is_function(model)):
        return model
    if is_model_file(model) and not training:
        from alpa_dejavu.exports import read_model

        return read_model(model, sequence).text
    return dataclasses.replace(sizes_of_model(model, sequence), **training).text


def sizes_of_model(model: str, sequence: int | None = None) -> Transformer:
    """Returns the sizes of a named transformer, or of a file's. Raises ValueError if there are none."""
    from alpa_dejavu.exports import read_model
    from alpa_dejavu.layers.models import Transformer, transformer_size

    sizes = read_model(model, sequence) if is_model_file(model) else transformer_size(model)
    if not isinstance(sizes, Transformer):
        raise ValueError(
            f"model is {model!r}, but must be a transformer of known sizes: a known name such as gpt-39b, a "
            "decoder's config.json, a script with Megatron's arguments, or 'transformer:hidden=N,...'"
        )
    if sequence is None or is_model_file(model):
        return sizes
    longer = dataclasses.replace(sizes, sequence=sequence)
    if has_own_length(model) and sequence > sizes.sequence:
        raise ValueError(
            f"sequence is {sequence}, but must be at most {sizes.sequence}, the tokens that {model} may have; give "
            f"fewer, or its sizes without that limit, --model '{longer.text}'"
        )
    return longer


def has_own_length(model: str) -> bool:
    """Returns whether a model says by itself how many tokens a sample may have: a named decoder, or a config.json. A
    text of sizes says how many there are, not how many there may be.
    """
    from alpa_dejavu.layers.models import Transformer, known_models, known_name, model_size

    name = known_name(model)
    return model.endswith(".json") or (name in known_models() and isinstance(model_size(model), Transformer))
