"""What our search chooses on the clusters of Sailor's plans, by the models that price those plans."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from tqdm import tqdm

from alpa_dejavu.costs.latency import LatencyModel, LayerTimes, ProfiledLayers
from alpa_dejavu.costs.memory_margin import MemoryMargin
from alpa_dejavu.planning.strategies import DataParallelPipelines, StrategyPlan
from alpa_dejavu.planning.strategies.stages import Pipeline
from trials._folder import Folder
from trials._planned_steps import PROFILED
from trials._sailor_parts import sheet
from trials._sailor_tasks import task_of
from trials._sets import SETS
from trials._trial_set import MEASURED_BYTES, MEASURED_S
from trials.sailor_plans import predict

_KEY = "sailor/clariden_plans"
_Shape = tuple[int, tuple[tuple[int, int], ...]]
_GPU, _PER_NODE = "GH-96", 4
_SAMPLES = (1, 2, 4, 8)
"""Of a replica's micro-batch, as in Sailor's plans: more aren't chosen."""
_NEVER_S = 1e6
_FREE = (0.05, 0.25, 0.45)
"""The share of the memory that stays free, and shares that the search leaves free if it chose what needs too much."""


def beside_measured(folder: Folder) -> list[dict[str, Any]]:
    """Two rows for each job, which is a model, nodes and a batch: one with tensor parallelism on all GPUs of a node, as
    all measured plans have it, and one with any.

    Raises:
        AbsentError: the folder has no such plans.
    """
    jobs = list(SETS[_KEY].load(folder).groupby(["model", "nodes", "global_batch"], sort=True))
    return [
        _row(folder, (str(model), int(nodes), int(batch)), degrees, measured.reset_index(drop=True))
        for (model, nodes, batch), measured in tqdm(jobs, desc="Sailor's clusters", unit="job")
        for degrees in ((_PER_NODE,), (1, 2, _PER_NODE))
    ]


def _row(folder: Folder, job: tuple[str, int, int], degrees: tuple[int, ...], rows: pd.DataFrame) -> dict[str, Any]:
    """What is chosen for a job, and what is predicted of it and of the measured plans."""
    made, predicted_s, predicted_bytes = _chosen(folder, job, degrees)
    theirs = predict(rows.drop(columns=[MEASURED_S, MEASURED_BYTES]), folder).mean
    seconds = rows[MEASURED_S].to_numpy(float)
    best, fastest = int(theirs.argmin()), int(seconds.argmin())
    shapes = [_shape_of(one) for one in rows.to_dict("records")]
    return dict(zip(("model", "nodes", "batch"), job, strict=True)) | {
        "degrees": list(degrees), "pipelines": len(made.pipelines), "search_s": made.step_s, "seconds": made.seconds,
        "ours": _said(_shape(made.pipelines[0])),
        "predicted_s": predicted_s,
        "predicted_bytes": predicted_bytes,
        "measured_plans": len(rows),
        "first": _said(shapes[best]),
        "over_first": float(predicted_s / theirs[best]),
        "fastest": _said(shapes[fastest]),
        "fastest_measured_s": float(seconds[fastest]),
        "fastest_predicted_s": float(theirs[fastest]),
        "over_fastest": float(predicted_s / theirs[fastest]),
        "measured_as": [
            {"measured_s": float(seconds[n]), "rank": int((seconds < seconds[n]).sum()) + 1, "of": len(rows)}
            for n, shape in enumerate(shapes)
            if shape == _shape(made.pipelines[0])
        ],
    }  # fmt: skip


def _chosen(folder: Folder, job: tuple[str, int, int], degrees: tuple[int, ...]) -> tuple[StrategyPlan, float, float]:
    """What our search chooses, with the seconds and bytes that are predicted of it as of Sailor's plans; where its peak
    of memory is predicted to be too high, by a search that leaves more free.

    Raises:
        ValueError: nothing fits, or there are several unlike pipelines, of which Sailor's plans have none.
    """
    model, nodes, batch = job
    task = task_of(folder, model, ((_GPU, _PER_NODE),) * nodes, batch, _SAMPLES)
    for free in _FREE:
        made = DataParallelPipelines(("none",), (0,)).plan(
            task.model, task.cluster, batch, samples=batch, latency=_bounded(task.models.latency, degrees),
            communication=task.models.communication, runtime=PROFILED, margin=MemoryMargin(free_share=free),
        )  # fmt: skip
        if len(made.pipelines) > 1:
            raise ValueError(f"{model} on {nodes} nodes: {len(made.pipelines)} pipelines are chosen, but rows have one")
        found = predict(pd.DataFrame([as_row(made.pipelines[0], *job)]), folder)
        assert found.memory is not None, "peaks are predicted"
        if found.memory[0] <= (1 - _FREE[0]) * sheet(_GPU).memory_bytes:
            return made, float(found.mean[0]), float(found.memory[0])
    raise ValueError(f"{model} on {nodes} nodes: no choice is predicted to fit")


def _bounded(latency: LatencyModel, degrees: tuple[int, ...]) -> ProfiledLayers:
    """The same model of layers, in which other degrees of tensor parallelism, and more samples, take forever."""
    assert isinstance(latency, ProfiledLayers), "Sailor's layers are profiled"

    def bounded(layer: LayerTimes) -> LayerTimes:
        each = {}
        for tp, (counts, seconds) in layer.seconds.items():
            offered = seconds if tp in degrees else np.full_like(seconds, _NEVER_S)
            each[tp] = np.append(counts, 2 * counts[-1]), np.append(offered, _NEVER_S)
        return LayerTimes(each)

    return ProfiledLayers(
        {
            gpu: {name: layer if name.endswith("update") else bounded(layer) for name, layer in layers.items()}
            for gpu, layers in latency.times.items()
        }
    )


def as_row(pipeline: Pipeline, model: str, nodes: int, batch: int) -> dict[str, Any]:
    """A pipeline as a row of Sailor's plans, without what was measured of them."""
    across = max(len(stage.replicas) for stage in pipeline.stages)
    staged = [[[[[_GPU, len(hosts), ""]], len(hosts)] for hosts in stage.replicas] for stage in pipeline.stages]
    layers = [list(range(stage.first, stage.last + 1)) for stage in pipeline.stages]
    return {
        "model": model,
        "nodes": float(nodes),
        "micro_batch": pipeline.micro_batch / across,
        "global_batch": float(batch),
        "pipelines": json.dumps([{"layers_per_stage": layers, "tmp_per_stage": staged}]),
    }


def _shape(pipeline: Pipeline) -> _Shape:
    return _shape_of(as_row(pipeline, "", 0, 0))


def _shape_of(row: Mapping[Any, Any]) -> _Shape:
    """Samples of a replica's micro-batch, and of each stage its replicas and their tensor-parallel devices."""
    staged = [stage for one in json.loads(row["pipelines"]) for stage in one["tmp_per_stage"]]
    return int(row["micro_batch"]), tuple((len(stage), min(tp for _, tp in stage)) for stage in staged)


def _said(shape: _Shape) -> str:
    samples, stages = shape
    each = [f"{dp}x{tp}" for dp, tp in stages]
    text = f"{len(each)} x ({each[0]})" if len(set(each)) == 1 else " ".join(f"({one})" for one in each)
    return f"{text}, {samples}"
