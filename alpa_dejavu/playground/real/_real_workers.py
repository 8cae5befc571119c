"""Workers that are processes on this machine, started by Ray: there while a `with` block runs, gone with it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import final

import numpy as np

from alpa_dejavu._util.extras import need
from alpa_dejavu._util.leftovers import own_directory
from alpa_dejavu._util.remote import Remote
from alpa_dejavu._util.threads import usable_cores
from alpa_dejavu._util.uninterrupted import uninterrupted
from alpa_dejavu.playground._data import Split
from alpa_dejavu.playground._exchange import Exchange
from alpa_dejavu.playground._fault import Fault
from alpa_dejavu.playground._journal import Journal
from alpa_dejavu.playground._learner import JaxLearner
from alpa_dejavu.playground.exchanges import exchange as resolved
from alpa_dejavu.playground.history import History
from alpa_dejavu.playground.hosts import NotShownError, network, nodes, quotas
from alpa_dejavu.playground.job import Job, Until
from alpa_dejavu.playground.real._actor import Orders
from alpa_dejavu.playground.real._conductor import WorkersSetting, serve
from alpa_dejavu.playground.real._log import replayed
from alpa_dejavu.playground.real._real_faults import Shaped, check_faults
from alpa_dejavu.problem import Cluster, Link

__all__ = ["RealWorkers", "real_workers"]

_MOST_SHARE, _MOST_OF_ALL = 0.35, 0.75
"""Of a core for a worker, and of all cores for all of them: Ray and the system have work, too."""
_PATIENCE_S = 10.0
_WITHIN = Link(1e-6, 1e10)
_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    # A worker is one device: its gradients aren't to take several processors where there are some.
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "RAY_enable_metrics_collection": "0",
}


_LOOPBACK_ALONE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Has Ray open its ports on the loopback alone, as it does on Windows, where there is one node."""


@final
class RealWorkers:
    """Workers of a job, as processes.

    Attributes:
        note: why hosts aren't namespaces with shaped links and quotas; empty where they are.
    """

    def __init__(self, remote: Remote, job: Job, cluster: Cluster, note: str) -> None:
        self._remote, self._job, self._cluster, self.note = remote, job, cluster, note

    def measured(self) -> tuple[Job, Cluster]:
        """Returns the job with seconds of a gradient as they are measured, all workers computing at once, and the
        cluster with links as they are: latency and rate of one transfer between each two hosts.
        """
        compute_s, links = self._remote("measured")
        count = len(self._cluster.hosts)
        media = {f"{a} to {b}": rate for (a, b), (_, rate) in links.items() if a != b}

        def link(a: int, b: int) -> Link:
            if (a, b) not in links:
                return _WITHIN
            latency_s, rate = links[a, b]
            return Link(latency_s, rate, shares=(f"{a} to {b}",) if a != b else ())

        measured = tuple(tuple(link(a, b) for b in range(count)) for a in range(count))
        return (
            dataclasses.replace(self._job, compute_s=tuple(compute_s), spread=0.0),
            dataclasses.replace(self._cluster, links=measured, media=media),
        )

    def check(self, exchange: Exchange, faults: Sequence[Fault], until: Until) -> None:
        """Raises ValueError where an exchange or a fault can't be for real."""
        if not exchange.by_messages:
            raise ValueError(f"exchange is {type(exchange).__name__}, but must be one whose workers know of each other "
                             "by messages alone, where they are real; leave it out")  # fmt: skip
        hosts = self._job.worker_hosts(self._cluster)
        check_faults(faults, hosts, None if self.note else _share(hosts), until.seconds)

    def run(self, exchange: str | Exchange, *, faults: Sequence[Fault] = (), until: Until, seed: int = 0,
            looks: int = 50, intervals: int = 0) -> History:  # fmt: skip
        """Trains for real, and returns the history, in seconds of the clock on the wall.

        Args:
            exchange: how workers train together, or its name.
            faults: workers that are killed or slowed down, and links whose rates change, meanwhile.
            until: when it ends.
            seed: of parameters, batches, and what exchanges draw.
            looks: at how many moments the model is looked at, besides the first and the last.
            intervals: how many intervals of workers' time `History.timeline` has at most.

        Raises:
            ValueError: the exchange or a fault can't be for real.
            RuntimeError: a process failed.
        """
        import ray.cloudpickle as pickle

        way, hosts = resolved(exchange), self._job.worker_hosts(self._cluster)
        self.check(way, faults, until)
        assert self._job.problem is not None, "it was checked"
        orders = Orders(way, until, seed, hosts, _num_bytes(self._job))
        told, end = self._remote("run", pickle.dumps(orders), pickle.dumps(tuple(faults)))
        learner = JaxLearner(self._job, self._job.problem, seed, Journal(None, {}))
        return replayed(told, end, self._job, learner, until, len(hosts), looks, intervals)


