"""The rules of training frameworks, applied to search spaces."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, final

from alpa_dejavu.clusters.space import PLAIN_CHOICES, SHARDS, DivisionChoices
from alpa_dejavu.layers.models import Transformer, model_title, transformer_size
from alpa_dejavu.planning.search.runtimes import RUNTIMES, Runtime, limits_of
from alpa_dejavu.plans.outline import DEGREES
from alpa_dejavu.problem import Cluster, MeshConfig, Model, SearchSpace
from alpa_dejavu.sharding.transformers import TransformerSharding


@final
@dataclasses.dataclass(frozen=True)
class Restriction:
    """A rule that leaves of a search space what a training framework can run, so that its best plan is in it."""

    limits: Runtime
    batch: int | None
    model: Transformer | None  # whose heads tensor-parallel devices divide; None: it isn't known to be one
    alone: bool = False  # whether plans must have one stage

    def of(self, space: SearchSpace, cluster: Cluster, micro_batch: int) -> SearchSpace:
        """Returns the part of a search space for a cluster that is left, for micro-batches of so many samples."""
        limits = self.limits
        if limits.unlike_submeshes:  # as Alpa's, for whose choices the space is made
            return space
        entries = {
            (s, c): config
            for s, row in enumerate(space.configs)
            for c, config in enumerate(row)
            if config is not None and self._allows(config, cluster, micro_batch)
        }
        rows = [[entries.get((s, c)) for c in range(len(row))] for s, row in enumerate(space.configs)]
        members: dict[tuple[object, ...], list[tuple[int, int]]] = {}
        for entry, config in entries.items():
            # Of a config what the stages of one plan share.
            remat = None if limits.unlike_remat else (config.remat, config.remat_share)
            zero = None if limits.unlike_zero else config.zero
            degrees = tuple(getattr(config, name) for name in DEGREES)
            members.setdefault((config.shape, config.offload, remat, zero, degrees), []).append(entry)
        cuts = dataclasses.replace(limits.cuts, ends=0 if self.model is None else 1)
        return dataclasses.replace(
            space, configs=tuple(map(tuple, rows)), families=tuple(map(frozenset, members.values())), cuts=cuts
        )

    def _allows(self, config: MeshConfig, cluster: Cluster, micro_batch: int) -> bool:
        limits, size = self.limits, config.data_parallel * config.tensor_parallel
        model = self.model
        wholes = () if model is None else (model.num_heads, model.kv_heads, model.feed_forward)
        stages, count = cluster.num_devices // size, 0 if self.batch is None else self.batch // micro_batch
        return (
            # The one row that Alpa's own pass divides as it likes is no division that others can be told.
            (config.batch_forced or size == 1)
            and not (self.alone and stages > 1)
            and config.zero in limits.zero_of(stages)
            and (limits.tensor_parallel or config.tensor_parallel == 1)
            and all(whole % config.tensor_parallel == 0 for whole in wholes)
            and not (config.offload.any and stages > 1 and not limits.offload_in_pipeline)
            and limits.offloads(config.offload, config.zero)
            and not (limits.whole_rounds and count % stages)
            and not limits.why_not_divided(config, stages)
            and limits.has_muon(model, config)
            and not (limits.power_of_two and stages.bit_count() != 1)
        )


def restriction(runs_on: str, batch: int | None, model: str) -> Restriction | None:
    """Returns the restriction to what a framework in `RUNTIMES` can run; None for an empty name. Raises ValueError for
    an unknown one, or one whose files can't say how the model is trained.
    """
    if not runs_on:
        return None
    if runs_on not in RUNTIMES:
        raise ValueError(f"runs_on is {runs_on!r}, but must be one of {', '.join(map(repr, RUNTIMES))}")
    if why := RUNTIMES[runs_on].why_not_trained(model):
        raise ValueError(f"{runs_on} can't train {model_title(model)}: {why}")
    size = transformer_size(model)
    # Whether its jobs may gather so is told by now, though files written for its release of today can't say it.
    if size is not None and (reason := RUNTIMES[runs_on].why_not_written(dataclasses.replace(size, gather=""))):
        raise ValueError(
            f"{runs_on} can't train {model_title(model)}: {reason}; give another model, or plan for another framework"
        )
    return Restriction(RUNTIMES[runs_on], batch, size)


_DEGREES = {"context": "context_parallel", "experts": "expert_parallel", "shard": "sharded"}
"""The choices that are fixed by these names, and their degrees in a config."""


def choices_of(model: Model) -> DivisionChoices:
    """Returns how devices may divide a model beside its batch, whatever isn't fixed: a transformer by its sizes as the
    framework that runs it can.
    """
    sharding = model.sharding
    if not isinstance(sharding, TransformerSharding):
        return PLAIN_CHOICES
    runtime = sharding.execution.name
    return division_choices(sharding.size, runtime, limits_of(runtime), {})


def restriction_of(model: Model, batch: int | None) -> Restriction | None:
    """Returns the restriction of a transformer by its sizes to what the framework that runs it can run; None for other
    models, or where its limits aren't known.
    """
    sharding = model.sharding
    if not isinstance(sharding, TransformerSharding):
        return None
    limits = limits_of(sharding.execution.name)
    return None if limits is None else Restriction(limits, batch, sharding.size)


def division_choices(
    size: Transformer | None,
    runtime: str,
    limits: Runtime | None,
    asked: Mapping[str, int | str | None],
    strategy: str = "",
) -> DivisionChoices:
    """Returns how devices may divide a model beside its batch.

    Args:
        size: the transformer, if it is planned by its sizes; None: a traced model, of which only operators are divided.
        runtime: the name of the training framework, for messages.
        limits: what that can run; None: it isn't known to divide models otherwise.
        asked: what "pipeline", "tensor", "context", "experts" and "shard" are to be; None: any.
        strategy: the name of the strategy that plans, if that divides operators and batches alone; for messages.

    Raises:
        ValueError: the model's heads, tokens or experts, or the framework, can't have what is asked for.
    """
    degrees = () if limits is None else limits.degrees
    divides = [name for name, degree in _DEGREES.items() if degree in degrees]
    fixed: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    for name, value in fixed.items():
        usual, allowed = vars(PLAIN_CHOICES)[name], "at least 1"
        if name == "shard" and value in SHARDS:
            allowed = ""
        elif name == "shard":
            allowed = f"at least 1, {' or '.join(map(repr, SHARDS))}"
        if allowed and (not isinstance(value, int) or value < 1):
            raise ValueError(f"{name} is {value!r}, but must be {allowed}; give another, or leave it out")
        if name == "tensor" and (strategy or (limits is not None and not limits.tensor_parallel)):
            usual = 1
        if name == "pipeline" and strategy:
            usual = "chosen"
        if usual in (None, value) or (size is not None and name in divides and (name != "experts" or size.num_experts)):
            continue
        why, remedy = f"under {runtime}, which hasn't that", "give another runtime, or leave it out"
        if strategy:
            why, remedy = f"by the strategy {strategy!r}, which has rules of its own", "leave one of them out"
        elif size is None:
            why = "for a traced model"
            remedy = "give a transformer by its sizes and a runtime such as megatron or torchtitan, or leave it out"
        elif name in divides:
            why, remedy = "where the model has no experts", "leave it out"
        raise ValueError(f"{name} is {value!r}, but must be {usual!r} {why}; {remedy}")
    if size is None:
        return dataclasses.replace(PLAIN_CHOICES, **fixed)
    for name, whole, what in (
        ("tensor", size.num_heads, "heads"), ("tensor", size.kv_heads, "heads of keys and values"),
        ("tensor", size.feed_forward, "columns of each feed-forward product"),
        ("context", size.sequence, "tokens of a sample"), ("experts", size.num_experts, "experts"),
    ):  # fmt: skip
        if whole % int(fixed.get(name) or 1):
            raise ValueError(f"{name} is {fixed[name]}, but must divide the {whole} {what}; give another number")
    free: dict[str, Any] = dict.fromkeys(name for name in divides if name != "experts" or size.num_experts)
    choices = DivisionChoices(
        tokens=size.sequence, num_experts=max(size.num_experts, 1), expert_tensor="expert_tensor" in degrees,
    )
    return dataclasses.replace(choices, **{**free, **fixed})
