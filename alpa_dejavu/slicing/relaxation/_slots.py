"""Plans of a given number of stages as probabilities, and their anneal for any cost that JAX differentiates.

Each of K places for a stage has its own leanings: to choices, and to where it ends. With what stages cost they make
the probability of every stage at every place, by a program over places and layers. A cost sees what the stages at each
place are on the mean. Its gradient goes through the program to the leanings. What is taken of the devices, and memory
that is overrun, are added as penalties.

References:
    Mensch and Blondel, Differentiable Dynamic Programming for Structured Prediction and Attention, ICML 2018.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from alpa_dejavu.slicing.relaxation._chain import Chain, adam, softened
from alpa_dejavu.slicing.relaxation._lattice import NEVER, OVERRUN, Arrays
from alpa_dejavu.slicing.relaxation._plan import Cost, RelaxedPlan

__all__ = ["Features", "Leanings", "annealed_slots", "probabilities"]

PENALTY = 1.0
"""The penalty, in units, for all devices taken once too often, or left; it counts the share and the share's square."""
FIRST_STEP, LAST_STEP = 0.02, 0.002
"""The lengths of the first and the last step of the leanings, in units."""


class Features(NamedTuple):
    """The seconds and shares of devices from which a relaxed plan's figures are computed, for Z choices of a stage's
    submesh and config.

    Attributes:
        parts: shape (3, L, L, Z), a stage's seconds forward, backward, and once a step, for layers i..j.
        crossing: shape (L, G, Z), seconds of the transfer from a group of submeshes to a stage that begins with layer
            l.
        devices: shape (Z,), the share of all devices that a choice takes.
        unit_s: the seconds of a unit of time.
        num_micro_batches: how many micro-batches a step has.
    """

    parts: Any
    crossing: Any
    devices: Any
    unit_s: Any
    num_micro_batches: Any


class Leanings(NamedTuple):
    """The variables that an anneal of plans with K stage places moves: what each place adds to the costs of choices and
    of last layers, in units of time.

    Attributes:
        choice: shape (K, Z), what is added to the cost of each of Z choices (submesh and config) at a place.
        end: shape (K, L), what is added to the cost of a stage at a place that ends with a layer.
        prices: shape (R,), what all that there is of each of R resources, such as devices of a kind, costs more.
    """

    choice: Any
    end: Any
    prices: Any


