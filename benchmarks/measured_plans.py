"""Plans of small jobs, run on CPU devices: how much slower ours is than the best of them and than AutoStageOption's.

    python benchmarks/measured_plans.py --json measured.json

Three jobs are measured with every one of their plans, nine more with twelve drawn by a seed; which plans is decided
before ours is known. Ours is made by DejavuStageOption on the cluster, with an empty cache. Each device has a core of
its own and computes on one thread. Runs of plans take turns, in an order that is drawn for each round, so what else the
machine does meets them all. From the same runs: how far the simulation, given the measured times of the stages, is from
the measured step. A run that was broken off goes on from its file, with the next job.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from collections.abc import Sequence
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"

import numpy as np
from tqdm import tqdm

from _measured_jobs import JOBS, Job, among_others, drawn, every_plan, label, plan_of
from _measured_report import figures, job_result, jobs_table, summary
from _measured_runs import ENVIRONMENT, runner, submesh_sizes
from alpa_dejavu.calibration.measurement import measured
from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.problem import Cluster, Plan
from harness import Remote, Results, at_least, options

WARM_UP = 2
UNDISTURBED = 0.1
"""The part of its time that a worker may wait for its core: others on the machine take some."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints and writes."""
    given = _parsed(arguments)
    os.environ.update(ENVIRONMENT)
    cores = sorted(os.sched_getaffinity(0))[: given.devices]
    cluster = named_cluster("local-cpu", 1, len(cores))
    result = Results(given.json, resumed_by=_settings(given, cores))
    print(f"{len(cores)} devices, each with a core of its own ({cores}) and one thread, with {ENVIRONMENT}")
    with contextlib.ExitStack() as stack:
        clusters = _Clusters(stack, cores)
        for name in given.jobs:
            result.known("jobs", name, _job, JOBS[name], cluster, clusters, given)
    jobs = [result["jobs"][name] for name in given.jobs]
    result["summary"] = summary(jobs)
    return result.shown(jobs_table(jobs), *result["summary"]["lines"], figures=figures(jobs))


def _settings(given: argparse.Namespace, cores: list[int]) -> dict[str, Any]:
    """The settings that a job's results depend on."""
    names = ("plans", "most", "rounds", "steps", "tries", "auto", "profile", "seed")
    return {name: getattr(given, name) for name in names} | {"environment": ENVIRONMENT, "cores": cores}


def _parsed(given: Sequence[str] | None) -> argparse.Namespace:
    cores = len(os.sched_getaffinity(0))
    parser = options(__doc__, json="measured_plans.json")
    parser.add_argument("--jobs", nargs="+", choices=list(JOBS), default=list(JOBS), help="default: all")
    said = "of a job that isn't complete (default: %(default)s)"
    parser.add_argument("--plans", type=at_least(1), default=12, help=said)
    parser.add_argument("--most", type=at_least(1), default=40, help="plans of a complete job (default: %(default)s)")
    said = "of all plans; stages are timed in every second one (default: %(default)s)"
    parser.add_argument("--rounds", type=at_least(2), default=8, help=said)
    parser.add_argument("--steps", type=at_least(1), default=2, help="of a plan in a round (default: %(default)s)")
    said = "of a turn that was disturbed (default: %(default)s)"
    parser.add_argument("--tries", type=at_least(1), default=3, help=said)
    parser.add_argument("--devices", type=at_least(1), default=min(2, cores), help="at most the cores")
    parser.add_argument("--auto", nargs="*", choices=list(JOBS), default=None, help="jobs that AutoStageOption plans")
    said = "how ours may be measured while it is planned (default: %(default)s)"
    parser.add_argument("--profile", choices=("auto", "never", "decisive"), default="auto", help=said)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(given)
    if arguments.devices > cores:
        parser.error(f"--devices is {arguments.devices}, but there are {cores} cores for them")
    if arguments.auto is None:
        arguments.auto = [name for name in arguments.jobs if JOBS[name].complete]
    return arguments


