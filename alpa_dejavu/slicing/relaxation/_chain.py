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
from jax import lax

from alpa_dejavu.slicing.relaxation._lattice import DRAWN_AT, OVERRUN, Arrays

__all__ = ["Chain", "Soft", "adam", "annealed", "soft", "softened", "softs"]

MOMENTUM, SPREAD, TINY = 0.8, 0.95, 1e-8
"""Adam's numbers: the shares of the mean gradient and of its mean square that stay, and what keeps divisors above 0."""
FIRST_STEPS, LAST_STEPS = (0.05, 0.4), (0.01, 0.02)
"""The lengths of steps of the bound's logarithm, and of those of the prices, which have to keep up with it."""


class Chain(NamedTuple):
    """The variables of the relaxation that the anneal moves, for each start: a bound on the largest stage, and prices.

    Attributes:
        log_bound: the natural logarithm of the bound on the largest stage, which is in units of time.
        prices: shape (R,), the price of all that there is of each of R resources (devices of a kind), in units of time.
    """

    log_bound: Any
    prices: Any


class Soft(NamedTuple):
    """The values that the differentiable dynamic program over L layers computes, from each layer to the end.

    Attributes:
        rest: shape (L + 1, G), the soft minimum of the costs of all ways to cut layers l, l + 1, ... into stages, after
            a stage whose submesh is of group g, one of G groups with equal links; in units of time.
        later: shape (L + 1, G), how many stages these have, on the mean; zeros if memory sets no limit.
    """

    rest: Any
    later: Any


def soft(arrays: Arrays, chain: Chain, temperature: Any, limited: bool) -> Soft:
    """Returns the soft minimum of what all ways to cut the layers from each one on into stages cost, computed from the
    last layer to the first.

    Args:
        arrays: the slicing problem's arrays.
        chain: the bound on the largest stage and the prices of devices.
        temperature: in the units of time of the costs; the lower, the nearer the soft minimum is to the minimum.
        limited: whether memory limits how many stages may follow.
    """
    bound = jnp.exp(chain.log_bound)
    fixed = (arrays.uses @ chain.prices + arrays.per_stage * bound)[None, :]
    size, groups = arrays.weight.shape[0], arrays.entry.shape[1]

    def step(carry: Soft, row: tuple[Any, ...]) -> tuple[Soft, None]:
        layer, cost, weight, room, entry, entry_cost = row
        over = jnp.maximum(cost + entry_cost - bound, 0.0)
        path = weight + arrays.steepness * over + fixed + carry.rest[1:] @ arrays.group.T
        if limited:
            followed = lax.stop_gradient(carry.later[1:]) @ arrays.group.T
            path = path + OVERRUN * jnp.maximum(followed - room, 0.0)
        least, shares, total = softened(path, temperature, 0)
        least_after, shares_after, total_after = softened(entry + least, temperature, 1)
        is_layer = layer < arrays.num_layers
        rest = carry.rest.at[layer].set(jnp.where(is_layer, least_after, 0.0))
        if not limited:
            return Soft(rest, carry.later), None
        stages = (shares * (1.0 + followed)).sum(axis=0) / total
        later = (shares_after * stages).sum(axis=1) / total_after
        return Soft(rest, carry.later.at[layer].set(jnp.where(is_layer, later, 0.0))), None

    nothing = Soft(jnp.zeros((size + 1, groups)), jnp.zeros((size + 1, groups)))
    rows = (jnp.arange(size), arrays.cost, arrays.weight, arrays.room, arrays.entry, arrays.entry_cost)
    values, _ = lax.scan(step, nothing, rows, reverse=True)
    return values


def softened(values: Any, temperature: Any, axis: int) -> tuple[Any, Any, Any]:
    """Returns the soft minimum of an array along an axis, the softmax weights before division, and their sum."""
    low = lax.stop_gradient(values.min(axis=axis, keepdims=True))
    shares = jnp.exp((low - values) / temperature)
    total = shares.sum(axis=axis)
    return jnp.squeeze(low, axis) - temperature * jnp.log(total), shares, total


def _lagrangian(chain: Chain, arrays: Arrays, temperature: Any, limited: bool) -> Any:
    least = soft(arrays, chain, temperature, limited).rest[0, 0]
    return least + arrays.share * jnp.exp(chain.log_bound) - (arrays.offered * chain.prices).sum()


