"""A timeline in the trace-event format, which Perfetto and Chrome's tracing page open."""

from __future__ import annotations

from typing import Any

from alpa_dejavu.problem import Plan
from alpa_dejavu.simulate import Timeline

__all__ = ["trace_events"]


def trace_events(timeline: Timeline, plan: Plan) -> dict[str, Any]:
    """The trace of a plan's step."""
    return {"traceEvents": [], "displayTimeUnit": "ms"}
