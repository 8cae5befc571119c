"""From where the chain's anneal ended to plans, by the anneal of places for any cost."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from alpa_dejavu.slicing.relaxation._batch import Batch, IntArray
from alpa_dejavu.slicing.relaxation._chain_search import Annealed
from alpa_dejavu.slicing.relaxation._lattice import Lattice, rounded_up
from alpa_dejavu.slicing.relaxation._measure import Measure
from alpa_dejavu.slicing.relaxation._sample import picked

HOTTEST, COLDEST = 1e-2, 3e-4
MOST_PLACES, LEAST_PLACES = 32, 8
"""Plans of more stages aren't relaxed by places."""
SAMPLES, NOISE = 16, 0.01


class Placed(NamedTuple):
    """The result of annealing plans of K stage places, relaxed to probabilities, from N starts, as NumPy arrays.

    Attributes:
        choice: shape (N, K, Z), what each place adds to the cost of each of Z choices of a submesh and config.
        end: shape (N, K, L), what each place adds to the cost of a stage that ends with a layer.
        prices: shape (N, R), the prices of what plans take too much of each of R resources.
        counts: shape (N,), the number of stages of each start.
        chain: bounds on the largest stage, and prices, from the anneal of the dynamic program over layers.
        seconds: shape (T, N), the cost at each of T temperatures; None before the anneal.
        layers: shape (T, N, K, L), the probability of each layer at each place; None before the anneal.
        temperatures: shape (T,), in units of time; None before the anneal.
    """

    choice: Any
    end: Any
    prices: Any
    counts: Any
    chain: tuple[Any, Any]
    seconds: Any
    layers: Any
    temperatures: Any


def place(
    lattice: Lattice, measure: Measure, begun: Placed, rounds: int, seed: int, again: bool
) -> tuple[Placed, Batch]:
    """Anneals which layers and which choice (submesh and config) each stage place of a plan takes, by any cost, and
    draws plans, which aren't all allowed.

    Args:
        lattice: the slicing problem, prepared for the relaxations.
        measure: the function that compares plans; it has a cost to differentiate.
        begun: the starts.
        rounds: how many temperatures the anneal has.
        seed: the seed for drawing plans.
        again: whether the starts are the end of another anneal, so that the first temperature is lower.
    """
    from alpa_dejavu.slicing.relaxation._chain import Chain
    from alpa_dejavu.slicing.relaxation._slots import Leanings, annealed_slots

    temperatures = np.geomspace(HOTTEST / 5 if again else HOTTEST, COLDEST, rounds).astype(np.float32)
    assert measure.cost is not None, "asked where there is a cost to relax"
    ended, probabilities, seconds, layers = annealed_slots(
        measure.cost, lattice.arrays, _features(lattice, measure), Chain(*begun.chain),
        Leanings(begun.choice, begun.end, begun.prices), begun.counts.astype(np.int32), temperatures,
    )  # fmt: skip
    leanings = [np.asarray(part) for part in ended]
    told = [np.asarray(seconds), np.asarray(layers), temperatures]
    placed = Placed(*[*leanings, begun.counts, begun.chain, *told])
    by_choice, by_end = (np.asarray(part) for part in probabilities)
    ends, chosen = _drawn(lattice, by_choice, by_end, begun.counts, np.random.default_rng(seed))
    count = np.repeat(begun.counts, SAMPLES).astype(np.int64)
    return placed, lattice.batch(ends, chosen, count)


