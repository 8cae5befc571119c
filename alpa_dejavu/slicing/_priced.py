"""A price on each device in place of their number: it gives a lower bound on all sums, and rules out stages.

A way through the graph may use any number of devices, but pays for each, and gets the price of all that there are. With
exactly that many it costs what it did: the least sum over all ways is a bound for any price, and the best price gives
the best bound. No table over numbers of devices is needed for it.

References:
    Handler and Zang, A dual algorithm for the constrained shortest path problem, Networks 10, 1980.
"""

from __future__ import annotations

import math

from alpa_dejavu.slicing._branch import ROUNDING
from alpa_dejavu.slicing._graph import Graph

STEPS = 16
"""The number of prices that are tried at most."""
TIGHT = 1e-4
"""A bound is good enough if no price is known to give one that is better by more than this fraction."""
FIRST, FARTHER = 0.05, 4.0
"""By which fraction a price is changed first, and how much more each time until it is too much."""


def best_price(
    graph: Graph, num_devices: int, exactly: bool, price: float = 0.0, enough: float = math.inf
) -> tuple[float, float]:
    """Returns a lower bound on the summed weight of paths that use the cluster's devices, and the device price that
    gives it.

    It is a Lagrangian relaxation: each arc, which is a stage, costs its weight and the price of its devices.

    Args:
        graph: the graph.
        num_devices: how many devices there are.
        exactly: whether all have to be used; if not, no price is below zero.
        price: the first price that is tried.
        enough: the search ends with the first price whose bound is so large.
    """
    few: tuple[float, int] | None = None
    many: tuple[float, int] | None = None
    best, best_price, step = -math.inf, price, 0.0
    for _ in range(STEPS):
        keys = graph.weight + price * graph.size
        rest = graph.rest(keys)
        way = graph.way(keys, rest)
        if not way:
            return math.inf, price
        value = float(rest[: graph.num_starts].min()) - price * num_devices
        if value > best:
            best, best_price = value, price
        weight, used = float(graph.weight[way].sum()), int(graph.size[way].sum())
        if value >= enough or used == num_devices or (used < num_devices and price == 0 and not exactly):
            break
        few, many = ((weight, used), many) if used < num_devices else (few, (weight, used))
        if few and many:
            price = (few[0] - many[0]) / (many[1] - few[1])
            if few[0] + price * (few[1] - num_devices) - best <= TIGHT * abs(best):
                break
        else:
            if not step and not may_use(graph, num_devices, exactly):
                return math.inf, price
            step = FARTHER * step or FIRST * abs(price) or weight / num_devices or 1.0
            price += step if used > num_devices else -step
        if not exactly:
            price = max(price, 0.0)
    return best, best_price


def may_use(graph: Graph, num_devices: int, exactly: bool) -> bool:
    """Returns whether paths through a graph, whose arcs are stages, can suit a number of devices: some path takes so
    many or fewer.

    If it has to be exactly so many, some path must take as many or more, too.
    """
    fewest, most = (
        float(graph.rest(sign * graph.size)[: graph.num_starts].min(initial=math.inf)) for sign in (1.0, -1.0)
    )
    return fewest <= num_devices and (num_devices <= -most or not exactly)


def affordable(graph: Graph, num_devices: int, price: float, below: float) -> tuple[float, Graph]:
    """Returns a lower bound on the summed weight of paths through a graph, whose arcs are stages, and the graph without
    arcs that are too dear.

    Those are arcs that no path that uses `num_devices` devices and has a sum below `below` has, as a price of `price`
    for each device tells.
    """
    keys = graph.weight + price * graph.size
    rest, refund = graph.rest(keys), price * num_devices
    through = graph.since(keys)[graph.tail] + keys + rest[graph.head] - refund
    least = float(rest[: graph.num_starts].min(initial=math.inf)) - refund
    return least, graph.of(through < below + ROUNDING * abs(refund))
