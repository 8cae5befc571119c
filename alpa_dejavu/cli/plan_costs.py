"""Beside `plan`: the cost of wrong replicas, of copies of the state, and of the whole training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from alpa_dejavu._util import units
from alpa_dejavu._util.near_names import name_ranges
from alpa_dejavu.cli.commands import F, option
from alpa_dejavu.cli.models import is_function
from alpa_dejavu.cli.output import Pages
from alpa_dejavu.cli.parameters import PRICES
from alpa_dejavu.cli.table import Table, new_table

if TYPE_CHECKING:
    from alpa_dejavu.planning import PlanningResult
    from alpa_dejavu.planning.given.gathered_gradients import TolerantPlan
    from alpa_dejavu.problem import Plan


def least_replicas(asked: int, rule: str, wrong: int) -> int:
    """Returns how many replicas are asked for, or the rule needs; ValueError if it isn't known or tolerates none."""
    if not wrong:
        return asked
    from alpa_dejavu.training.robust import replicas_to_tolerate

    return max(asked, replicas_to_tolerate(rule, wrong))


def print_tolerance(
    planned: PlanningResult, ask: Callable[[int], PlanningResult], asked: int, rule: str, wrong: int, to: Pages
) -> None:
    """Prints for each number of wrong replicas up to one the replicas (`asked` anyway) that the rule needs, and the
    step that `ask` plans with; for the objective "pareto" the plans as fast, as cheap and as tolerant as any, too.
    """
    from alpa_dejavu.planning.given.gathered_gradients import gathering_step_s, tolerant_front
    from alpa_dejavu.planning.result import price_per_step

    needs = [least_replicas(asked, rule, count) for count in range(wrong + 1)]
    plans = {needs[-1]: planned}
    for need in needs:
        if need not in plans:
            plans[need] = ask(need)
    first_s = plans[needs[0]].plan.step_s
    figures = "each stage has at least", "iteration", "with all gradients gathered", "longer", "price of a step"
    table = new_table(("wrong replicas",), figures, ("stages", "hosts"))
    for count, need in enumerate(needs):
        plan = _fastest(plans[need]) if count else plans[need].plan
        step_s = gathering_step_s(plan) if count else plan.step_s
        price = price_per_step(plan, plans[need].cluster)
        table.add_row(
            str(count), units.counted(need, "replica"), units.seconds(plan.step_s), units.seconds(step_s),
            f"{100 * (step_s / first_s - 1):.1f} %",
            "unknown" if price is None else units.price(price * step_s / plan.step_s),
            str(len(plan.stages)), str(len(plan.devices_of_hosts)),
        )  # fmt: skip
    to.print(f"what it costs to tolerate wrong replicas of each stage by the rule {rule}:")
    to.print(table)
    if _fastest(planned) is not planned.plan:
        to.print("The plan above is the fastest without a rule; with all gradients gathered, the table's is faster.")
    if planned.front:
        to.print(_front_table(tolerant_front({count: plans[need].front for count, need in enumerate(needs)})))


def _fastest(planned: PlanningResult) -> Plan:
    """Returns the plan whose step is the shortest with all gradients gathered, of the best one and those next to it."""
    from alpa_dejavu.planning.given.gathered_gradients import gathering_step_s

    others = [*(other.plan for other in planned.runners_up), *(other.plan for other in planned.front)]
    return min([planned.plan, *others], key=gathering_step_s)


def _front_table(front: Sequence[TolerantPlan]) -> Table:
    table = new_table(("wrong replicas", "hosts used"), ("iteration", "price of a step"), ("which hosts",))
    for tolerant in front:
        hosts = tolerant.priced.hosts
        figures = units.seconds(tolerant.step_s), units.price(tolerant.price)
        table.add_row(str(tolerant.wrong), str(len(hosts)), *figures, name_ranges(hosts))
    return table


def whole_run_options(command: F) -> F:
    """Adds to a command the options by which it says what a whole training takes."""
    for name, text in (
        ("--samples", "Say what training on N samples takes."),
        ("--tokens", "Say what training on N tokens takes and costs."),
        ("--steps", "Say what N steps take."),
    ):
        command = option(name, group=PRICES, rare=name != "--tokens", type=click.IntRange(min=1), help=text)(command)
    return command


