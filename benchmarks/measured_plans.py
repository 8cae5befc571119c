"""Plans of small jobs, run on CPU devices: how much slower ours is than the best of them and than AutoStageOption's.

    python benchmarks/measured_plans.py --json measured.json

Three jobs are measured with every one of their plans, nine more with twelve drawn by a seed; which plans is decided
before ours is known. Each device has a core of its own and computes on one thread. Runs of plans take turns, in an
order that is drawn for each round, so what else the machine does meets them all. From the same runs: how far the
simulation, given the measured times of the stages, is from the measured step.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"

import numpy as np
from tqdm import tqdm

from _measured_jobs import JOBS, Job, chosen_plan, drawn, every_plan, label, plan_of
from _measured_report import job_result, summary, table
from _measured_runs import ENVIRONMENT, Runner, runner, submesh_sizes
from alpa_dejavu.calibration.measurement import measured
from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.problem import Cluster, Plan

WARM_UP = 2
UNDISTURBED = 0.1
"""The part of its time that a worker may wait for its core: others on the machine take some."""


def main() -> None:
    """Measures, prints and writes."""
    arguments = _arguments()
    os.environ.update(ENVIRONMENT)
    cores = sorted(os.sched_getaffinity(0))[: arguments.devices]
    cluster = named_cluster("local-cpu", 1, len(cores))
    result: dict[str, Any] = {
        "settings": {**vars(arguments), "json": str(arguments.json), "environment": ENVIRONMENT, "cores": cores},
        "machine": {"cpus": os.cpu_count(), "platform": platform.platform(), "python": platform.python_version()},
        "jobs": [],
    }
    print(f"{len(cores)} devices, each with a core of its own ({cores}) and one thread, with {ENVIRONMENT}")
    with contextlib.ExitStack() as stack:
        clusters = _Clusters(stack, cores)
        for name in arguments.jobs:
            result["jobs"].append(_job(JOBS[name], cluster, clusters, arguments))
            print(table(result["jobs"][-1]), flush=True)
            result["summary"] = summary(result["jobs"])
            arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for line in result["summary"]["lines"]:
        print(line)
    print(f"Written to {arguments.json}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=Path("measured_plans.json"), help="default: %(default)s")
    parser.add_argument("--jobs", nargs="+", choices=list(JOBS), default=list(JOBS), help="default: all")
    parser.add_argument("--plans", type=int, default=12, help="of a job that isn't complete (default: %(default)s)")
    parser.add_argument("--most", type=int, default=40, help="plans of a complete job (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=8, help="of all plans (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=2, help="of a plan in a round (default: %(default)s)")
    parser.add_argument("--tries", type=int, default=3, help="of a turn that was disturbed (default: %(default)s)")
    parser.add_argument("--devices", type=int, default=min(2, len(os.sched_getaffinity(0))), help="at most the cores")
    parser.add_argument("--auto", nargs="*", choices=list(JOBS), default=None, help="jobs that AutoStageOption plans")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if not 1 <= arguments.devices <= len(os.sched_getaffinity(0)):
        parser.error(f"--devices is {arguments.devices}, but there are {len(os.sched_getaffinity(0))} cores for them")
    for name, least in (("rounds", 2), ("steps", 1), ("plans", 1), ("most", 1), ("tries", 1)):
        if getattr(arguments, name) < least:
            why = ": stages are timed in every second round" if name == "rounds" else ""
            parser.error(f"--{name} is {getattr(arguments, name)}; give {least} or more{why}")
    if arguments.auto is None:
        arguments.auto = [name for name in arguments.jobs if JOBS[name].complete]
    return arguments


class _Clusters:
    """A process with a cluster for each way of giving devices to stages; started when it is first needed."""

    def __init__(self, stack: contextlib.ExitStack, cores: list[int]) -> None:
        self.cores, self._stack = cores, stack
        self._started: dict[tuple[int, ...], Runner] = {}

    def __getitem__(self, sizes: tuple[int, ...]) -> Runner:
        if sizes not in self._started:
            self._started[sizes] = self._stack.enter_context(runner(self.cores))
        return self._started[sizes]


def _job(job: Job, cluster: Cluster, clusters: _Clusters, arguments: argparse.Namespace) -> dict[str, Any]:
    """Everything that is measured of a job."""
    started, load = time.perf_counter(), os.getloadavg()
    every = every_plan(job, cluster)
    listed = drawn(every, arguments.most if job.complete else arguments.plans, arguments.seed)
    print(f"\n{job.name}: {len(listed)} of {len(every)} plans", flush=True)
    plans = {label(plan): plan for plan in listed}
    ours = chosen_plan(job, cluster)
    auto: dict[str, Any] | None = None
    roles = {"ours": label(ours)}
    plans.setdefault(roles["ours"], ours)
    if job.name in arguments.auto:
        with runner(clusters.cores) as alone:
            auto = alone.auto(job.name, ours.num_micro_batches)
        theirs = plan_of(job, cluster, ours.num_micro_batches, auto["stages"])
        roles["auto"] = label(theirs)
        plans.setdefault(roles["auto"], theirs)
    listed_labels = [label(plan) for plan in listed]
    runs = _run(job, plans, clusters, arguments)
    result = job_result(job.name, len(every), listed_labels, roles, plans, runs)
    return {**result, "auto": auto, "load_before": load, "load_after": os.getloadavg(),
            "seconds": time.perf_counter() - started}  # fmt: skip


def _run(job: Job, plans: dict[str, Plan], clusters: _Clusters, arguments: argparse.Namespace) -> dict[str, Any]:
    """For each plan its steps, its times by stage and its errors."""
    places: dict[str, tuple[Runner, int]] = {}
    groups: dict[tuple[int, ...], list[str]] = {}
    for name, plan in plans.items():
        group = groups.setdefault(submesh_sizes(plan), [])
        places[name] = clusters[submesh_sizes(plan)], len(group)
        group.append(name)
    for sizes, group in groups.items():
        clusters[sizes].start(job.name, [plans[name] for name in group])
    found: dict[str, Any] = {"compile_s": {}, "pinned": {}, "threads": {}}
    for sizes, group in groups.items():
        answer = clusters[sizes].answer()
        found["compile_s"].update(zip(group, answer["compile_s"], strict=True))
        found["pinned"].update({" + ".join(map(str, sizes)): answer["pinned"]})
    running = [name for name in plans if not isinstance(found["compile_s"][name], str)]
    for name in running:
        places[name][0].steps(places[name][1], WARM_UP, False)
    order = np.random.default_rng(arguments.seed)
    steps: dict[str, list[list[float]]] = {name: [] for name in running}
    waited: dict[str, list[float]] = {name: [] for name in running}
    notes: dict[str, list[Any]] = {name: [] for name in running}
    for round_number in tqdm(range(arguments.rounds), desc=job.name, unit="round"):
        for noting in (False, True) if round_number % 2 else (False,):
            for name in order.permutation(np.array(running, dtype=object)).tolist():
                made, share = _turn(*places[name], arguments, noting)
                waited[name].append(share)
                if noting:
                    notes[name] += made
                else:
                    steps[name].append([step.step_s for step in made])
    for sizes, group in groups.items():
        first = next((name for name in group if name in running), None)
        if first is not None:
            found["threads"][" + ".join(map(str, sizes))] = clusters[sizes].threads(places[first][1], 10)
    found |= {"steps": steps, "waited_for_core": waited}
    found["measured"] = {name: _measured(plans[name], steps[name], notes[name]) for name in running}
    return found


def _turn(cluster: Runner, number: int, arguments: argparse.Namespace, noting: bool) -> tuple[list[Any], float]:
    """The steps of a plan's turn; of several tries the one whose workers waited least for their cores, if they did."""
    tries = []
    for _ in range(arguments.tries):
        tries.append(cluster.steps(number, arguments.steps, noting))
        if tries[-1][1] <= UNDISTURBED:
            break
    return min(tries, key=lambda made: made[1])


def _measured(plan: Plan, steps: list[list[float]], notes: list[Any]) -> Any:
    plain = [seconds for turn in steps for seconds in turn]
    return measured(plain, notes, plan.num_micro_batches, plan.schedule, submesh_sizes(plan))


if __name__ == "__main__":
    main()
