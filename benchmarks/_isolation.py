"""Running commands so that nothing of them is left, Ray clusters included, whose processes leave their parents."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from real_hosts._leftovers import end_children

_RAY_START_LIMIT_S = 120


@contextlib.contextmanager
def ray_head(devices: int, environment: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """A Ray cluster of one node in a directory of its own; yields the environment in which "auto" finds it.

    Raises:
        RuntimeError: Ray didn't start; with what it said.
    """
    directory = tempfile.mkdtemp(prefix="alpa_tests_", dir="/tmp")
    inside = {**environment, "RAY_TMPDIR": directory}
    inside.pop("RAY_ADDRESS", None)
    start = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", f"--num-gpus={devices}"]
    start += [f"--num-cpus={4 * devices}", "--port=0", "--include-dashboard=false", "--disable-usage-stats"]
    try:
        Path(directory, "ray").mkdir()
        code, said = run_limited(start, inside, Path(directory), _RAY_START_LIMIT_S)
        if code != 0:
            raise RuntimeError(f"Ray didn't start (exit status {code}): {said[-2000:]}")
        yield inside
    finally:
        end_children()
        shutil.rmtree(directory, ignore_errors=True)


def run_limited(
    command: Sequence[str], environment: Mapping[str, str], directory: Path, limit_s: float
) -> tuple[int | None, str]:
    """Runs a command in a process group of its own; its exit status, None after the limit, and what it said."""
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            command,
            env=dict(environment),
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        # Polled, because waiting for it by its own means would miss a child that `end_children` has reaped.
        deadline = time.monotonic() + limit_s
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        code = process.poll()
        if code is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        said.seek(0)
        return code, said.read().decode(errors="replace")
