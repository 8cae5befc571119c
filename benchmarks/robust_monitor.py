"""A monitor of what crosses between stages: which faults of a stage it finds, how soon, and what it costs.

    PYTHONPATH=examples python benchmarks/robust_monitor.py [--seeds N] [--rounds N] [--json FILE]

The demo's GPT is trained in four replicas by plain `jit`, with a mean that leaves out who the monitor finds. Each of
its four blocks is a stage. Beginning with step 30, every sixth step one drawn stage of one drawn replica begins to
compute wrongly for three steps; what the last stage makes, and the signal that the first one makes, cross nothing and
aren't drawn. Who is found is left out in the step itself. Settings were chosen with other seeds.

- Aims: stages whose activations, or signals, are three times too large are found in their first step, all of them, and
  the stage is named rightly; of replicas that are right at most one in 1000 is taken for wrong in a step.
- Cost: a step with the monitor and one without it in turns, as the median of paired ratios. The aim is at most 1.02.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from typing import Any

os.environ |= {"JAX_PLATFORMS": "cpu"}

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from tqdm import tqdm

from alpa_dejavu.training.robust import robust_value_and_grad
from alpa_dejavu.training.robust.attacks import wrong_stage
from alpa_dejavu.training.robust.monitor import Monitor
from demo.text import VOCABULARY, batches, standard_library
from demo.training import Job, create_state
from harness import Figure, Results, Table, at_least, options, wrong_input_told

N, FIRST_SEED, BEGIN, EVERY, LASTS, STEPS = 4, 300, 30, 6, 3, 90
ALARMS, COST = 1e-3, 1.02
FAULTS = {"activations × 3": (3.0, 1.0), "activations × 1.5": (1.5, 1.0), "activations × 0.5": (0.5, 1.0),
          "activations' signs": (-1.0, 1.0), "signals × 3": (1.0, 3.0)}  # fmt: skip
"""For each fault the factors of the activations and of the signals that leave the stage."""
AIMED = ("activations × 3", "signals × 3")
CROSSINGS = tuple(f"Block_{n}" for n in range(3))


class Training:
    """The demo's GPT with or without the monitor."""

    def __init__(self, monitored: bool) -> None:
        """Makes its step."""
        self.job, self.monitor = Job(), Monitor()
        self.first = create_state(self.job)
        self.gradient = robust_value_and_grad(self._loss, "mean", N, "whole")
        self.state = self.gradient.init(self.first.params)
        self.step = jax.jit(self._watched if monitored else self._plain)

    def begun(self, seed: int) -> tuple[Any, Any]:
        """Returns data, and what a step changes: parameters, moments, and what the monitor has seen."""
        data = batches(standard_library(), self.job.batch_size, self.job.config.length, seed)
        watch = self.monitor.init(dict.fromkeys(CROSSINGS, self.job.config.hidden))
        return data, (self.first.params, self.first.opt_state, watch)

    def _loss(self, both: Any, batch: Any) -> Any:
        params, slots = both

        def watched(method: Any, args: Any, kwargs: Any, context: Any) -> Any:
            made, name = method(*args, **kwargs), context.module.name
            if type(context.module).__name__ != "Block" or context.method_name != "__call__":
                return made
            stage = int(name.rpartition("_")[2])
            wrong = batch["stage"][0] == stage
            made = wrong_stage(made, *(jnp.where(wrong, batch[way][0], 1.0) for way in ("forward", "backward")))
            return Monitor.watched(made, slots[name]) if slots is not None and name in CROSSINGS else made

        with nn.intercept_methods(watched):
            logits = self.first.apply_fn(params, batch["inputs"])
        targets = jax.nn.one_hot(batch["targets"], VOCABULARY)
        return -jnp.mean(jnp.sum(targets * jax.nn.log_softmax(logits), axis=-1))

    def _watched(self, begun: Any, batch: Any) -> Any:
        params, moments, watch = begun
        _, (each, seen) = self.gradient.of_each((params, watch.slots), batch, self.state)
        watch, found = self.monitor.seen(watch, seen)
        return (*self._updated(params, moments, self.monitor.dropped(each, found)), watch), found

    def _plain(self, begun: Any, batch: Any) -> Any:
        params, moments, watch = begun
        _, (each, _) = self.gradient.of_each((params, None), batch, self.state)
        return (*self._updated(params, moments, each), watch), ()

    def _updated(self, params: Any, moments: Any, each: Any) -> tuple[Any, Any]:
        judged, _ = self.gradient.judge(params, each, self.state)
        updates, moments = self.first.tx.update(judged.gradients, moments, params)
        return optax.apply_updates(params, updates), moments