def probabilities(arrays: Arrays, chain: Chain, leanings: Leanings, count: Any, temperature: Any) -> tuple[Any, Any]:
    """Returns the probabilities of Z choices (submesh and config) for the stage at each of K places, and those of its
    last layer for each choice.

    The shapes are (K, L, G, Z), by first layer and the previous stage's group, and (K, L, L, Z), by first and last
    layer.

    Args:
        arrays: the slicing problem's arrays.
        chain: a bound on the largest stage, and prices of devices.
        leanings: what each place adds to the costs of choices and last layers.
        count: the number of stages, at most K.
        temperature: the lower, the surer the choices are; in units of time.
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
    _, found = lax.scan(step, done, rows, reverse=True)
    return found


def relaxed(
    arrays: Arrays, features: Features, chain: Chain, leanings: Leanings, count: Any, temperature: Any
) -> tuple[RelaxedPlan, Any, Any]:
    """Returns the mean plan as a cost function takes it, the used share of each of R resources, and the probability of
    each layer at each of K stage places, (K, L).

    Args:
        arrays: the slicing problem's arrays.
        features: the seconds and shares of devices of stages.
        chain: a bound on the largest stage, and prices of devices.
        leanings: what each place adds to the costs of choices and last layers.
        count: the number of stages, at most K.
        temperature: the lower, the surer the choices are; in units of time.
    """
    by_choice, by_end = probabilities(arrays, chain, leanings, count, temperature)
    size, groups = arrays.weight.shape[0], arrays.entry.shape[1]
    places = by_choice.shape[0]

    def step(at: Any, row: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        place, chosen, ended = row
        is_stage = jnp.where(place < count, 1.0, 0.0)
        mass = at[:size, :, None] * chosen * is_stage
        taken = mass.sum(axis=1)
        stage = taken[:, None] * ended
        followed = (count - 1 - place).astype(stage.dtype)
        parts = jnp.einsum("ijz,fijz->f", stage, features.parts)
        seen = (
            parts,
            (mass * features.crossing).sum(),
            (taken @ features.devices).sum(),
            (stage * jnp.maximum(followed - arrays.room, 0.0)).sum(),
            taken.sum(axis=0) @ arrays.uses,
            jnp.cumsum(taken.sum(axis=1)) - jnp.cumsum(stage.sum(axis=(0, 2))) + stage.sum(axis=(0, 2)),
        )
        moved = jnp.concatenate([jnp.zeros((1, groups)), stage.sum(axis=0) @ arrays.group])
        return jnp.where(place < count, moved, at), seen

    begin = jnp.zeros((size + 1, groups)).at[0, 0].set(1.0)
    _, (parts, crossing, devices, risk, used, layers) = lax.scan(step, begin, (jnp.arange(places), by_choice, by_end))
    seen = [parts[:, 0], parts[:, 1], parts[:, 2], crossing, devices, risk, count, features.num_micro_batches]
    plan = RelaxedPlan(*seen)
    return plan, used.sum(axis=0), layers


@functools.partial(jax.jit, static_argnames=("cost",))
def annealed_slots(
    cost: Cost, arrays: Arrays, features: Features, chains: Chain, begun: Leanings, counts: Any, temperatures: Any
) -> tuple[Leanings, Any, Any, Any]:
    """Anneals what stage places add to the costs of choices and last layers, by the gradient of a cost of the relaxed
    plan, from N starts, each with its number of stages.

    Args:
        cost: a differentiable function from a relaxed plan to its seconds.
        arrays: the slicing problem's arrays.
        features: the seconds and shares of devices of the problem's stages.
        chains: bounds on the largest stage and prices of devices, with a first axis N.
        begun: the variables to start with, with a first axis N.
        counts: shape (N,), the number of stages of each start.
        temperatures: shape (T,), in units of time.

    Returns:
        The variables at which each start ended; the probabilities there, of choices and of last layers; the cost at
        each temperature, (T, N), in seconds; and the probability of each layer at each place then, (T, N, K, L).
    """

    def loss(leanings: Leanings, chain: Chain, count: Any, temperature: Any) -> tuple[Any, Any]:
        plan, used, layers = relaxed(arrays, features, chain, leanings, count, temperature)
        seconds = cost(plan)
        off = jnp.where(arrays.exact > 0, used - 1.0, jnp.maximum(used - 1.0, 0.0)) * arrays.offered
        worse = OVERRUN * plan.risk.sum() + PENALTY * (off**2).sum() + jnp.abs(off).sum() * PENALTY
        return seconds / features.unit_s + worse, (seconds, off, layers)

    gradients = jax.vmap(jax.grad(loss, has_aux=True), in_axes=(0, 0, 0, None))
    begin, update = adam(Leanings(-1.0, -1.0, -1.0))
    steps = jnp.linspace(FIRST_STEP, LAST_STEP, len(temperatures))

    def move(carry: Any, now: tuple[Any, Any, Any]) -> tuple[Any, tuple[Any, Any]]:
        leanings, state = carry
        number, temperature, length = now
        gradient, (seconds, _, layers) = gradients(leanings, chains, counts, temperature)
        leanings, state = update(leanings, gradient, state, number, Leanings(length, length, 5 * length))
        return (leanings, state), (seconds, layers)

    numbers = jnp.arange(1.0, len(temperatures) + 1.0)
    (leanings, _), (seconds, layers) = lax.scan(move, (begun, begin(begun)), (numbers, temperatures, steps))
    last = functools.partial(probabilities, arrays, temperature=temperatures[-1])
    found = jax.vmap(last)(chains, leanings, counts)
    return leanings, found, seconds, layers
