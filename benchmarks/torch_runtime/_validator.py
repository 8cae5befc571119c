"""PyTorch's own checks of a pipeline schedule: its reader, its validator, its lowering and its dry run."""

from __future__ import annotations

import copy
import csv
import io


def refusal(text: str) -> str:
    """Why PyTorch refuses the text of a schedule's file, in its first line; empty if it takes it.

    The schedule is read, validated, given its sends and receives, and run dry, as PyTorch's runtime does when it loads
    a file.
    """
    from torch.distributed.pipelining import schedules

    try:
        rows = list(csv.reader(io.StringIO(text)))
        actions = {rank: [schedules._Action.from_str(cell) for cell in row] for rank, row in enumerate(rows)}
        every = [action for row in actions.values() for action in row]
        stages = 1 + max(action.stage_index for action in every)
        micro_batches = 1 + max(action.microbatch_index for action in every)
        rank_of = schedules._validate_schedule(actions, len(rows), stages, micro_batches)
        whole = schedules._add_send_recv(copy.deepcopy(actions), rank_of.__getitem__, stages)
        schedules._simulate_comms_compute(whole, rank_of.__getitem__, stages)
    except Exception as error:  # whatever is wrong with a schedule, PyTorch has no kind of error for it
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return ""
