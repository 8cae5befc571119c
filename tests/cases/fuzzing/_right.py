"""Right files of every format, as the product itself writes them: what is broken is made of these."""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import pathlib
import pickle
import sys
import types
import unittest.mock
from collections.abc import Iterator, Mapping
from typing import Any, final

import numpy as np
from click.testing import CliRunner

import serving_plans
from alpa_dejavu._util import units
from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.exports import TARGETS
from alpa_dejavu.planning.inference.serving_plan import write_serving_plan
from alpa_dejavu.plans.outline import Outline
from alpa_dejavu.testing import example_cluster
from fuzzing._read import SHAPES, SIZES

MODEL = "fuzzing._models:mlp"
MACHINE = "p3.8xlarge"
PLANNED = ("--model", MODEL, "--batch", "8", "--layers", "4", "--micro-batches", "2")
"""What the right plans were asked for, but for the cluster."""


FOREIGN: Mapping[str, str] = {
    "config.json": json.dumps({
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 128, "max_position_embeddings": 16,
        "tie_word_embeddings": False, "attention_bias": False, "head_dim": 16,
    }),
    "deepspeed.json": json.dumps({
        "train_batch_size": 16, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2,
        "zero_optimization": {"stage": 2}, "bf16": {"enabled": True},
    }),
    "galvatron.json": json.dumps({
        "pp_deg": 2, "tp_sizes_enc": "1,1,1,1,1,1,1,1", "dp_types_enc": "0,0,0,0,0,0,0,0",
        "checkpoint": "1,1,1,1,1,1,1,1", "global_bsz": 16, "chunks": 4, "pp_division": "4,4",
        "pipeline_type": "pipedream_flush", "default_dp_type": "zero2", "vtp": 1, "vsp": 0, "embed_sdp": 0,
    }),
    "lengths.csv": "prompt,output,weight\n100,10,94\n1000,200,6\n",
    "megatron.sh": (
        "A=64\npython pretrain_gpt.py --num-layers 8 --hidden-size $A --ffn-hidden-size 128 --num-attention-heads 4 "
        "--seq-length 16 --max-position-embeddings 16 --vocab-size 128 --swiglu --disable-bias-linear \\\n"
        "    --position-embedding-type rope --normalization RMSNorm --untie-embeddings-and-output-weights "
        "--tensor-model-parallel-size 1 --pipeline-model-parallel-size 2 --micro-batch-size 2 --global-batch-size=16\n"
    ),
    "jobs.csv": "a,worker,2,Terminated,0,100,600,10,100,T4\nb,worker,4,Terminated,50,80,600,10,100,\n",
    "hosts.csv": "m0,0,1,x,96,512,USING\nm1,0,1,x,96,512,USING\nm1,30,1,x,96,512,ERROR\nm1,60,1,x,96,512,USING\n",
    "job.toml": (
        '[model]\nname = "llama3"\nflavor = "8B"\n\n[optimizer]\nname = "AdamW"\nlr = 3e-4\n\n[training]\n'
        'local_batch_size = 4\nseq_len = 16\n\n[parallelism]\ndata_parallel_shard_degree = -1\n'
        'pipeline_parallel_degree = 2\npipeline_parallel_schedule = "Interleaved1F1B"\n'
        'module_fqns_per_model_part = [["tok_embeddings", "layers.0", "layers.1"], ["layers.2", "layers.3"], '
        '["layers.4", "layers.5"], ["layers.6", "layers.7", "norm", "output"]]\n\n[activation_checkpoint]\n'
        'mode = "full"\n\n[compile]\nenable = true\n'
    ),
    "scenario.yaml": (
        "version: 1\nproblem: sparse-least-squares\ncluster: {name: p3.8xlarge, hosts: 1}\ncompute_s: 0.5\nbatch: 16\n"
        "exchanges:\n  - all-reduce\n  - server: {backups: 1}\nfaults:\n  - slow-down: {worker: 1, factor: 4}\n"
        "until: {steps: 8}\n"
    ),
    "schedule.csv": "0F0,0F1,0B0,0B1\n,1F0,1B0,1F1,1B1\n",
}
"""Files of other programs, by their names."""


