"""The process that conducts all workers: in the driver's namespace, connected to Ray, gone with all that it started."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from alpa_dejavu._util.orphans import adopt_orphans, end_children
from alpa_dejavu._util.remote import answer_all
from alpa_dejavu.playground.hosts import enter
from alpa_dejavu.playground.real._conductor import LOOPBACK, Conductor, Setting

__all__ = ["serve"]


def serve(connection: Connection, setting: Setting) -> None:
    """Answers the calls of methods of a `Conductor`, until the other side closes the connection."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other side ends this one
    signal.signal(signal.SIGTERM, _stop)
    with contextlib.suppress(OSError):
        adopt_orphans()
    # Ray says on standard output, at length, that a worker was killed.
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), _ended():
        os.environ.update(setting.environment)
        os.environ.pop("RAY_ADDRESS", None)
        if setting.shaped is not None:
            enter(setting.shaped.net.namespace(setting.shaped.net.driver))
        _connect(setting)
        signal.signal(signal.SIGTERM, _stop)  # again, in place of Ray's, which would leave its processes
        answer_all(connection, Conductor(setting, connection))


@contextlib.contextmanager
def _ended() -> Iterator[None]:
    """Ends all other processes with the block."""
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            _disconnect()
        finally:
            end_children()


def _stop(number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + number)


def _connect(setting: Setting) -> None:
    import ray

    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if setting.shaped is not None:
        own = setting.shaped.net.address(setting.shaped.net.driver)
        ray.init(address=setting.ray_address, _node_ip_address=own, **quiet)
    else:
        ray.init(address="local", num_cpus=len(setting.hosts), include_dashboard=False, _node_ip_address=LOOPBACK,
                 object_store_memory=256 * 1024**2, _system_config={"prestart_worker_first_driver": False},
                 **quiet)  # fmt: skip


def _disconnect() -> None:
    import ray

    ray.shutdown()
