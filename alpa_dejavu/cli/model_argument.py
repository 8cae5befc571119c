"""The model on a command line: a name, a transformer's sizes, or a file of another tool's that has them."""

from __future__ import annotations

import dataclasses
import pathlib

from alpa_dejavu.layers.models import Transformer, transformer_size

__all__ = ["is_model_file", "model_text", "sizes_of_model"]


def is_model_file(model: str) -> bool:
    """Returns whether the model of a command line is the path of a file with a transformer's sizes."""
    return pathlib.Path(model).suffix in (".json", ".sh", ".txt")


def model_text(model: str, sequence: int | None = None, train_last: int | None = None) -> str:
    """Returns the model of a command line as planning takes it: the sizes as text where a file has them, else what was
    given.

    Args:
        model: a known name, sizes, "module:function", or the path of a `config.json` or of Megatron's arguments.
        sequence: the tokens of a sample; None: as many as the model has.
        train_last: how many of the last blocks are trained; None: the whole model.

    Raises:
        ValueError: the file can't be read, there are fewer blocks, or the model has no sizes to change.
    """
    if not is_model_file(model) and sequence is None and train_last is None:
        return model
    sizes = sizes_of_model(model, sequence)
    return (sizes if train_last is None else dataclasses.replace(sizes, train_last=train_last)).text


def sizes_of_model(model: str, sequence: int | None = None) -> Transformer:
    """Returns the sizes of the transformer that a command line names.

    Raises:
        ValueError: the file can't be read, or the name isn't that of a transformer.
    """
    if is_model_file(model):
        from alpa_dejavu.exports import read_model

        return read_model(model, sequence)
    sizes = transformer_size(model)
    if sizes is None:
        raise ValueError(
            f"model is {model!r}, but must be a transformer of known sizes: a known name such as gpt-39b, a "
            "config.json, a script with Megatron's arguments, or 'transformer:hidden=N,...'"
        )
    return sizes if sequence is None else dataclasses.replace(sizes, sequence=sequence)
