"""Runs Alpa's own tests file by file and writes patches/CONFORMANCE.md.

    python benchmarks/run_alpa_tests.py TESTS_DIR [--json FILE] [--time-limit SECONDS] [--only PATTERN]

Each file runs by plain pytest in a process of its own, beside a Ray cluster of its own that is started before it and
gone after it. What can't be collected, runs out of time or is skipped isn't passed. Serving, TPU and torch are out.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fnmatch
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

from tqdm import tqdm

from _conformance import FileResult, count, page, tables
from alpa_dejavu._util.units import seconds
from harness import Results, at_least, options
from real_hosts._leftovers import adopt_orphans, end_children

HERE = Path(__file__).resolve().parent
LEFT_OUT = ("serve", "tpu", "torch")
OVERHEAD_S = 30.0


def main(given: Sequence[str] | None = None) -> int:
    """Runs the files; exit status 0 whatever they did, since the table says it."""
    arguments = _arguments(given)
    tests = arguments.tests.resolve()
    files = [path for path in _files(tests) if fnmatch.fnmatch(path, arguments.only)]
    if not files:
        print(f"error: no test files match {arguments.only!r} in {tests}", file=sys.stderr)
        return 2
    adopt_orphans()
    signal.signal(signal.SIGTERM, _terminated)
    started = time.monotonic()
    results: list[FileResult] = []
    try:
        with tqdm(files, unit="file") as progress:
            for path in progress:
                progress.set_postfix_str(path)
                left_s = arguments.total_limit - (time.monotonic() - started)
                results.append(_run(tests, path, arguments, min(arguments.time_limit, left_s)))
                tqdm.write(_line(results[-1]))
    finally:
        end_children()
    heading = _heading(time.monotonic() - started, arguments.devices)
    rows = [dataclasses.asdict(result) for result in results]
    folders, each = tables(results)
    if arguments.only == "*":
        old = arguments.output.read_text(encoding="utf-8") if arguments.output.exists() else ""
        arguments.output.write_text(page(heading, folders, each, old), encoding="utf-8")
    return Results(arguments.json, heading=heading, files=rows).shown(heading, folders)


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = options(__doc__)
    parser.add_argument("tests", type=Path, help="the folder tests/ of Alpa 0.2.3")
    parser.add_argument("--time-limit", type=float, default=600.0, help="seconds for a file (default: %(default)s)")
    parser.add_argument("--test-limit", type=at_least(1), default=240, help="seconds for a test (default: %(default)s)")
    parser.add_argument("--total-limit", type=float, default=4500.0, help="seconds for all (default: %(default)s)")
    parser.add_argument("--devices", type=at_least(1), default=8, help="devices of the Ray node (default: %(default)s)")
    parser.add_argument("--only", default="*", help='run only these, for example "shard_parallel/*"; writes no table')
    parser.add_argument("--output", type=Path, default=HERE.parent / "patches" / "CONFORMANCE.md", help="the table")
    arguments = parser.parse_args(given)
    if not arguments.tests.is_dir():
        parser.error(f"{arguments.tests} is no folder; give the folder tests/ of Alpa's source at v0.2.3")
    return arguments


def _files(tests: Path) -> list[str]:
    paths = sorted(str(path.relative_to(tests)) for path in tests.glob("*/test_*.py"))
    return [path for path in paths if not any(part in path for part in LEFT_OUT)]


def _run(tests: Path, path: str, arguments: argparse.Namespace, limit_s: float) -> FileResult:
    if limit_s <= OVERHEAD_S:
        return count(tests, path, [], "not run: the time for all files was over")
    started = time.monotonic()
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={arguments.devices}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    with tempfile.TemporaryDirectory() as directory:
        record = Path(directory, "record.jsonl")
        record.touch()
        try:
            with ray_head(arguments.devices, environment) as inside:
                inside |= {
                    "ALPA_TESTS_RECORD": str(record),
                    "ALPA_TESTS_LIMIT_S": str(arguments.test_limit),
                    "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")])),
                }
                command = [sys.executable, "-m", "pytest", "-p", "_outcomes_plugin", "-p", "no:cacheprovider", "-q"]
                command.append(f"{tests.name}/{path}")
                code, said = run_limited(command, inside, tests.parent, limit_s)
            ending = _ending(code, limit_s, said)
        except RuntimeError as error:
            ending = str(error)
        result = count(tests, path, record.read_text(encoding="utf-8").splitlines(), ending)
    return dataclasses.replace(result, seconds=round(time.monotonic() - started, 1))


def _ending(code: int | None, limit_s: float, said: str) -> str:
    """Why a file ended before its last test, if it did."""
    if code is None:
        return f"out of time after {seconds(limit_s)}"
    if code < 0:
        return f"ended by signal {signal.Signals(-code).name}"
    lines = said.strip().splitlines()
    return f"exit status {code}: {lines[-1] if lines else ''}" if code not in (0, 1) else "ended early"


def _line(result: FileResult) -> str:
    counts = f"{result.passed} passed, {result.failed} failed, {result.skipped} skipped"
    return f"{result.path}: {counts} in {seconds(result.seconds)} {result.cause}".rstrip()


def _heading(seconds: float, devices: int) -> str:
    import jax
    import ray

    return (
        f"Written by `benchmarks/run_alpa_tests.py` in {seconds / 60:.0f} minutes, {os.cpu_count()} cores: Alpa 0.2.3, "
        f"jax {jax.__version__}, Ray {ray.__version__}, Python {platform.python_version()}, {devices} CPU devices."
    )


def _terminated(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


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


if __name__ == "__main__":
    raise SystemExit(main())
