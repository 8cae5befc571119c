"""Schedules as data: complete, without deadlock, as published in bubbles and activations, and simulated as by hand."""

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpa_dejavu.problem.run import Run, schedule_form
from alpa_dejavu.schedules import SCHEDULES, Schedule, Task, named_schedule, read_schedule, write_schedule
from alpa_dejavu.simulation import StageTimes, simulate
from alpa_dejavu.testing import check_schedule

DEVICES = (2, 3, 4, 5, 6, 8, 9, 12, 16)
few = settings(max_examples=60, deadline=None)


def on_devices(name, devices, size, chunks=None):
    name = f"interleaved_{chunks}" if name == "interleaved" and chunks else name
    each = schedule_form(name).chunks
    return named_schedule(name, devices * each, size)


def uniform(schedule, forward=1.0, by_input=1.0, by_weight=1.0):
    """The timeline of stages alike, whose passes take so long on a device for all its chunks together."""
    each = schedule.chunks
    stage = StageTimes(forward / each, (by_input + by_weight) / each, backward_weight_s=by_weight / each)
    return simulate([stage] * schedule.num_stages, schedule.num_micro_batches, schedule)


def bubble(schedule, forward=1.0, by_input=1.0, by_weight=1.0):
    work = schedule.num_micro_batches * (forward + (by_input + by_weight) * schedule.trains)
    return uniform(schedule, forward, by_input, by_weight).step_s - work


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("devices", [1, 2, 3, 4, 7])
def test_all_named_schedules_conform(name, devices):
    check_schedule(lambda size: on_devices(name, devices, size), [4 * devices, 2 * devices, 2 * devices * 3])
    if name not in ("interleaved", "dualpipe_v"):
        check_schedule(lambda size: on_devices(name, devices, size), [1, 2, 3, 5])


@pytest.mark.parametrize("devices", DEVICES)
@pytest.mark.parametrize(("forward", "by_input", "by_weight"), [(1, 1, 1), (1, 1.25, 0.75), (2, 1.5, 0.5)])
def test_bubbles_and_activations_are_the_published_ones(devices, forward, by_input, by_weight):
    seconds = forward, by_input, by_weight
    backward = by_input + by_weight
    for size in (devices, 2 * devices, 4 * devices):
        whole = pytest.approx((devices - 1) * (forward + backward), abs=1e-9)
        for name, kept in (("gpipe", size), ("1f1b", devices)):
            schedule = on_devices(name, devices, size)
            assert bubble(schedule, *seconds) == whole
            assert schedule.peak_in_flight.max() == min(kept, size)
        for chunks in (2, 3, 4):
            schedule = on_devices("interleaved", devices, size, chunks)
            expected = (devices - 1) * (forward + backward) / chunks
            assert bubble(schedule, *seconds) == pytest.approx(expected, abs=1e-9)
            # Of a whole device's activations: p + (p - 1) / v.
            assert schedule.peak_chunks.max() == min(devices * chunks + devices - 1, size * chunks)
        schedule = on_devices("zb_h1", devices, size)
        expected = (devices - 1) * (forward + backward - 2 * by_weight)
        assert bubble(schedule, *seconds) == pytest.approx(expected, abs=1e-9)
        assert schedule.peak_in_flight.max() == devices


@pytest.mark.parametrize("devices", DEVICES)
def test_zb_v_has_no_bubble(devices):
    for size in (2 * devices, 2 * devices + 1, 4 * devices):
        schedule = on_devices("zb_v", devices, size)
        made = uniform(schedule)
        for stages in schedule.stages_on:
            spans = np.concatenate([made.forward_s, made.backward_s, made.weight_s], axis=1)[list(stages)]
            assert spans[..., 1].max() - spans[..., 0].min() == pytest.approx(3 * size)
        assert schedule.peak_chunks.max() == 2 * devices


seconds = st.floats(0.1, 5.0)
stage = st.builds(
    lambda forward, by_input, by_weight, ahead, back: StageTimes(
        forward, by_input + by_weight, backward_weight_s=by_weight, forward_send_s=ahead, backward_send_s=back
    ),
    seconds, seconds, seconds, st.one_of(st.just(0.0), seconds), st.one_of(st.just(0.0), seconds),
)  # fmt: skip


@few
@given(data=st.data(), name=st.sampled_from(list(SCHEDULES)), devices=st.integers(1, 4))
def test_a_step_is_the_longest_way_through_its_tasks(data, name, devices):
    size = 2 * devices * data.draw(st.integers(1, 2))
    schedule = on_devices(name, devices, size)
    stages = data.draw(st.lists(stage, min_size=schedule.num_stages, max_size=schedule.num_stages))
    made = simulate(stages, size, schedule, sends="overlapped")
    assert made.step_s == pytest.approx(_by_hand(schedule, stages))
    for sends in ("blocking", "buffered"):
        assert simulate(stages, size, schedule, sends=sends).step_s >= made.step_s * (1 - 1e-9)


