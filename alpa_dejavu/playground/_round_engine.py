"""Rounds of messages among workers in machine code: the rules of `_world` and `_network`, for time alone.

Arrays take the place of objects: F places for flows, each over at most K resources. `ints` has each flow's message,
round, whether its bytes have passed, and the flow behind it in its stream; `floats` its remaining bytes, rate and when
it got that rate. `last` has the last flow of each stream, which is what one worker sends to another one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from alpa_dejavu._util.compiled import compiled

__all__ = ["run_rounds"]

_SLACK = 1e-9


def _before(times: Any, heap: Any, a: int, b: int) -> bool:
    return bool(times[heap[a]] < times[heap[b]])


def _swap(heap: Any, place: Any, a: int, b: int) -> None:
    heap[a], heap[b] = heap[b], heap[a]
    place[heap[a]], place[heap[b]] = a, b


def _moved(times: Any, heap: Any, place: Any, at: int, size: int) -> None:
    """Moves the entry at a place of the binary heap to where it belongs."""
    while at > 0 and _before(times, heap, at, (at - 1) // 2):
        _swap(heap, place, at, (at - 1) // 2)
        at = (at - 1) // 2
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and _before(times, heap, child + 1, child):
            child += 1
        if not _before(times, heap, child, at):
            break
        _swap(heap, place, at, child)
        at = child


def _put(times: Any, heap: Any, place: Any, sizes: Any, entry: int, time_s: float) -> None:
    """Puts an entry into the heap, or gives it another time."""
    times[entry] = time_s
    if place[entry] < 0:
        place[entry] = sizes[0]
        heap[sizes[0]] = entry
        sizes[0] += 1
    _moved(times, heap, place, place[entry], sizes[0])


def _pop(times: Any, heap: Any, place: Any, sizes: Any) -> int:
    entry = heap[0]
    sizes[0] -= 1
    _swap(heap, place, 0, sizes[0])
    place[entry] = -1
    if sizes[0] > 0:
        _moved(times, heap, place, 0, sizes[0])
    return int(entry)


def _link(over: Any, ends: Any, near: Any, flow: int, dirty: Any, sizes: Any, add: bool) -> None:
    """Adds a flow at the end of the lists of the resources that it goes over, or removes it; these have changed."""
    width = over.shape[1]
    for k in range(width):
        resource = over[flow, k]
        if resource < 0:
            break
        code = flow * width + k
        if add:
            near[code, 0], near[code, 1] = ends[resource, 1], -1
            if ends[resource, 1] >= 0:
                near[ends[resource, 1], 1] = code
            else:
                ends[resource, 0] = code
            ends[resource, 1] = code
            ends[resource, 2] += 1
        else:
            if near[code, 0] >= 0:
                near[near[code, 0], 1] = near[code, 1]
            else:
                ends[resource, 0] = near[code, 1]
            if near[code, 1] >= 0:
                near[near[code, 1], 0] = near[code, 0]
            else:
                ends[resource, 1] = near[code, 0]
            ends[resource, 2] -= 1
        if ends[resource, 3] == 0:
            ends[resource, 3] = 1
            dirty[sizes[1]] = resource
            sizes[1] += 1


def _fill(over: Any, ends: Any, near: Any, capacity: Any, most: Any, floats: Any, marked: Any, chosen: Any, count: int,
          touched: Any, taken: Any, free: Any, fresh: Any, narrow: Any) -> int:  # fmt: skip
    """Progressive filling of the chosen flows beside the others; returns how many resources they go over."""
    width, num_touched = over.shape[1], 0
    for i in range(count):
        for k in range(width):
            resource = over[chosen[i], k]
            if resource < 0:
                break
            if taken[resource, 0] == 0:
                touched[num_touched] = resource
                num_touched += 1
            taken[resource, 0] += 1
    for t in range(num_touched):
        resource, others = touched[t], 0.0
        code = ends[resource, 0]
        while code >= 0:
            if not marked[code // width]:
                others += floats[code // width, 1]
            code = near[code, 1]
        free[resource] = max(capacity[resource] - others, 0.0)
        taken[resource, 1] = taken[resource, 0]
    waiting, left = chosen[:count].copy(), count
    while left:
        least = np.inf
        for t in range(num_touched):
            if taken[touched[t], 1] > 0:
                least = min(least, free[touched[t]] / taken[touched[t], 1])
        for i in range(left):
            least = min(least, most[waiting[i]])
        for t in range(num_touched):
            counted = taken[touched[t], 1]
            taken[touched[t], 2] = 1 if counted > 0 and free[touched[t]] / counted == least else 0
        kept = 0
        for i in range(left):
            flow, found = waiting[i], -1
            for k in range(width):
                if over[flow, k] >= 0 and taken[over[flow, k], 2] == 1:
                    found = over[flow, k]
                    break
            if found < 0 and most[flow] > least:
                waiting[kept] = flow
                kept += 1
                continue
            fresh[flow], narrow[flow] = least, found
            for k in range(width):
                if over[flow, k] >= 0:
                    free[over[flow, k]] = max(free[over[flow, k]] - least, 0.0)
                    taken[over[flow, k], 1] -= 1
        left = kept
    return num_touched


def _join(over: Any, ends: Any, near: Any, capacity: Any, floats: Any, marked: Any, chosen: Any, count: int,
          touched: Any, num_touched: int, taken: Any, fresh: Any, narrow: Any, held_by: Any) -> int:  # fmt: skip
    """Adds the flows beside the chosen ones that have lost their bottleneck, or have more than one that is held back
    where they are; returns how many are chosen now.
    """
    width, now = over.shape[1], count
    for t in range(num_touched):
        resource = touched[t]
        inside = taken[resource, 0]
        taken[resource, 0] = 0
        if inside == ends[resource, 2]:
            continue
        top, load, least = 0.0, 0.0, np.inf
        code = ends[resource, 0]
        while code >= 0:
            flow = code // width
            rate = fresh[flow] if marked[flow] == 1 else floats[flow, 1]
            top, load = max(top, rate), load + rate
            if marked[flow] == 1 and narrow[flow] == resource:
                least = min(least, rate)
            code = near[code, 1]
        full = load >= capacity[resource] * (1 - _SLACK)
        code = ends[resource, 0]
        while code >= 0:
            flow = code // width
            if marked[flow] == 0:
                rate = floats[flow, 1]
                lost = held_by[flow] == resource and not (full and rate >= top * (1 - _SLACK))
                if rate > least * (1 + _SLACK) or lost or load > capacity[resource] * (1 + _SLACK):
                    chosen[now], marked[flow] = flow, 2
                    now += 1
            code = near[code, 1]
    for i in range(count, now):
        marked[chosen[i]] = 1
    return now


def _settle(now_s: float, over: Any, ends: Any, near: Any, capacity: Any, most: Any, floats: Any, marked: Any,
            chosen: Any, touched: Any, taken: Any, free: Any, fresh: Any, narrow: Any, held_by: Any, dirty: Any,
            times: Any, heap: Any, place: Any, sizes: Any, workers: int) -> None:  # fmt: skip
    """Gives all flows that what has changed touches their max-min fair rates, and their new ends."""
    width, count = over.shape[1], 0
    for d in range(sizes[1]):
        ends[dirty[d], 3] = 0
        code = ends[dirty[d], 0]
        while code >= 0:
            if not marked[code // width]:
                marked[code // width] = 1
                chosen[count] = code // width
                count += 1
            code = near[code, 1]
    sizes[1] = 0
    before = -1
    while count > before:
        before = count
        num_touched = _fill(over, ends, near, capacity, most, floats, marked, chosen, count, touched, taken, free,
                            fresh, narrow)  # fmt: skip
        count = _join(over, ends, near, capacity, floats, marked, chosen, count, touched, num_touched, taken, fresh,
                      narrow, held_by)  # fmt: skip
    for i in range(count):
        flow = chosen[i]
        marked[flow], held_by[flow] = 0, narrow[flow]
        if fresh[flow] != floats[flow, 1]:
            floats[flow, 0] = max(floats[flow, 0] - floats[flow, 1] * (now_s - floats[flow, 2]), 0.0)
            floats[flow, 1], floats[flow, 2] = fresh[flow], now_s
            _put(times, heap, place, sizes, workers + flow, now_s + floats[flow, 0] / fresh[flow])


def _send(worker: int, number: int, row: int, now_s: float, num_bytes: float, first: Any, ways: Any, limits: Any,
          over: Any, most: Any, floats: Any, ints: Any, held_by: Any, ends: Any, near: Any, dirty: Any, sizes: Any,
          unused: Any, streams: Any, last: Any) -> None:  # fmt: skip
    """Starts the flows of a worker's messages of a round, or puts them behind those of their streams."""
    for message in range(first[row, worker], first[row, worker + 1]):
        sizes[2] -= 1
        flow = unused[sizes[2]]
        over[flow], most[flow], held_by[flow] = ways[message], limits[message], -1
        floats[flow, 0], floats[flow, 1], floats[flow, 2] = num_bytes, 0.0, now_s
        ints[flow, 0], ints[flow, 1], ints[flow, 2], ints[flow, 3] = message, number, 0, -1
        before = last[streams[message]]
        last[streams[message]] = flow
        if before >= 0:
            ints[before, 3] = flow
        else:
            _link(over, ends, near, flow, dirty, sizes, True)


