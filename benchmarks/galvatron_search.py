"""Galvatron's published search on a transformer, as a peer of our planning time.

    PEER/bin/python benchmarks/galvatron_search.py JOB.json FOLDER

It runs by a Python environment of its own, which has hetu-galvatron and none of ours:

    python -m venv PEER
    PEER/bin/pip install numpy scipy tqdm pybind11 setuptools wheel
    PEER/bin/pip install --no-deps --no-build-isolation hetu-galvatron==2.4.0

Galvatron searches on figures that it has profiled on the machine. Here they are plain ones: a block takes its work at
the device's rate, an activation is counted by its shapes, an exchange goes at its link's rate. So the seconds of its
search are its own, while its step is only as good as those figures, and no step is compared. Only the modules of its
search are imported: the rest of the package asks for torch and CUDA.

References:
    Wang et al., Improving Automatic Parallel Training via Balanced Memory Workload Optimization, TKDE 2024.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import types
from pathlib import Path
from typing import Any

MIB = 2.0**20


def main() -> int:
    """Searches for the job of a file, and writes what the search says into the folder, `galvatron_config_*.json`."""
    job, folder = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), Path(sys.argv[2])
    for name, figures in profiles(job).items():
        (folder / name).write_text(json.dumps(figures), encoding="utf-8")
    engine = search_engine()(types.SimpleNamespace(**settings(job, str(folder))))
    layers = [{"hidden_size": job["hidden"], "layer_num": job["blocks"], "seq_len": job["sequence"]}]
    engine.set_search_engine_info(str(folder), layers, "job")
    engine.initialize_search_engine()
    return int(engine.parallelism_optimization() <= 0)


def search_engine() -> Any:
    """Galvatron's class, imported without the packages around it."""
    spec = importlib.util.find_spec("galvatron_dp_core")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"no hetu-galvatron in {sys.prefix}: install it as {Path(__file__).name} says")
    root = Path(spec.origin).parent / "galvatron"
    for name, path in (("galvatron", root), ("galvatron.core", root / "core"), ("galvatron.utils", root / "utils")):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [str(path)]
    for part in ("strategy_utils", "config_utils"):
        vars(sys.modules["galvatron.utils"]).update(vars(importlib.import_module(f"galvatron.utils.{part}")))
    return importlib.import_module("galvatron.core.search_engine.search_engine").GalvatronSearchEngine


def profiles(job: dict[str, Any]) -> dict[str, Any]:
    """The files that Galvatron's profilers would have written, by name; times in milliseconds, memory in MiB, rates in
    GB/s.
    """
    sequence, hidden, vocabulary = job["sequence"], job["hidden"], job["vocabulary"]
    gpus = job["hosts"] * job["per_host"]
    degrees = [2**n for n in range(gpus.bit_length()) if 2**n <= gpus]

    def forward_ms(parameters: float) -> float:
        return 1e3 * 2 * parameters * sequence / job["flop_per_s"]

    def beside_blocks(embeddings: int) -> dict[str, Any]:
        states, logits = 16 * embeddings * vocabulary * hidden / MIB, 4 * sequence * vocabulary / MIB
        split = {"model_states": states, "activation": logits}
        return {str(sequence): {name: {str(n): size / n for n in degrees} for name, size in split.items()}}

    def rate(devices: int) -> float:
        return float(job["inside_gb_per_s"] if devices <= job["per_host"] else job["between_gb_per_s"])

    block = sequence * hidden * 2 / MIB
    kept = {str(n): block * (5 + 12 / n) for n in degrees} | {"checkpoint": block}
    exchanges = {f"allreduce_size_{n}_consec_1": rate(n) for n in degrees[1:]}
    exchanges |= {f"allreduce_size_{n}_consec_0": rate(gpus) for n in degrees[1:]}
    name = f"{job['hosts']}nodes_{job['per_host']}gpus_per_node.json"
    return {
        "computation_profiling_bf16_job.json": {
            f"layertype_0_bsz8_seq{sequence}": forward_ms(job["block_parameters"]),
            f"layertype_other_bsz8_seq{sequence}": forward_ms(vocabulary * hidden),
        },
        "memory_profiling_bf16_job.json": {
            "layertype_0": {
                str(sequence): {
                    "parameter_size": 4 * job["block_parameters"] / MIB,
                    "tp_activation_per_bsz_dict": kept,
                }
            },
            "other_memory_pp_off": beside_blocks(2),
            "other_memory_pp_on_first": beside_blocks(1),
            "other_memory_pp_on_last": beside_blocks(1),
        },
        f"allreduce_bandwidth_{name}": exchanges,
        f"p2p_bandwidth_{name}": {f"pp_size_{n}": job["between_gb_per_s"] for n in degrees[1:]},
        "overlap_coefficient.json": {"overlap_coe": 1.1},
        f"sp_time_{name}": {
            f"{kind}_size_{n}_{2**k}MB_time": 0.05 + 2**k / rate(n)
            for kind in ("allreduce", "all2all") for n in degrees[1:] for k in range(11)
        },
    }  # fmt: skip


def settings(job: dict[str, Any], folder: str) -> dict[str, Any]:
    """The arguments of its command line: its defaults and its whole space of strategies, for one batch."""
    profiled = ("memory_profiling", "time_profiling", "allreduce_bandwidth_config", "p2p_bandwidth_config")
    paths = ["log_dir", *(f"{name}_path" for name in (*profiled, "overlap_coe", "sp_time", "output_config"))]
    off = ("dp", "tp", "vtp", "pp", "sdp", "ckpt", "tp_consec")
    return {
        **dict.fromkeys(paths, folder),
        **dict.fromkeys((f"disable_{kind}" for kind in off), 0),
        "num_nodes": job["hosts"], "num_gpus_per_node": job["per_host"], "memory_constraint": job["memory_gib"],
        "settle_bsz": job["batch"], "settle_chunk": -1, "min_bsz": 8, "max_bsz": 8, "bsz_scale": 8,
        "recommend_min_bsz": 0, "search_space": "full", "sp_space": "tp", "max_tp_deg": job["per_host"],
        "max_pp_deg": 16, "default_dp_type": "zero2", "embed_sdp": 0, "mixed_precision": "bf16",
        "pipeline_type": "pipedream_flush", "use_pipeline_costmodel": 1, "costmodel_coe": 1.0,
        "sequence_parallel": False, "global_memory_buffer": True, "async_grad_reduce": True, "fine_grained_mode": 1,
        "time_profile_mode": "static", "memory_profile_mode": "static", "parallel_search": False,
        "hidden_size": job["hidden"],
    }  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
