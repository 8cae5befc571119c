"""A timeline in the trace-event format, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

A process is a host, a thread is a stage's devices on it (those of several stages where they share them); transfers have
a thread of their own, because they may go on while it computes. Bubbles are the gaps. The memory of each stage's
devices is a counter of its first host.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from alpa_dejavu.plans.stage_rows import layers_text
from alpa_dejavu.problem import Plan
from alpa_dejavu.simulation.step import Timeline

_US_PER_S = 1e6


def trace_events(timeline: Timeline, plan: Plan) -> dict[str, Any]:
    """Returns a simulated step as JSON data in the Trace Event Format, times in microseconds from the step's start.

    Raises ValueError if timeline and plan differ in their number of stages.

    References:
        Duca and Sinclair, Trace Event Format, Google, 2016: complete ("X"), metadata ("M") and counter ("C") events.
    """
    if timeline.num_stages != len(plan.stages):
        raise ValueError(
            f"the timeline has {timeline.num_stages} stages and the plan {len(plan.stages)}: simulate these stages"
        )
    hosts = list(dict.fromkeys(host for stage in plan.stages for host in stage.hosts))
    events = [_name("process", pid, None, host) for pid, host in enumerate(hosts)]
    threads = dict.fromkeys(hosts, 0)
    shared = _shared_events(timeline)
    for number, (stage, name) in enumerate(zip(plan.on_submeshes, lane_names(timeline), strict=True)):
        layers = ", ".join(layers_text(plan.stages[n]) for n in timeline.schedule.stages_on[number])
        for host in stage.hosts:
            first, threads[host] = threads[host], threads[host] + stage.submesh.devices_per_host
            devices = f"device {first}" if threads[host] == first + 1 else f"devices {first}-{threads[host] - 1}"
            pid = hosts.index(host)
            events.append(_name("thread", pid, 2 * number, f"{name} ({devices}, layers {layers})"))
            events.append(_name("thread", pid, 2 * number + 1, f"{name} sends"))
            events.extend({**event, "pid": pid} for event in shared[number])
        events.extend(_memory(timeline, number, name, hosts.index(stage.hosts[0])))
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "cluster": plan.cluster,
            "schedule": timeline.schedule.name,
            "num_micro_batches": timeline.num_micro_batches,
            "step_s": timeline.step_s,
        },
    }


def _name(what: str, pid: int, tid: int | None, name: str) -> dict[str, Any]:
    place = {"pid": pid} if tid is None else {"pid": pid, "tid": tid}
    return {"ph": "M", "name": f"{what}_name", **place, "args": {"name": name}}


def _shared_events(timeline: Timeline) -> list[list[dict[str, Any]]]:
    """Returns for each submesh its stages' events, without the host."""
    device_of = timeline.schedule.device_of
    events: list[list[dict[str, Any]]] = [[] for _ in timeline.schedule.stages_on]
    for event in timeline.events:
        if event.kind == "bubble":
            continue
        args: dict[str, Any] = {} if event.micro_batch < 0 else {"micro_batch": event.micro_batch}
        args |= {} if event.receiver is None else {"to_stage": event.receiver}
        submesh, start = device_of[event.stage], event.start_s * _US_PER_S
        events[submesh].append({
            "ph": "X", "name": event.kind, "cat": event.kind, "tid": 2 * submesh + (event.kind == "send"), "ts": start,
            "dur": (event.end_s - event.start_s) * _US_PER_S, "args": args,
        })  # fmt: skip
    return events


def _memory(timeline: Timeline, submesh: int, name: str, pid: int) -> list[dict[str, Any]]:
    """A counter of bytes, where it changes; none if nothing is known of the stages' memory."""
    times, num_bytes = timeline.memory_over_time(submesh)
    changes = np.flatnonzero(np.diff(num_bytes, prepend=np.nan) != 0)
    if not num_bytes.any():
        return []
    counter = {"ph": "C", "name": f"{name} memory of each device", "pid": pid}
    return [
        {**counter, "ts": time * _US_PER_S, "args": {"bytes": size}}
        for time, size in zip(times[changes].tolist(), num_bytes[changes].tolist(), strict=True)
    ]


def lane_names(timeline: Timeline) -> list[str]:
    """Returns the name of each lane: of the stage, or of the stages, on a submesh."""
    numbers = [", ".join(map(str, stages)) for stages in timeline.schedule.stages_on]
    return [f"{'stages' if ',' in text else 'stage'} {text}" for text in numbers]
