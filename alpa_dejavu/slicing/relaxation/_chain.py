"""The differentiable dynamic program over layers, and its anneal from many starts at once.

A plan is a path over the layers, each step of which is a stage with its choice. At a temperature T each path has a
probability that falls with what it costs, and the least cost becomes a soft minimum, whose gradient is what the paths
have on the mean. Two things couple the stages of a path. What they take of the devices is priced. And the largest
stage is replaced by a bound m that costs what the largest stage would, with B - 1 seconds for each second that a stage
is over it: for the best m the best path is the best plan. Prices go up the gradient and the bound down, while T falls.

References:
    Mensch and Blondel, Differentiable Dynamic Programming for Structured Prediction and Attention, ICML 2018.
    Kingma and Ba, Adam, ICLR 2015: the steps.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from alpa_dejavu.slicing.relaxation._lattice import DRAWN_AT, OVERRUN, SMALL, Arrays, Lattice

MOMENTUM, SPREAD, TINY = 0.8, 0.95, 1e-8
"""Adam's numbers: the shares of the mean gradient and of its mean square that stay, and what keeps divisors above 0."""
FIRST_STEPS, LAST_STEPS = (0.05, 0.4), (0.01, 0.02)
"""The lengths of steps of the bound's logarithm, and of those of the prices, which have to keep up with it."""
HOTTEST, COLDEST = 3e-2, 2e-4
"""Temperatures, in units of time."""


class BoundAndPrices(NamedTuple):
    """The variables that the anneal moves: the logarithm of a bound on the largest stage, and the price of all that
    there is of each of R resources (devices of a kind), shape (R,); both in units of time.
    """

    log_bound: Any
    prices: Any


class Annealed(NamedTuple):
    """The anneal of the dynamic program over layers from N starts at T temperatures; in units of time.

    Attributes:
        end: the bounds, shape (N,), and prices, (N, R), at which starts ended.
        history: both at each temperature, shapes (T, N) and (T, N, R).
        values: shape (T, N), the relaxed costs.
        rest, later: shape (3, N, L + 1, G), what `soft` returns at the end, at the temperatures of `DRAWN_AT`.
    """

    end: BoundAndPrices
    history: BoundAndPrices
    values: Any
    rest: Any
    later: Any
    temperatures: Any


def soft(arrays: Arrays, chain: BoundAndPrices, temperature: Any, limited: bool) -> tuple[Any, Any]:
    """Returns two arrays of shape (L + 1, G), by the next layer and the group of the stage before: the soft minimum of
    what all ways to cut the rest into stages cost, and how many stages these have on the mean, where memory limits
    that (`limited`).
    """
    bound = jnp.exp(chain.log_bound)
    fixed = (arrays.uses @ chain.prices + arrays.per_stage * bound)[None, :]
    size, groups = arrays.weight.shape[0], arrays.entry.shape[1]

    def step(carry: tuple[Any, Any], row: tuple[Any, ...]) -> tuple[tuple[Any, Any], None]:
        (rest, later), (layer, cost, weight, spare, entry, entry_cost) = carry, row
        over = jnp.maximum(cost + entry_cost - bound, 0.0)
        path = weight + arrays.steepness * over + fixed + rest[1:] @ arrays.group.T
        if limited:
            followed = lax.stop_gradient(later[1:]) @ arrays.group.T
            path = path + OVERRUN * jnp.maximum(followed - spare, 0.0)
        least, shares, total = softened(path, temperature, 0)
        least_after, shares_after, total_after = softened(entry + least, temperature, 1)
        is_layer = layer < arrays.num_layers
        rest = rest.at[layer].set(jnp.where(is_layer, least_after, 0.0))
        if limited:
            stages = (shares * (1.0 + followed)).sum(axis=0) / total
            after = (shares_after * stages).sum(axis=1) / total_after
            later = later.at[layer].set(jnp.where(is_layer, after, 0.0))
        return (rest, later), None

    nothing = jnp.zeros((size + 1, groups)), jnp.zeros((size + 1, groups))
    rows = (jnp.arange(size), arrays.cost, arrays.weight, arrays.followers, arrays.entry, arrays.entry_cost)
    values, _ = lax.scan(step, nothing, rows, reverse=True)
    return values


def softened(values: Any, temperature: Any, axis: int) -> tuple[Any, Any, Any]:
    """Returns the soft minimum of an array along an axis, the softmax weights before division, and their sum."""
    low = lax.stop_gradient(values.min(axis=axis, keepdims=True))
    shares = jnp.exp((low - values) / temperature)
    total = shares.sum(axis=axis)
    return jnp.squeeze(low, axis) - temperature * jnp.log(total), shares, total


