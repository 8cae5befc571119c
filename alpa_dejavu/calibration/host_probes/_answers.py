"""Answers of a process that measures."""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any

from alpa_dejavu._util import units
from alpa_dejavu.calibration.bench import MeasurementError

__all__ = ["received"]

_PATIENCE_S = 40.0
"""The process may have to import JAX and to fill its arrays first."""


def received(connection: Connection) -> Any:
    """Returns the next answer of a process that measures.

    Raises:
        MeasurementError: it takes too long.
        EOFError: the process has ended.
    """
    if not connection.poll(_PATIENCE_S):
        raise MeasurementError(f"the process that measures gave no answer in {units.seconds(_PATIENCE_S)}")
    return connection.recv()
