"""Two streams of one device: what one communicates while the other computes, operator by operator and layer by layer.

While both streams are busy, each goes on at its own rate over its slowdown.

References:
    Graham, Bounds on Multiprocessing Timing Anomalies, SIAM Journal on Applied Mathematics 17(2), 1969.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util.compiled import compiled
from alpa_dejavu._util.range_sums import FloatArray
from alpa_dejavu.costs.overlap import Overlap

if TYPE_CHECKING:
    from jaxtyping import Float, Int


def makespan_s(
    computed_s: Float[FloatArray, " operators"], sent_s: Float[FloatArray, " collectives"],
    edges: Int[NDArray[np.int32], "edges 2"], overlap: Overlap,
) -> float:  # fmt: skip
    """Returns the seconds of a pass whose operators are on one stream and whose collectives are on another; ValueError
    where nodes wait for each other.

    Each stream does one thing at a time. Whenever it is free, it begins with one of the ready nodes: with that from
    which the longest path leads to the end, or with that which the next collective waits for. The shorter of these two
    schedules counts; it is never more than doing all one after the other.

    `edges` has pairs of nodes, operators first and then collectives, of which the first comes before the second.
    """
    seconds = np.concatenate([computed_s, sent_s])
    one_by_one = float(computed_s.sum() + sent_s.sum())
    if not len(sent_s) or not len(computed_s):
        return one_by_one
    order = np.argsort(edges[:, 0], kind="stable")
    after = np.ascontiguousarray(edges[order, 1], dtype=np.int64)
    first = np.searchsorted(edges[order, 0], np.arange(len(seconds) + 1)).astype(np.int64)
    path, collective = _paths(seconds, len(computed_s), first, after)
    if len(path) < len(seconds):
        raise ValueError("edges has nodes that wait for each other, but must be without a cycle; mend the flow")
    slowdowns = overlap.compute_slowdown, overlap.transfer_slowdown
    priorities = np.argsort(np.stack([np.argsort(-path, kind="stable"), np.lexsort((-path, collective))]), axis=1)
    ends_s = min(_run(seconds, len(computed_s), first, after, priority, *slowdowns) for priority in priorities)
    return min(ends_s, one_by_one)


@compiled("(f8[::1], i8, i8[::1], i8[::1])")
def _paths(
    seconds: FloatArray, num_computed: int, first: NDArray[np.int64], after: NDArray[np.int64]
) -> tuple[FloatArray, NDArray[np.int64]]:
    """Returns for each node the seconds of the longest path from it to the end, and the number of the first collective
    that waits for it, by the order in which they can be done; shorter arrays if some nodes wait for each other. Node n
    is waited for by after[first[n]:first[n + 1]].
    """
    size = len(seconds)
    left = np.zeros(size, dtype=np.int64)
    for node in after:
        left[node] += 1
    order, count = np.empty(size, dtype=np.int64), 0
    for node in range(size):
        if left[node] == 0:
            order[count] = node
            count += 1
    at = 0
    while at < count:
        for place in range(first[order[at]], first[order[at] + 1]):
            left[after[place]] -= 1
            if left[after[place]] == 0:
                order[count] = after[place]
                count += 1
        at += 1
    path, collective = seconds.copy(), np.full(size, size, dtype=np.int64)
    for number in range(count - 1, -1, -1):
        node, longest = order[number], 0.0
        for place in range(first[node], first[node + 1]):
            longest = max(longest, path[after[place]])
            collective[node] = min(collective[node], collective[after[place]])
        path[node] += longest
        if node >= num_computed:
            collective[node] = number
    return path[:count], collective[:count]


@compiled("(f8[::1], i8, i8[::1], i8[::1], i8[::1], f8, f8)")
def _run(
    seconds: FloatArray,
    num_computed: int,
    first: NDArray[np.int64],
    after: NDArray[np.int64],
    priority: NDArray[np.int64],
    compute_slowdown: float,
    transfer_slowdown: float,
) -> float:
    """Returns when the last node is done, where of ready nodes that with the least priority number comes first."""
    size = len(seconds)
    waits = np.zeros(size, dtype=np.int64)
    for node in after:
        waits[node] += 1
    computes, sends = [(priority[0], 0)], [(priority[0], 0)]  # so that the lists have a type
    computes.pop()
    sends.pop()
    for node in range(size):
        if waits[node] == 0:
            heapq.heappush(computes if node < num_computed else sends, (priority[node], node))
    now, done = 0.0, 0
    computing, sending, work, load = -1, -1, 0.0, 0.0
    while done < size:
        if computing < 0 and len(computes) > 0:
            computing = heapq.heappop(computes)[1]
            work = seconds[computing]
        if sending < 0 and len(sends) > 0:
            sending = heapq.heappop(sends)[1]
            load = seconds[sending]
        both = computing >= 0 and sending >= 0
        slow, slow_load = (compute_slowdown, transfer_slowdown) if both else (1.0, 1.0)
        compute_ends = computing >= 0 and (sending < 0 or work * slow <= load * slow_load)
        send_ends = sending >= 0 and (computing < 0 or load * slow_load <= work * slow)
        step = work * slow if compute_ends else load * slow_load
        now += step
        if computing >= 0 and not compute_ends:
            work -= step / slow
        if sending >= 0 and not send_ends:
            load -= step / slow_load
        for ends, node in ((compute_ends, computing), (send_ends, sending)):
            if ends:
                done += 1
                for place in range(first[node], first[node + 1]):
                    waits[after[place]] -= 1
                    if waits[after[place]] == 0:
                        follower = after[place]
                        heapq.heappush(computes if follower < num_computed else sends, (priority[follower], follower))
        computing = -1 if compute_ends else computing
        sending = -1 if send_ends else sending
    return now


def behind_layers_s(
    stages: Int[NDArray[np.intp], "M 2"],
    variants: Int[NDArray[np.intp], "M L"],
    computed_s: Float[FloatArray, " V"],
    fetched: tuple[Float[FloatArray, "K V"], Float[FloatArray, "K M"]],
    sent: tuple[Float[FloatArray, "K V"], Float[FloatArray, "K M"]],
    overlap: Overlap,
    backward: bool = False,
) -> Float[FloatArray, " M"]:
    """Returns the seconds by which a pass over the layers of M stages takes longer than its computing.

    A layer's parameters are fetched while the layer before it computes; those of a stage's first layer, before it
    computes. What a layer sends, it sends behind the layers after it; what is left at the end is waited for. The one
    stream of communication fetches first.

    Args:
        stages: the first and the last layer of each stage.
        variants: the variant of each layer in each stage.
        computed_s: the seconds that each layer variant computes.
        fetched: the seconds of what each variant fetches alone, by K kinds of messages; and how many times as long they
            take in a stage.
        sent: those of what each variant sends.
        overlap: the slowdowns while a device computes and communicates.
        backward: whether the pass begins with the last layer.
    """
    slow, slow_load = overlap.compute_slowdown, overlap.transfer_slowdown
    return _behind(
        np.require(stages, np.int64, ("C", "W")),
        np.require(variants, np.int64, ("C", "W")),
        np.require(computed_s, np.float64, ("C", "W")),
        np.require(fetched[0], np.float64, ("C", "W")),
        np.require(fetched[1], np.float64, ("C", "W")),
        np.require(sent[0], np.float64, ("C", "W")),
        np.require(sent[1], np.float64, ("C", "W")),
        slow,
        slow_load,
        backward,
    )


@compiled("(i8[:,::1], i8[:,::1], f8[::1], f8[:,::1], f8[:,::1], f8[:,::1], f8[:,::1], f8, f8, b1)")
def _behind(
    stages: NDArray[np.int64],
    variants: NDArray[np.int64],
    computed_s: FloatArray,
    fetched_s: FloatArray,
    fetched_longer: FloatArray,
    sent_s: FloatArray,
    sent_longer: FloatArray,
    slow: float,
    slow_load: float,
    backward: bool,
) -> FloatArray:
    longer_s = np.zeros(len(stages))
    for stage in range(len(stages)):
        first, last = stages[stage]
        exposed, backlog, before, sending = 0.0, 0.0, 0.0, 0.0
        for step in range(last - first + 1):
            variant = variants[stage, last - step if backward else first + step]
            wanted = 0.0
            for kind in range(len(fetched_s)):
                wanted += fetched_longer[kind, stage] * fetched_s[kind, variant]
            # Computing of the layer before it, beside which this one's parameters come.
            both = min(before, (wanted + backlog) * slow_load / slow)
            carried = both * slow / slow_load
            exposed += both * (slow - 1) + max(wanted - carried, 0.0)
            backlog = max(backlog - max(carried - wanted, 0.0), 0.0) + sending
            before, sending = computed_s[variant], 0.0
            for kind in range(len(sent_s)):
                sending += sent_longer[kind, stage] * sent_s[kind, variant]
        both = min(before, backlog * slow_load / slow)
        longer_s[stage] = exposed + both * (slow - 1) + backlog - both * slow / slow_load + sending
    return longer_s