def faulty(batch: Any, stage: int = -1, replica: int = 0, factors: tuple[float, float] = (1.0, 1.0)) -> Any:
    """A batch that says which stage of which replica is wrong; -1: none."""
    rows = np.arange(len(batch["inputs"])) * N // len(batch["inputs"])
    mine = rows == replica
    return {**batch, "stage": np.where(mine, stage, -1), **{
        way: np.where(mine, factor, 1).astype(np.float32)
        for way, factor in zip(("forward", "backward"), factors, strict=True)}}  # fmt: skip


@wrong_input_told
def main(arguments: Sequence[str] | None = None) -> int:
    """Measures; exit status 1 where an aim isn't held."""
    parser = options(__doc__)
    parser.add_argument("--seeds", type=at_least(1), default=5, help="judged ones (default: %(default)s)")
    parser.add_argument("--rounds", type=at_least(2), default=40, help="paired steps (default: %(default)s)")
    given = parser.parse_args(arguments)
    results = Results(given.json, {"seeds": given.seeds, "rounds": given.rounds})
    monitored = Training(monitored=True)
    runs = results.known("runs", "faults", lambda: {"seeds": _faults(monitored, given.seeds)})["seeds"]
    cost = results.known("runs", "cost", lambda: {"ratio": _cost(monitored, given.rounds)})["ratio"]
    rows = []
    for kind in FAULTS:
        events = [event for run in runs for event in run["events"] if event["kind"] == kind]
        delays = [event["delay"] for event in events]
        rows.append({"kind": kind, "faults": len(events), "first": sum(delay == 0 for delay in delays),
                     "later": sum(delay is not None and delay > 0 for delay in delays),
                     "never": delays.count(None), "named": sum(event["named"] for event in events)})  # fmt: skip
    alarms, right = (sum(run[key] for run in runs) for key in ("alarms", "right"))
    figures = [Figure(row["kind"], "found in the first step, and the stage named", "all",
                      f"{row['first']} and {row['named']} of {row['faults']}",
                      row["first"] == row["named"] == row["faults"])
               for row in rows if row["kind"] in AIMED]  # fmt: skip
    figures += [
        Figure("right replicas", "taken for wrong, of all in all steps", f"at most {ALARMS:g}", f"{alarms} of {right}",
               alarms <= ALARMS * right),
        Figure("monitor", "step over the one without", f"at most {COST}", f"{cost:.3f}", cost <= COST),
    ]  # fmt: skip
    columns = {"fault": "{kind}", "faults": "{faults}", "found in the first step": "{first}", "later": "{later}",
               "never": "{never}", "stage named rightly": "{named}"}  # fmt: skip
    return results.shown(Table.of(rows, columns), figures=figures)


def _faults(training: Training, seeds: int) -> list[dict[str, Any]]:
    found = []
    for seed in tqdm(range(FIRST_SEED, FIRST_SEED + seeds), "seeds"):
        (data, begun), draw = training.begun(seed), np.random.default_rng(seed)
        events: list[dict[str, Any]] = []
        alarms = right = 0
        for number in range(STEPS):
            since = (number - BEGIN) % EVERY
            if number >= BEGIN and since == 0:
                kind = list(FAULTS)[len(events) % len(FAULTS)]
                stage, replica = int(draw.integers(len(CROSSINGS))) + (FAULTS[kind][1] != 1), int(draw.integers(N))
                events.append({"kind": kind, "delay": None, "named": False})
            wrong = number >= BEGIN and since < LASTS
            batch = faulty(next(data), stage, replica, FAULTS[kind]) if wrong else faulty(next(data))
            begun, crossed = training.step(begun, batch)
            stages = crossed.stages(CROSSINGS)
            others = [stages[n] for n in range(N) if not wrong or n != replica]
            alarms, right = alarms + sum(one is not None for one in others), right + len(others)
            if wrong and stages[replica] is not None and events[-1]["delay"] is None:
                events[-1] |= {"delay": since, "named": stages[replica] == stage}
        found.append({"events": events, "alarms": alarms, "right": right})
    return found


def _cost(monitored: Training, rounds: int) -> float:
    both = [Training(monitored=False), monitored]
    begun = [training.begun(0) for training in both]
    states = [state for _, state in begun]
    seconds: list[list[float]] = [[], []]
    for turn in tqdm(range(rounds + 1), "rounds"):
        for which in (0, 1) if turn % 2 else (1, 0):
            batch = faulty(next(begun[which][0]))
            start = time.perf_counter()
            states[which], _ = jax.block_until_ready(both[which].step(states[which], batch))
            if turn:  # the first one compiles
                seconds[which].append(time.perf_counter() - start)
    return statistics.median(np.divide(seconds[1], seconds[0]).tolist())


if __name__ == "__main__":
    raise SystemExit(main())