@compiled(
    "(f8[:,::1], i8[::1], i8[:,::1], i8[:,::1], i8[::1], i8[::1], i8[:,::1], f8[::1], f8[::1], f8[::1], f8, b1, f8,"
    " i8)",
    _before, _swap, _moved, _put, _pop, _link, _fill, _join, _settle, _send,
)  # fmt: skip
def run_rounds(
    seconds: Any, pattern: Any, first: Any, expected: Any, targets: Any, streams: Any, ways: Any, limits: Any,
    latency_s: Any, capacity: Any, num_bytes: float, sends_first: bool, every: float, places: int,
) -> Any:  # fmt: skip
    """Returns the moments of looks and the end, shape (E, 4): time, steps, gradients computed, and messages sent; none
    if flows have too few places.

    Args:
        seconds: of each round and worker, to compute, shape (R, n).
        pattern: each round's pattern, shape (R,).
        first: where in the columns of messages those of each pattern and sender begin, shape (patterns, n + 1).
        expected: how many messages each worker gets in a pattern, shape (patterns, n).
        targets: for each message the receiver, shape (M,).
        streams: for each message the number of its stream, below M, shape (M,).
        ways: for each message the resources that it goes over, padded with -1, shape (M, K).
        limits: bytes per second that each message may have at most, shape (M,).
        latency_s: for each message, after its bytes, shape (M,).
        capacity: bytes per second of each resource.
        num_bytes: of each message.
        sends_first: whether messages are sent before computing, and a step counts at the round's end; or both after.
        every: steps from look to look.
        places: how many flows there may be at a time.
    """
    rounds, workers = seconds.shape
    resources, width = len(capacity), ways.shape[1]
    over, near = np.full((places, width), -1), np.full((places * width, 2), -1)
    ends = np.zeros((resources, 4), np.int64)
    ends[:, :2] = -1
    most, floats, ints = np.zeros(places), np.zeros((places, 3)), np.zeros((places, 4), np.int64)
    marked, chosen, held_by = np.zeros(places, np.int8), np.zeros(places, np.int64), np.full(places, -1)
    fresh, narrow, unused = np.zeros(places), np.zeros(places, np.int64), np.arange(places)
    touched, dirty, free = np.zeros(resources, np.int64), np.zeros(resources, np.int64), np.zeros(resources)
    taken, sizes = np.zeros((resources, 3), np.int64), np.array([0, 0, places])
    times, heap, place = np.zeros(workers + places), np.zeros(workers + places, np.int64), np.full(workers + places, -1)
    last = np.full(len(targets), -1)
    done, computed = np.zeros(workers, np.int64), np.zeros(workers, np.bool_)
    got = np.zeros((rounds, workers), np.int32)
    looks, num_looks, next_look, now_s = np.zeros((rounds * workers + 2, 4)), 0, 0.0, 0.0
    steps, gradients, sent = 0, 0, 0
    for worker in range(workers):
        _put(times, heap, place, sizes, worker, seconds[0, worker])
        if sends_first:
            if first[pattern[0], worker + 1] - first[pattern[0], worker] > sizes[2]:
                return looks[:0]
            _send(worker, 0, pattern[0], 0.0, num_bytes, first, ways, limits, over, most, floats, ints, held_by, ends,
                  near, dirty, sizes, unused, streams, last)  # fmt: skip
            sent += first[pattern[0], worker + 1] - first[pattern[0], worker]
    while True:
        if steps >= next_look:
            look = looks[num_looks]
            look[0], look[1], look[2], look[3] = now_s, steps, gradients, sent
            num_looks += 1
            next_look = (steps // every + 1) * every
        if sizes[1]:
            _settle(now_s, over, ends, near, capacity, most, floats, marked, chosen, touched, taken, free, fresh,
                    narrow, held_by, dirty, times, heap, place, sizes, workers)  # fmt: skip
        if sizes[0] == 0:
            break
        now_s = times[heap[0]]
        while sizes[0] and times[heap[0]] <= now_s:
            entry = _pop(times, heap, place, sizes)
            worker, sending = entry, -1
            if entry < workers:
                computed[worker] = True
                gradients += 1
                steps += not sends_first
                sending = -1 if sends_first else done[worker]
            else:
                flow = entry - workers
                message = ints[flow, 0]
                worker = targets[message]
                if ints[flow, 2] == 0:
                    ints[flow, 2] = 1
                    _link(over, ends, near, flow, dirty, sizes, False)
                    following = ints[flow, 3]
                    if following >= 0:
                        floats[following, 2] = now_s
                        _link(over, ends, near, following, dirty, sizes, True)
                    else:
                        last[streams[message]] = -1
                    _put(times, heap, place, sizes, entry, now_s + latency_s[message])
                    continue
                unused[sizes[2]] = flow
                sizes[2] += 1
                got[ints[flow, 1], worker] += 1
            if computed[worker] and got[done[worker], worker] >= expected[pattern[done[worker]], worker]:
                steps += sends_first
                done[worker] += 1
                computed[worker] = False
                if done[worker] < rounds:
                    _put(times, heap, place, sizes, worker, now_s + seconds[done[worker], worker])
                    sending = done[worker] if sends_first else sending
            if sending >= 0:
                row = pattern[sending]
                if first[row, worker + 1] - first[row, worker] > sizes[2]:
                    return looks[:0]
                _send(worker, sending, row, now_s, num_bytes, first, ways, limits, over, most, floats, ints, held_by,
                      ends, near, dirty, sizes, unused, streams, last)  # fmt: skip
                sent += first[row, worker + 1] - first[row, worker]
    look = looks[num_looks]
    look[0], look[1], look[2], look[3] = now_s, steps, gradients, sent
    return looks[: num_looks + 1]
