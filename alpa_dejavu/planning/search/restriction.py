"""The rules of training frameworks, applied to search spaces."""

from __future__ import annotations

import dataclasses
from typing import final

from alpa_dejavu.layers.models import Transformer, transformer_size
from alpa_dejavu.planning.search.runtimes import DEGREES, RUNTIMES, WITHOUT_FROZEN, Runtime
from alpa_dejavu.problem import Cluster, MeshConfig, SearchSpace


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
            and not (limits.power_of_two and stages.bit_count() != 1)
        )


def restriction(runs_on: str, batch: int | None, model: str) -> Restriction | None:
    """Returns the restriction to what a framework in `RUNTIMES` can run; None for an empty name. Raises ValueError for
    an unknown one, or one that can't leave a part of the model as it is.
    """
    if not runs_on:
        return None
    if runs_on not in RUNTIMES:
        raise ValueError(f"runs_on is {runs_on!r}, but must be one of {', '.join(map(repr, RUNTIMES))}")
    if why := RUNTIMES[runs_on].why_not_frozen(model):
        raise ValueError(f"{runs_on} can't train {model}: {why}; {WITHOUT_FROZEN}")
    return Restriction(RUNTIMES[runs_on], batch, transformer_size(model))
