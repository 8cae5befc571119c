"""Profilers' traces of training steps come in; each rank's step, told apart by kinds of work, goes out."""

from alpa_dejavu.calibration.traces.measured_step import (
    Exchange,
    KindTime,
    MeasuredStep,
    Operator,
    measured_steps,
    median_step,
    waiting_s,
)
from alpa_dejavu.calibration.traces.step_log import StepLog, is_log, read_log
from alpa_dejavu.calibration.traces.trace_file import Trace, TraceEvent, read_trace

__all__ = [
    "Exchange",
    "KindTime",
    "MeasuredStep",
    "Operator",
    "StepLog",
    "Trace",
    "TraceEvent",
    "is_log",
    "measured_steps",
    "median_step",
    "read_log",
    "read_trace",
    "waiting_s",
]
