"""Schedules run for real: a small pipeline runtime on Ray processes, its measured steps beside simulated ones.

    python benchmarks/run_schedules.py [--cases pinned quotas] [--steps N] [--json FILE]

The model has 128 layers of a product and a tanh. Two workers are pinned to a core each, or four have a quota of 0.4 of
a core each, which needs root. A step is simulated from the seconds that its own tasks took, with handing over
their results, by each stage's and kind's mean, and those of the way, on which both sides compute; the median of all
steps' differences counts. Gradients are compared with `jax.grad` of the whole model on one device. Schedules run in
turns. Exit status 1 if an aim is missed.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import statistics
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

os.environ["JAX_PLATFORMS"] = "cpu"

import numpy as np
import ray
from tqdm import tqdm

from alpa_dejavu.playground.hosts import quotas
from alpa_dejavu.problem.run import schedule_form
from alpa_dejavu.schedules import Schedule, named_schedule
from alpa_dejavu.simulation import StageTimes, simulate
from executor._model import gradients_on_one_device, samples_of, weights_of
from executor._worker import ENVIRONMENT, started
from harness import Figure, Results, Table, at_least, options

LAYERS, WIDTH, ROWS, SEED = 128, 256, 96, 0
NAMES = ("gpipe", "1f1b", "interleaved", "zb_h1", "zb_v")
JUDGED = ("interleaved", "zb_h1", "zb_v")
OFF, WARM_UP = 0.10, 3
APART = 0.05
"""Schedules whose simulated steps differ by less than this share are not put in an order."""


class Case(NamedTuple):
    """How many devices, and micro-batches, and the share of a core that each device's process gets, if limited."""

    devices: int
    micro_batches: int
    share: float | None


CASES = {"pinned": Case(2, 4, None), "quotas": Case(4, 8, 0.4)}
Row = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs all schedules in all cases; exit status 1 if a figure is missed."""
    parser = options(__doc__)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--steps", type=at_least(1), default=20, help="of each schedule (default: %(default)s)")
    given = parser.parse_args(arguments)
    results = Results(given.json, {"steps": given.steps})
    rows = []
    for case in given.cases:
        rows += results.known("cases", case, lambda: {"rows": _case(case, given.steps)})["rows"]  # noqa: B023
    columns = {
        "case": "{case}",
        "schedule": "{schedule}",
        "step": "{measured_s:seconds}",
        "simulated": "{simulated_s:seconds}",
        "off": "{off:+.1%}",
        "gradients off": "{gradients_off:.1e}",
    }
    return results.shown(Table.of(rows, columns), figures=_figures(rows))


def _case(name: str, steps: int) -> list[Row]:
    case = CASES[name]
    weights = weights_of(LAYERS, WIDTH, SEED)
    samples = samples_of(case.micro_batches, ROWS, WIDTH, SEED)
    with contextlib.ExitStack() as stack:
        ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": ENVIRONMENT})
        stack.callback(ray.shutdown)
        expected = ray.get(ray.remote(gradients_on_one_device).remote(weights, *samples))
        limits = None if case.share is None else stack.enter_context(quotas(case.devices))
        workers = started(case.devices, pinned=case.share is None)
        running = {name: _Running(name, case, workers, weights, samples) for name in NAMES}
        if limits is not None and case.share is not None:
            for device, pid in enumerate(running[NAMES[0]].pids):
                limits.put(device, [pid])
            limits.limit([case.share] * case.devices)
        found: dict[str, list[Any]] = {name: [] for name in NAMES}
        for number in tqdm(range(WARM_UP + steps), desc=f"{name}: steps in turns"):
            for each in NAMES:
                step = running[each].step(gradients_too=number == 0)
                if number >= WARM_UP:
                    found[each].append(step)
                elif number == 0:
                    running[each].check(step, expected)
        return [running[each].row(name, found[each]) for each in NAMES]


class _Running:
    """A schedule that is run step by step, on workers that others are run on, too."""

    def __init__(self, name: str, case: Case, workers: list[Any], weights: np.ndarray, samples: Any) -> None:
        stages = case.devices * schedule_form(name).chunks
        self.schedule, self._workers = named_schedule(name, stages, case.micro_batches), workers
        self._gradients_off, each = np.inf, LAYERS // stages
        neighbours = {stage: workers[device] for stage, device in enumerate(self.schedule.device_of)}
        chunks = [
            {stage: weights[stage * each : (stage + 1) * each] for stage in own} for own in self.schedule.stages_on
        ]
        pairs = zip(workers, chunks, strict=True)
        asked = [worker.prepare.remote(name, own, neighbours, stages - 1, samples) for worker, own in pairs]
        self.pids: list[int] = ray.get(asked)

    def step(self, gradients_too: bool) -> Any:
        """Runs a step; what each worker noted."""
        name = self.schedule.name
        pairs = zip(self._workers, self.schedule.tasks, strict=True)
        return ray.get([worker.run.remote(name, list(map(str, row)), gradients_too) for worker, row in pairs])

    def check(self, step: Any, expected: np.ndarray) -> None:
        """Notes how far the gradients of a first step are off those of one device, as a share of their norms."""
        by_stage = dict(itertools.chain.from_iterable(gradients.items() for _, _, gradients in step))
        found = np.concatenate([by_stage[stage] for stage in sorted(by_stage)])
        norms = [np.linalg.norm(each, axis=(1, 2)) for each in (found - expected, expected)]
        self._gradients_off = float((norms[0] / norms[1]).max())

    def row(self, case: str, steps: list[Any]) -> Row:
        """The median step, the median of what is simulated from each step's tasks, and of how far that is off."""
        measured, size = list(map(_step_s, steps)), self.schedule.num_micro_batches
        simulated = [
            simulate(_times(self.schedule, step), size, self.schedule, sends="overlapped").step_s for step in steps
        ]
        return {
            "case": case,
            "schedule": self.schedule.name,
            "measured_s": statistics.median(measured),
            "simulated_s": statistics.median(simulated),
            "off": statistics.median(b / a - 1 for a, b in zip(measured, simulated, strict=True)),
            "gradients_off": self._gradients_off,
        }


