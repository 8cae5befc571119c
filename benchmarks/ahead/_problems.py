"""Problems: three functions of many dimensions, four networks on real data, and a pole on a cart."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, final

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from races._models import TASKS

DIMENSION, STEPS = 100_000, 200
SHOWN = {"mlp": 360, "cnn": 360, "gpt": 64, "rnn": 64}
"""Rows of the test by which a network's loss is told."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """A loss that is trained.

    Attributes:
        name: for people.
        kind: "function", "network" or "control".
        init: the parameters, of a key: one vector, which programs are compiled the quickest for.
        loss: of parameters and a batch.
        batch: draws one, of a key; the function's is empty.
        judged: the loss that targets are for, of parameters and a key.
        optimizer: makes it, of a rate.
        rate: with which the plain optimizer is the fastest of those that were tried with seeds that aren't judged.
        steps: of a training by the plain optimizer.
    """

    name: str
    kind: str
    init: Callable[[Any], Any]
    loss: Callable[[Any, Any], Any]
    batch: Callable[[Any], Any]
    judged: Callable[[Any, Any], Any]
    optimizer: Callable[[Any], optax.GradientTransformation]
    rate: float
    steps: int


def ackley(x: Any, _: Any = None) -> Any:
    """Ackley's function: many small pits in one wide one."""
    far = jnp.sqrt(jnp.mean(x**2) + 1e-12)
    return -20 * jnp.exp(-0.2 * far) - jnp.exp(jnp.mean(jnp.cos(2 * jnp.pi * x))) + 20 + jnp.e


def sphere(x: Any, _: Any = None) -> Any:
    """The mean square."""
    return jnp.mean(x**2)


def rosenbrock(x: Any, _: Any = None) -> Any:
    """Rosenbrock's bent valley, as a mean."""
    return jnp.mean(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


def _function(name: str, loss: Callable[..., Any], rate: float, steps: int, spread: float) -> Problem:
    def init(key: Any) -> Any:
        return spread * jax.random.normal(key, (DIMENSION,))

    return Problem(name, "function", init, loss, lambda key: (), lambda p, _: loss(p), optax.adam, rate, steps)


def _network(name: str) -> Problem:
    task = TASKS[name]
    data = task.data()
    inputs, labels = jnp.asarray(data.inputs), jnp.asarray(data.labels)
    every = len(data.test_inputs) // SHOWN[name]
    shown = jnp.asarray(data.test_inputs[::every]), jnp.asarray(data.test_labels[::every])

    def fresh(key: Any) -> Any:
        return task.network.init(key, inputs[:1])["params"]

    shapes = jax.eval_shape(fresh, jax.random.PRNGKey(0))
    back = ravel_pytree(jax.tree_util.tree_map(lambda s: jnp.zeros(s.shape, s.dtype), shapes))[1]

    def init(key: Any) -> Any:
        return ravel_pytree(fresh(key))[0]

    def loss(params: Any, batch: Any) -> Any:
        logits = task.network.apply({"params": back(params)}, batch[0])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch[1]).mean()

    def batch(key: Any) -> Any:
        rows = jax.random.randint(key, (task.rows,), 0, len(inputs))
        return inputs[rows], labels[rows]

    def optimizer(rate: Any) -> optax.GradientTransformation:
        return optax.sgd(rate, momentum=0.9) if task.optimizer == "sgd" else optax.adam(rate)

    return Problem(name, "network", init, loss, batch, lambda p, _: loss(p, shown), optimizer, task.rate, STEPS)


HORIZON, EPISODES = 100, 16


def _pole(state: Any, action: Any) -> Any:
    """The pole on a cart after 0.02 s (Barto, Sutton and Anderson 1983): positions, speeds, and a push of 10 N."""
    x, speed, angle, turn = state
    push = jnp.where(action == 1, 10.0, -10.0)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    common = (push + 0.05 * turn**2 * sin) / 1.1
    turned = (9.8 * sin - cos * common) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
    moved = common - 0.05 * turned * cos / 1.1
    return x + 0.02 * speed, speed + 0.02 * moved, angle + 0.02 * turn, turn + 0.02 * turned


def _returns(params: Any, key: Any, episodes: int) -> Any:
    """Returns how long the pole stood in each episode, and the sum of log probabilities times the time still to come,
    less the episodes' mean.
    """
    first, rest = jax.random.split(key)
    first_layer, bias, last_layer = params[:128].reshape(4, 32), params[128:160], params[160:].reshape(32, 2)
    state = tuple(jax.random.uniform(first, (4, episodes), minval=-0.05, maxval=0.05))

    def step(carry: Any, key: Any) -> Any:
        state, stands = carry
        seen = jnp.stack(state, axis=1)
        logits = jnp.tanh(seen @ first_layer + bias) @ last_layer
        action = jax.random.categorical(key, logits)
        log = jnp.take_along_axis(jax.nn.log_softmax(logits), action[:, None], axis=1)[:, 0]
        after = _pole(state, action)
        stands_after = stands & (jnp.abs(after[0]) < 2.4) & (jnp.abs(after[2]) < 0.2095)
        return (after, stands_after), (jnp.where(stands, log, 0), stands.astype(jnp.float32))

    _, (logs, stood) = jax.lax.scan(step, (state, jnp.ones(episodes, bool)), jax.random.split(rest, HORIZON))
    to_come = jnp.cumsum(stood[::-1], axis=0)[::-1]
    better = jax.lax.stop_gradient(to_come - jnp.mean(to_come, axis=1, keepdims=True)) / HORIZON
    return jnp.sum(stood, axis=0), jnp.sum(logs * better * stood, axis=0)


def _control() -> Problem:
    def init(key: Any) -> Any:
        one, two = jax.random.split(key)
        parts = jax.random.normal(one, (128,)), jnp.zeros(32), 0.1 * jax.random.normal(two, (64,))
        return jnp.concatenate(parts)

    def loss(params: Any, key: Any) -> Any:
        stood, scored = _returns(params, key, EPISODES)
        score = -jnp.mean(scored)
        # Its value is minus the mean time, its gradient that of the score (REINFORCE).
        return -jnp.mean(stood) / HORIZON + score - jax.lax.stop_gradient(score)

    def judged(params: Any, key: Any) -> Any:
        return -jnp.mean(_returns(params, key, 4 * EPISODES)[0]) / HORIZON

    return Problem("cart pole", "control", init, loss, lambda key: key, judged, optax.adam, 0.01, 100)


MAKERS: dict[str, Callable[[], Problem]] = {
    "ackley": lambda: _function("ackley", ackley, 0.1, 100, 3.0),
    "sphere": lambda: _function("sphere", sphere, 0.1, 100, 3.0),
    "rosenbrock": lambda: _function("rosenbrock", rosenbrock, 0.03, 150, 1.0),
    **{name: (lambda name=name: _network(name)) for name in TASKS},  # type: ignore[misc]
    "cart pole": _control,
}
"""The problems by name; making one reads its data."""
