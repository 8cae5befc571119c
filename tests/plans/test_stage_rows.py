"""Tables of stages: what their cells say, with units, of stages that fit and of some that don't."""

import dataclasses

import pytest

from alpa_dejavu.plans.stage_rows import (
    PLANNED,
    PROFILED,
    REPORTED,
    StageRow,
    cells,
    folded_cells,
    known_columns,
    stage_rows,
)
from alpa_dejavu.problem import DrawnSeconds, Offload, Plan, StageOffload, StagePlan, Submesh
from alpa_dejavu.simulation.step import StageTimes

STAGE = StagePlan(
    (4, 7), Submesh(2, 4), (2, 4), ("a", "b", "c"), compute_s=0.0125, collective_s=3e-5, per_step_s=2.5,
    memory_bytes=2.0**33, memory_limit_bytes=2.0**34,
)  # fmt: skip


def plan_of(*stages):
    return Plan(stages=stages, step_s=1.0, num_micro_batches=4, schedule="1f1b", cluster="example", planning_s={})


def told(columns, row):
    return dict(zip([column.name for column in columns], cells(columns, [row])[0], strict=True))


def test_cells_have_their_units():
    found = told(PLANNED, StageRow(1, STAGE))
    assert found == {
        "stage": "1", "layers": "4-7", "submesh": "2x4", "logical": "2x4", "hosts": "a b c", "remat": "none",
        "ZeRO": "0", "compute": "12.5 ms", "collectives": "30 us", "transfers": "0 s", "once a step": "2.5 s",
        "memory": "8.00 GiB", "headroom": "8.00 GiB", "of the host": "", "hidden": "", "mean ± deviation": "",
            "context": "", "expert": "", "shard": "", "offload": "",
    }  # fmt: skip
    assert told(PLANNED, StageRow(1, dataclasses.replace(STAGE, layers=(4, 4))))["layers"] == "4"


@pytest.mark.parametrize(
    ("fields", "column", "cell"),
    [
        ({"memory_bytes": 1.5 * 2**34}, "headroom", "MISSING 8.00 GiB"),
        ({"hidden_s": 0.25, "hidden_per_step_s": 2.0}, "hidden", "250 ms + 2 s a step"),
        ({"drawn": DrawnSeconds(0.1418, 0.0213)}, "mean ± deviation", "141.8 ± 21.3 ms"),
    ],
)
def test_what_is_missing_hides_and_varies_is_said(fields, column, cell):
    row = StageRow(0, dataclasses.replace(STAGE, **fields))
    assert told(PLANNED, row)[column] == told(REPORTED, row)[column] == cell


def test_what_hosts_keep_is_said():
    shares = Offload(1.0, activations=0.5, place="nvme")
    there = StageOffload(shares, 2.0**30, 2.0**31, 2.0**34, 2.0**33)
    row = StageRow(0, dataclasses.replace(STAGE, offload=there))
    assert told(REPORTED, row)["offload"] == "100% of the optimizer state, 50% of activations to nvme"
    assert told(PLANNED, row)["of the host"] == "1.00 GiB + 16.00 GiB, MISSING 8.00 GiB"
    assert [column.name for column in known_columns(PLANNED, [row])][-1:] == ["of the host"]


def test_what_a_row_does_not_know_is_blank():
    (row,) = stage_rows(plan_of(STAGE))
    assert [name for name, cell in told(REPORTED, row).items() if not cell] == [
        "context", "expert", "shard", "mean ± deviation", "computing", "bubbles", "hidden", "offload", "of the host",
        "measured forward", "measured backward", "measured to predicted",
    ]  # fmt: skip
    known = dataclasses.replace(row, busy_share=0.5, predicted=StageTimes(1, 1), measured=StageTimes(1.5, 1))
    found = told(REPORTED, known)
    assert (found["computing"], found["measured forward"], found["measured to predicted"]) == ("50 %", "1.5 s", "1.25")
    profiled = dataclasses.replace(known, computing_s=(0.75, 0.0))
    assert cells(PROFILED, [profiled])[0][2:6] == ["1 s", "1.5 s", "750 ms", "1 s"]


def test_degrees_stand_in_a_table_where_some_stage_has_them():
    divided = dataclasses.replace(STAGE, context_parallel=2, expert_parallel=4, expert_tensor=1)
    rows = stage_rows(plan_of(divided))
    names = [column.name for column in known_columns(REPORTED, rows)]
    assert names[names.index("hosts") + 1 :][:4] == ["context", "expert", "remat", "ZeRO"]
    assert [told(REPORTED, rows[0])[name] for name in ("context", "expert", "shard")] == ["2", "4 (tensor 1)", ""]


def test_equal_stages_that_follow_each_other_stand_in_one_row():
    def stage(n, first, last, compute_s=0.1):
        held = (20 - n) * 2.0**29
        return StagePlan(
            (first, last), Submesh(1, 4), (1, 4), (f"p3-{7 - n // 2}",), compute_s=compute_s, memory_bytes=held,
            memory_limit_bytes=2.0**34,
        )  # fmt: skip

    stages = stage(0, 0, 1, 0.2), *(stage(n, 2 * n, 2 * n + 1) for n in range(1, 6)), stage(6, 12, 14), stage(7, 15, 16)
    rows = stage_rows(plan_of(*stages))
    names = [column.name for column in PLANNED]
    found = [dict(zip(names, row, strict=True)) for row in folded_cells(PLANNED, rows)]
    # The third has more layers than its neighbours, though it takes as long.
    assert [row["stage"] for row in found] == ["0", "1-5", "6", "7"]
    assert [row["layers"] for row in found] == ["0-1", "2-11", "12-14", "15-16"]
    assert found[1] == {
        **found[2], "stage": "1-5", "layers": "2-11", "hosts": "p3-[5-7]", "memory": "7.50 to 9.50 GiB",
        "headroom": "6.50 to 8.50 GiB",
    }  # fmt: skip
    assert folded_cells(PLANNED, rows[:1]) == cells(PLANNED, rows[:1])