def _by_hand(schedule, stages):
    """The step by recursion: a task begins after the one before it on its device, and once what it needs has come."""
    before = {task: row[n - 1] if n else None for row in schedule.tasks for n, task in enumerate(row)}
    kinds = {(t.stage, t.micro_batch): t.kind for row in schedule.tasks for t in row if t.kind in "BI"}
    device = schedule.device_of

    def takes(task):
        of = stages[task.stage]
        by_weight = of.backward_weight_s
        return {"F": of.forward_s, "B": of.backward_s, "I": of.backward_s - by_weight, "W": by_weight}[task.kind]

    @functools.cache
    def end(task):
        after = [end(before[task])] if before[task] else []
        s, b = task.stage, task.micro_batch
        if task.kind == "W":
            after.append(end(Task("I", s, b)))
        elif task.kind == "F":
            after += [arrival("F", s - 1, s, b)] if s else []
        else:
            after += [arrival(kinds[s + 1, b], s + 1, s, b)] if s + 1 < len(stages) else []
            after.append(end(Task("F", s, b)))
        return max(after, default=0.0) + takes(task)

    @functools.cache
    def order(kind, source):
        """In which order the micro-batches go over a link: as their receivers want them."""
        way = 1 if kind == "F" else -1
        row = schedule.tasks[device[source + way]]
        return [
            t.micro_batch
            for t in row
            if t.stage == source + way and (t.kind == "F") == (kind == "F") != "W" and t.kind != "W"
        ]

    @functools.cache
    def arrival(kind, source, target, batch):
        made = end(Task(kind, source, batch))
        of = stages[source]
        takes_s = of.forward_send_s if kind == "F" else of.backward_send_s
        if device[source] == device[target] or takes_s == 0:
            return made
        row = order(kind, source)
        place = row.index(batch)
        free = 0.0
        if place:
            free = arrival(kinds[source, row[place - 1]] if kind != "F" else "F", source, target, row[place - 1])
        return max(made, free) + takes_s

    return max(end(row[-1]) for row in schedule.tasks)