def _lagrangian(chain: BoundAndPrices, arrays: Arrays, temperature: Any, limited: bool) -> Any:
    least = soft(arrays, chain, temperature, limited)[0][0, 0]
    return least + arrays.share * jnp.exp(chain.log_bound) - (arrays.offered * chain.prices).sum()


def anneal(lattice: Lattice, num_starts: int, rounds: int, seed: int) -> Annealed:
    """Anneals from random starts: bounds spread evenly over what they may be, with chance, and prices of any size."""
    rng = np.random.default_rng(seed)
    places = (rng.permutation(num_starts) + rng.random(num_starts)) / num_starts
    log_bound = np.log(lattice.reference) + np.log(lattice.highest / lattice.reference) * places
    prices = np.exp(rng.uniform(np.log(0.05), np.log(3.0), (num_starts, lattice.arrays.uses.shape[1])))
    starts = BoundAndPrices(log_bound.astype(np.float32), (prices * lattice.arrays.offered).astype(np.float32))
    temperatures = np.geomspace(HOTTEST, COLDEST, rounds).astype(np.float32)
    limited = lattice.limited or lattice.arrays.cost.shape[0] == SMALL
    ended = _annealed(lattice.arrays, starts, temperatures, limited)
    end, history, values, (rest, later) = jax.tree_util.tree_map(np.asarray, ended)
    return Annealed(end, history, values, rest, later, temperatures)


@functools.partial(jax.jit, static_argnames=("limited",))
def _annealed(arrays: Arrays, starts: BoundAndPrices, temperatures: Any, limited: bool) -> tuple[Any, ...]:
    gradients = jax.vmap(jax.value_and_grad(_lagrangian), in_axes=(0, None, None, None))
    begin, moved = adam(BoundAndPrices(-1.0, 1.0))
    ends = zip(FIRST_STEPS, LAST_STEPS, strict=True)
    steps = BoundAndPrices(*(jnp.linspace(*pair, len(temperatures)) for pair in ends))

    def update(carry: tuple[Any, Any], now: tuple[Any, Any, Any]) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
        (chain, state), (number, temperature, lengths) = carry, now
        value, gradient = gradients(chain, arrays, temperature, limited)
        chain, state = moved(chain, gradient, state, number, lengths)
        prices = jnp.where(arrays.exact > 0, chain.prices, jnp.maximum(chain.prices, 0.0)) * arrays.offered
        chain = BoundAndPrices(chain.log_bound, prices)
        return (chain, state), (chain, value)

    numbers = jnp.arange(1.0, len(temperatures) + 1.0)
    (chain, _), (history, values) = lax.scan(update, (starts, begin(starts)), (numbers, temperatures, steps))
    warm = temperatures[-1] * jnp.array(DRAWN_AT)
    last = jax.vmap(lambda heat: jax.vmap(lambda start: soft(arrays, start, heat, limited))(chain))(warm)
    return chain, history, values, last


@functools.partial(jax.jit, static_argnames=("limited",))
def softs(arrays: Arrays, chains: BoundAndPrices, temperatures: Any, limited: bool) -> tuple[Any, Any]:
    """Runs `soft` for several bounds, prices and temperatures, which have a first axis T as the results do."""
    return jax.vmap(lambda chain, temperature: soft(arrays, chain, temperature, limited))(chains, temperatures)


def adam(direction: Any) -> tuple[Any, Any]:
    """Returns two functions of the optimizer Adam: one makes the first state for variables, one updates them.

    The second takes variables, their gradient, the state, the step's number from 1, and step lengths, and returns new
    variables and state. `direction` has for each variable 1 where it goes up the gradient, -1 where it goes down.
    """
    mapped = jax.tree_util.tree_map

    def begin(values: Any) -> tuple[Any, Any]:
        return mapped(jnp.zeros_like, values), mapped(jnp.zeros_like, values)

    def update(values: Any, gradient: Any, state: tuple[Any, Any], number: Any, lengths: Any) -> tuple[Any, Any]:
        mean = mapped(lambda m, g: MOMENTUM * m + (1 - MOMENTUM) * g, state[0], gradient)
        square = mapped(lambda s, g: SPREAD * s + (1 - SPREAD) * g * g, state[1], gradient)

        def moved(old: Any, m: Any, s: Any, sign: float, length: Any) -> Any:
            m, s = m / (1 - MOMENTUM**number), s / (1 - SPREAD**number)
            return old + sign * length * m / (jnp.sqrt(s) + TINY)

        return mapped(moved, values, mean, square, direction, lengths), (mean, square)

    return begin, update
