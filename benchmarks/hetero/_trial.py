"""One case, from the list of plans to their measured steps."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np
from tqdm import tqdm

from _measured_jobs import drawn
from alpa_dejavu import layers, sharding
from alpa_dejavu.clusters.placement import alpas_hosts
from alpa_dejavu.problem import Plan, Submesh
from hetero._bench import Bench
from hetero._cases import Case
from hetero._layouts import amps_plan, chosen_plan, cluster_of, enumeration, label, plan_of, stage_of
from hetero._report import finalists


@final
@dataclasses.dataclass(frozen=True)
class Effort:
    """How much is measured: plans, rounds of all, steps of each in a round, warm-up steps; rounds of the compared."""

    plans: int
    rounds: int
    steps: int
    warm_up: int
    finals: int
    seed: int


def trial(
    case: Case, bench: Bench, effort: Effort, autos: dict[str, Any], written: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Everything that is measured of a case.

    Args:
        autos: AutoStageOption's plans by job, which it makes once for each.
        written: is told the list of plans before ours is known, and again when AutoStageOption's is.
    """
    started, load = time.perf_counter(), os.getloadavg()
    job = case.job
    model = sharding.model_of_step(layers.trace(job.model, batch=job.batch // case.micro_batches), job.layers)
    every = enumeration(case, model)
    listed = [layout.plan(case, bench.names) for layout in drawn(every, effort.plans, effort.seed)]
    result: dict[str, Any] = {"name": case.name, "about": case.about, "job": job.name, "plans_in_all": len(every),
                              "bytes_per_s": case.bytes_per_s, "shares": case.shares, "to_win": case.to_win,
                              "listed": [label(plan, bench.names) for plan in listed]}  # fmt: skip
    written(result)
    links = bench.calibrated(case)
    cluster = cluster_of(case, links)
    ours = chosen_plan(case, cluster)
    if job.name not in autos:
        autos[job.name] = bench.auto(job, case.micro_batches)
        written(result)
    amps = amps_plan(case, model, cluster)
    roles = {"ours": ours, "amp": amps, "alpa": _alpas(autos[job.name], case, bench.names)}
    plans = {label(plan, bench.names): plan for plan in (*listed, *roles.values())}
    runs = _measured(case, bench, plans, effort)
    result |= {**runs, "roles": {role: label(plan, bench.names) for role, plan in roles.items()}}
    compared = {name: plans[name] for name in finalists(result) if name in runs["steps_s"]}
    return {
        **result,
        "finals_s": _finals(case, bench, compared, effort),
        "predicted_s": {"ours": ours.step_s},
        "measured_bytes_per_s": [[None if link is None else link.sending[1] for link in row] for row in links.links],
        "auto": autos[job.name],
        "load_before": load,
        "load_after": os.getloadavg(),
        "seconds": time.perf_counter() - started,
    }


def _alpas(auto: dict[str, Any], case: Case, names: Sequence[str]) -> Plan:
    """AutoStageOption's plan, on the hosts that Alpa gives it."""
    places = alpas_hosts([Submesh(*stage["submesh"]) for stage in auto["stages"]], case.num_hosts, 1)
    assert places is not None, "Alpa has placed them"
    stages = [
        stage_of(
            (stage["layers"][0], stage["layers"][-1]),
            [names[host] for host in place],
            tuple(stage["logical_mesh"]),
            stage["options"],
        )
        for stage, place in zip(auto["stages"], places, strict=True)
    ]
    return plan_of(case, stages)


def _measured(case: Case, bench: Bench, plans: dict[str, Plan], effort: Effort) -> dict[str, Any]:
    """Seconds of compiling and of the steps of each round, by label; plans with the same workers take turns.

    What can't be compiled has its error, and no steps.
    """
    compile_s: dict[str, float] = {}
    errors: dict[str, str] = {}
    steps_s: dict[str, list[list[float]]] = {name: [] for name in plans}
    order = np.random.default_rng(effort.seed)
    with tqdm(total=len(plans) * (1 + effort.rounds), desc=case.name, unit="turn") as bar:
        for group in _groups(bench, plans):
            for name in group:
                try:
                    compile_s[name] = bench.compile(case.job, plans[name])
                except RuntimeError as error:
                    errors[name] = str(error).strip()
                bar.update()
            bench.set(case)
            running = [name for name in group if name in compile_s]
            for name in running:
                bench.steps(case.job, plans[name], effort.warm_up)
            for _ in range(effort.rounds):
                for name in order.permutation(np.array(running, dtype=object)).tolist():
                    steps_s[name].append(bench.steps(case.job, plans[name], effort.steps))
                    bar.update()
    return {"compile_s": compile_s, "errors": errors, "steps_s": {name: steps_s[name] for name in compile_s}}


def _finals(case: Case, bench: Bench, plans: dict[str, Plan], effort: Effort) -> dict[str, list[list[float]]]:
    """Seconds of the steps of each round, by label: in every round all are compiled and run anew, one after the other.

    What a machine does in the meantime then falls on all of them.
    """
    steps_s: dict[str, list[list[float]]] = {name: [] for name in plans}
    with tqdm(total=len(plans) * effort.finals, desc=f"{case.name}, finals", unit="plan") as bar:
        for number in range(effort.finals):
            for group in _groups(bench, plans)[:: (-1) ** number]:
                for name in group:
                    bench.compile(case.job, plans[name])
                bench.set(case)
                for name in group:
                    bench.steps(case.job, plans[name], effort.warm_up)
                    steps_s[name].append(bench.steps(case.job, plans[name], 2 * effort.steps))
                    bar.update()
    return steps_s


def _groups(bench: Bench, plans: dict[str, Plan]) -> list[list[str]]:
    """Labels of plans that have the same workers."""
    groups: dict[object, list[str]] = {}
    for name, plan in plans.items():
        groups.setdefault(bench.group(plan), []).append(name)
    return list(groups.values())
