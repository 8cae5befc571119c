"""Profilers' traces of training steps come in; each rank's step, told apart by kinds of work, goes out."""

from alpa_dejavu.calibration.traces.measured_step import (
    KindTime,
    MeasuredStep,
    TracedExchange,
    TracedOperator,
    measured_steps,
    median_step,
    waiting_s,
)
from alpa_dejavu.calibration.traces.step_log import StepLog, is_log, read_log
from alpa_dejavu.calibration.traces.trace_file import StepTrace, TraceEvent, read_trace

__all__ = [
    "KindTime",
    "MeasuredStep",
    "StepLog",
    "StepTrace",
    "TraceEvent",
    "TracedExchange",
    "TracedOperator",
    "is_log",
    "measured_steps",
    "median_step",
    "read_log",
    "read_trace",
    "waiting_s",
]
