"""Predicted and measured training steps on a GPU: seconds, and bytes of memory.

    python benchmarks/gpu_steps.py --score [FILE ...] --json OUT     (without a file: all in benchmarks/measured)
    python benchmarks/gpu_steps.py --export FOLDER     (then, beside a GPU: python _gpu_exported.py FOLDER FILE)

Each step is a plan of one stage on one GPU, for one micro-batch, as `alpa_dejavu.planning.estimate` estimates it for
anybody: by default, which is by models of kernels, and by data sheets. Nothing is fitted to these steps. What is run is
the model's very step: it is exported
here, and compiled by the JAX of the machine with the GPU, as one program. A plan is for Alpa, which compiles the
forward and the backward pass apart, so that the first writes what the second reads. So the models of kernels and data
sheets also predict the step as the one program that it is here, with what its loops read again after reductions.
No Ray is there, so the seconds that Alpa's runtime takes for a step are left out of the predictions. Bytes are those
that XLA assigned to the step's arguments, results and temporary arrays.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from jax import export
from scipy.stats import spearmanr
from tqdm import tqdm

from alpa_dejavu import layers, sharding
from alpa_dejavu._util import units
from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.costs.latency import AnalyticLatency, KernelLatency
from alpa_dejavu.layers.features import layer_features
from alpa_dejavu.layers.models import model_function
from alpa_dejavu.planning import GivenStage, estimate
from alpa_dejavu.problem import Cluster, MeshConfig, Model, Plan, Run, Submesh
from harness import Results, Table, options, wrong_input_told

_MEASURED = Path(__file__).parent / "measured"
_GPU = "NVIDIA H100 80GB HBM3"
_MACHINES = {_GPU: "dgx-h100"}
STEPS = (
    ("gpt-125m", 4), ("gpt-125m", 16), ("gpt2-125m", 16), ("kraken-125m-4", 8), ("bert-base", 32), ("bert-large", 16),
    ("gpt-350m", 8), ("gpt2-350m", 8), ("gpt-760m", 4), ("gpt-1.3b", 2), ("moe-380m", 8),
    ("resnet-50", 64), ("resnet-50", 256), ("wresnet-250m", 32), ("wresnet-500m", 32),
    ("transformer:hidden=2048,blocks=8,heads=16,kv_heads=4,vocabulary=32000,sequence=2048", 4),
)  # fmt: skip
"""Models and batches."""
_INDICES = {"resnet-50": 1000, "wresnet-250m": 1000, "wresnet-500m": 1000}
_BELOW = 30_000
"""Tokens and classes are drawn below so many."""


@wrong_input_told
def main(arguments: Sequence[str] | None = None) -> int:
    """Exports, or scores what was measured; returns 2 where an input is wrong, with what and where on stderr."""
    parser = options(__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--export", type=Path, metavar="FOLDER", help="export the steps")
    what.add_argument("--score", type=Path, nargs="*", metavar="FILE", help="score files that were measured")
    parser.add_argument("--steps", nargs="+", metavar="MODEL", help="only those of these models")
    given = parser.parse_args(arguments)
    wanted = [one for one in STEPS if not given.steps or one[0] in given.steps]
    if given.export is not None:
        exported(given.export, wanted)
        return 0
    result, said = Results(given.json, rows=[]), list[str]()
    for file in given.score or sorted(_MEASURED.glob("*_steps.json")):
        measured = json.loads(file.read_text(encoding="utf-8"))
        cluster = one_device(measured["gpu"])
        steps = [row for row in measured["rows"] if row["kind"] == "step" and (row["model"], row["batch"]) in wanted]
        found = [predicted(row, cluster) for row in tqdm(steps, desc="steps")]
        result["rows"] += [{"gpu": measured["gpu"], **row} for row in found]
        said += _summary(found)
        said += [f"{one['model']}, {one['batch']}: {_why(one['error'])}." for one in measured["failed"]]
    return result.shown(Table.of(result["rows"], _COLUMNS), *said)


def exported(folder: Path, steps: Sequence[tuple[str, int]]) -> None:
    """Writes each step as JAX exports it for CUDA, and a list of them."""
    folder.mkdir(parents=True, exist_ok=True)
    index: list[dict[str, Any]] = []

    def written(name: str, function: Callable[..., Any], given: Sequence[Any]) -> dict[str, Any]:
        made = export.export(jax.jit(function, keep_unused=True), platforms=["cuda"])(*given)
        (folder / f"{name}.mlir").write_bytes(made.mlir_module_serialized)
        ends = {"in": made.in_avals, "out": made.out_avals}
        shapes = {end: [[list(one.shape), str(one.dtype)] for one in avals] for end, avals in ends.items()}
        return {"name": f"{name}.mlir", "platforms": made.platforms, **shapes}

    for number, (model, batch) in enumerate(tqdm(steps, desc="steps")):
        step, arguments = model_function(model)(batch)
        paths, tree = jax.tree_util.tree_flatten_with_path(arguments)
        leaves = [leaf for _, leaf in paths]
        zeros = [n for n, (path, _) in enumerate(paths) if ".optimizer" in jax.tree_util.keystr(path)]
        state = len(jax.tree_util.tree_leaves(arguments[0]))

        def flat(*values: Any, step: Any = step, tree: Any = tree) -> Any:
            return jax.tree_util.tree_leaves(step(*jax.tree_util.tree_unflatten(tree, values)))

        shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
        file = written(f"step{number}", flat, shapes)
        assert file["in"][:state] == file["out"][:state], "a step's first results are its next state"
        index.append({
            "kind": "step", "round": 0, "case": {"model": model, "batch": batch}, "state": state, "zeros": zeros,
            "below": _INDICES.get(model, _BELOW), "files": [file],
        })  # fmt: skip
    (folder / "index.json").write_text(json.dumps(index, indent=1), encoding="utf-8")


def predicted(row: Mapping[str, Any], cluster: Cluster) -> dict[str, Any]:
    """A step's predictions beside what was measured."""
    described = sharding.model_of_step(layers.trace(row["model"], batch=row["batch"]), "auto")
    found, sheets = (_plan(described, row, cluster, of) for of in (None, "none"))
    assert found.confidence is not None, "estimates have an interval"
    lower, upper = found.confidence.interval_s
    (stage,) = found.stages
    step, arguments = model_function(row["model"])(row["batch"])
    whole = layer_features(jax.make_jaxpr(step)(*arguments).jaxpr, in_order=True).operators
    return {
        **row,
        "predicted_s": found.step_s,
        "lower_s": lower,
        "upper_s": upper,
        "inside": lower <= row["step_s"] <= upper,
        "by_sheets_s": sheets.step_s,
        "one_program_s": KernelLatency().predict(whole, cluster.hosts[0].device).total_s,
        "one_program_by_sheets_s": AnalyticLatency().predict(whole, cluster.hosts[0].device).total_s,
        "memory_bytes": stage.memory_bytes,
    }


