"""The table of each network, and in words what pays and what doesn't."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, final

from alpa_dejavu._util.interval import Interval
from harness import Table
from races._figures import (
    SMALL,
    InSeconds,
    Rows,
    Summary,
    foresight,
    is_whole,
    of_any,
    spread,
    summaries,
)
from races._plan import JUDGED, Plan
from races._ways import BUDGETS, DATA_PARALLEL, EARLY, RULES, STARTS, contests, race_of, search_of, ways

CHEAP = race_of("halving", "sobol", "small")
"""As what is judged, with the small budget."""
ENOUGH = 3
"""Networks on which the way that is judged has to be faster."""

APART = 0.1
"""So far may ratios of training seconds be from those in steps, as a part of them."""
MOST = 1e9
"""What is above is the end of no interval."""
COLUMNS = {
    "steps": ("steps", "d"), "s to target": ("to_target_s", ".2f"), "s to first step": ("begun_s", ".2f"),
    "s of a step": ("step_s", ".4f"), "after the race": ("later_step_s", ".4f"), "s in all": ("whole_s", ".1f"),
}  # fmt: skip
"""Of a run in seconds."""


@final
@dataclasses.dataclass(frozen=True)
class Verdict:
    """Sentences, and whether the figures are as they were to be.

    Attributes:
        lines: the figures.
        held: whether all of them are.
        details: of each network, for the terminal.
    """

    lines: tuple[str, ...]
    held: bool
    details: tuple[str, ...] = ()


def overview(result: dict[str, Any], plan: Plan) -> Table:
    """All ways on all networks: steps per worker to the target over one start's, and after "at" the compute over it."""
    by_network = {
        name: {one.name: one for one in summaries(found["rows"], plan.task(name).steps)}
        for name, found in result["models"].items()
    }  # fmt: skip
    rows = []
    for way in ways(plan.workers):
        cells = {name: _cell(found[way.name]) for name, found in by_network.items() if way.name in found}
        if cells:
            rows.append({"way": way.name, **cells})
    columns = {"steps to the target over one start's": "{way}", **{name: f"{{{name}}}" for name in by_network}}
    title = f"{plan.workers} workers, {len(plan.seeds)} seeds; intervals of 95 %; after \"at\" the compute"
    return Table.of(rows, columns, title)


def _cell(one: Summary) -> str:
    return f"{_interval(one.ratio, '.2f')} at {one.compute.mean:.1f}"


def tables(result: dict[str, Any], plan: Plan) -> Iterator[Table]:
    """A table for each network that is measured, and one of the runs in seconds."""
    columns = {
        "way": "{name}",
        "steps per worker": lambda one: _interval(one["steps"], ".0f"),
        "to one start's": lambda one: _interval(one["ratio"], ".2f"),
        "compute to target": lambda one: _interval(one["compute"], ".2f"),
        "of the whole": "{whole:.2f}",
        "test accuracy": lambda one: "" if math.isnan(one["accuracy"].mean) else _interval(one["accuracy"], ".3f"),
        "not reached": lambda one: one["unreached"] or "",
        "s": "{seconds:.1f}",
    }
    for name, found in result["models"].items():
        title = f"{name}: to a loss of {found['target']:.4f}; {plan.workers} workers, {len(plan.seeds)} seeds"
        yield Table.of(map(vars, summaries(found["rows"], plan.task(name).steps)), columns, title)
    if "pairs" in result.get("seconds", {}):
        yield _seconds_table(result["seconds"])


def _seconds_table(found: dict[str, Any]) -> Table:
    settings = found["settings"]
    title = (f"{settings['network']}, batches of {settings['rows']}: to a loss of {found['target']:.4f}; "
             f"{settings['workers']} Ray workers")  # fmt: skip
    runs = [{"seed": pair["seed"], "run": name, **pair[name]} for pair in found["pairs"] for name in ("alone", "race")]
    cells = {name: f"{{{key}:{digits}}}" for name, (key, digits) in COLUMNS.items()}
    return Table.of(runs, {"seed": "{seed}", "run": "{run}", **cells}, title)


def verdict(result: dict[str, Any], plan: Plan) -> Verdict:
    """What pays, what doesn't and why, and whether figures hold on the networks and pairs that are measured."""
    parts = [_in_steps(result, plan)] if result["models"] else []
    parts += [_in_seconds(result["seconds"])] if result.get("seconds", {}).get("pairs") else []
    return Verdict(
        tuple(line for part in parts for line in part.lines), all(part.held for part in parts),
        tuple(line for part in parts for line in part.details),
    )  # fmt: skip


def _in_seconds(found: dict[str, Any]) -> Verdict:
    """Whether a race of real workers takes the seconds that steps per worker say, and whether it pays."""
    figures = InSeconds.of(found)
    held = abs(figures.apart.mean - 1) <= APART, figures.seconds.high < 1
    workers = found["settings"]["workers"]
    steps, seconds, training, step, apart = (
        _interval(getattr(figures, field.name), ".2f") for field in dataclasses.fields(figures)
    )
    lines = (
        f"{'Held' if held[0] else 'MISSED'}: {workers} starts on {workers} Ray workers take {steps} of one start's "
        f"steps per worker to the target, and from the first step on {training} of its seconds: {apart} times as many "
        f"as steps say, {1 - APART:g} to {1 + APART:g} allowed; a step of the faster worker beside "
        f"the other one takes {step} of the time of one alone ({len(found['pairs'])} pairs)",
        f"{'Held' if held[1] else 'MISSED'}: with workers' beginnings and compiling they take {seconds} of one start's "
        "seconds, surely less than 1 to be faster",
    )
    return Verdict(lines, all(held))


