"""Policies for several jobs on one cluster, on drawn traces.

    python benchmarks/playground_jobs.py [--traces N] [--json FILE]

Sixty jobs come to four hosts of p3.16xlarge (8 devices, 64 cores, 488 GiB each), in traces that
`alpa_dejavu.playground.jobs.trace.drawn_jobs` draws of seeds 0, 1, ... Steps by devices are those of the planner's
plans of gpt-350m and wresnet-250m; a restart takes 30 s. In a second setting hosts are lost each 20 000 s in the mean,
and back after 600 s. The small traces, for the exact search, have three jobs on one host of four devices with half the
cores and memory. Exit status 1 if a figure is missed.

- Sensitivity has a shorter mean completion time than equal shares: the 90 % interval of the ratio, by Student's t over
  the logarithms of traces, is above 1.
- The exact search is never worse than any of the others.

Which jobs a trace has decides how much is won: half of the drawn ones ask for more cores and memory than their share.

References:
    Mohan, Phanishayee, Kulkarni and Chidambaram, Looking Beyond GPUs for DNN Scheduling on Multi-Tenant Clusters
    (Synergy), OSDI 2022.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ |= {"JAX_PLATFORMS": "cpu"}

import numpy as np
from tqdm import tqdm

from alpa_dejavu._util.interval import Interval
from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.playground.jobs import POLICIES, HostChange, Pool, StepCurve, Workload, planned_curve, schedule
from alpa_dejavu.playground.jobs.trace import drawn_hosts, drawn_jobs, read_host_changes, read_jobs
from alpa_dejavu.problem import Cluster
from harness import Figure, Results, Table, at_least, options, wrong_input_told

MODELS, BATCH, LAYERS, MICRO_BATCHES = ("gpt-350m", "wresnet-250m"), 64, 4, 8
HOSTS, DEVICES, CORES, MEMORY_BYTES = 4, 8, 64.0, 488 * 2.0**30
JOBS, BETWEEN_S, RESTART_S, LOSSES_PER_S, BACK_S = 60, 60.0, 30.0, 1 / 20_000, 600.0
SMALL_JOBS, SMALL_POOL = 3, Pool(1, DEVICES // 2, CORES / 2, MEMORY_BYTES / 2)
POOL, LARGE, CONFIDENCE = Pool(HOSTS, DEVICES, CORES, MEMORY_BYTES), ("fifo", "equal-shares", "sensitivity"), 0.9
SETTINGS = ("no host is lost", "hosts are lost", "small")
Row = dict[str, Any]


@wrong_input_told
def main(arguments: Sequence[str] | None = None) -> int:
    """Runs all; exit status 1 if a figure is missed."""
    parser = options(__doc__)
    parser.add_argument("--traces", type=at_least(2), default=20, help="drawn of each setting (default: %(default)s)")
    given = parser.parse_args(arguments)
    results = Results(given.json, {"traces": given.traces})
    curves = _curves(results)
    rows, means = [], {}
    for setting in SETTINGS:
        policies = POLICIES if setting == "small" else LARGE
        every = [
            {name: _known(results, setting, seed, name, curves) for name in policies}
            for seed in tqdm(range(given.traces), setting)
        ]
        means[setting] = {name: np.array([one[name]["mean_s"] for one in every]) for name in policies}
        for name in policies:
            figures = {key: float(np.mean([one[name][key] for one in every])) for key in every[0][name]}
            rows.append({"setting": setting, "policy": name, **figures})
    columns = {
        "trace": "{setting}",
        "policy": "{policy}",
        "mean completion": "{mean_s:seconds}",
        "95 % are below": "{high_s:seconds}",
        "longest starved": "{starved_s:seconds}",
        "jobs that never ran": "{never_ran:g}",
    }
    return results.shown(Table.of(rows, columns, "Means over traces"), figures=_figures(means))


def _figures(means: dict[str, dict[str, Any]]) -> list[Figure]:
    figures = []
    for setting in SETTINGS[:2]:
        ratios = means[setting]["equal-shares"] / means[setting]["sensitivity"]
        found = Interval.of(np.log(ratios).tolist(), CONFIDENCE).exp()
        shorter = f"{(ratios > 1).sum()} of {len(ratios)}"
        measured = f"{found.mean:.2f} times ({found.low:.2f} to {found.high:.2f}), on {shorter}"
        figures.append(
            Figure("sensitivity against equal shares", setting, "shorter mean completion", measured, found.low > 1)
        )
    small = means["small"]
    best = np.min([small[name] for name in LARGE], axis=0)
    worst = float(np.max(small["exact"] / best))
    mean = Interval.of(np.log(best / small["exact"]).tolist(), CONFIDENCE).exp()
    measured = f"at most {worst:.6f} times the best of them, which takes {mean.mean:.3f} times as long in the mean"
    figures.append(Figure("exact search against all others", "small", "never worse", measured, worst <= 1 + 1e-9))
    return figures


def _curves(results: Results) -> list[StepCurve]:
    """The planner's curves, which are kept in the results."""
    cluster = named_cluster("p3.16xlarge", HOSTS)
    curves = []
    for model in tqdm(MODELS, "planning"):
        row = results.known("curves", model, _planned, model, cluster)
        curves.append(StepCurve({int(size): seconds for size, seconds in row["compute_s"].items()}))
    return curves


def _planned(model: str, cluster: Cluster) -> Row:
    curve = planned_curve(model, cluster, BATCH, layers=LAYERS, micro_batches=MICRO_BATCHES)
    return {"compute_s": {str(size): seconds for size, seconds in curve.compute_s.items()}}


def _known(results: Results, setting: str, seed: int, policy: str, curves: Sequence[StepCurve]) -> Row:
    row = results.known("runs", f"{setting}, seed {seed}, {policy}", _run, setting, seed, policy, curves)
    return {key: row[key] for key in ("mean_s", "high_s", "starved_s", "never_ran")}


def _run(setting: str, seed: int, policy: str, curves: Sequence[StepCurve]) -> Row:
    found = schedule(_workload(setting, seed, curves), POLICIES[policy]())
    return {"mean_s": found.mean_s, "high_s": found.high_s, "starved_s": float(found.starved_s.max()),
            "never_ran": int(np.isinf(found.first_s).sum())}  # fmt: skip


def _workload(setting: str, seed: int, curves: Sequence[StepCurve]) -> Workload:
    small = setting == "small"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.csv"
        path.write_text(drawn_jobs(seed, SMALL_JOBS if small else JOBS, BETWEEN_S), encoding="utf-8")
        jobs = read_jobs(path, curves).jobs
        changes: tuple[HostChange, ...] = ()
        if setting == "hosts are lost":
            last_s = 2 * jobs[-1].arrival_s
            path.write_text(drawn_hosts(seed, HOSTS, last_s, LOSSES_PER_S, BACK_S), encoding="utf-8")
            changes = read_host_changes(path, HOSTS)
    return Workload(jobs, SMALL_POOL if small else POOL, changes, RESTART_S)


if __name__ == "__main__":
    raise SystemExit(main())
