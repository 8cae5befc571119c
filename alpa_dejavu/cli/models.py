"""`alpa-dejavu models`, and the model on a command line: a name, sizes, or a file of another tool's that has them."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import TYPE_CHECKING

import click

from alpa_dejavu.cli.commands import Command
from alpa_dejavu.cli.output import console
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
    rests_on="Parameters are counted, not rounded: those of the arrays that a train step is traced with.",
)
@click.argument("family", required=False)
def models(family: str | None) -> None:
    """Lists the models that are known by name, with their parameters and blocks. With FAMILY, only one such as llama.

    Every model takes `--batch`, and those with "layers" `--layers`; without it they are planned for a framework, as
    `--runtime megatron`. Those with "length" take `--sequence`, too. Those with "serving" can be
    planned for inference. A model of your own is `--model module:function`: a function in `module.py`, in the folder
    where you type the command, that takes a batch size and returns a train step and its arguments.
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


def model_text(model: str, sequence: int | None = None, train_last: int | None = None) -> str:
    """Returns the model of a command line as planning takes it: the sizes as text where a file has them, or its
    `sequence` or `train_last` changes; else what was given. Raises ValueError if the file can't be read, there are
    fewer blocks, or the model has no sizes to change.
    """
    if not is_model_file(model) and sequence is None and train_last is None:
        return model
    if is_model_file(model) and train_last is None:
        from alpa_dejavu.exports import read_model

        return read_model(model, sequence).text
    sizes = sizes_of_model(model, sequence)
    return (sizes if train_last is None else dataclasses.replace(sizes, train_last=train_last)).text


def sizes_of_model(model: str, sequence: int | None = None) -> Transformer:
    """Returns the sizes of a named transformer, or of a file's. Raises ValueError if there are none."""
    from alpa_dejavu.exports import read_model
    from alpa_dejavu.layers.models import Transformer, transformer_size

    sizes = read_model(model, sequence) if is_model_file(model) else transformer_size(model)
    if not isinstance(sizes, Transformer):
        raise ValueError(
            f"model is {model!r}, but must be a transformer of known sizes: a known name such as gpt-39b, a "
            "config.json, a script with Megatron's arguments, or 'transformer:hidden=N,...'"
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
    """Returns whether a model says by itself how many tokens a sample may have: a named decoder, or a config.json."""
    from alpa_dejavu.layers.models import Transformer, known_name, model_size

    name = known_name(model)
    return model.endswith(".json") or (name is not None and isinstance(model_size(name), Transformer))
