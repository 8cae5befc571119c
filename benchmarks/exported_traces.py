"""Chakra's execution traces of 64-rank plans of GPT-39B: how large they are, and how long a replay of them takes.

    python benchmarks/exported_traces.py [--hosts N] [--micro-batches N] [--json FILE]

Plans are found for eight machines of eight devices, and written from what is kept beside them, as `alpa-dejavu export
--to chakra` does. A small replayer that knows only Chakra's documentation (`_chakra_replay.py`) replays them, and its
step is compared with the simulated one: where a transfer begins once both ends are there, and where it begins with the
send. Exit status 1 if an aim is missed.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _chakra_replay import COLLECTIVE, COMPUTE, RECEIVE, SEND, read_traces, replay
from alpa_dejavu._util import units
from alpa_dejavu.exports import export
from alpa_dejavu.planning import plan_model
from alpa_dejavu.planning.kept import Kept, read_kept, write_with_kept
from alpa_dejavu.plans.plan_file import read_plan
from alpa_dejavu.simulation import simulate
from alpa_dejavu.simulation.plan_times import plan_times
from harness import Figure, Results, Table, at_least, options

MODEL, BATCH = "gpt-39b", 1024
CASES = {
    "V100, 1F1B": ("p3.16xlarge", "1f1b"),
    "A100, 1F1B": ("p4d.24xlarge", "1f1b"),
    "A100, interleaved": ("p4d.24xlarge", "interleaved"),
    "A100, ZB-H1": ("p4d.24xlarge", "zb_h1"),
}
MOST_S, MOST_BYTES, OFF = 20.0, 200e6, 0.01


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes and replays the traces of all cases; exit status 1 if a figure is missed."""
    parser = options(__doc__)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--hosts", type=at_least(1), default=8, help="of eight devices each (default: %(default)s)")
    parser.add_argument("--micro-batches", type=at_least(1), default=64, help="of a step (default: %(default)s)")
    given = parser.parse_args(arguments)
    results = Results(given.json, {"hosts": given.hosts, "micro_batches": given.micro_batches})
    rows = [
        results.known("cases", name, lambda: _case(name, given.hosts, given.micro_batches))  # noqa: B023
        for name in given.cases
    ]
    plans = {
        "plan": "{case}",
        "stages": "{stages}",
        "logical meshes": "{meshes}",
        "ranks": "{ranks}",
        "written in": "{written_s:seconds}",
        "size": "{num_bytes:size}",
        "nodes": "{nodes}",
        "collectives": "{collectives}",
        "pairs of send and receive": "{pairs}",
    }
    steps = {
        "plan": "{case}",
        "simulated": "{simulated_s:seconds}",
        "replayed": "{replayed_s:seconds}",
        "off": "{off:+.4%}",
        "sends wait for nobody": "{eager_s:seconds}",
        "less": "{eager_off:+.4%}",
    }
    return results.shown(Table.of(rows, plans), Table.of(rows, steps), figures=_figures(rows))


def _case(name: str, hosts: int, micro_batches: int) -> dict[str, Any]:
    machine, schedule = CASES[name]
    planned = plan_model(MODEL, machine, hosts, BATCH, micro_batches, schedule=schedule)
    with tempfile.TemporaryDirectory() as folder:
        path, traces = Path(folder) / "plan.json", Path(folder) / "traces"
        write_with_kept(planned.plan, Kept.of(planned), path)
        del planned
        gc.collect()
        began = time.perf_counter()
        plan = read_plan(path)
        files = export(plan, "chakra", traces, kept=read_kept(path))
        written_s = time.perf_counter() - began
        num_bytes = sum(file.stat().st_size for file in files)
        ranks, groups = read_traces(traces)
    found, eager = (replay(ranks, groups, rendezvous) for rendezvous in (True, False))
    simulated_s = simulate(plan_times(plan), plan.num_micro_batches, plan.schedule).step_s
    return {
        "case": name,
        "stages": len(plan.stages),
        "meshes": ", ".join(dict.fromkeys("x".join(map(str, stage.logical_mesh)) for stage in plan.stages)),
        "ranks": len(ranks),
        "written_s": written_s,
        "num_bytes": num_bytes,
        "nodes": sum(found.nodes.values()),
        "computing": found.nodes[COMPUTE],
        "collectives": found.nodes[COLLECTIVE],
        "sends": found.nodes[SEND],
        "receives": found.nodes[RECEIVE],
        "pairs": found.pairs,
        "simulated_s": simulated_s,
        "replayed_s": found.step_s,
        "off": found.step_s / simulated_s - 1,
        "eager_s": eager.step_s,
        "eager_off": eager.step_s / simulated_s - 1,
    }


def _figures(rows: list[dict[str, Any]]) -> list[Figure]:
    found = []
    for row in rows:
        matched = row["sends"] == row["receives"] == row["pairs"]
        found += [
            Figure(row["case"], "written in", f"under {units.seconds(MOST_S)}", units.seconds(row["written_s"]),
                   row["written_s"] < MOST_S),
            Figure(row["case"], "size", f"under {units.size(MOST_BYTES)}", units.size(row["num_bytes"]),
                   row["num_bytes"] < MOST_BYTES),
            Figure(row["case"], "sends that have a receive", "all", f"{row['pairs']} of {row['sends']}", matched),
            Figure(row["case"], "replayed step off the simulated one", f"within {OFF:.0%}", f"{row['off']:+.4%}",
                   abs(row["off"]) <= OFF),
        ]  # fmt: skip
    return found


if __name__ == "__main__":
    raise SystemExit(main())
