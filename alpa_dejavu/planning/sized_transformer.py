"""A transformer of given sizes for planning, as a training framework runs it; nothing is traced."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import final

from alpa_dejavu.layers.models import Transformer, transformer_size
from alpa_dejavu.planning.model_source import ModelSource, checked_micro_batch
from alpa_dejavu.problem import Model
from alpa_dejavu.sharding.transformers import EXECUTIONS, PLAIN, Execution, transformer_model

__all__ = ["SizedTransformer", "sized_transformer"]


@final
class SizedTransformer(ModelSource):
    """A source of a transformer in its blocks, described as a training framework runs it.

    Args:
        size: the transformer.
        execution: how the framework runs it.
        micro_batch: samples in a micro-batch; others are described as exactly.
    """

    traces = True

    def __init__(self, size: Transformer, execution: Execution, micro_batch: int) -> None:
        self.size, self.execution, self.micro_batch = size, execution, checked_micro_batch(micro_batch)
        self._models: dict[int, Model] = {}

    @property
    def name(self) -> str:
        """Returns the transformer's sizes as text, by which it is found again."""
        return self.size.text

    @property
    def training(self) -> bool:
        """Returns True: it is a training step."""
        return True

    @property
    def notes(self) -> tuple[str, ...]:
        """Returns how attention is priced and kept."""
        how = "unfused" if self.execution.attention == PLAIN else f"fused ({self.execution.attention})"
        return (f"the transformer is priced and kept as {self.execution.name} runs it, with {how} attention",)

    def numbers_of_layers(self, wanted: Sequence[int]) -> tuple[int, ...]:
        """Returns the one number of layers that it is planned in: its blocks, embeddings and head."""
        return (self.size.num_layers,)

    def knows(self, num_layers: int, micro_batch: int) -> bool:
        """Returns True for its number of layers: any micro-batch is described at once."""
        return num_layers == self.size.num_layers

    def exact(self, num_layers: int, micro_batch: int) -> Model:
        """Returns the transformer for so many samples in a micro-batch.

        Raises:
            ValueError: it is asked for in another number of layers.
        """
        if num_layers != self.size.num_layers:
            raise ValueError(
                f"num_layers is {num_layers}, but must be {self.size.num_layers} under {self.execution.name}: those of "
                "embeddings, blocks and head; plan with as many layers, or plan and estimate for the runtime 'alpa', "
                "which cuts the model otherwise"
            )
        if micro_batch not in self._models:
            self._models[micro_batch] = transformer_model(self.size, self.execution, checked_micro_batch(micro_batch))
        return self._models[micro_batch]

    def scaled(self, num_layers: int, micro_batch: int) -> Model:
        """Returns the transformer for so many samples in a micro-batch, which costs no more than scaling one."""
        return self.exact(num_layers, micro_batch)

    def keep(self) -> None:
        """Saves nothing: it is described anew in no time."""


def sized_transformer(
    model: object, runtime: str, micro_batch: int, attention: str = "", sequence_parallel: bool = True
) -> SizedTransformer | None:
    """Returns the source of the transformer that a model's name stands for, where a training framework is known to run
    it in its own way; None for other models, for those of which a part is frozen, and for Alpa.

    Args:
        model: the name of a model, or a transformer's sizes as text.
        runtime: the framework's name.
        micro_batch: samples in a micro-batch.
        attention: "fused" or "plain"; empty: as the framework has it.
        sequence_parallel: whether tensor-parallel devices divide norms and residuals, where the framework does that.
    """
    if not isinstance(model, str) or runtime.partition("+")[0] not in EXECUTIONS:
        return None
    size, execution = transformer_size(model), EXECUTIONS[runtime.partition("+")[0]]
    if size is None or size.train_last:
        return None
    runs = execution.with_attention(attention)
    if not sequence_parallel:
        runs = dataclasses.replace(runs, sequence_parallel=False)
    return SizedTransformer(size, runs, micro_batch)
