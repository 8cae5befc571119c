"""Who runs a compiled stage alone, to measure it: Alpa's workers, or a process that counts its seconds on this CPU,
which takes no worker from Ray and is hardly disturbed.
"""

from __future__ import annotations

import abc
import json
import logging
import os
import select
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, final

import numpy as np

from alpa_dejavu._util import units
from alpa_dejavu._util.child_process import python_environment

_log = logging.getLogger("alpa_dejavu")

_PATIENCE_S = 60.0


class StageProgram(NamedTuple):
    """One of a stage's computations, a forward or a backward pass: as Alpa compiled it, and what Alpa knows of it."""

    compiled: Any
    config: Any
    stage_plan: Any


class Taken(NamedTuple):
    """The seconds and the bytes of memory on each device that one run of a program takes, alone on its submesh."""

    seconds: float
    peak_bytes: float


class StageRunner(abc.ABC):
    """A runner of programs on submeshes that stays up until it is closed."""

    def start(self) -> None:  # noqa: B027
        """Begins to start what runs programs, where that can be done while these are compiled."""

    @abc.abstractmethod
    def run(self, programs: Sequence[StageProgram], shape: tuple[int, int]) -> list[Taken]:
        """Returns what programs take on a submesh of (hosts, devices per host); RuntimeError if one doesn't run."""

    @abc.abstractmethod
    def close(self) -> None:
        """Stops all that was started, also what doesn't answer."""


@final
class AlpaWorkers(StageRunner):
    """Runs programs in Alpa's profiling workers, on the cluster of its virtual mesh."""

    def __init__(self, mesh: Any) -> None:
        self._mesh = mesh
        self._workers: dict[tuple[int, int], Any] = {}

    def run(self, programs: Sequence[StageProgram], shape: tuple[int, int]) -> list[Taken]:
        """Returns the wall time and the peak of memory of each program on a submesh of (hosts, devices per host)."""
        worker = self._worker(shape)
        workers = [
            worker.profile(number, program.compiled, program.stage_plan, program.config)[1:3]
            for number, program in enumerate(programs)
        ]
        return [Taken(float(np.mean(costs)), float(num_bytes)) for costs, num_bytes in workers]

    def close(self) -> None:
        """Stops all workers."""
        while self._workers:
            self._stop(next(iter(self._workers)))

    def _worker(self, shape: tuple[int, int]) -> Any:
        """Returns Alpa's profiler on a submesh; other submeshes' workers are stopped where there aren't devices."""
        from alpa.pipeline_parallel import stage_profiling

        if shape not in self._workers:
            while self._workers and sum(n for _, n in self._workers) + shape[1] > self._mesh.num_devices_per_host:
                self._stop(next(iter(self._workers)))
            self._workers[shape] = stage_profiling.ProfileWorker(self._mesh.slice_profiling_submeshes(*shape)[0])
        return self._workers[shape]

    def _stop(self, shape: tuple[int, int]) -> None:
        try:
            self._workers.pop(shape).mesh.shutdown(forced=True)
        except Exception:
            _log.warning("workers that measured stages didn't stop", exc_info=True)


@final
class CpuProcess(StageRunner):
    """Runs programs in a process with so many CPU devices on this machine, which share so many cores; Alpa's runtime
    takes `dispatch_s` of a core to start a computation.
    """

    def __init__(self, num_devices: int, cores: int, dispatch_s: float) -> None:
        self._num_devices, self._cores, self._dispatch_s = num_devices, cores, dispatch_s
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the process, unless it is up."""
        self._started()

    def run(self, programs: Sequence[StageProgram], shape: tuple[int, int]) -> list[Taken]:
        """Returns programs' wall times, starts as Alpa's included, on cores of their own and those left free."""
        num_devices = shape[0] * shape[1]
        answers = self._answers([program.compiled.hlo.get_hlo_proto() for program in programs], num_devices)
        cores = min(num_devices, self._cores)
        start_s = num_devices * self._dispatch_s
        return [Taken((float(answer["cpu_s"]) + start_s) / cores, float(answer["peak_bytes"])) for answer in answers]

    def close(self) -> None:
        """Ends the process."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()  # it has nothing to lose
        process.communicate()

    def _answers(self, modules: Sequence[bytes], num_devices: int) -> list[dict[str, Any]]:
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        at_once = max(self._cores // num_devices, 1)
        asked = {"num_devices": num_devices, "at_once": at_once, "sizes": list(map(len, modules))}
        try:
            process.stdin.write(b"".join([json.dumps(asked).encode(), b"\n", *modules]))
            process.stdin.flush()
            ready, _, _ = select.select([process.stdout], [], [], _PATIENCE_S)
            line = process.stdout.readline() if ready else b""
        except OSError as error:
            line, reason = b"", str(error)
        else:
            reason = "it ended" if ready else f"it didn't answer in {units.seconds(_PATIENCE_S)}"
        if not line.endswith(b"\n"):
            self.close()
            raise RuntimeError(f"the process that runs stages can't be asked: {reason}")
        answers: list[dict[str, Any]] = json.loads(line)
        for answer in answers:
            if "error" in answer:
                raise RuntimeError(answer["error"])
        return answers

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            from alpa_stock_jax.cpu_process import cpu_environment

            paths = os.pathsep.join(filter(None, sys.path))
            self._process = subprocess.Popen(
                [sys.executable, "-m", "alpa_dejavu.alpa._stage_process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**python_environment(), **cpu_environment(self._num_devices, os.environ), "PYTHONPATH": paths},
            )
        return self._process