@functools.partial(jax.jit, static_argnames=("limited",))
def annealed(arrays: Arrays, starts: Chain, temperatures: Any, limited: bool) -> tuple[Chain, Chain, Any, Soft]:
    """Anneals the relaxations of P slicing problems of the same shapes, from N starts each.

    Args:
        arrays: the problems' arrays, with a first axis P.
        starts: the bounds on the largest stage and the prices to start with, with first axes (P, N).
        temperatures: shape (T,), in units of time.
        limited: whether memory sets a limit anywhere.

    Returns:
        The bound and prices at which each start ended, first axes (P, N); those that it had at each temperature,
        (P, T, N); the relaxed cost there, (P, T, N), in units of time; and the values of the dynamic program at the
        end, at each temperature of `DRAWN_AT`, (P, 3, N).
    """
    return jax.vmap(lambda one, begun: _annealed(one, begun, temperatures, limited))(arrays, starts)


def _annealed(arrays: Arrays, starts: Chain, temperatures: Any, limited: bool) -> tuple[Chain, Chain, Any, Soft]:
    gradients = jax.vmap(jax.value_and_grad(_lagrangian), in_axes=(0, None, None, None))
    begin, moved = adam(Chain(-1.0, 1.0))
    steps = Chain(*(jnp.linspace(*ends, len(temperatures)) for ends in zip(FIRST_STEPS, LAST_STEPS, strict=True)))

    def update(carry: tuple[Any, Any], now: tuple[Any, Any, Any]) -> tuple[tuple[Any, Any], tuple[Chain, Any]]:
        chain, state = carry
        number, temperature, lengths = now
        value, gradient = gradients(chain, arrays, temperature, limited)
        chain, state = moved(chain, gradient, state, number, lengths)
        prices = jnp.where(arrays.exact > 0, chain.prices, jnp.maximum(chain.prices, 0.0)) * arrays.offered
        chain = Chain(chain.log_bound, prices)
        return (chain, state), (chain, value)

    numbers = jnp.arange(1.0, len(temperatures) + 1.0)
    (chain, _), (history, values) = lax.scan(update, (starts, begin(starts)), (numbers, temperatures, steps))
    warm = temperatures[-1] * jnp.array(DRAWN_AT)
    last = jax.vmap(lambda heat: jax.vmap(lambda each: soft(arrays, each, heat, limited))(chain))(warm)
    return chain, history, values, last


@functools.partial(jax.jit, static_argnames=("limited",))
def softs(arrays: Arrays, chains: Chain, temperatures: Any, limited: bool) -> Soft:
    """Runs the differentiable dynamic program over layers for several bounds on the largest stage, prices of devices
    and temperatures; `chains`, `temperatures` and the result have a first axis T.
    """
    return jax.vmap(lambda chain, temperature: soft(arrays, chain, temperature, limited))(chains, temperatures)


def adam(direction: Any) -> tuple[Any, Any]:
    """Returns two functions of the optimizer Adam: one that makes the first state for variables, one that updates them.

    The second takes variables, their gradient, the state, the step's number from 1, and step lengths, and returns new
    variables and state. `direction` has for each variable 1 where it goes up the gradient, -1 where it goes down.
    """
    each = jax.tree_util.tree_map

    def begin(values: Any) -> tuple[Any, Any]:
        return each(jnp.zeros_like, values), each(jnp.zeros_like, values)

    def update(values: Any, gradient: Any, state: tuple[Any, Any], number: Any, lengths: Any) -> tuple[Any, Any]:
        mean = each(lambda m, g: MOMENTUM * m + (1 - MOMENTUM) * g, state[0], gradient)
        square = each(lambda s, g: SPREAD * s + (1 - SPREAD) * g * g, state[1], gradient)

        def moved(old: Any, m: Any, s: Any, sign: float, length: Any) -> Any:
            m, s = m / (1 - MOMENTUM**number), s / (1 - SPREAD**number)
            return old + sign * length * m / (jnp.sqrt(s) + TINY)

        return each(moved, values, mean, square, direction, lengths), (mean, square)

    return begin, update