def _step_s(step: Any) -> float:
    notes = [note for notes, _, _ in step for note in notes]
    return float(max(note.end_s for note in notes) - min(note.start_s for note in notes))


def _times(schedule: Schedule, step: Any) -> list[StageTimes]:
    """The mean seconds of each stage's tasks in a step."""

    def mean(values: Iterator[float]) -> float:
        found = list(values)
        return statistics.fmean(found) if found else 0.0

    def stage(number: int) -> StageTimes:
        device = schedule.device_of[number]
        notes = step[device][0]
        took = {
            kind: mean(n.posted_s - n.start_s for n in notes if (n.stage, n.kind) == (number, kind)) for kind in "FBIW"
        }
        sent = [one for _, came, _ in step for one in came if one.source == number]
        ways = {kind: mean(one.came_s - one.sent_s for one in sent if one.kind == kind) for kind in "FB"}
        update_s = mean(n.end_s - n.start_s for n in notes if n.kind == "update")
        return StageTimes(
            took["F"], took["B"] + took["I"] + took["W"], backward_weight_s=took["W"], forward_send_s=ways["F"],
            backward_send_s=ways["B"], per_step_s=update_s / len(schedule.stages_on[device]),
        )  # fmt: skip

    return [stage(number) for number in range(schedule.num_stages)]


def _figures(rows: list[Row]) -> list[Figure]:
    found = []
    for case in dict.fromkeys(row["case"] for row in rows):
        here = [row for row in rows if row["case"] == case]
        judged = [row for row in here if row["schedule"] in JUDGED]
        worst = max(judged, key=lambda row: abs(row["off"]))
        off = max(row["gradients_off"] for row in here)
        wrong = [
            f"{one['schedule']} before {other['schedule']}"
            for one, other in itertools.permutations(here, 2)
            if one["simulated_s"] < other["simulated_s"] * (1 - APART) and one["measured_s"] > other["measured_s"]
        ]
        found += [
            Figure(case, "gradients off one device's", "at most 1e-5", f"{off:.1e}", off <= 1e-5),
            Figure(case, "simulated steps off", f"at most {OFF:.0%}", f"{worst['off']:+.1%} ({worst['schedule']})",
                   abs(worst["off"]) <= OFF),
            Figure(case, f"schedules over {APART:.0%} apart in another order", "none", ", ".join(wrong) or "none",
                   not wrong),
        ]  # fmt: skip
    return found


if __name__ == "__main__":
    raise SystemExit(main())
