"""Whole iterations of GPTs under Megatron-LM on A100s (vTrain): on one host and, kept back, on many."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import pandas as pd
from tqdm import tqdm

from alpa_dejavu.calibration import prices
from alpa_dejavu.clusters.gpus import gpu_of
from alpa_dejavu.costs.memory_margin import COUNTED
from alpa_dejavu.costs.runtime import runtime_profile
from alpa_dejavu.layers.models import Transformer
from alpa_dejavu.planning.strategies import Task
from alpa_dejavu.planning.strategies.stages import Pipeline, config_of
from alpa_dejavu.problem import Cluster, Link
from alpa_dejavu.sharding.transformers import EXECUTIONS, PLAIN, transformer_model
from trials._folder import Folder, measured
from trials._planned_steps import Ends, by_rank, estimated, with_ends
from trials._trial_set import MEASURED_S, Predicted, TrialSet

_NUMBERS = ("global_batch", "micro_batch", "hidden", "heads", "layers", "seq_len", "tp", "dp", "pp")
_PER_HOST, _VOCABULARY = 8, 51200
_WITHIN_S, _BETWEEN_S, _BETWEEN_BYTES_PER_S = 1e-5, 3e-5, 800e9 / 8
"""Latencies of messages, as in the machine files, and what a host's network cards carry together."""
_EXECUTION = dataclasses.replace(EXECUTIONS["megatron"], attention=PLAIN, sequence_parallel=False)
_RUNTIME = dataclasses.replace(runtime_profile("megatron", "none"), elementwise=runtime_profile("fsdp").elementwise)
"""vTrain's Megatron-LM is from before Transformer Engine: most of its operators ran one by one."""


def trial(row: tuple[int, ...]) -> tuple[Task, Pipeline]:
    """A row as the planner takes it: where a stage doesn't fit its devices, all blocks are computed again."""
    of = dict(zip(_NUMBERS, row, strict=True))
    samples, wide, pp = of["micro_batch"] * of["dp"], of["tp"] * of["dp"], of["pp"]
    size = Transformer(
        of["hidden"], of["layers"], of["heads"], _VOCABULARY, of["seq_len"], gated=False, rotary=False, rms_norm=False,
        biases="all", tied=True, precision="float16",
    )  # fmt: skip
    task, config = _task(size, samples, -(-wide * pp // _PER_HOST)), config_of(of["dp"], of["tp"])

    def pipeline(remat: str) -> Pipeline:
        stages = by_rank(task.cluster, with_ends(of["layers"], pp), dataclasses.replace(config, remat=remat))
        return Pipeline(stages, samples, max(of["global_batch"] // samples, 1))

    plain = pipeline("none")
    return task, plain if task.fits(plain) else pipeline("layer")


@functools.lru_cache(maxsize=64)
def _task(size: Transformer, samples: int, hosts: int) -> Task:
    gpu = gpu_of("A100-SXM-80GB")
    assert gpu is not None, "its data sheet is known"
    within, between = Link(_WITHIN_S, gpu.link_bytes_per_s), Link(_BETWEEN_S, _BETWEEN_BYTES_PER_S)
    names = [f"host-{n}" for n in range(hosts)]
    cluster = Cluster.uniform(f"{hosts} x 8 A100", names, gpu.device(), _PER_HOST, within, between)
    cluster = dataclasses.replace(cluster, hosts=tuple(_RUNTIME.hosts(cluster)))
    models = prices(cluster, None, "auto", "auto", _RUNTIME).models
    return Task(transformer_model(size, _EXECUTION, samples), samples, cluster, samples, models, margin=COUNTED)


@functools.cache
def _step(row: tuple[int, ...]) -> Ends:
    return estimated(*trial(row))


def _predict(rows: pd.DataFrame, folder: Folder) -> Predicted:
    numbers = rows[list(_NUMBERS)].astype(int).itertuples(index=False)
    return Predicted.of([_step(tuple(row)) for row in tqdm(list(numbers), desc="vTrain", leave=False)])


def _loader(name: str) -> Callable[[Folder], pd.DataFrame]:
    def load(folder: Folder) -> pd.DataFrame:
        path = f"vtrain-a100/{name}.csv"
        rows = measured(folder.table(path, [], [*_NUMBERS, "iteration_s"], counts=_NUMBERS), ["iteration_s"], path)
        return rows.rename(columns={"iteration_s": MEASURED_S})[[*_NUMBERS, MEASURED_S]]

    return load


SETS = tuple(TrialSet(f"vtrain-a100/{name}", _loader(name), _predict) for name in ("single_node", "multi_node"))
