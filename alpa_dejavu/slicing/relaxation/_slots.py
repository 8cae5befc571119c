"""Plans of a given number of stages as probabilities, and their anneal for any cost that JAX differentiates.

Each of K places for a stage has its own leanings: to choices, and to where it ends. With what stages cost they make
the probability of every stage at every place, by a program over places and layers. A cost sees what the stages at each
place are on the mean. Its gradient goes through the program to the leanings. What is taken of the devices, and memory
that is overrun, are added as penalties. At the end plans are drawn.

References:
    Mensch and Blondel, Differentiable Dynamic Programming for Structured Prediction and Attention, ICML 2018.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from alpa_dejavu.slicing.relaxation import Cost, RelaxedPlan
from alpa_dejavu.slicing.relaxation._batch import Batch, IntArray
from alpa_dejavu.slicing.relaxation._chain import Annealed, BoundAndPrices, adam, softened
from alpa_dejavu.slicing.relaxation._draws import picked
from alpa_dejavu.slicing.relaxation._lattice import NEVER, OVERRUN, Arrays, Lattice, rounded_up
from alpa_dejavu.slicing.relaxation._measure import PlanCost

PENALTY = 1.0
"""The penalty, in units, for all devices taken once too often, or left; it counts the share and the share's square."""
FIRST_STEP, LAST_STEP = 0.02, 0.002
"""The lengths of the first and the last step of the leanings, in units."""
HOTTEST, COLDEST = 1e-2, 3e-4
MOST_PLACES, LEAST_PLACES = 32, 8
"""Plans of more stages aren't relaxed by places."""
SAMPLES, NOISE = 16, 0.01


class Features(NamedTuple):
    """The seconds and shares of devices that a relaxed plan's figures come from, by L layers, Z choices, G groups.

    Attributes:
        parts: shape (3, L, L, Z), a stage's seconds forward, backward, and once a step, for layers i..j.
        crossing: shape (L, G, Z), seconds of the transfer from a group to a stage that begins with layer l.
        devices: shape (Z,), the share of all devices that a choice takes.
    """

    parts: Any
    crossing: Any
    devices: Any
    unit_s: Any
    num_micro_batches: Any


class Leanings(NamedTuple):
    """The variables that the anneal of K places moves, in units of time.

    Attributes:
        choice: shape (K, Z), what is added to the cost of each choice at a place.
        end: shape (K, L), what is added to the cost of a stage at a place that ends with a layer.
        prices: shape (R,), what all that there is of each of R resources, such as devices of a kind, costs more.
    """

    choice: Any
    end: Any
    prices: Any


class Placed(NamedTuple):
    """The course of an anneal of K places from N starts.

    Attributes:
        seconds: shape (T, N), the cost at each of T temperatures.
        layers: shape (T, N, K, L), the probability of each layer at each place.
        temperatures: shape (T,), in units of time.
    """

    seconds: Any
    layers: Any
    temperatures: Any


def probabilities(
    arrays: Arrays, chain: BoundAndPrices, leanings: Leanings, count: Any, temperature: Any
) -> tuple[Any, Any]:
    """Returns the probabilities of choices for the stage at each place, shape (K, L, G, Z), by its first layer and the
    group of the stage before; and those of its last layer for each choice, shape (K, L, L, Z). `count` stages exist.
    """
    bound = jnp.exp(chain.log_bound)
    over = jnp.maximum(arrays.cost + arrays.entry_cost[:, None] - bound, 0.0)
    path = arrays.weight + arrays.steepness * over + arrays.uses @ (chain.prices + leanings.prices)
    size, groups = path.shape[0], arrays.entry.shape[1]
    places = leanings.choice.shape[0]
    done = jnp.where(jnp.arange(size + 1) == arrays.num_layers, 0.0, NEVER)
    done = jnp.broadcast_to(done[:, None], (size + 1, groups))

    def step(rest: Any, row: tuple[Any, ...]) -> tuple[Any, tuple[Any, Any]]:
        place, choice, end = row
        least, shares, total = softened(path + end[:, None] + rest[1:] @ arrays.group.T, temperature, 1)
        by_end = shares / total[:, None]
        after, chosen, sum_chosen = softened(arrays.entry + (least + choice)[:, None], temperature, 2)
        after = jnp.where((jnp.arange(size) < arrays.num_layers)[:, None], after, NEVER)
        after = jnp.concatenate([jnp.minimum(after, NEVER), jnp.full((1, groups), NEVER)])
        return jnp.where(place < count, after, rest), (chosen / sum_chosen[:, :, None], by_end)

    rows = (jnp.arange(places), leanings.choice, leanings.end)
    return lax.scan(step, done, rows, reverse=True)[1]


