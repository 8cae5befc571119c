"""Whole iterations of GPTs under Megatron-LM on A100s (vTrain): on one host and, kept back, on many."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import numpy as np
import pandas as pd

from alpa_dejavu.calibration import bundled, prices
from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.planning.strategies import Task
from alpa_dejavu.planning.strategies.stages import Pipeline, PlacedStage, config_of, equal_layers, ranks
from alpa_dejavu.problem import Link
from fitting import Array, Deviation
from trials._folder import Folder, measured
from trials._gpt import GPT
from trials._step_trials import RuntimeTrials, log_columns
from trials._steps import columns, parts_of
from trials._trial_set import MEASURED_S, Context, StepSet, TrialSet, labels

_NUMBERS = ("global_batch", "micro_batch", "hidden", "heads", "layers", "seq_len", "tp", "dp", "pp")
_VOCABULARY = 51200
_FLOP_PER_S, _MEMORY_BYTES_PER_S = 312e12, 2.039e12
"""Of an A100-SXM4-80GB, by its data sheet; the largest models of the set don't fit the one with 40 GB."""
_MACHINE, _CALIBRATION, _BETWEEN_HOSTS_BYTES_PER_S = "dgx-a100", "a100", 800e9 / 8

_DEVIATIONS = (Deviation("passes", {"log_hidden": 1.0, "log_tp": 0.7, "log_micro_batch": 0.7}, 0.1, 0.05),)

_division = labels("tp", "dp", "pp")


def described(rows: pd.DataFrame, folder: Folder) -> dict[str, Array]:
    """Each row as a pipeline of Megatron-LM's, by bundled kernels and all-reduces of A100s."""
    return _described(rows, own_collectives=True)


def unseen(rows: pd.DataFrame, folder: Folder) -> dict[str, Array]:
    """The same without the all-reduces that were measured on this very machine: by its data sheet's links."""
    return _described(rows, own_collectives=False)


def _described(rows: pd.DataFrame, own_collectives: bool) -> dict[str, Array]:
    numbers = rows[list(_NUMBERS)].astype(int).itertuples(index=False)
    known = columns([_parts(tuple(row), own_collectives) for row in numbers])
    return known | log_columns(rows, "hidden", "tp", "micro_batch") | {"layers_from": np.full(len(rows), 2.0)}


@functools.cache
def _parts(row: tuple[int, ...], own_collectives: bool) -> dict[str, Array]:
    return parts_of(*trial(row, own_collectives))


def trial(row: tuple[int, ...], own_collectives: bool = True) -> tuple[Task, Pipeline]:
    """A row as the planner takes it.

    Ranks go through tensor, then data, then pipeline parallelism; embedding and head are on the first and last stage.
    Where a stage doesn't fit its devices' memory, all layers are computed again in the backward pass.
    """
    of = dict(zip(_NUMBERS, row, strict=True))
    wide, pp, samples = of["tp"] * of["dp"], of["pp"], of["micro_batch"] * of["dp"]
    task = _task(of["hidden"], of["heads"], of["layers"], of["seq_len"], samples, -(-wide * pp // 8), own_collectives)
    hosts = ranks(task.cluster, range(len(task.cluster.hosts)))
    micro_batches = max(of["global_batch"] // samples, 1)

    def pipeline(remat: str) -> Pipeline:
        config = dataclasses.replace(config_of(of["dp"], of["tp"]), remat=remat)
        stages = tuple(
            PlacedStage(first + (n > 0), last + 1 + (n == pp - 1), hosts[n * wide : (n + 1) * wide], config)
            for n, (first, last) in enumerate(equal_layers(of["layers"], pp))
        )
        return Pipeline(stages, samples, micro_batches)

    plain = pipeline("none")
    return task, plain if task.fits(plain) else pipeline("layer")


@functools.lru_cache(maxsize=64)
def _task(hidden: int, heads: int, blocks: int, sequence: int, samples: int, hosts: int, own_collectives: bool) -> Task:
    model = GPT(hidden, heads, blocks, sequence, _VOCABULARY, samples).model()
    known = bundled(_CALIBRATION)
    if not own_collectives:
        known = dataclasses.replace(known, within=None, across=None)
    cluster = named_cluster(_MACHINE, hosts)
    links = tuple(
        tuple(link if a == b else Link(link.latency_s, _BETWEEN_HOSTS_BYTES_PER_S) for b, link in enumerate(row))
        for a, row in enumerate(cluster.links)
    )
    priced = prices(dataclasses.replace(cluster, links=links), known, "auto", "auto")
    return Task(model, samples, priced.cluster, samples, priced.models)


def _features(rows: pd.DataFrame, context: Context) -> pd.DataFrame:
    """The plan, and both sides of a roofline of one device's work."""
    of = {name: rows[name].to_numpy(float) for name in _NUMBERS}
    of["num_micro_batches"] = np.maximum(of["global_batch"] / of["micro_batch"] / of["dp"], 1.0)
    tokens = of["global_batch"] * of["seq_len"]
    parameters = of["layers"] * 12 * of["hidden"] ** 2 + _VOCABULARY * of["hidden"]
    attention = 12 * of["layers"] * of["hidden"] * of["seq_len"]
    devices = of["tp"] * of["dp"] * of["pp"]
    filled = of["num_micro_batches"] / (of["num_micro_batches"] + of["pp"] - 1)
    moved = 36 * of["layers"] * tokens * of["hidden"] * 2
    return pd.DataFrame(
        {
            "compute_s": tokens * (6 * parameters + attention) / devices / filled / _FLOP_PER_S,
            "traffic_s": moved / devices / filled / _MEMORY_BYTES_PER_S,
            "parameters": parameters,
            **{name: of[name] for name in (*_NUMBERS, "num_micro_batches")},
        }
    )


def _loader(name: str) -> Callable[[Folder], pd.DataFrame]:
    def load(folder: Folder) -> pd.DataFrame:
        path = f"vtrain-a100/{name}.csv"
        rows = measured(folder.table(path, [], [*_NUMBERS, "iteration_s"], counts=_NUMBERS), ["iteration_s"], path)
        return rows.rename(columns={"iteration_s": MEASURED_S})[[*_NUMBERS, MEASURED_S]]

    return load


def _predictor() -> RuntimeTrials:
    return RuntimeTrials(described, _division, _DEVIATIONS)


_ONE, _BY_HIDDEN = "vtrain-a100/single_node", "vtrain-a100/single_node:by_hidden"

SETS = (
    TrialSet(
        _ONE,
        _loader("single_node"),
        _division,
        _predictor,
        _features,
        same_rows_as=(_BY_HIDDEN,),
        steps=StepSet(unseen, elsewhere=("amp/homogeneous_trials", "amp/het_model_trials", "sailor/clariden_plans")),
    ),
    TrialSet(_BY_HIDDEN, _loader("single_node"), labels("hidden"), _predictor, _features, same_rows_as=(_ONE,)),
    TrialSet(
        "vtrain-a100/multi_node",
        _loader("multi_node"),
        labels("hidden"),
        _predictor,
        _features,
        fitted_on=(_ONE,),
        steps=StepSet(described),
    ),
)
