"""`alpa-dejavu plan --steps`, `--samples` and `--tokens`: what the whole training takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from alpa_dejavu._util import units
from alpa_dejavu.cli.output import Pages
from alpa_dejavu.cli.table import new_table
from alpa_dejavu.problem import checks
from alpa_dejavu.problem.limits import MOST_STEPS, at_most

if TYPE_CHECKING:
    from alpa_dejavu.planning import PlanningResult

__all__ = ["asked_steps", "print_whole_run"]


def asked_steps(
    steps: int | None, samples: int | None, tokens: int | None, batch: int | None, model: str
) -> int | None:
    """Returns how many steps a training has by the option that was given; None if none was.

    Raises:
        ValueError: more than one was given, the step infers, or the model's samples aren't sequences of tokens.
    """
    given = {"--steps": steps, "--samples": samples, "--tokens": tokens}
    names = [name for name, value in given.items() if value is not None]
    if not names:
        return None
    if len(names) > 1:
        raise ValueError(f"{' and '.join(names)} are given, but must be one option alone; leave out the others")
    if batch is None:
        raise ValueError(f"{names[0]} is {given[names[0]]}, but must come with --batch; say the samples of a step")
    at_most(names[0], given[names[0]] or 0, MOST_STEPS, "give what the training has")
    from alpa_dejavu.planning.given.whole_run import steps_of_samples, steps_of_tokens

    if samples is not None:
        return steps_of_samples(samples, batch)
    if tokens is not None:
        return steps_of_tokens(tokens, batch, model)
    assert steps is not None, "one of them is given"
    checks.count("plan", "--steps", steps)
    return steps


def print_whole_run(planned: PlanningResult, steps: int, to: Pages) -> None:
    """Prints what a training of so many steps takes: time, devices, money, memory, and the bytes of each link."""
    from alpa_dejavu.planning.given.whole_run import run_facts, sent_rows, whole_run

    run = whole_run(planned, steps)
    for name, text in run_facts(run):
        to.fact(name, text)
    table = new_table(("from", "to"), ("sent in all", "of a step"))
    for sender, receiver, num_bytes in sent_rows(run):
        table.add_row(sender, receiver, units.traffic(num_bytes), units.traffic(num_bytes / steps))
    if table.row_count:
        to.print(table)