def _in_steps(result: dict[str, Any], plan: Plan) -> Verdict:
    """What pays, and whether the two figures in steps hold."""
    details: list[str] = []
    lines: list[str] = []
    faster: dict[str, list[str]] = {JUDGED: [], CHEAP: []}
    whole = with_idle = 0.0
    for name, found in result["models"].items():
        steps = plan.task(name).steps
        by_name = {one.name: one for one in summaries(found["rows"], steps)}
        small = [by_name[way.name] for way in ways(plan.workers) if way.budget == "small" and way.name in by_name]
        whole, with_idle = max(whole, *(one.whole for one in small)), max(with_idle, *(one.with_idle for one in small))
        for way, names in faster.items():
            names += [name] if by_name[way].ratio.high < 1 else []
        lines.append(_contests(name, by_name, plan.workers))
        if is_whole(found["rows"]):
            details += _said(name, by_name, found["rows"], steps)
            lines.append(_instead(name, by_name))
    needed = min(ENOUGH, len(result["models"]))
    held = len(faster[JUDGED]) >= needed, whole <= SMALL
    said = {way: f"{way} is surely faster on {len(names)} of {len(result['models'])} networks "
            f"({', '.join(names) or 'none'})" for way, names in faster.items()}  # fmt: skip
    lines.append(f"{'Held' if held[0] else 'MISSED'}: {said[JUDGED]}, {needed} at least; {said[CHEAP]}")
    lines.append(
        f'{"Held" if held[1] else "MISSED"}: budget="small" takes {whole:.3f} times the compute of one start at most, '
        f"{SMALL:g} allowed ({with_idle:.3f} with the idle lanes of one program)"
    )
    return Verdict(tuple(lines), all(held), tuple(details))


def _contests(name: str, by_name: dict[str, Summary], workers: int) -> str:
    """Which of the contests is surely faster than one start, and whether the best one beats the race that is judged."""
    known = [by_name[way.name] for way in contests(workers) if way.starts > 1 and way.name in by_name]
    pays = [one for one in known if one.ratio.high < 1]
    best = min(known, key=lambda one: one.ratio.mean)
    rates = [by_name[way.name] for way in contests(workers) if way.starts == 1 and way.name in by_name]
    rate = min(rates, key=lambda one: one.ratio.mean)
    return (
        f"{name}: {len(pays)} of {len(known)} contests are surely faster than one start; the fastest, {best.name}, "
        f"takes {_interval(best.ratio, '.2f')} of its steps, {JUDGED} {_interval(by_name[JUDGED].ratio, '.2f')}, and "
        f"one start at the best other rate ({rate.name}) {_interval(rate.ratio, '.2f')}"
    )


def _said(name: str, by_name: dict[str, Summary], rows: Rows, steps: int) -> list[str]:
    """Of each kind of start: the rules that pay and those that don't, what search without pruning takes, and why."""
    lines = []
    for init in STARTS:
        those = [by_name[race_of(rule, init, budget)] for budget in BUDGETS for rule in RULES]
        pays = [one for one in those if one.ratio.high < 1]
        search = by_name[search_of(init)]
        line = f"{name}, {init}: faster in {len(pays)} of {len(those)} races"
        if pays:
            best = min(pays, key=lambda one: one.ratio.mean)
            line += f", by {1 - best.ratio.mean:.0%} at {best.compute.mean:.1f} times the compute ({best.name})"
        rest = [one for one in those if one not in pays]
        if rest:
            line += "; doesn't pay: " + ", ".join(f"{one.name} {_interval(one.ratio, '.2f')}" for one in rest)
        line += (
            f". Without dropping any, the first is there {1 - search.ratio.mean:.0%} sooner at "
            f"{search.compute.mean:.1f} times the compute; any one alone takes "
            f"{_interval(of_any(rows, init, steps), '.2f')} of one start's steps; the loss after 1/{EARLY} of the "
            f"steps tells the steps to the target with a rank correlation of {foresight(rows, init, steps):.2f}"
        )
        if init == "model":
            line += f"; from start to start these differ by {spread(rows):.0%}"
        lines.append(f"{line}.")
    return lines


def _instead(name: str, by_name: dict[str, Summary]) -> str:
    """What the same workers are good for otherwise, at the best of the rates."""
    parallel = [one for way, one in by_name.items() if way.startswith(DATA_PARALLEL)]
    best = min(parallel, key=lambda one: one.ratio.mean)
    judged = by_name[JUDGED]
    better = "MORE" if best.ratio.mean < judged.ratio.mean else "less"
    return (
        f"{name}: the same workers for data parallelism save {better}: {1 - best.ratio.mean:.0%} of the steps "
        f"({best.name}), not counting what they send, at {best.compute.mean:.1f} times the compute; {JUDGED} saves "
        f"{1 - judged.ratio.mean:.0%} at {judged.compute.mean:.1f} times"
    )


def _interval(one: Interval, digits: str) -> str:
    if one.high > MOST:
        return f"{one.mean:{digits}} (of too few to say more)"
    return f"{one.mean:{digits}} ({one.low:{digits}} to {one.high:{digits}})"
