"""The history of an exchange in rounds where nothing is computed and nothing fails: by machine code."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.playground._batches import draws
from alpa_dejavu.playground._network import Network
from alpa_dejavu.playground._paths import Paths
from alpa_dejavu.playground._round_engine import run_rounds
from alpa_dejavu.playground.exchanges._gossip import RoundExchange
from alpa_dejavu.playground.history import TIMELINE, History
from alpa_dejavu.playground.job import Job, Until
from alpa_dejavu.playground.topology import Mixing, topology
from alpa_dejavu.problem import Cluster

__all__ = ["round_times"]

Ints = NDArray[np.int64]


def round_times(job: Job, cluster: Cluster, way: RoundExchange, until: Until, seed: int, looks: int) -> History:
    """Returns the history of time alone of an exchange in rounds; `until.steps` ends it.

    It is the one that the event queue gives: all its seconds up to rounding.
    """
    assert until.steps is not None, "rounds are counted"
    hosts, rounds = job.worker_hosts(cluster), until.steps
    size, num_bytes = len(hosts), float(job.num_bytes or 0.0) + way.extra_bytes
    mixings, pattern = _patterns(way, size, rounds, seed)
    network = Network()
    paths = Paths(cluster, hosts, network)
    order = [np.argsort(one.sources, kind="stable") for one in mixings]
    sources = np.concatenate([one.sources[by] for one, by in zip(mixings, order, strict=True)])
    targets = np.concatenate([one.targets[by] for one, by in zip(mixings, order, strict=True)])
    streams = np.unique(sources * size + targets, return_inverse=True)[1].astype(np.int64)
    ways = [paths.path(*pair) for pair in zip(sources.tolist(), targets.tolist(), strict=True)]
    width = max((len(over) for _, _, over in ways), default=1)
    over = np.array([[*one, *[-1] * (width - len(one))] for _, _, one in ways], np.int64).reshape(-1, width)
    counts = np.array([np.bincount(one.sources, minlength=size) for one in mixings])
    starts = np.concatenate([[0], np.cumsum(counts.sum(axis=1))[:-1]])
    first = np.concatenate([np.zeros((len(mixings), 1), np.int64), np.cumsum(counts, axis=1)], axis=1) + starts[:, None]
    expected = np.array([np.bincount(one.targets, minlength=size) for one in mixings])
    seconds = _seconds(job, size, rounds, seed)
    places, found = 2 * int(counts.sum(axis=1).max()) + 1, np.zeros((0, 4))
    while not len(found):
        found = run_rounds(
            seconds, pattern, first, expected, targets, streams, over, np.array([most for _, most, _ in ways]),
            np.array([latency_s for latency_s, _, _ in ways]), network.capacities(), num_bytes, way.sends_first,
            max(size * rounds / max(looks, 1), 1.0), places,
        )  # fmt: skip
        places *= 2
    if len(found) > 1 and found[-2, 0] == found[-1, 0]:
        found = np.delete(found, -2, axis=0)
    sent = collections.Counter[tuple[int, int]]()
    for number, times in collections.Counter(pattern.tolist()).items():
        one = mixings[number]
        for pair in zip(one.sources.tolist(), one.targets.tolist(), strict=True):
            sent[hosts[pair[0]], hosts[pair[1]]] += times
    return _history(found, seconds, job.samples(0), sent, num_bytes)


def _patterns(way: RoundExchange, size: int, rounds: int, seed: int) -> tuple[list[Mixing], Ints]:
    """The different rounds, and which of them each round is."""
    rule, known, found = topology(way.topology), dict[bytes, int](), list[Mixing]()
    pattern = np.zeros(rounds, np.int64)
    for number in range(rounds):
        one = rule.mixing(number, size, draws(seed, 4, number))
        key = one.sources.tobytes() + b"|" + one.targets.tobytes()
        if key not in known:
            known[key] = len(found)
            found.append(one)
        pattern[number] = known[key]
    return found, pattern


def _seconds(job: Job, size: int, rounds: int, seed: int) -> NDArray[np.float64]:
    seconds = np.tile(np.asarray(job.compute_s, np.float64), (rounds, 1 if np.ndim(job.compute_s) else size))
    if job.spread:
        noise = np.stack([draws(seed, 2, n).standard_normal(rounds) for n in range(size)], axis=1)
        seconds *= np.exp(job.spread * noise)
    return np.ascontiguousarray(seconds)


def _history(
    looks: Any, seconds: Any, batch: int, sent: collections.Counter[tuple[int, int]], num_bytes: float
) -> History:
    rounds, size = seconds.shape
    nothing, links = np.full(len(looks), np.nan), sorted(sent)
    return History(
        looks[:, 0].copy(), nothing, nothing, np.zeros(len(looks)), looks[:, 1].astype(np.int64),
        looks[:, 2].astype(np.int64) * batch, np.array([rounds * size], np.int64), seconds.sum(axis=0),
        looks[-1, 0] - seconds.sum(axis=0), np.full(size, rounds, np.int64), 0,
        np.array(links, np.int64).reshape(-1, 2), np.array([sent[link] * num_bytes for link in links]),
        np.array([sent[link] for link in links], np.int64), np.zeros(0, np.float32), "steps",
        sent_bytes=looks[:, 3] * num_bytes, timeline=np.zeros(0, TIMELINE),
    )  # fmt: skip
