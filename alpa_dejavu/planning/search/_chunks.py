"""A pipeline's layers cut into the chunks of a schedule, of which each submesh has several."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from alpa_dejavu.costs.table import CostTable
from alpa_dejavu.problem import Run, StageChoice
from alpa_dejavu.schedules import schedule_kind
from alpa_dejavu.simulation.step import Timeline

__all__ = ["chunks_of", "impossible", "needed_bytes"]

_MOST_TASKS = 100_000
"""A step of more passes takes too long to be simulated for every cut."""


def impossible(run: Run, num_submeshes: int, num_layers: int) -> str:
    """Returns in a few words why so many submeshes can't run a model of so many layers by a run's schedule; empty if
    they can.
    """
    chunks = run.form.chunks
    if num_submeshes * chunks > num_layers:
        return f"{num_layers} layers are too few for {num_submeshes * chunks} stages"
    if num_submeshes == 1 and chunks > 1:
        return "one submesh has no pipeline"
    if 3 * num_submeshes * chunks * run.num_micro_batches > _MOST_TASKS:
        return "it has too many passes to be simulated for every cut"
    check = schedule_kind(run.schedule).check
    try:
        if check is not None:
            check(num_submeshes, run.num_micro_batches)
    except ValueError as error:
        return str(error).partition(";")[0]
    return ""


def chunks_of(table: CostTable, submeshes: Sequence[StageChoice], run: Run) -> tuple[StageChoice, ...]:
    """Returns the stages of a run's schedule on some submeshes, cut so that the slowest one takes as little as it can.

    Args:
        table: the costs of all stages, of L layers.
        submeshes: a stage for each submesh of the pipeline, in order; their layers don't matter.
        run: has the schedule, which says how many stages each submesh has.
    """
    layers, form = len(table.offered), run.form
    on = [submeshes[n] for n in form.submesh_of(len(submeshes) * form.chunks)]
    parts = table.compute_forward_s, table.compute_backward_s, table.collective_forward_s, table.collective_backward_s
    least = np.full((len(on) + 1, layers + 1), np.inf)
    least[0, 0] = 0.0
    came = np.zeros_like(least, dtype=np.int64)
    for n, choice in enumerate(on):
        own = np.sum([part[:, :, choice.submesh, choice.config] for part in parts], axis=0)
        for end in range(n + 1, layers - (len(on) - n) + 2):
            slowest = np.maximum(least[n, :end], own[:end, end - 1])
            came[n + 1, end] = int(slowest.argmin())
            least[n + 1, end] = slowest[came[n + 1, end]]
    cut = [layers]
    for n in range(len(on), 0, -1):
        cut.append(int(came[n, cut[-1]]))
    cut.reverse()
    return tuple(
        dataclasses.replace(choice, first=cut[n], last=cut[n + 1] - 1) for n, choice in enumerate(on)
    )


def needed_bytes(table: CostTable, stages: Sequence[StageChoice], step: Timeline) -> tuple[float, ...]:
    """Returns the bytes of each device of each submesh that a simulated step needs at most, by the table's margin."""
    times = []
    for choice, stage in zip(stages, step.stages, strict=True):
        memory = table.memory[choice.submesh][choice.config]
        assert memory is not None, "every config has its memory"
        needed, where = table.margin.needed(memory), (choice.first, choice.last)
        times.append(
            dataclasses.replace(
                stage,
                activation_bytes=float(needed.per_micro_batch[where]),
                resident_bytes=float(needed.resident[where]),
                temporary_bytes=float(needed.temporary[where]),
            )
        )
    return dataclasses.replace(step, stages=tuple(times)).peak_bytes