@final
class Content(bytes):
    """Bytes of a file, which error messages and reports don't show."""

    def __repr__(self) -> str:
        return f"<{units.exact_bytes(len(self))}>"


Files = Mapping[str, Content]


def right_files(folder: pathlib.Path) -> dict[str, Content]:
    """The files by their paths, with those of a cache, which is left in the folder.

    Beside "plan.json" and "other.json" is what is kept of them, and the cache is in "cache/".
    """
    before = pathlib.Path.cwd()
    os.chdir(folder)
    try:
        _write_all()
    finally:
        os.chdir(before)
    return {str(path.relative_to(folder)): Content(path.read_bytes()) for path in _files(folder)}


def _files(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


def _write_all() -> None:
    from alpa_dejavu.clusters import write_cluster

    environment = {"ALPA_DEJAVU_CACHE": str(pathlib.Path("cache").resolve())}
    write_cluster(named_cluster(MACHINE, 2), "cluster.json")
    machine = pathlib.Path(sys.modules["alpa_dejavu.clusters"].__path__[0]) / f"{MACHINE}.json"
    pathlib.Path("machine.json").write_bytes(machine.read_bytes())
    _run("plan", *PLANNED, "--cluster", MACHINE, "--hosts", "2", "--json", "plan.json", environment=environment)
    _run("plan", *PLANNED, "--cluster", MACHINE, "--json", "other.json", environment=environment)
    _write_history()
    _write_calibrations()
    _write_database()
    _write_result()
    _write_foreign()
    _write_runs()
    write_serving_plan(serving_plans.PLAN, "serving.json")


def _write_foreign() -> None:
    """The files of other programs that are read."""
    for name, text in FOREIGN.items():
        pathlib.Path(name).write_text(text, encoding="utf-8")
    plan = Outline(16, 4, "1f1b", 2, 1, (4, 4), ("layer", "layer"), 2).plan(example_cluster(1, 4), SIZES)
    for name, written in TARGETS["torchtitan"].writer.write(plan, SIZES).items():
        path = pathlib.Path("job.py" if name == "torchtitan_plan.py" else name)
        path.write_bytes(written if isinstance(written, bytes) else written.encode())


def _write_runs() -> None:
    from alpa_dejavu.playground.scenarios import read_scenario, run_scenario, write_runs

    write_runs(run_scenario(read_scenario("scenario.yaml")), "runs.json")


def _run(*arguments: str, environment: Mapping[str, str]) -> None:
    from alpa_dejavu.cli.main import main

    done = CliRunner().invoke(main, arguments, env=dict(environment))
    if done.exit_code:
        raise RuntimeError(f"alpa-dejavu {' '.join(arguments)} failed: {done.stderr}")


def _write_history() -> None:
    from alpa_dejavu.calibration.history import Origin, PastRun, StageSeconds, Store
    from alpa_dejavu.plans.plan_file import read_plan

    store, plan = Store("history.sqlite"), read_plan("plan.json")
    stages = tuple(StageSeconds(0.1, 0.2, 0.01, 0.25, 0.3) for _ in plan.stages)
    versions = {"alpa-dejavu": "0.1.0", "jax": "0.4.30"}
    for number, measured in enumerate((stages, ())):
        origin = Origin(f"model {number}", "a cluster", "V100", "AnalyticLatency + AlphaBeta")
        steps_s = tuple(plan.step_s * share for share in (0.9, 1.0, 1.2))
        store.append(PastRun(plan, origin, plan.step_s, steps_s, measured, 1.7e9 + number, versions))


def _write_calibrations() -> None:
    from alpa_dejavu.calibration import Calibration, MeasuredLink, write_calibration
    from alpa_dejavu.calibration.bench import WITHIN, CollectiveProbe, ProbePlace
    from alpa_dejavu.calibration.measurements import Measurement, Measurements
    from alpa_dejavu.costs.memory_margin import MemoryResiduals
    from alpa_dejavu.problem import Link

    device = named_cluster(MACHINE, 1).hosts[0].device
    pair = (device.name, device.name)
    measured = Calibration(
        name="measured",
        origin="made up",
        date="2024-05-31",
        devices={device.name: device},
        device_spread={device.name: {"memory_bytes_per_s": 0.1, "flop_per_s[float32]": 0.05}},
        links=(MeasuredLink(pair, True, Link(2e-5, 5e9, pair_bytes_per_s=1e9), {"bytes_per_s": 0.2}),),
        memory=MemoryResiduals({"peak": (0.05, -0.02, 0.01)}, 3, "made-up peaks", "another framework"),
    )
    write_calibration(measured, "measured.json")
    write_calibration(dataclasses.replace(measured, name="fitted", within=_fitted_collectives()), "fitted.json")
    cluster = {"hosts": 1, "devices_per_host": [4], "devices": [device.name]}
    kept = Measurements(pathlib.Path("measured.json.measurements.jsonl"), cluster, resume=False)
    for power in (10, 16, 20):
        probe = CollectiveProbe("all_reduce", 2**power, 2, 1, across=False)
        kept.add(Measurement(ProbePlace("collectives", WITHIN), probe, {"run_s": 1e-4 * power}))


def _fitted_collectives() -> Any:
    """A model of collectives within hosts, fitted to made-up seconds."""
    from alpa_dejavu.costs.communication.learned import Collectives, FittedCollectives

    grid = [
        (name, 2.0**power, size)
        for name in ("all_gather", "all_reduce") for size in (2.0, 4.0, 8.0) for power in range(10, 31, 2)
    ]  # fmt: skip
    name, num_bytes, size = (np.array(each) for each in zip(*grid, strict=True))
    one = np.ones(len(grid))
    rows = Collectives(name, num_bytes, size, hosts=one, sharing=one, lanes=1e10 * one)
    return FittedCollectives().fit(rows, 5e-5 + 2e-5 * rows.hops[1] + rows.volume_s / 0.8, rows.size)


def _write_database() -> None:
    from alpa_dejavu.calibration.alpa_pickle import read_alpa_database
    from alpa_dejavu.calibration.database import converted
    from alpa_dejavu.calibration.text import json_text

    path = pathlib.Path("database.pkl")
    path.write_bytes(alpa_pickle())
    database = converted(read_alpa_database(path), path)
    pathlib.Path("database.json").write_text(json_text(database), encoding="utf-8")


def alpa_pickle(**attributes: Any) -> bytes:
    """A profiling database as Alpa's profiler pickles it, with other attributes."""
    kind = type("MeshProfilingResult", (), {"__module__": "alpa.mesh_profiling"})
    result = kind()
    sizes = [2**power for power in range(10, 14)]
    rows = {(((0, 1, 2, 3),), "f32"): [(size, np.float64(1e-4 + size * 3e-9)) for size in sizes]}
    for name in ("all_gather", "all_reduce", "all_to_all", "reduce_scatter"):
        setattr(result, f"{name}_cost_dict", collections.defaultdict(list, rows))
    result.dot_cost_dict = collections.defaultdict(list, {((), "f16"): [(0, 1e-5), (2 * 1024**3, np.float32(1e-3))]})
    result.available_memory_per_device, result.conv_cost_dict, result.op_cost_dict = np.int64(15e9), [], []
    vars(result).update(attributes)
    package, module = types.ModuleType("alpa"), types.ModuleType("alpa.mesh_profiling")
    vars(module)["MeshProfilingResult"] = kind
    # Pickling looks the class up where it says that it is from.
    with unittest.mock.patch.dict(sys.modules, {"alpa": package, "alpa.mesh_profiling": module}):
        return pickle.dumps({("default", (1, 4)): result})


def _write_result() -> None:
    from alpa_dejavu.training.initialization import Curve, Initialized, write_result

    state = {name: np.ones(shape, np.float32) for name, shape in SHAPES.items()}
    losses, gradients = np.array([2.0, 1.0]), np.array([0.1, np.nan])
    chosen = Curve(
        number=0, dropped_step=None, why="chosen", point=(0.5,), losses=losses, relative_gradients=gradients
    )
    dropped = dataclasses.replace(chosen, number=1, dropped_step=1, why="the trend")
    result = Initialized(state=state, chosen=0, steps=2, total_steps=3, padded_steps=0, diverged=0, lost=0, restarts=0,
                         seconds=1.5, seed=0, rungs=(1,), curves=(chosen, dropped))  # fmt: skip
    write_result(result, "result.json")
