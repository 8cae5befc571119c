"""A Ray node in each namespace: hosts with one device each, and the driver's, which has none and holds the head."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import final

from real_hosts._leftovers import own_directory
from real_hosts._namespaces import HostNetwork, end_processes, path

__all__ = ["Nodes", "nodes"]

_PORT = 6379
_START_S = 120.0
_STORE_BYTES = 256 * 1024**2
_STARTED = "Ray runtime started"


@final
class Nodes:
    """Ray nodes of a network, by the numbers of its hosts."""

    def __init__(self, net: HostNetwork, directory: Path, environment: Mapping[str, str]) -> None:
        self._net, self._directory = net, directory
        # Nobody else can reach the namespaces, so no token has to keep them out.
        self.environment = {**environment, "RAY_TMPDIR": str(directory), "RAY_AUTH_MODE": "disabled"}
        # Workers import this package, which isn't installed.
        paths = [str(Path(__file__).parents[1]), *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
        self.environment["PYTHONPATH"] = os.pathsep.join(paths)
        self.environment.pop("RAY_ADDRESS", None)
        self._started: list[subprocess.Popen[bytes]] = []

    @property
    def address(self) -> str:
        """Returns where a program in one of the namespaces connects to the cluster."""
        return f"{self._net.address(self._net.driver)}:{_PORT}"

    def start(self, place: int) -> None:
        """Starts a host's node, and waits until it is there.

        Raises:
            RuntimeError: it didn't start; with what it said.
        """
        log = self._directory / f"node-{place}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                self._command(place),
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self._directory,
                start_new_session=True,
            )
        self._started.append(process)
        deadline = time.monotonic() + _START_S
        while _STARTED not in log.read_text(errors="replace"):
            if process.poll() is not None or time.monotonic() > deadline:
                words = log.read_text(errors="replace")[-2000:]
                raise RuntimeError(f"the Ray node of host {place} didn't start: {words}")
            time.sleep(0.05)

    def end(self) -> None:
        """Ends all that runs in the namespaces."""
        end_processes(self._net)
        for process in self._started:
            process.wait()

    def _command(self, place: int) -> list[str]:
        head = place == self._net.driver
        command = ["nsenter", f"--net={path(self._net.namespace(place))}", "--", sys.executable]
        command += ["-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
        command += [f"--node-ip-address={self._net.address(place)}", f"--object-store-memory={_STORE_BYTES}"]
        command += ["--num-cpus=1", f"--num-gpus={0 if head else 1}"]
        if head:
            config = '--system-config={"prestart_worker_first_driver": false}'
            return [*command, "--head", f"--port={_PORT}", "--include-dashboard=false", config]
        return [*command, f"--address={self.address}"]


@contextlib.contextmanager
def nodes(net: HostNetwork, environment: Mapping[str, str]) -> Iterator[Nodes]:
    """Starts all nodes of a network, one after the other; all that runs in the namespaces ends with them."""
    with own_directory() as directory:
        (directory / "ray").mkdir()
        started = Nodes(net, directory, {**os.environ, **environment})
        try:
            for place in (net.driver, *range(net.num_hosts)):
                started.start(place)
            yield started
        finally:
            started.end()
