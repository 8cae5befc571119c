"""Improved schedules: never worse, in memory, over their bound, and as good as all orders tried by hand."""

import functools
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpa_dejavu.schedules import Schedule, Task, named_schedule
from alpa_dejavu.simulation import StageTimes, improved_schedule, simulate, step_seconds

seconds = st.floats(0.2, 4.0)
send = st.one_of(st.just(0.0), st.floats(0.01, 1.0))


def unlike(count, rng, **more):
    return [
        StageTimes(f, i + w, backward_weight_s=w, forward_send_s=a, backward_send_s=b, **more)
        for f, i, w, a, b in rng.uniform(0.3, 1.7, (count, 5)) * [1, 1, 1, 0.3, 0.3]
    ]


@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(st.tuples(seconds, seconds, seconds, send, send), min_size=2, max_size=5),
    size=st.integers(1, 6),
    sends=st.sampled_from(["overlapped", "buffered", "blocking"]),
)
def test_it_is_never_worse_and_its_step_is_the_simulated_one(rows, size, sends):
    stages = [
        StageTimes(f, i + w, backward_weight_s=w, forward_send_s=a, backward_send_s=b, per_step_s=0.5)
        for f, i, w, a, b in rows
    ]
    begin = [named_schedule(name, len(stages), size) for name in ("1f1b", "zb_h1", "gpipe")]
    found = improved_schedule(stages, begin, sends=sends, most_tries=300)
    assert found.begun_s == min(step_seconds(stages, size, one, sends) for one in begin)
    assert found.step_s <= found.begun_s
    assert found.step_s == pytest.approx(simulate(stages, size, found.schedule, sends=sends).step_s, rel=1e-12)
    assert found.floor_s <= found.step_s


@pytest.mark.parametrize(("count", "size"), [(2, 3), (3, 2)])
def test_no_order_of_a_small_pipeline_is_shorter(count, size):
    """Against all orders, 42 for each of two stages or 5 for each of three, with backward passes split, in which each
    kind's micro-batches come in their order.
    """
    rng = np.random.default_rng(5)
    orders = [list(_orders(stage, size)) for stage in range(count)]
    for _ in range(3):
        stages = unlike(count, rng)
        least = min(_by_hand(rows, stages) for rows in itertools.product(*orders))
        found = improved_schedule(stages, [named_schedule("1f1b", count, size)])
        assert found.step_s == pytest.approx(least)
        assert found.floor_s <= least * (1 + 1e-12)


def _orders(stage, size):
    def grown(counts, row):
        if len(row) == 3 * size:
            yield tuple(row)
        for n, kind in enumerate("FIW"):
            if counts[n] < (counts[n - 1] if n else size):
                more = (*counts[:n], counts[n] + 1, *counts[n + 1 :])
                yield from grown(more, [*row, Task(kind, stage, counts[n])])

    return grown((0, 0, 0), [])


def _by_hand(rows, stages):
    """The step by recursion; infinite where tasks wait for each other."""
    before = {task: row[n - 1] if n else None for row in rows for n, task in enumerate(row)}
    under_way = set()

    @functools.cache
    def end(task):
        if task in under_way:
            return np.inf
        under_way.add(task)
        kind, s, b = task
        of = stages[s]
        after = [end(before[task])] if before[task] else [0.0]
        if kind == "F" and s:
            after.append(sent("F", s - 1, b))
        if kind == "I" and s + 1 < len(stages):
            after.append(sent("I", s + 1, b))
        takes = {"F": of.forward_s, "I": of.backward_s - of.backward_weight_s, "W": of.backward_weight_s}
        return max(after) + takes[kind]

    @functools.cache
    def sent(kind, source, b):
        takes = stages[source].forward_send_s if kind == "F" else stages[source].backward_send_s
        return max(end(Task(kind, source, b)), sent(kind, source, b - 1) if b else 0.0) + takes

    return max(end(row[-1]) for row in rows)


def test_it_keeps_to_the_memory():
    rng = np.random.default_rng(1)
    for most in (2, 3, 4):
        stages = unlike(4, rng, activation_bytes=1.0, resident_bytes=10.0, temporary_bytes=1.0,
                        memory_limit_bytes=11.5 + most)  # fmt: skip
        begin = [named_schedule(name, 4, 8) for name in ("v_min", "v_half", "zb_v")]
        if most < 4:
            with pytest.raises(ValueError, match="no schedule that is given fits into the memory of its devices"):
                improved_schedule(stages, begin)
            continue
        roomy = [StageTimes(s.forward_s, s.backward_s, backward_weight_s=s.backward_weight_s, activation_bytes=1.0,
                            memory_limit_bytes=4.0) for s in stages]  # fmt: skip
        found = improved_schedule(roomy, begin)
        assert found.schedule.peak_chunks.max() <= 4
        assert found.step_s <= found.begun_s


def test_unlike_stages_gain_and_stages_alike_are_left():
    rng = np.random.default_rng(2)
    begin = [named_schedule(name, 4, 8) for name in ("1f1b", "zb_h1")]
    each = [improved_schedule(unlike(4, rng), begin) for _ in range(8)]
    gaining = [found for found in each if found.step_s < 0.99 * found.begun_s]
    assert gaining
    assert all(found.schedule.name == "improved" for found in gaining)
    assert all(found.schedule in begin for found in each if found.step_s == found.begun_s)
    alike = [StageTimes(1.0, 2.0, backward_weight_s=1.0)] * 3
    kept = improved_schedule(alike, [named_schedule("zb_h1", 3, 12), named_schedule("gpipe", 3, 12)])
    assert kept.step_s == pytest.approx(12 * 3 + 2)
    assert kept.floor_s == pytest.approx(12 * 3 + 2)


def test_what_cannot_be_improved_is_named():
    stages = [StageTimes(1.0, 2.0)] * 2
    with pytest.raises(ValueError, match="there are no schedules to begin with"):
        improved_schedule(stages, [])
    with pytest.raises(ValueError, match="1f1b and zb_v have other stages on their devices"):
        improved_schedule(stages, [named_schedule("1f1b", 2, 4), named_schedule("zb_v", 2, 4)])
    with pytest.raises(ValueError, match="schedule inference only infers"):
        improved_schedule(stages, [named_schedule("inference", 2, 4)])
    with pytest.raises(ValueError, match="schedule pipedream only infers, or updates"):
        improved_schedule(stages, [named_schedule("pipedream", 2, 4)])
    with pytest.raises(ValueError, match="sends is 'pigeon'"):
        improved_schedule(stages, [Schedule("own", (("0F0", "0B0"), ("1F0", "1B0")))], sends="pigeon")
