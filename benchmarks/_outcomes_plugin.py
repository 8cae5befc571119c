"""A pytest plugin: writes what happens to each test as it happens, and ends a test that takes too long.

A file that is ended by force leaves no report of pytest's own; these lines are there up to its last finished test.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

RECORD = "ALPA_TESTS_RECORD"
LIMIT_S = "ALPA_TESTS_LIMIT_S"


def _write(**line: Any) -> None:
    with open(os.environ[RECORD], "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Names the tests that will run."""
    _write(collected=[item.nodeid for item in session.items])


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Says why a file can't be collected."""
    if report.failed:
        _write(uncollected=str(report.longrepr))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Ends a test after its limit."""
    limit_s = int(os.environ[LIMIT_S])

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"{item.nodeid} took longer than {limit_s} seconds")

    previous = signal.signal(signal.SIGALRM, stop)
    signal.alarm(limit_s)
    try:
        return (yield)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Writes the outcome of a test's call, and of its set-up and tear-down where these decide."""
    if report.when != "call" and report.outcome == "passed":
        return
    _write(test=report.nodeid, when=report.when, outcome=report.outcome, cause=_cause(report))


def _cause(report: pytest.TestReport) -> str:
    if report.outcome == "skipped" and isinstance(report.longrepr, tuple):
        return str(report.longrepr[2])
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message) if crash is not None else str(report.longrepr or "")
