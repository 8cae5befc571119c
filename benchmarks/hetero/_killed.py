"""A host is killed while Alpa trains: how long until training goes on, and whether it computes what it would have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from alpa_dejavu._util import units
from hetero._bench import Bench
from hetero._cases import Case
from hetero._chosen import chosen_plan, cluster_of
from hetero._layouts import label

GOES_ON_S, DIFFERENCE = 60.0, 1e-4
"""At most so many seconds to the end of the next step, and so much of a loss, relative, from an undisturbed run."""


def killed(case: Case, bench: Bench) -> dict[str, Any]:
    """Everything that is measured; the bench has a host less afterwards, the last one that the plan uses."""
    plan = chosen_plan(case, cluster_of(case, bench.calibrated(case)))
    host = max(map(bench.names.index, plan.devices_of_hosts))
    trained, expected = bench.train_and_kill(case, plan, host)
    recoveries = [
        {
            "hosts": recovery.hosts,
            "failed_step": recovery.failed_step,
            "resumed_step": recovery.resumed_step,
            "steps_lost": recovery.steps_lost,
            "seconds": recovery.seconds,
            "noticed_s": recovery.noticed_s,
            "started_s": recovery.started_s,
        }
        for recovery in trained.recoveries
    ]
    return {
        "job": case.job.name,
        "plan": label(plan, bench.names),
        "plan_afterwards": label(trained.plan, bench.names),
        "recoveries": recoveries,
        "losses": trained.losses,
        "undisturbed": expected,
        "difference": float(np.max(np.abs(np.array(trained.losses) / np.array(expected) - 1))),
    }


def killed_misses(found: Mapping[str, Any]) -> list[str]:
    """What isn't as it was to be."""
    said = []
    if len(found["recoveries"]) != 1:
        said.append(f"killed host: training went on {len(found['recoveries'])} times without one, not once")
    said += [
        f"killed host: training went on after {units.seconds(recovery['seconds'])}, at most {units.seconds(GOES_ON_S)}"
        for recovery in found["recoveries"]
        if recovery["seconds"] > GOES_ON_S
    ]
    if not found["difference"] <= DIFFERENCE:
        said.append(f"killed host: a loss differs by {found['difference']:.1e} of it, at most {DIFFERENCE:g}")
    return said


def killed_lines(found: Mapping[str, Any]) -> list[str]:
    """What happened, in lines."""
    lines = [f"killed host: {found['plan']}"]
    for recovery in found["recoveries"]:
        lines.append(
            f"lost {', '.join(recovery['hosts'])} in step {recovery['failed_step']}, went on from step "
            f"{recovery['resumed_step']} by {found['plan_afterwards']}: {recovery['steps_lost']} steps and "
            f"{units.seconds(recovery['seconds'])} lost ({units.seconds(recovery['noticed_s'])} to notice, "
            f"{units.seconds(recovery['started_s'])} to compile and restore)"
        )
    first, last = found["losses"][0], found["losses"][-1]
    lines.append(
        f"losses from {first:.4f} to {last:.4f}; they differ by {found['difference']:.1e} of them from an undisturbed "
        "run's at most"
    )
    return lines