class _Clusters:
    """A process with a cluster for each way of giving devices to stages; started when it is first needed."""

    def __init__(self, stack: contextlib.ExitStack, cores: list[int]) -> None:
        self.cores, self._stack = cores, stack
        self._started: dict[tuple[int, ...], Remote] = {}

    def __getitem__(self, sizes: tuple[int, ...]) -> Remote:
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
    made = _ours(job, clusters, arguments.profile)
    ours = among_others(job, cluster, made)
    auto: dict[str, Any] | None = None
    roles = {"ours": label(ours)}
    plans.setdefault(roles["ours"], ours)
    if job.name in arguments.auto:
        with runner(clusters.cores) as alone:
            auto = alone("auto", job.name, ours.num_micro_batches)
        theirs = plan_of(job, cluster, ours.num_micro_batches, auto["stages"])
        roles["auto"] = label(theirs)
        plans.setdefault(roles["auto"], theirs)
    listed_labels = [label(plan) for plan in listed]
    runs = _run(job, plans, clusters, arguments)
    result = job_result(job.name, len(every), listed_labels, roles, plans, runs)
    planned = {"predicted_s": made.step_s, "planning_s": dict(made.planning_s), "notes": list(made.notes)}
    return {**result, "auto": auto, "planned": planned, "load_before": load, "load_after": os.getloadavg(),
            "seconds": time.perf_counter() - started}  # fmt: skip


def _ours(job: Job, clusters: _Clusters, profile: str) -> Plan:
    """Our plan of a job: the one with the least prediction, of those for each number of micro-batches."""
    with runner(clusters.cores) as alone:
        made: list[Plan] = [alone("ours", job.name, count, profile) for count in job.counts]
    return min(made, key=lambda plan: plan.step_s)


def _run(job: Job, plans: dict[str, Plan], clusters: _Clusters, arguments: argparse.Namespace) -> dict[str, Any]:
    """For each plan its steps, its times by stage and its errors."""
    places: dict[str, tuple[Remote, int]] = {}
    groups: dict[tuple[int, ...], list[str]] = {}
    for name, plan in plans.items():
        group = groups.setdefault(submesh_sizes(plan), [])
        places[name] = clusters[submesh_sizes(plan)], len(group)
        group.append(name)
    for sizes, group in groups.items():
        clusters[sizes].send("plans", job.name, [plans[name] for name in group])
    found: dict[str, Any] = {"compile_s": {}, "pinned": {}, "threads": {}}
    for sizes, group in groups.items():
        answer = clusters[sizes].answer()
        found["compile_s"].update(zip(group, answer["compile_s"], strict=True))
        found["pinned"].update({" + ".join(map(str, sizes)): answer["pinned"]})
    running = [name for name in plans if not isinstance(found["compile_s"][name], str)]
    for name in running:
        places[name][0]("steps", places[name][1], WARM_UP, False)
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
            found["threads"][" + ".join(map(str, sizes))] = clusters[sizes]("threads", places[first][1], 10)
    found |= {"steps": steps, "waited_for_core": waited}
    found["measured"] = {name: _measured(plans[name], steps[name], notes[name]) for name in running}
    return found


def _turn(cluster: Remote, place: int, arguments: argparse.Namespace, noting: bool) -> tuple[list[Any], float]:
    """The steps of a plan's turn; of several tries the one whose workers waited least for their cores, if they did."""
    tries = []
    for _ in range(arguments.tries):
        tries.append(cluster("steps", place, arguments.steps, noting))
        if tries[-1][1] <= UNDISTURBED:
            break
    return min(tries, key=lambda made: made[1])


def _measured(plan: Plan, steps: list[list[float]], notes: list[Any]) -> Any:
    plain = [seconds for turn in steps for seconds in turn]
    return measured(plain, notes, plan.num_micro_batches, plan.schedule, submesh_sizes(plan))


if __name__ == "__main__":
    raise SystemExit(main())