def _plan(described: Model, row: Mapping[str, Any], cluster: Cluster, calibration: str | None) -> Plan:
    given = [GivenStage(0, described.num_layers - 1, Submesh(1, 1), MeshConfig((1, 1), 1, 1, {}))]
    run, name, batch = Run(1), row["model"], row["batch"]
    return estimate(described, cluster, run, given, name=name, batch=batch, calibration=calibration).plan


def one_device(gpu: str) -> Cluster:
    """One device of the machine type that has a GPU, without what Alpa's runtime takes for a step.

    Raises:
        ValueError: the GPU's machine type isn't known.
    """
    if gpu not in _MACHINES:
        raise ValueError(f"gpu is {gpu!r}, but must be one of {', '.join(_MACHINES)}; add its machine type")
    cluster = named_cluster(_MACHINES[gpu], 1, 1)
    (host,) = cluster.hosts
    device = dataclasses.replace(host.device, dispatch_s=0.0, step_s=0.0)
    return dataclasses.replace(cluster, hosts=(dataclasses.replace(host, device=device),))


_COLUMNS = {
    "step": lambda row: f"{row['model'].partition(':')[0]}, {row['batch']}",
    "measured": "{step_s:seconds}",
    "predicted": lambda row: f"{units.seconds(row['predicted_s'])} ({row['predicted_s'] / row['step_s'] - 1:+.0%})",
    "90 % interval": "{lower_s:seconds} to {upper_s:seconds}",
    "inside": lambda row: row["inside"],
    "by data sheets": lambda row: f"{row['by_sheets_s'] / row['step_s'] - 1:+.0%}",
    "memory": lambda row: units.size(row["peak_bytes"]),
    "as one program": lambda row: f"{row['one_program_s'] / row['step_s'] - 1:+.0%}",
    "by data sheets, as one program": lambda row: f"{row['one_program_by_sheets_s'] / row['step_s'] - 1:+.0%}",
    "memory predicted": lambda row: f"{row['memory_bytes'] / row['peak_bytes'] - 1:+.0%}",
}


def _summary(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Sentences on the errors of all steps."""
    if not rows:
        return []

    def errors(name: str, of: str = "step_s") -> list[float]:
        return [abs(row[name] / row[of] - 1) for row in rows]

    said = [
        f"{what} {statistics.median(errors(name)):.0%} on the median and {max(errors(name)):.0%} at worst"
        for what, name in (
            ("by default", "predicted_s"), ("by data sheets", "by_sheets_s"),
            ("as one program by default", "one_program_s"),
            ("as one program by data sheets", "one_program_by_sheets_s"),
        )
    ]  # fmt: skip
    memory = errors("memory_bytes", "peak_bytes")
    inside = sum(row["inside"] for row in rows)
    ranks = spearmanr(*([row[name] for row in rows] for name in ("step_s", "predicted_s"))).statistic
    return [
        f"Steps are predicted with an error of {'; '.join(said)}. {inside} of {len(rows)} are inside the 90 % interval;"
        f" the rank correlation is {ranks:.2f}. Memory: {statistics.median(memory):.0%} on the median, "
        f"{max(memory):.0%} at worst."
    ]


def _why(error: str) -> str:
    return "it ran out of memory" if "RESOURCE_EXHAUSTED" in error else error


if __name__ == "__main__":
    raise SystemExit(main())
