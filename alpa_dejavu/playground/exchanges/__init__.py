"""The exchanges that have a name: all-reduce, servers, local steps, gossip and pipelines.

In: a worker of a simulated training.
Out: the program that it runs (`Exchange.run`).
"""

from __future__ import annotations

from alpa_dejavu._util.by_name import resolve
from alpa_dejavu.costs.checkpoint_interval import best_checkpoint_interval_s
from alpa_dejavu.playground._world import Exchange
from alpa_dejavu.playground.exchanges._all_reduce import AllReduce, LocalSteps
from alpa_dejavu.playground.exchanges._checkpoints import CheckpointedAllReduce
from alpa_dejavu.playground.exchanges._cyclades import Cyclades
from alpa_dejavu.playground.exchanges._gossip import AsynchronousGossip, Gossip, PushSum
from alpa_dejavu.playground.exchanges._partial_reduce import PartialReduce
from alpa_dejavu.playground.exchanges._pipelines import HetPipeWaves, PipeDream
from alpa_dejavu.playground.exchanges._rolling import RollingServer
from alpa_dejavu.playground.exchanges._server import (
    AsynchronousServer,
    ShardedServer,
    StaleSynchronousServer,
    SynchronousServer,
)
from alpa_dejavu.playground.exchanges._zeno_server import ZenoServer

__all__ = [
    "EXCHANGES", "AllReduce", "AsynchronousGossip", "AsynchronousServer", "CheckpointedAllReduce", "Cyclades", "Gossip",
    "HetPipeWaves", "LocalSteps", "PartialReduce", "PipeDream", "PushSum", "RollingServer", "ShardedServer",
    "StaleSynchronousServer", "SynchronousServer", "ZenoServer", "best_checkpoint_interval_s", "exchange",
]  # fmt: skip

EXCHANGES: dict[str, type[Exchange]] = {
    "all-reduce": AllReduce, "checkpointed": CheckpointedAllReduce, "server": SynchronousServer,
    "async-server": AsynchronousServer, "stale-server": StaleSynchronousServer, "zeno-server": ZenoServer,
    "sharded-server": ShardedServer, "rolling-server": RollingServer, "local-sgd": LocalSteps, "gossip": Gossip,
    "push-sum": PushSum, "ad-psgd": AsynchronousGossip, "partial-reduce": PartialReduce, "cyclades": Cyclades,
    "hetpipe": HetPipeWaves, "pipedream": PipeDream,
}  # fmt: skip


def exchange(choice: str | Exchange) -> Exchange:
    """Returns the exchange of a name of `EXCHANGES`, with the settings that it has by itself, or the given one.

    >>> exchange("stale-server")
    StaleSynchronousServer(bound=2, server=0)
    """
    return resolve("exchange", choice, EXCHANGES, Exchange)  # type: ignore[type-abstract]
