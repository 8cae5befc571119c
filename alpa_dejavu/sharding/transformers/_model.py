"""A transformer of given sizes as a `Model`, as a training framework runs it; nothing is traced."""

from __future__ import annotations

from collections.abc import Iterator

from alpa_dejavu.layers.models import Transformer
from alpa_dejavu.problem import Layer, Model, Tensor
from alpa_dejavu.sharding.transformers._division import TransformerDivision, TransformerSharding, temporary_bytes
from alpa_dejavu.sharding.transformers._execution import Execution
from alpa_dejavu.sharding.transformers._kept import KeptBytes, kept

__all__ = ["transformer_model"]


def transformer_model(size: Transformer, execution: Execution, samples: float) -> Model:
    """Returns a training step of a transformer in layers: the table of embeddings, each block, and the head.

    Args:
        size: the transformer.
        execution: how a training framework runs it.
        samples: the samples of a micro-batch, over all data-parallel replicas together.
    """
    sharding = TransformerSharding(size, execution, samples)
    alone = sharding.divided()
    memory = {layer: kept(alone.work, layer, "none") for layer in dict.fromkeys(size.alike_layers)}
    layers = [_layer(size, layer, alone, memory[first]) for layer, first in enumerate(size.alike_layers)]
    tensors = [
        tensor
        for layer, first in enumerate(size.alike_layers)
        for tensor in _tensors(layer, size.num_layers, memory[first])
    ]
    return Model(tuple(layers), tuple(tensors), training=True, sharding=sharding)


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