def begin(lattice: Lattice, ended: Annealed, plans: Batch, starts: int, seed: int) -> Placed:
    """Returns starts for the anneal of stage places: small random numbers that places add to the costs of choices and
    of last layers.

    Args:
        lattice: the slicing problem, prepared for the relaxations.
        ended: the result of annealing the dynamic program over layers, whose best starts lend bounds and prices.
        plans: the best known plans, which say how many stages are worth a try.
        starts: how many starts to return.
        seed: the seed of the random numbers.
    """
    rng = np.random.default_rng(seed)
    counts = _counts(lattice, plans, starts, rng)
    order = np.resize(np.argsort(ended.values[-1], kind="stable"), starts)
    places = rounded_up(max(int(counts.max()), LEAST_PLACES))
    size, width = lattice.arrays.weight.shape[1:]
    choice, end = (
        rng.normal(0, NOISE * lattice.reference, (starts, places, n)).astype(np.float32) for n in (width, size)
    )
    prices = np.zeros((starts, lattice.arrays.uses.shape[1]), dtype=np.float32)
    return Placed(choice, end, prices, counts, (ended.log_bound[order], ended.prices[order]), None, None, None)


def _counts(lattice: Lattice, plans: Batch, starts: int, rng: np.random.Generator) -> IntArray:
    """Returns how many stages the starts have: as many as good plans have, or one more or less."""
    most = min(lattice.problem.num_layers, MOST_PLACES)
    if lattice.problem.num_stages is not None:
        return np.full(starts, min(lattice.problem.num_stages, most))
    tried = plans.count[plans.counts_met]
    counts = np.resize(tried[: max(starts // 2, 1)], starts)
    return np.clip(counts + rng.integers(-1, 2, starts) * (np.arange(starts) % 2), 1, most)


def _features(lattice: Lattice, measure: Measure) -> Any:
    from alpa_dejavu.slicing.relaxation._slots import Features

    arrays, problem, unit_s = lattice.arrays, lattice.problem, lattice.unit_s
    size, width = arrays.weight.shape[1:]
    parts = np.zeros((3, size, size, width), dtype=np.float32)
    layers, ways = problem.num_layers, lattice.way.shape[3]
    forward = lattice.thin(lattice.by_ways(measure.forward_s))
    costs, once = lattice.thin(lattice.choices.costs_s), lattice.thin(lattice.by_ways(problem.once_s))
    fits = np.isfinite(costs) & np.isfinite(once) & np.isfinite(forward)
    chosen = costs.shape[2]
    for n, part in enumerate((forward, np.maximum(costs - np.where(fits, forward, 0.0), 0.0), once)):
        parts[n, :layers, :layers, :chosen] = np.where(fits, part, 0.0)
    crossing = np.zeros(arrays.entry.shape, dtype=np.float32)
    seconds = np.repeat(lattice.choices.crossing_s, ways, axis=2)
    crossing[tuple(slice(n) for n in seconds.shape)] = seconds
    devices = np.zeros(width, dtype=np.float32)
    kinds = lattice.choices.uses[:, : lattice.num_kinds].sum(axis=1)
    devices[:chosen] = np.repeat(kinds / problem.num_devices, ways)
    return Features(parts, crossing, devices, np.float32(unit_s), np.int32(problem.num_micro_batches))


def _drawn(
    lattice: Lattice, by_choice: Any, by_end: Any, counts: IntArray, rng: np.random.Generator
) -> tuple[IntArray, IntArray]:
    """Ends and choices of plans, the first of each start the likeliest step by step."""
    size = lattice.problem.num_layers
    start = np.repeat(np.arange(len(counts)), SAMPLES)
    greedy = np.arange(len(start)) % SAMPLES == 0
    group_of = lattice.arrays.group.argmax(axis=1)
    layer, group = np.zeros_like(start), np.zeros_like(start)
    ends, chosen = [], []
    for k in range(int(counts.max())):
        at = np.minimum(layer, size - 1)
        choice = picked(by_choice[start, k, at, group], greedy, rng)
        last = picked(by_end[start, k, at, :, choice], greedy, rng)
        going = k < counts[start]
        layer = np.where(going, np.minimum(last + 1, size), layer)
        group = np.where(going, group_of[choice], group)
        ends.append(layer)
        chosen.append(np.where(going, choice, 0))
    return np.stack(ends, axis=1), np.stack(chosen, axis=1)