@contextlib.contextmanager
def real_workers(job: Job, cluster: Cluster, shaped: bool | None = None) -> Iterator[RealWorkers]:
    """Starts a process for each worker of a job, and ends all of them when the block ends, whatever the reason.

    Hosts are network namespaces whose links have the cluster's rates, and workers have shares of a core; latencies are
    those of this machine. That needs root and Linux. Without, processes talk over the loopback, and share the cores as
    they come. A gradient is computed again and again until it takes the job's seconds.

    Args:
        job: the job; it has a problem.
        cluster: the hosts and the rates of their links.
        shaped: whether hosts are namespaces; None: where that is possible.

    Raises:
        ValueError: the job has no problem.
        NotShownError: hosts are to be namespaces, but can't.
        RuntimeError: Ray isn't installed, or a process didn't start.
    """
    need("playground", "ray")
    import ray.cloudpickle as pickle

    if job.problem is None:
        raise ValueError("job: problem is None, but must be one where workers are real; simulate time alone instead")
    if job.moves is not None or isinstance(job.shards, Split):
        field = "shards" if job.moves is None else "moves"
        raise ValueError(f"job: {field} is {getattr(job, field)!r}, but real workers keep samples that are given by "
                         "index; give shards so, or simulate")  # fmt: skip
    if job.drop is not None or not isinstance(job.batch, int):
        field = "batch" if job.drop is None else "drop"
        raise ValueError(f"job: {field} is {getattr(job, field)}, but real workers compute the whole model on equal "
                         "batches; give one number, or simulate")  # fmt: skip
    hosts = job.worker_hosts(cluster)
    stack = contextlib.ExitStack()
    try:
        environment, note, shaped_hosts, address = {**_ENVIRONMENT}, "", None, None
        if shaped is not False:
            try:
                shaped_hosts, address, own = stack.enter_context(_shaped_hosts(hosts, cluster))
                environment |= own
            except NotShownError as error:
                if shaped:
                    raise
                note = str(error)
        if shaped_hosts is None:
            directory = stack.enter_context(own_directory())
            (directory / "ray").mkdir()
            environment |= {"RAY_TMPDIR": str(directory), **_LOOPBACK_ALONE}
        share = [1.0] * len(hosts) if shaped_hosts is None else shaped_hosts.shares
        seconds = np.broadcast_to(np.asarray(job.compute_s, np.float64), len(hosts))
        processor_s = tuple((seconds * share).tolist())
        setting = WorkersSetting(pickle.dumps(job), hosts, _num_bytes(job), processor_s, shaped_hosts, address,
                                 environment)  # fmt: skip
        remote = stack.enter_context(
            Remote.started(serve, setting, name="the conductor of real workers", patience_s=_PATIENCE_S)
        )
        remote("launch")
        yield RealWorkers(remote, job, cluster, note)
    finally:
        with uninterrupted():
            stack.close()


@contextlib.contextmanager
def _shaped_hosts(hosts: Sequence[int], cluster: Cluster) -> Iterator[tuple[Shaped, str, dict[str, str]]]:
    rates = [[link.bytes_per_s for link in row] for row in cluster.links]
    with network(len(cluster.hosts)) as net, quotas(len(hosts)) as limits, nodes(net, _ENVIRONMENT) as started:
        own = {name: started.environment[name] for name in ("RAY_TMPDIR", "RAY_AUTH_MODE")}
        yield Shaped(net, limits, rates, [_share(hosts)] * len(hosts)), started.address, own


def _share(hosts: Sequence[int]) -> float:
    """Returns the share of a core that each worker has, given the workers' hosts."""
    return min(_MOST_SHARE, _MOST_OF_ALL * usable_cores() / len(hosts))


def _num_bytes(job: Job) -> float:
    if job.num_bytes is not None:
        return float(job.num_bytes)
    assert job.problem is not None, "it was checked"
    return 4.0 * JaxLearner(job, job.problem, 0, Journal(None, {})).start(0).size
