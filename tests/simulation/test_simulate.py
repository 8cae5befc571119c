"""A simulated step: Alpa's order of tasks, the closed forms that it must meet, and what can't happen."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from alpa_dejavu.problem import Run
from alpa_dejavu.schedules import named_schedule
from alpa_dejavu.simulation.step import SENDS, StageTimes, simulate, step_seconds

SCHEDULES = ("1f1b", "1f1b_overlap_friendly", "gpipe", "inference")
TIMES = ("forward_s", "backward_s", "per_step_s", "forward_send_s", "backward_send_s")

seconds = st.floats(0.01, 10.0)
maybe = st.one_of(st.just(0.0), st.floats(0.001, 5.0))
stage = st.builds(StageTimes, seconds, seconds, maybe, maybe, maybe)
pipelines = st.lists(stage, min_size=1, max_size=5)
few = settings(max_examples=60, deadline=None)


@pytest.mark.alpa
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_order_of_tasks_is_alpas(schedule):
    from alpa.pipeline_parallel import schedules as alpa_schedules
    made = {
        "1f1b": alpa_schedules.PipeDreamFlush,
        "1f1b_overlap_friendly": alpa_schedules.OverlapFriendlyPipeDreamSchedule,
        "gpipe": alpa_schedules.GpipeSchedule,
        "inference": alpa_schedules.InferenceSchedule,
    }[schedule]
    for stages, size in itertools.product(range(1, 6), range(1, 10)):
        links = alpa_schedules.gen_linear_pipeline_dependency(2 * stages)
        table = made(dependency=links, meshes=[None] * stages, apply_grad_placement={}, num_batch=size).schedules
        cells = {(task, i): tick for tick, row in enumerate(table) for i, task in enumerate(row) if task}
        order = named_schedule(schedule, stages, size)
        ours = {}
        for row, first in zip(order.tasks, np.searchsorted(order.table.device, range(stages)), strict=True):
            for task, tick in zip(row, order.ticks[first:].tolist(), strict=False):
                cell = task.stage if task.kind == "F" else 2 * stages - 1 - task.stage
                ours[(task.micro_batch, cell), task.stage] = tick
        assert ours == cells


@pytest.mark.parametrize("schedule", SCHEDULES)
@few
@given(forward=seconds, backward=seconds, stages=st.integers(1, 6), size=st.integers(1, 12))
def test_stages_alike_without_transfers_take_the_closed_form(schedule, forward, backward, stages, size):
    cost = forward + (0 if schedule == "inference" else backward)
    step = simulate([StageTimes(forward, backward)] * stages, size, schedule).step_s
    assert step == pytest.approx(stages * cost + (size - 1) * cost, rel=1e-12)


@few
@given(
    pipeline=pipelines,
    size=st.integers(1, 9),
    schedule=st.sampled_from(SCHEDULES),
    sends=st.sampled_from(SENDS),
    shared=st.booleans(),
)
def test_no_step_is_shorter_than_what_must_happen_one_after_the_other(pipeline, size, schedule, sends, shared):
    made = simulate(pipeline, size, schedule, sends=sends, cores=1.0 if shared else None)
    train = schedule != "inference"
    costs = [item.forward_s + train * item.backward_s for item in pipeline]
    ways = [item.forward_send_s for item in pipeline[:-1]]
    back = [item.backward_send_s * train for item in pipeline[1:]]
    for j in range(len(pipeline)):
        bound = sum(costs[:j]) + size * costs[j] + sum(ways[:j]) + sum(back[:j])
        once = pipeline[0 if train else j].per_step_s
        assert made.step_s >= (bound + once) * (1 - 1e-9)
    if shared:
        assert made.step_s >= size * sum(costs) * (1 - 1e-9)


@few
@given(
    pipeline=pipelines,
    size=st.integers(1, 8),
    schedule=st.sampled_from(SCHEDULES),
    sends=st.sampled_from(SENDS),
    where=st.integers(0, 4),
    field=st.sampled_from(TIMES),
    more=st.floats(0.001, 3.0),
)
def test_no_step_gets_shorter_when_something_takes_longer(pipeline, size, schedule, sends, where, field, more):
    where %= len(pipeline)
    slower = list(pipeline)
    slower[where] = dataclasses.replace(slower[where], **{field: getattr(slower[where], field) + more})
    before = simulate(pipeline, size, schedule, sends=sends).step_s
    assert simulate(slower, size, schedule, sends=sends).step_s >= before * (1 - 1e-12)


@few
@given(pipeline=pipelines, size=st.integers(1, 12), schedule=st.sampled_from(SCHEDULES), sends=st.sampled_from(SENDS))
@example(pipeline=[StageTimes(1, 0)] * 3, size=4, schedule="1f1b", sends="blocking")
@example(pipeline=[StageTimes(0, 0)] * 3, size=4, schedule="gpipe", sends="buffered")
def test_micro_batches_in_flight(pipeline, size, schedule, sends):
    made = simulate(pipeline, size, schedule, sends=sends)
    expected = [Run(size, schedule).in_flight(len(pipeline) - 1 - i) for i in range(len(pipeline))]
    assert made.peak_in_flight.tolist() == expected


@few
@given(
    pipeline=pipelines,
    size=st.integers(1, 6),
    schedule=st.sampled_from(SCHEDULES),
    sends=st.sampled_from(SENDS),
    cores=st.one_of(st.none(), st.floats(0.5, 4)),
)
def test_a_device_does_one_thing_at_a_time_and_all_its_time_is_told(pipeline, size, schedule, sends, cores):
    made = simulate(pipeline, size, schedule, sends=sends, cores=cores)
    slack = 1e-9 * made.step_s
    for i in range(made.num_stages):
        mine = [
            event
            for event in made.events
            if (event.kind != "send" and event.stage == i) or (made.blocking and i in (event.stage, event.receiver))
        ]
        mine.sort(key=lambda event: (event.start_s, event.end_s))
        for one, other in itertools.pairwise(mine):
            assert one.end_s <= other.start_s + slack
        assert sum(event.end_s - event.start_s for event in mine) == pytest.approx(made.step_s, rel=1e-6)
        bubble = sum(event.end_s - event.start_s for event in mine if event.kind == "bubble")
        assert made.bubble_shares[i] == pytest.approx(bubble / made.step_s, abs=1e-9)


@few
@given(pipeline=pipelines, size=st.integers(1, 6), schedule=st.sampled_from(SCHEDULES), sends=st.sampled_from(SENDS))
def test_nothing_starts_before_what_it_needs(pipeline, size, schedule, sends):
    made = simulate(pipeline, size, schedule, sends=sends)
    forward, backward = made.forward_s, made.backward_s
    assert (forward[1:, :, 0] >= forward[:-1, :, 1]).all()
    if schedule != "inference":
        assert (backward[:-1, :, 0] >= backward[1:, :, 1]).all()
        assert (backward[..., 0] >= forward[..., 1]).all()
        assert (made.update_s[:, 0, 0] >= backward[:, -1, 1]).all()
    sent = ~np.isnan(made.forward_send_s[:-1, :, 0])
    assert (made.forward_send_s[:-1, :, 0] >= forward[:-1, :, 1])[sent].all()
    assert (forward[1:, :, 0] >= made.forward_send_s[:-1, :, 1])[sent].all()


@few
@given(
    pipeline=pipelines,
    more=st.integers(0, 40),
    schedule=st.sampled_from([*SCHEDULES, "zb_h1", "pipedream"]),
    sends=st.sampled_from([None, *SENDS]),
)
def test_many_micro_batches_take_as_long_as_when_all_of_them_are_simulated(pipeline, more, schedule, sends):
    size = 16 * len(pipeline) + more
    whole_s = simulate(pipeline, size, schedule, sends=sends).step_s
    assert step_seconds(pipeline, size, schedule, sends) == pytest.approx(whole_s, rel=1e-11)


def test_transfers_hold_up_both_stages_one_or_none():
    stages = [StageTimes(1.0, 2.0, forward_send_s=0.5, backward_send_s=0.5)] * 2
    steps = {sends: simulate(stages, 100, sends=sends).step_s for sends in SENDS}
    assert steps["overlapped"] <= steps["buffered"] <= steps["blocking"]
    # Two transfers are between the computations of a stage in the middle of the step.
    assert steps["blocking"] == pytest.approx(100 * 4.0, rel=0.02)
    assert simulate(stages, 100, "1f1b_overlap_friendly").step_s < simulate(stages, 100).step_s


def test_devices_that_share_cores_take_as_long_as_their_work():
    stages = [StageTimes(1.0, 2.0)] * 4
    assert simulate(stages, 64, cores=4).step_s == pytest.approx(simulate(stages, 64).step_s)
    assert simulate(stages, 64, cores=1).step_s == pytest.approx(4 * 64 * 3.0)
    # Of two cores, one is idle while the pipeline fills and drains.
    assert 4 * 64 * 3.0 / 2 < simulate(stages, 64, cores=2).step_s < 4 * 64 * 3.0 / 2 + 10
    pair = [dataclasses.replace(stages[0], devices=2)] * 4
    assert simulate(pair, 64, cores=4).step_s == pytest.approx(simulate(stages, 64, cores=2).step_s)
    # A core that copies what is sent doesn't compute: three cuts, each crossed forward and back.
    sending = [StageTimes(1.0, 2.0, forward_send_s=0.25, backward_send_s=0.5)] * 4
    assert simulate(sending, 64, sends="buffered", cores=1).step_s == pytest.approx(64 * (4 * 3.0 + 3 * 0.75))
    # So doesn't one that hands over what is sent, while a stage of two devices takes the core twice as long.
    posting = [StageTimes(1.0, 2.0, 0.0, 0.125, 0.25, forward_post_s=0.125, backward_post_s=0.25, devices=2)] * 4
    assert simulate(posting, 64, sends="buffered", cores=1).step_s == pytest.approx(64 * (4 * 6.0 + 3 * 0.75))


def test_devices_of_a_process_wait_for_each_other_and_others_use_the_cores():
    def step_s(stages, devices, **given):
        alike = [StageTimes(1.0, 2.0, devices=devices, **given)] * stages
        return simulate(alike, 64, cores=2, waiting=0.2).step_s

    # Two devices wait a fifth of the time each, in which the cores are idle; as processes of their own they don't.
    assert step_s(1, 2) == pytest.approx(64 * 3.0 / 0.8)
    assert step_s(1, 2, apart=True) == pytest.approx(64 * 3.0)
    # Of four devices on two cores at most one computes in 0.0272 of the time: none in 0.2^4, one in 4 x 0.8 x 0.2^3.
    idle = 2 * 0.2**4 + 4 * 0.8 * 0.2**3
    assert step_s(1, 4) == pytest.approx(64 * 3.0 * 4 / (2 - idle))
    # Two such stages leave as little idle while both of them compute.
    assert 64 * 2 * 3.0 < step_s(2, 2) < 64 * 2 * 3.0 / (1 - idle / 2) + 8


def test_bad_numbers_are_named():
    with pytest.raises(ValueError, match="no stages"):
        simulate([], 2)
    with pytest.raises(ValueError, match="schedule is 'zigzag'"):
        simulate([StageTimes(1, 1)], 2, "zigzag")
    with pytest.raises(ValueError, match="num_micro_batches is 0"):
        simulate([StageTimes(1, 1)], 0)
    with pytest.raises(ValueError, match="sends is 'pigeon'"):
        simulate([StageTimes(1, 1)], 2, sends="pigeon")
    with pytest.raises(ValueError, match="cores is 0"):
        simulate([StageTimes(1, 1)], 2, cores=0)
    with pytest.raises(ValueError, match="forward_s is -1"):
        StageTimes(-1, 1)
    with pytest.raises(ValueError, match="forward_collective_s is 2, but it is a part of forward_s, 1"):
        StageTimes(1, 1, forward_collective_s=2)
    with pytest.raises(ValueError, match="memory_limit_bytes is 0"):
        StageTimes(1, 1, memory_limit_bytes=0)


def alone(item: StageTimes) -> StageTimes:
    return StageTimes(item.forward_s, item.backward_s)


@few
@given(pipeline=pipelines, size=st.integers(1, 9))
def test_inference_without_transfers_takes_the_closed_form_for_uneven_stages_too(pipeline, size):
    times = [item.forward_s for item in pipeline]
    step = simulate([alone(item) for item in pipeline], size, "inference").step_s
    assert step == pytest.approx(sum(times) + (size - 1) * max(times), rel=1e-12)


def test_of_a_million_micro_batches_few_are_simulated():
    assert step_seconds([StageTimes(1.0, 2.0)] * 16, 10**6) == pytest.approx(3.0 * (10**6 + 15))


def test_gradients_are_synchronised_inside_the_last_backward():
    stages = [StageTimes(1.0, 2.0, per_step_s=3.0, synchronisation_s=1.0)] * 3
    made = simulate(stages, 4)
    assert made.step_s == pytest.approx(6 * 3.0 + 3 * 1.0 + 2.0)
    last = [event for event in made.events if event.stage == 1 and event.micro_batch == 3]
    assert [event.kind for event in last] == ["forward", "backward", "collective"]
    assert last[-1].end_s - last[-1].start_s == pytest.approx(1.0)


def test_collectives_are_a_part_of_their_computation():
    made = simulate([StageTimes(2.0, 4.0, forward_collective_s=0.5, backward_collective_s=1.0)], 3)
    kinds = {}
    for event in made.events:
        kinds[event.kind] = kinds.get(event.kind, 0.0) + event.end_s - event.start_s
    assert kinds == pytest.approx({"forward": 4.5, "backward": 9.0, "collective": 4.5})
    assert made.busy_shares.tolist() == [1.0]


def test_memory_over_time():
    stages = [StageTimes(1.0, 2.0, activation_bytes=10.0, resident_bytes=100.0, temporary_bytes=1.0)] * 3
    made = simulate(stages, 8)
    times, held = made.memory_over_time(0)
    assert (np.diff(times) > 0).all()
    assert held.max() == 100 + 3 * 10 + 1
    assert held[0] == 111
    assert held[-1] == 100
    assert simulate(stages, 8, "inference").memory_over_time(0)[1].max() == 101
