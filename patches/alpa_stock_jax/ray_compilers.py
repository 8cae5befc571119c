"""The actors that compile stages take no CPU from Ray, so that too few logical CPUs cannot make them wait for ever."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import joblib
import ray

from alpa_stock_jax._patch import Patch
from alpa_stock_jax.pipeline_profile_workers import fill_pool

__all__ = ["compiler_count"]


def compiler_count(wanted: int, cores: int) -> int:
    """How many compilers to start: each takes seconds to start and a whole core to work.

    Examples:
        >>> compiler_count(4, cores=2)
        2
    """
    return max(1, min(wanted, cores))


def _replace(module: ModuleType) -> None:
    pool_class: Any = module.CompileWorkerPool
    original = pool_class.__init__

    @functools.wraps(original)
    def init(self: Any, num_cpus: int, debug_mode: bool = False) -> None:
        worker = ray.remote(num_cpus=0)(module.CompileWorker)
        fill_pool(self, [worker.remote() for _ in range(compiler_count(num_cpus, joblib.cpu_count()))])
        self.local_worker = module.CompileWorker() if debug_mode else None

    pool_class.__init__ = init


PATCHES: tuple[Patch, ...] = (
    Patch(
        module="alpa.pipeline_parallel.stage_profiling",
        reason="compilers take no logical CPU of Ray, and are no more than the cores that may be used",
        apply=_replace,
        expects={"CompileWorkerPool.__init__": ("self", "num_cpus", "debug_mode"), "CompileWorker": None},
    ),
)
