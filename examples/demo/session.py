"""A job under Alpa: planned and compiled once, then trained step by step."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import alpa
import alpa.pipeline_parallel.compile_executable as compilation
import jax
import numpy as np

from demo.text import batches, standard_library
from demo.training import Batch, Job, create_state, make_train_step

__all__ = ["Session"]


@dataclasses.dataclass
class Session:
    """Trains on the Ray cluster that Alpa is connected to.

    Attributes:
        planning_s: the wall time of Alpa's `cluster_layers_and_slice_mesh`, in which the plan is made.
        compile_s: everything before the first step, planning included.
        losses: of the steps so far, nats.
        step_s: their wall time; each includes bringing the loss to the driver.
    """

    job: Job
    stage_option: Any
    planning_s: float = 0.0
    compile_s: float = 0.0
    losses: list[float] = dataclasses.field(default_factory=list)
    step_s: list[float] = dataclasses.field(default_factory=list)

    def compile(self) -> None:
        """Plans and compiles; nothing is trained yet."""
        job = self.job
        self._state = create_state(job)
        self._data = batches(standard_library(), job.batch_size, job.config.length, job.seed)
        method = alpa.PipeshardParallel(
            num_micro_batches=job.micro_batches,
            layer_option=alpa.AutoLayerOption(job.layers),
            stage_option=self.stage_option,
        )
        self._step = alpa.parallelize(make_train_step(alpa.value_and_grad), method=method)
        start = time.perf_counter()
        with _planning_timed(compilation) as planning_s:
            example = next(batches(standard_library(), job.batch_size, job.config.length, job.seed))
            self._step.get_executable(self._state, example).sync()
        self.compile_s = time.perf_counter() - start
        self.planning_s = sum(planning_s)

    def step(self) -> float:
        """One training step; its loss."""
        batch: Batch = next(self._data)
        start = time.perf_counter()
        self._state, loss = self._step(self._state, batch)
        self.losses.append(float(np.asarray(loss)))
        self.step_s.append(time.perf_counter() - start)
        return self.losses[-1]

    def parameters(self) -> Any:
        """As numpy arrays, from wherever they are."""
        return jax.tree_util.tree_map(np.asarray, self._state.params)


@contextlib.contextmanager
def _planning_timed(module: ModuleType) -> Iterator[list[float]]:
    """Times Alpa's `cluster_layers_and_slice_mesh`, whoever answers for it."""
    seconds: list[float] = []
    original = module.cluster_layers_and_slice_mesh

    @functools.wraps(original)
    def timed(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        try:
            return original(*args, **kwargs)
        finally:
            seconds.append(time.perf_counter() - start)

    module.cluster_layers_and_slice_mesh = timed  # type: ignore[attr-defined]
    try:
        yield seconds
    finally:
        module.cluster_layers_and_slice_mesh = original  # type: ignore[attr-defined]
