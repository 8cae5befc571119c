"""A transformer of given sizes as a `Model`, as a training framework runs it; nothing is traced."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from alpa_dejavu.layers.models import Transformer
from alpa_dejavu.problem import Layer, Model, Tensor
from alpa_dejavu.sharding.transformers._division import TransformerDivision, TransformerSharding, temporary_bytes
from alpa_dejavu.sharding.transformers._execution import Execution, execution
from alpa_dejavu.sharding.transformers._kept import KeptBytes, kept

__all__ = ["transformer_data", "transformer_model", "transformer_of"]


def transformer_model(size: Transformer, runs: Execution, samples: float) -> Model:
    """Returns a training step of a transformer in layers: the table of embeddings, each block, and the head.

    Args:
        size: the transformer.
        runs: how a training framework runs it.
        samples: the samples of a micro-batch, over all data-parallel replicas together.
    """
    sharding = TransformerSharding(size, runs.in_precision(size.precision), samples)
    alone = sharding.divided()
    memory = {layer: kept(alone.work, layer, "none") for layer in dict.fromkeys(size.alike_layers)}
    layers = [_layer(size, layer, alone, memory[first]) for layer, first in enumerate(size.alike_layers)]
    tensors = [
        tensor
        for layer, first in enumerate(size.alike_layers)
        for tensor in _tensors(layer, size.num_layers, memory[first])
    ]
    return Model(tuple(layers), tuple(tensors), training=True, sharding=sharding)


def transformer_data(model: Model) -> dict[str, Any] | None:
    """Returns as JSON data what `transformer_of` makes a transformer's model of again; None for other models."""
    sharding = model.sharding
    if not isinstance(sharding, TransformerSharding):
        return None
    runs = sharding.execution
    return {
        "transformer": sharding.size.text, "execution": runs.name, "attention": runs.attention,
        "samples": sharding.samples, "sequence_parallel": runs.sequence_parallel,
    }  # fmt: skip


def transformer_of(data: Mapping[str, Any]) -> Model:
    """Returns the transformer's model that JSON data of `transformer_data` stand for.

    Raises:
        ValueError: they aren't such data.
    """
    size = Transformer.of_text(data["transformer"])
    if size is None:
        raise ValueError(f"transformer is {data['transformer']!r}, but must be the sizes of one; plan again")
    runs = execution(data["execution"])
    divided = data.get("sequence_parallel", runs.sequence_parallel)
    runs = dataclasses.replace(runs, attention=data["attention"], sequence_parallel=divided)
    return transformer_model(size, runs, float(data["samples"]))


def _layer(size: Transformer, layer: int, alone: TransformerDivision, memory: KeptBytes) -> Layer:
    name = {0: "embeddings", size.num_layers - 1: "head"}.get(layer, f"block {layer - 1}")
    forward, backward, update = (alone.operators(phase)[layer] for phase in ("forward", "backward", "step"))
    return Layer(name, forward, backward, update, backward_temporary_bytes=temporary_bytes(memory))


def _tensors(layer: int, num_layers: int, memory: KeptBytes) -> Iterator[Tensor]:
    back = 2 * num_layers - 1 - layer
    yield Tensor(memory.weights, "parameter", -1, (layer, back))
    yield Tensor(memory.gradients, "gradient", -1, (layer,))
    yield Tensor(memory.states, "optimizer", -1, (layer,))
    if memory.activations:
        yield Tensor(memory.activations, "activation", layer, (back,))
    if layer:
        yield Tensor(memory.entering, "activation", layer - 1, (layer, back))
        yield Tensor(memory.entering, "activation", back, (back + 1,))
