"""The trace: what the format asks of each event, and that it tells what the timeline does."""

import json

import pytest

from alpa_dejavu.report.trace_events import trace_events
from alpa_dejavu.simulation.step import StageTimes, simulate
from timelines import small_plan

NUMBER = (int, float)
NEEDED = {
    "X": {"name": str, "cat": str, "pid": int, "tid": int, "ts": NUMBER, "dur": NUMBER, "args": dict},
    "M": {"name": str, "pid": int, "args": dict},
    "C": {"name": str, "pid": int, "ts": NUMBER, "args": dict},
}


@pytest.mark.parametrize("schedule", ["1f1b", "1f1b_overlap_friendly", "gpipe", "inference"])
def test_each_event_is_one_of_the_format(schedule):
    plan, timeline = small_plan(schedule)
    trace = json.loads(json.dumps(trace_events(timeline, plan), allow_nan=False))
    for event in trace["traceEvents"]:
        needed = NEEDED[event["ph"]]
        assert all(isinstance(event[key], kind) for key, kind in needed.items())
        assert event.get("ts", 0) >= 0
        assert event.get("dur", 0) >= 0
        if event["ph"] == "C":
            assert all(isinstance(value, NUMBER) for value in event["args"].values())


def test_hosts_are_processes_and_stages_are_threads():
    plan, timeline = small_plan()
    events = trace_events(timeline, plan)["traceEvents"]
    hosts = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert sorted(hosts.values()) == ["alpha", "beta", "gamma"]
    threads = {(hosts[e["pid"]], e["args"]["name"]) for e in events if e["name"] == "thread_name"}
    assert ("alpha", "stage 1 (devices 2-3, layers 2)") in threads
    assert ("gamma", "stage 2 (devices 0-1, layers 3-5)") in threads
    used = {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"}
    assert used <= {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}


def test_the_trace_lasts_as_long_as_the_step_in_microseconds():
    plan, timeline = small_plan()
    trace = trace_events(timeline, plan)
    ends = [e["ts"] + e["dur"] for e in trace["traceEvents"] if e["ph"] == "X"]
    assert max(ends) == pytest.approx(timeline.step_s * 1e6)
    assert trace["otherData"]["step_s"] == timeline.step_s
    forwards = [e for e in trace["traceEvents"] if e["name"] == "forward" and e["pid"] == 1]
    assert sorted(e["args"]["micro_batch"] for e in forwards) == list(range(8))
    counters = [e["args"]["bytes"] for e in trace["traceEvents"] if e["ph"] == "C"]
    assert max(counters) == pytest.approx(6e9 + 3e9 + 1e8)


def test_a_timeline_of_another_plan_is_refused():
    plan, _ = small_plan()
    with pytest.raises(ValueError, match="2 stages and the plan 3"):
        trace_events(simulate([StageTimes(1, 1)] * 2, 2), plan)