def relaxed(
    arrays: Arrays, features: Features, chain: BoundAndPrices, leanings: Leanings, count: Any, temperature: Any
) -> tuple[RelaxedPlan, Any, Any]:
    """Returns the mean plan, the used share of each resource, and the probability of layers at places, (K, L)."""
    by_choice, by_end = probabilities(arrays, chain, leanings, count, temperature)
    size, groups = arrays.weight.shape[0], arrays.entry.shape[1]
    places = by_choice.shape[0]

    def step(at: Any, row: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        place, chosen, ended = row
        is_stage = jnp.where(place < count, 1.0, 0.0)
        mass = at[:size, :, None] * chosen * is_stage
        begun = mass.sum(axis=1)
        stage = begun[:, None] * ended
        followed = (count - 1 - place).astype(stage.dtype)
        seen = (
            jnp.einsum("ijz,fijz->f", stage, features.parts),
            (mass * features.crossing).sum(),
            (begun @ features.devices).sum(),
            (stage * jnp.maximum(followed - arrays.followers, 0.0)).sum(),
            begun.sum(axis=0) @ arrays.uses,
            jnp.cumsum(begun.sum(axis=1)) - jnp.cumsum(stage.sum(axis=(0, 2))) + stage.sum(axis=(0, 2)),
        )
        moved = jnp.concatenate([jnp.zeros((1, groups)), stage.sum(axis=0) @ arrays.group])
        return jnp.where(place < count, moved, at), seen

    begin = jnp.zeros((size + 1, groups)).at[0, 0].set(1.0)
    _, (parts, crossing, devices, risk, used, layers) = lax.scan(step, begin, (jnp.arange(places), by_choice, by_end))
    plan = RelaxedPlan(
        parts[:, 0], parts[:, 1], parts[:, 2], crossing, devices, risk, count, features.num_micro_batches
    )
    return plan, used.sum(axis=0), layers


@functools.partial(jax.jit, static_argnames=("cost",))
def _annealed(
    cost: Cost, arrays: Arrays, features: Features, chains: BoundAndPrices, begun: Leanings, counts: Any, heats: Any
) -> tuple[tuple[Any, Any], Any, Any]:
    """Anneals leanings by the gradient of a cost, from N starts, each with its number of stages; arguments but the
    first three and the last have a first axis N.

    Returns the probabilities at the end, of choices and of last layers; the cost at each temperature, (T, N), in
    seconds; and the probability of each layer at each place then, (T, N, K, L).
    """

    def loss(leanings: Leanings, chain: BoundAndPrices, count: Any, temperature: Any) -> tuple[Any, Any]:
        plan, used, layers = relaxed(arrays, features, chain, leanings, count, temperature)
        seconds = cost(plan)
        off = jnp.where(arrays.exact > 0, used - 1.0, jnp.maximum(used - 1.0, 0.0)) * arrays.offered
        worse = OVERRUN * plan.risk.sum() + PENALTY * (off**2).sum() + jnp.abs(off).sum() * PENALTY
        return seconds / features.unit_s + worse, (seconds, layers)

    gradients = jax.vmap(jax.grad(loss, has_aux=True), in_axes=(0, 0, 0, None))
    begin, update = adam(Leanings(-1.0, -1.0, -1.0))
    steps = jnp.linspace(FIRST_STEP, LAST_STEP, len(heats))

    def move(carry: Any, now: tuple[Any, Any, Any]) -> tuple[Any, tuple[Any, Any]]:
        (leanings, state), (number, temperature, length) = carry, now
        gradient, seen = gradients(leanings, chains, counts, temperature)
        return update(leanings, gradient, state, number, Leanings(length, length, 5 * length)), seen

    numbers = jnp.arange(1.0, len(heats) + 1.0)
    (leanings, _), (seconds, layers) = lax.scan(move, (begun, begin(begun)), (numbers, heats, steps))
    last = functools.partial(probabilities, arrays, temperature=heats[-1])
    return jax.vmap(last)(chains, leanings, counts), seconds, layers


def place(
    lattice: Lattice, measure: PlanCost, ended: Annealed, plans: Batch, starts: int, rounds: int, seed: int
) -> tuple[Placed, Batch]:
    """Anneals which layers and which choice each place of a plan takes, by a cost, and draws plans, which aren't all
    allowed.

    Starts are small random leanings, with bounds and prices of the best ends of the chain's anneal, and with about as
    many stages as the best `plans` have.
    """
    assert measure.cost is not None, "asked where there is a cost to relax"
    rng = np.random.default_rng(seed)
    counts = _counts(lattice, plans, starts, rng)
    order = np.resize(np.argsort(ended.values[-1], kind="stable"), starts)
    places = rounded_up(max(int(counts.max()), LEAST_PLACES))
    size, width = lattice.arrays.weight.shape[1:]
    choice, end = (
        rng.normal(0, NOISE * lattice.reference, (starts, places, n)).astype(np.float32) for n in (width, size)
    )
    begun = Leanings(choice, end, np.zeros((starts, lattice.arrays.uses.shape[1]), dtype=np.float32))
    chains = BoundAndPrices(*(part[order] for part in ended.end))
    temperatures = np.geomspace(HOTTEST, COLDEST, rounds).astype(np.float32)
    features = _features(lattice, measure)
    annealed = _annealed(measure.cost, lattice.arrays, features, chains, begun, counts.astype(np.int32), temperatures)
    (by_choice, by_end), seconds, layers = jax.tree_util.tree_map(np.asarray, annealed)
    ends, chosen = _drawn(lattice, by_choice, by_end, counts, np.random.default_rng(seed))
    count = np.repeat(counts, SAMPLES).astype(np.int64)
    return Placed(seconds, layers, temperatures), lattice.batch(ends, chosen, count)


def _counts(lattice: Lattice, plans: Batch, starts: int, rng: np.random.Generator) -> IntArray:
    """Returns how many stages the starts have: as many as good plans have, or one more or less."""
    most = min(lattice.problem.num_layers, MOST_PLACES)
    if lattice.problem.num_stages is not None:
        return np.full(starts, min(lattice.problem.num_stages, most))
    tried = plans.count[plans.counts_met]
    counts = np.resize(tried[: max(starts // 2, 1)], starts)
    return np.clip(counts + rng.integers(-1, 2, starts) * (np.arange(starts) % 2), 1, most)


def _features(lattice: Lattice, measure: PlanCost) -> Features:
    arrays, problem = lattice.arrays, lattice.problem
    size, width = arrays.weight.shape[1:]
    parts = np.zeros((3, size, size, width), dtype=np.float32)
    layers, ways = problem.num_layers, lattice.way.shape[3]
    forward, once = (lattice.thin(lattice.by_ways(table)) for table in (measure.forward_s, problem.once_s))
    costs = lattice.thin(lattice.choices.costs_s)
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
    return Features(parts, crossing, devices, np.float32(lattice.unit_s), np.int32(problem.num_micro_batches))


def _drawn(
    lattice: Lattice, by_choice: Any, by_end: Any, counts: IntArray, rng: np.random.Generator
) -> tuple[IntArray, IntArray]:
    """Returns ends and choices of plans, the first of each start the likeliest step by step."""
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
