"""Makes the source of the model that somebody names or gives; a transformer of given sizes isn't traced."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any, Literal, final

from alpa_dejavu._util.content import content_digest
from alpa_dejavu.clusters.gpus import gpu_of
from alpa_dejavu.costs.kept_prices import KeptPrices
from alpa_dejavu.costs.kernels import has_fused
from alpa_dejavu.costs.runtime import CostModels
from alpa_dejavu.layers.models import Transformer, transformer_size
from alpa_dejavu.planning.search.models.cached_prices import CachedPrices
from alpa_dejavu.planning.search.models.model_cache import Key, ModelCache, chosen_cache
from alpa_dejavu.planning.search.models.model_source import GivenModel, ModelSource, checked_micro_batch
from alpa_dejavu.planning.search.models.traced_model import TracedModel
from alpa_dejavu.problem import Cluster, Model
from alpa_dejavu.sharding.transformers import EXECUTIONS, PLAIN, Execution, transformer_model
from alpa_dejavu.slicing import Slicer

__all__ = ["SizedTransformer", "attention_on", "model_source", "sized_transformer"]

_DIVIDES_TOKENS = ("jax",)
"""The training frameworks in which a program may have any shardings, so that tensor-parallel devices can divide norms
and residuals by tokens: Alpa's own pass never does so."""


@final
class SizedTransformer(ModelSource):
    """A source of a transformer in its blocks, described as a training framework runs it.

    Args:
        size: the transformer.
        execution: how the framework runs it.
        micro_batch: samples in a micro-batch; others are described as exactly.
        cache: the cache of what its stages cost; None: nothing is read from a cache or written to one.
    """

    traces = True
    scales = False

    def __init__(
        self, size: Transformer, execution: Execution, micro_batch: int, cache: ModelCache | None = None
    ) -> None:
        self.size, self.execution, self.micro_batch = size, execution, checked_micro_batch(micro_batch)
        self._models: dict[int, Model] = {}
        self._prices = CachedPrices(cache)

    @property
    def name(self) -> str:
        return self.size.text  # by which it is found again

    @property
    def training(self) -> bool:
        return True

    @property
    def notes(self) -> tuple[str, ...]:
        how = "unfused" if self.execution.attention == PLAIN else f"fused ({self.execution.attention})"
        return (f"priced and kept as {self.execution.name} runs it, with {how} attention",)

    def numbers_of_layers(self, wanted: Sequence[int]) -> tuple[int, ...]:
        return (self.size.num_layers,)

    def exact(self, num_layers: int, micro_batch: int) -> Model:
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
        return self.exact(num_layers, micro_batch)  # which costs no more than scaling one

    def prices(self, num_layers: int, micro_batch: int, exact: bool, models: CostModels) -> KeptPrices | None:
        return self._prices.of({**self._key, "micro_batch": micro_batch}, num_layers, models)

    def remembering(self, slicer: Slicer) -> Slicer:
        return self._prices.remembering(self._key, slicer)

    @property
    def _key(self) -> Key:
        return {"model": content_digest(self.size, self.execution)}

    def keep(self) -> None:
        self._prices.keep()


def sized_transformer(
    model: object,
    runtime: str,
    micro_batch: int,
    attention: str = "",
    sequence_parallel: bool = True,
    cache: ModelCache | None = None,
) -> SizedTransformer | None:
    """Returns the source of the transformer that a model's name stands for, where a training framework is known to run
    it in its own way; None for other models, and for Alpa.

    Args:
        model: the name of a model, or a transformer's sizes as text.
        runtime: the framework's name.
        micro_batch: samples in a micro-batch.
        attention: "fused" or "plain"; empty: as the framework has it.
        sequence_parallel: whether tensor-parallel devices divide norms and residuals, where the framework does that.
        cache: the cache of what its stages cost; None: there is none.
    """
    execution = _execution(runtime)
    size = transformer_size(model) if isinstance(model, str) and execution else None
    if execution is None or size is None:
        return None
    execution = execution.with_attention(attention)
    if not sequence_parallel:
        execution = dataclasses.replace(execution, sequence_parallel=False)
    return SizedTransformer(size, execution, micro_batch, cache)


def _execution(runtime: str) -> Execution | None:
    return EXECUTIONS.get(runtime.partition("+")[0])


def attention_on(cluster: Cluster, runtime: str, attention: str) -> str:
    """Returns how attention ("fused" or "plain") is priced on a cluster: as asked for, and if nothing was (empty) as
    "plain" where a training framework would fuse it, but libraries have no such kernels for one of the cluster's GPUs.
    """
    gpus = [gpu_of(host.device.name) for host in cluster.hosts]
    lacking = any(gpu is not None and not has_fused(gpu) for gpu in gpus)
    return PLAIN if not attention and lacking and _execution(runtime) else attention


def model_source(
    model: str | Callable[..., Any] | Model | ModelSource,
    batch: int,
    counts: Sequence[int],
    cache: str | os.PathLike[str] | Literal[False] | None,
    lap: Callable[[str], None] = lambda name: None,
    runtime: str = "",
    attention: str = "",
    sequence_parallel: bool = True,
) -> ModelSource:
    """Returns the source of a model that is planned for a batch which may be cut into so many micro-batches.

    Args:
        model: as `alpa_dejavu.planning.plan_model` takes it; layers are of a micro-batch of the one number in `counts`.
        batch: samples of a step.
        counts: numbers of micro-batches, ascending.
        cache: the folder of a cache of traced models; None: the user's own; False: none is read or written.
        lap: a function that is called with the name of what has just been done.
        runtime: the name of the training framework: one that runs a known transformer in its own way has it described
            so, and it isn't traced.
        attention: "fused" or "plain": how attention is priced and kept; empty: as the framework has it, which for Alpa
            and plain JAX is as XLA compiles what is written.
        sequence_parallel: as for `sized_transformer`.

    Raises:
        ValueError: layers are given, and several numbers of micro-batches.
    """
    if isinstance(model, ModelSource):
        return model
    if not isinstance(model, Model):
        first = batch // counts[-min(len(counts), 2)]
        kept = chosen_cache(cache)
        described = sized_transformer(model, runtime, first, attention, sequence_parallel, kept)
        usual = "fused" if _execution(runtime) else PLAIN
        divided = runtime.partition("+")[0] in _DIVIDES_TOKENS
        return described or TracedModel(model, first, kept, lap, attention or usual, divided)
    if len(counts) > 1:
        raise ValueError(
            "micro_batches is None, but layers that are given are of one size of micro-batch; give the number of "
            "micro-batches that this makes of the batch"
        )
    return GivenModel(model, batch // counts[0], name="")
