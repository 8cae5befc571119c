"""The playground's exchanges run by real worker processes, which Ray starts, one on each host.

The programs are the same objects as in a simulation; what differs is the world that drives them: a process for each
worker with a queue of its own, gradients that are computed again and again until they take their seconds, TCP between
the processes with messages padded to their bytes. Each process tells what happens, and a recorder is told of it
afterwards. All of them are there while a `with` block runs, and gone with it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import types
from collections.abc import Iterable, Iterator, Sequence
from typing import cast, final

import numpy as np

from alpa_dejavu._util.threads import usable_cores
from alpa_dejavu.playground._fault import Fault
from alpa_dejavu.playground._learner import Learner
from alpa_dejavu.playground._recorder import Recorder
from alpa_dejavu.playground._world import Exchange, World
from alpa_dejavu.playground.exchanges import exchange as resolved
from alpa_dejavu.playground.history import History
from alpa_dejavu.playground.job import Job, Until
from alpa_dejavu.problem import Cluster, Link
from harness import Remote
from real_hosts import network, nodes, quotas
from real_hosts._actor import Orders, learner_of
from real_hosts._conductor import WorkersSetting, serve
from real_hosts._faults import Shaped
from real_hosts._world import LOST, PARAMS, SHOWN, Told

__all__ = ["RealWorkers", "real_workers"]

_MOST_SHARE, _MOST_OF_ALL = 0.35, 0.75
"""The shares of a core for a worker, and of all cores for all workers: Ray and the system have work, too."""
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


@final
class RealWorkers:
    """Workers of a job, as processes."""

    def __init__(self, remote: Remote, job: Job, cluster: Cluster, num_bytes: float) -> None:
        self._remote, self._job, self._cluster, self._num_bytes = remote, job, cluster, num_bytes

    def measured(self) -> tuple[Job, Cluster]:
        """Returns the job with seconds of a gradient as they are measured, all workers computing at once, and the
        cluster with links as they are: latency and rate of one transfer between each two hosts.
        """
        compute_s, links = self._remote("measured")
        hosts = range(len(self._cluster.hosts))
        media = {f"{a} to {b}": rate for (a, b), (_, rate) in links.items()}

        def link(a: int, b: int) -> Link:
            if a == b:
                return _WITHIN
            latency_s, rate = links[a, b]
            return Link(latency_s, rate, shares=(f"{a} to {b}",))

        rows = tuple(tuple(link(a, b) for b in hosts) for a in hosts)
        return (
            dataclasses.replace(self._job, compute_s=tuple(compute_s), spread=0.0),
            dataclasses.replace(self._cluster, links=rows, media=media),
        )

    def run(self, exchange: str | Exchange, *, faults: Sequence[Fault] = (), until: Until, seed: int = 0,
            looks: int = 50) -> History:  # fmt: skip
        """Trains for real, by messages alone, and returns the history, in seconds of the clock on the wall, without a
        timeline. Arguments are those of `simulate`; faults kill and slow down workers, and change links' rates.

        Raises:
            RuntimeError: a process failed.
        """
        import ray.cloudpickle as pickle

        hosts = self._job.worker_hosts(self._cluster)
        orders = Orders(resolved(exchange), until, seed, hosts, self._num_bytes)
        told, end = self._remote("run", pickle.dumps(orders), pickle.dumps(tuple(faults)))
        return _replayed(told, end, self._job, learner_of(self._job, seed), until, len(hosts), looks)


@contextlib.contextmanager
def real_workers(job: Job, cluster: Cluster) -> Iterator[RealWorkers]:
    """Starts a process for each worker of a job, and ends all of them when the block ends, whatever the reason.

    Hosts are network namespaces whose links have the cluster's rates, and workers have shares of a core; latencies are
    those of this machine. A gradient is computed again and again until it takes the job's seconds.

    Args:
        job: the job; it has a problem.
        cluster: hosts with one device each, and the rates of their links.

    Raises:
        NotShownError: this machine can't hold such hosts: it takes root and Linux.
        RuntimeError: a process didn't start.
    """
    import ray.cloudpickle as pickle

    count = len(cluster.hosts)
    num_bytes = 4.0 * learner_of(job, 0).start(0).size if job.num_bytes is None else float(job.num_bytes)
    share = min(_MOST_SHARE, _MOST_OF_ALL * usable_cores() / count)
    processor_s = tuple((share * np.broadcast_to(np.asarray(job.compute_s, np.float64), count)).tolist())
    rates = [[link.bytes_per_s for link in row] for row in cluster.links]
    with network(count) as net, quotas(count) as limits, nodes(net, _ENVIRONMENT) as started:
        own = {name: started.environment[name] for name in ("RAY_TMPDIR", "RAY_AUTH_MODE")}
        shaped = Shaped(net, limits, rates, [share] * count)
        file = pathlib.Path(own["RAY_TMPDIR"], "job")
        file.write_bytes(pickle.dumps(job))
        setting = WorkersSetting(file, num_bytes, processor_s, shaped, started.address,
                                 {**_ENVIRONMENT, **own})  # fmt: skip
        name = "the conductor of real workers"
        with Remote.started(serve, setting, name=name, patience_s=_PATIENCE_S) as remote:
            yield RealWorkers(remote, job, cluster, num_bytes)


def _replayed(told: Iterable[Told], end: str, job: Job, learner: Learner, until: Until, workers: int,
             looks: int) -> History:  # fmt: skip
    """Returns the history of a real run, of which workers have told events in any order."""
    recorder = Recorder(job, until, looks, workers)
    world = types.SimpleNamespace(
        size=workers, learner=learner, live=tuple(range(workers)), now_s=0.0, shown=None,
        workers={number: types.SimpleNamespace(params=learner.start(number)) for number in range(workers)},
        computing_s=lambda: [0.0] * workers,
    )  # fmt: skip
    recorder.world = cast(World, world)
    for time_s, worker, entries in sorted(told, key=lambda moment: moment[0]):
        recorder.passing(time_s)
        world.now_s = time_s
        for name, given in entries:
            if name == PARAMS:
                world.workers[worker].params = given[0]
            elif name == SHOWN:
                world.shown = given[0]
            elif name == LOST:
                world.live = tuple(number for number in world.live if number != worker)
            else:
                getattr(recorder, name)(*given)
        recorder.happened(time_s)
    return recorder.history(end)