def asked_steps(
    steps: int | None, samples: int | None, tokens: int | None, batch: int | None, model: str, sequence: int | None
) -> int | None:
    """Returns how many steps a training has by the option given; None: none was. Raises ValueError for more than one
    option, a step that infers, or samples that aren't sequences of tokens; of a function's model `sequence` says how
    long these are, for --tokens alone.
    """
    if sequence is not None and is_function(model) and tokens is None:
        raise ValueError(
            f"--sequence is {sequence}, but must come with --tokens for {model}, whose samples are as long as the "
            "function makes them; leave it out"
        )
    asked = {"--steps": steps, "--samples": samples, "--tokens": tokens}
    names = [name for name, value in asked.items() if value is not None]
    if not names:
        return None
    if len(names) > 1:
        raise ValueError(f"{' and '.join(names)} are given, but only one of them may be; leave out the others")
    if batch is None:
        raise ValueError(f"{names[0]} is {asked[names[0]]}, but must come with --batch; say the samples of a step")
    from alpa_dejavu.problem import checks
    from alpa_dejavu.problem.limits import MOST_STEPS, at_most

    at_most(names[0], asked[names[0]] or 0, MOST_STEPS, "give what the training has")
    from alpa_dejavu.planning.given.whole_run import steps_of_samples, steps_of_tokens

    if samples is not None:
        return steps_of_samples(samples, batch)
    if tokens is not None:
        return steps_of_tokens(tokens, batch, model, sequence if is_function(model) else None)
    assert steps is not None, "one of them is given"
    checks.count("plan", "--steps", steps)
    return steps


def print_whole_run(planned: PlanningResult, steps: int, to: Pages) -> None:
    """Prints what a training of so many steps takes: time, devices, money, memory, and the bytes of each link."""
    from alpa_dejavu.planning.given.whole_run import run_facts, sent_rows, whole_run

    run = whole_run(planned, steps)
    for name, text in run_facts(run):
        to.fact(name, text)
    table = new_table(("from", "to"), ("each sends in all", "of a step"))
    for sender, receiver, num_bytes in sent_rows(run):
        table.add_row(sender, receiver, units.traffic(num_bytes), units.traffic(num_bytes / steps))
    if table.row_count:
        to.print(table)


_DAY_S = 86400.0


def check_copies(host_fails_every_days: float | None, copy_every: int | None) -> None:
    """Raises ValueError if the days aren't above 0, or steps between copies are given without the days."""
    if host_fails_every_days is not None:
        from alpa_dejavu.problem import checks

        checks.positive("plan", "--host-fails-every", host_fails_every_days)
    elif copy_every is not None:
        raise ValueError(f"--copy-every is {copy_every}, but must come with --host-fails-every; say in how many days a "
                         "host fails once")  # fmt: skip


def print_copies(planned: PlanningResult, host_fails_every_days: float, copy_every: int | None, to: Pages) -> None:
    """Prints which host keeps whose copy, what a copy takes, and after how many steps (None: at least cost) it is made,
    if a host fails once in so many days.
    """
    from alpa_dejavu.planning.changed.neighbour_copies import neighbour_copies
    from alpa_dejavu.planning.changed.state_migration import layer_state

    plan, days = planned.plan, host_fails_every_days
    copies = neighbour_copies(plan, planned.cluster, layer_state(planned.model), days * _DAY_S, copy_every)
    table = new_table(("host", "neighbour"), ("sent", "memory for copies"))
    for copy in copies.hosts:
        sizes = units.size(copy.sent_bytes), units.size(copy.memory_bytes)
        table.add_row(copy.host, copy.neighbour or "hosts of its stages", *sizes)
    to.print("copies of the training state in neighbours' memory:")
    to.print(table)
    best = "" if copy_every else ", which costs least"
    every = f"after every {units.counted(copies.every, 'step')}{best}"
    to.fact("a copy", f"{units.seconds(copies.copy_s)}, {every}")
    to.fact("longer iteration", f"{units.seconds(copies.step_s)} ({100 * copies.step_s / plan.step_s:.2f} %)")
    every_days = units.number(copies.between_s / _DAY_S)
    to.fact("lost by a failure", f"{units.seconds(copies.lost_s)} of steps on average, every {every_days} days")