def test_a_file_gives_back_what_was_written(tmp_path):
    for name in SCHEDULES:
        schedule = on_devices(name, 3, 6)
        write_schedule(tmp_path / "own.csv", schedule)
        again = read_schedule(tmp_path / "own.csv", schedule.updates_each)
        assert (again.name, again.tasks, again.updates_each) == ("own", schedule.tasks, schedule.updates_each)
    (tmp_path / "by hand.csv").write_text("0F0,,0F1,0B0,0B1\n1F0, 1B0,1F1,1I1,1W1\n\n")
    read = read_schedule(tmp_path / "by hand.csv")
    assert (read.num_devices, read.num_micro_batches, read.splits) == (2, 2, True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "there are no devices; give each device at least one stage"),
        ("0F0,0B0\n\n1F0,1B0", "device 1 has no tasks"),
        ("0F0,1F0,1B0\n", "0B0 is missing; each stage needs a backward of each micro-batch"),
        ("0F0,0B0,0B0\n", "0B0 is there twice, on device 0; take one out"),
        ("0F0,0B0\n0F1,0B1\n", "stage 0 is on devices 0 and 1, but must be on one"),
        ("0F0,4000F60000\n", "stage 1 is on no device"),
        ("0F0,0B0\n2F0,2B0\n", "stage 1 is on no device"),
        ("0F0,0I0\n", "0W0 is missing; a split backward has both parts"),
        ("0F0,0B0,0W0\n", "0B0 is there beside 0W0"),
        ("0F0,0F1,0B0,0B1\n1F1,1B1,1F0,1B0\n", None),
        ("0F0,0B1,0F1,0B0\n", "0B1 on device 0 waits for 0F1"),
        ("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n", "0B0 on device 0 waits for 1B0, and 1F1 on device 1 waits for 0F1"),
        ("0F0,zigzag\n", "line 1: task is 'zigzag', but must be a stage, one of F, B, I, W"),
        ("0F0,0SEND_F0\n", "task is '0SEND_F0'"),
        ("0F9999999\n", "task is '0F9999999'"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_named(tmp_path, text, said):
    path = tmp_path / "own.csv"
    path.write_text(text)
    if said is None:
        assert read_schedule(path).num_stages == 2
        return
    with pytest.raises(ValueError, match=r"own\.csv") as error:
        read_schedule(path)
    assert said in str(error.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere\.csv can't be read"):
        read_schedule(tmp_path / "nowhere.csv")


def test_numbers_that_a_schedule_can_not_have_are_named():
    with pytest.raises(ValueError, match="schedule is 'zigzag', but must be one of '1f1b'"):
        named_schedule("zigzag", 2, 4)
    with pytest.raises(ValueError, match="multiple of the 4 devices in the interleaved schedule; take 4 or 8"):
        on_devices("interleaved", 4, 6)
    with pytest.raises(ValueError, match="num_stages is 5, but must be a multiple of 2, the chunks of each device"):
        named_schedule("zb_v", 5, 8)
    with pytest.raises(ValueError, match="schedule is 'interleaved_1', but must be one of"):
        named_schedule("interleaved_1", 4, 8)
    with pytest.raises(ValueError, match="must be at least 8 in dualpipe_v on 4 devices"):
        on_devices("dualpipe_v", 4, 7)
    with pytest.raises(ValueError, match="has 2 stages and 4 micro-batches, but 3 and 4 are given"):
        simulate([StageTimes(1, 1)] * 3, 4, named_schedule("1f1b", 2, 4))


def test_the_conformance_suite_finds_what_is_wrong():
    def more_each_time(size):
        return named_schedule("gpipe", 2, size + 1)

    with pytest.raises(AssertionError, match="5 micro-batches were asked for"):
        check_schedule(more_each_time, [5])
    with pytest.raises(AssertionError, match="no Schedule"):
        check_schedule(lambda size: named_schedule("gpipe", 2, size).tasks, [5])
    with pytest.raises(ValueError, match="waits for"):
        check_schedule(lambda size: Schedule("own", (("0B0", "0F0"),)), [1])


NAMES = [*SCHEDULES, "interleaved_3", "interleaved_4"]


@given(name=st.sampled_from(NAMES), devices=st.integers(2, 8), each=st.integers(2, 4))
def test_a_form_says_what_its_schedule_has(name, devices, each):
    """The layout that plans go by is the generator's; so is what the first submesh keeps, at most a chunk off."""
    form = schedule_form(name)
    made = named_schedule(name, devices * form.chunks, each * devices)
    assert made.device_of == form.submesh_of(devices * form.chunks)
    assert made.chunks == form.chunks
    assert made.splits == form.splits
    if made.trains:
        kept = Run(each * devices, name).in_flight(devices - 1)
        assert kept - 1 <= made.peak_chunks[0] / form.chunks <= kept + 1


@pytest.mark.parametrize("devices", DEVICES)
@pytest.mark.parametrize(("name", "share", "kept"), [("v_half", 1 / 2, (2, 2)), ("v_min", 2 / 3, (4, 3))])
def test_v_schedules_keep_less_for_a_smaller_bubble_than_1f1bs(devices, name, share, kept):
    schedule = on_devices(name, devices, 4 * devices)
    assert schedule.peak_chunks.max() <= 2 * ((devices + kept[0]) // kept[1])
    assert bubble(schedule) <= 1.05 * share * bubble(on_devices("1f1b", devices, 4 * devices))


def test_pipedream_updates_after_each_micro_batch():
    schedule = on_devices("pipedream", 3, 6)
    made = simulate([StageTimes(1.0, 2.0, per_step_s=0.5, synchronisation_s=0.25)] * 3, 6, schedule)
    assert made.update_s.shape == (3, 6, 2)
    assert (made.update_s[..., 0] >= made.backward_s[..., 1]).all()
    assert made.backward_s[..., 1] - made.backward_s[..., 0] == pytest.approx(2.25)
    # In the middle of a stream a micro-batch takes what its slowest stage takes.
    later = simulate([StageTimes(1.0, 2.0, per_step_s=0.5)] * 3, 12, "pipedream").step_s
    assert later - simulate([StageTimes(1.0, 2.0, per_step_s=0.5)] * 3, 6, "pipedream").step_s == pytest.approx(6 * 3.5)


@few
@given(data=st.data(), name=st.sampled_from([n for n in SCHEDULES if n != "inference"]), devices=st.integers(1, 4))
def test_memory_over_time_is_what_the_order_keeps(data, name, devices):
    size = 2 * devices * data.draw(st.integers(1, 2))
    schedule = on_devices(name, devices, size)
    times = data.draw(st.lists(stage, min_size=schedule.num_stages, max_size=schedule.num_stages))
    stages = [StageTimes(one.forward_s, one.backward_s, backward_weight_s=one.backward_weight_s, activation_bytes=1.0)
              for one in times]  # fmt: skip
    made = simulate(stages, size, schedule)
    assert [made.memory_over_time(d)[1].max() for d in range(devices)] == schedule.peak_chunks.tolist()
    assert made.busy_shares + made.bubble_shares == pytest.approx(np.ones(devices))
