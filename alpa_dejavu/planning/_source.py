"""Makes the source of the model that somebody names or gives."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Literal

from alpa_dejavu.clusters.gpus import gpu_of
from alpa_dejavu.costs.kernels import has_fused
from alpa_dejavu.planning.model_cache import chosen_cache
from alpa_dejavu.planning.model_source import GivenModel, ModelSource
from alpa_dejavu.planning.sized_transformer import sized_transformer
from alpa_dejavu.planning.traced_model import TracedModel
from alpa_dejavu.problem import Cluster, Model
from alpa_dejavu.sharding.transformers import EXECUTIONS, PLAIN

__all__ = ["attention_on", "model_source"]


def attention_on(cluster: Cluster, runtime: str, attention: str) -> str:
    """Returns how attention is priced on a cluster: as asked for, and else "plain" where a training framework would
    fuse it, but libraries have no such kernels for one of the cluster's GPUs.

    Args:
        cluster: the cluster.
        runtime: the name of the training framework.
        attention: "fused" or "plain"; empty: nothing was asked for.
    """
    gpus = [gpu_of(host.device.name) for host in cluster.hosts]
    lacking = any(gpu is not None and not has_fused(gpu) for gpu in gpus)
    return PLAIN if not attention and lacking and runtime.partition("+")[0] in EXECUTIONS else attention


def model_source(
    model: str | Callable[..., Any] | Model | ModelSource,
    batch: int,
    counts: Sequence[int],
    cache: str | os.PathLike[str] | Literal[False] | None,
    lap: Callable[[str], None] = lambda name: None,
    runtime: str = "",
    attention: str = "",
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

    Raises:
        ValueError: layers are given, and several numbers of micro-batches.
    """
    if isinstance(model, ModelSource):
        return model
    if not isinstance(model, Model):
        first = batch // counts[-min(len(counts), 2)]
        described = sized_transformer(model, runtime, first, attention)
        usual = "fused" if runtime.partition("+")[0] in EXECUTIONS else PLAIN
        return described or TracedModel(model, first, chosen_cache(cache), lap, attention or usual)
    if len(counts) > 1:
        raise ValueError(
            "micro_batches is None, but layers that are given are of one size of micro-batch; give the number of "
            "micro-batches that this makes of the batch"
        )
    return GivenModel(model, batch // counts[0], name="")
