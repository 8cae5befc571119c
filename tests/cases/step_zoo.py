"""Small train steps that read and make their values in all the ways that layers of a pipeline have to carry.

Each is a function of `value_and_grad` (jax's, or Alpa's) that returns a step; `STEPS` has it with its arguments, of
which the last is the batch. All losses are means over the batch, so gradients of micro-batches may be averaged.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training.train_state import TrainState

from train_steps import norm_of

WIDTH, BATCH = 8, 8


def weights(*names: str, seed: int = 0) -> dict[str, np.ndarray]:
    """Square matrices by these names."""
    rng = np.random.default_rng(seed)
    return {name: (rng.normal(size=(WIDTH, WIDTH)) / np.sqrt(WIDTH)).astype(np.float32) for name in names}


def batch() -> dict[str, np.ndarray]:
    """Inputs, targets and class labels."""
    rng = np.random.default_rng(1)
    arrays = {name: rng.normal(size=(BATCH, WIDTH)).astype(np.float32) for name in "xy"}
    return arrays | {"label": rng.integers(0, WIDTH, size=BATCH).astype(np.int32)}


@dataclasses.dataclass(frozen=True)
class Step:
    """How a step is made from a function like `jax.value_and_grad`, and its arguments."""

    make: Callable[[Any], Callable[..., Any]]
    arguments: tuple[Any, ...]


STEPS: dict[str, Step] = {}


def _step(*names: str, state: Any = None) -> Callable[..., Any]:
    """Registers a function that makes a step; its first argument is these weights, or a state."""

    def register(make: Callable[[Any], Callable[..., Any]]) -> Callable[[Any], Callable[..., Any]]:
        STEPS[make.__name__] = Step(make, (weights(*names) if state is None else state, batch()))
        return make

    return register


def _loss(*names: str, **options: Any) -> Callable[..., Any]:
    """Registers a loss function of parameters and batch, trained by plain gradient descent."""

    def register(loss: Callable[..., Any]) -> Callable[..., Any]:
        def make(value_and_grad: Any) -> Callable[..., Any]:
            def step(parameters: Any, batch: Any) -> Any:
                value, gradients = value_and_grad(lambda p: loss(p, batch), **options)(parameters)
                return _descended(parameters, gradients), value

            return step

        STEPS[loss.__name__] = Step(make, (weights(*names), batch()))
        return loss

    return register


def _descended(parameters: Any, gradients: Any) -> Any:
    return jax.tree_util.tree_map(lambda p, g: p - 0.1 * g, parameters, gradients)


def _mean(x: Any, batch: Any) -> Any:
    return jnp.mean((x - batch["y"]) ** 2)


def _chain(parameters: Mapping[str, Any], x: Any) -> Any:
    for name in sorted(parameters):
        x = jnp.tanh(x @ parameters[name])
    return x


# What layers read of each other


@_loss("a", "b", "c", "d")
def chain(p, b):
    return _mean(_chain(p, b["x"]), b)


@_loss("in", "q", "k", "v", "out")
def branches(p, b):
    x = b["x"] @ p["in"]
    q, k, v = x @ p["q"], x @ p["k"], x @ p["v"]
    return _mean(jnp.tanh(q * jax.nn.sigmoid(k) + v) @ p["out"], b)


@_loss("in", "a", "b", "c", "d", "out")
def far_residuals(p, b):
    x = b["x"] @ p["in"]
    y = x
    for name in "abcd":
        y = y + jnp.tanh(y @ p[name]) + 0.1 * x
    return _mean(y @ p["out"] + b["x"], b)


@_loss("in", "e0", "e1", "e2", "e3", "gate")
def experts(p, b):
    x = jnp.tanh(b["x"] @ p["in"])
    gates = jax.nn.softmax(x @ p["gate"])
    return _mean(sum(gates[:, n : n + 1] * jnp.einsum("bi,ij->bj", x, p[f"e{n}"]) for n in range(4)), b)


@_loss("a", "a0", "b", "b0", "c")
def adapters(p, b):
    x = b["x"]
    for name in "ab":
        x = jnp.tanh(jax.lax.stop_gradient(p[name]).T @ x.T).T + x @ p[f"{name}0"]
    return _mean(x @ p["c"], b)


@_loss("e0", "e1", "d0", "d1", "d2", "k0", "k1", "k2")
def decoder(p, b):
    memory = jnp.tanh(jnp.tanh(b["x"] @ p["e0"]) @ p["e1"])
    y = b["y"]
    for n in range(3):
        y = jnp.tanh(y @ p[f"d{n}"] + memory @ p[f"k{n}"])
    return jnp.mean((y - b["x"]) ** 2)


@_loss("embedding", "a", "b")
def tied_embedding(p, b):
    x = p["embedding"][b["label"]]
    x = jnp.tanh(jnp.tanh(x @ p["a"]) @ p["b"])
    scores = jax.nn.log_softmax(x @ p["embedding"].T)
    return -jnp.mean(jnp.take_along_axis(scores, b["label"][:, None], 1))


@_loss("a", "b")
def shared_by_three_layers(p, b):
    x = b["x"]
    for _ in range(3):
        x = jnp.tanh(x @ p["a"])
    return _mean(x @ p["b"] @ p["a"], b)


@_loss("a", "b", "c", "d")
def stopped(p, b):
    x = jnp.tanh(b["x"] @ p["a"])
    y = jax.lax.stop_gradient(jnp.tanh(x @ p["b"]))
    return _mean((x * y) @ p["c"] + jax.lax.stop_gradient(y @ p["d"]), b)


@_loss("a", "b", "c", "unused")
def unused_parameter(p, b):
    return _mean(_chain({name: p[name] for name in "abc"}, b["x"]), b)


@_loss("a", "b", "c", "d")
def conditional_layers(p, b):
    x = jnp.tanh(b["x"] @ p["a"])
    x = jax.lax.cond(jnp.sum(p["b"]) > 0, lambda x: jnp.tanh(x @ p["b"]), lambda x: x @ p["c"], x)
    return _mean(x @ p["d"], b)


@_loss("a", "b", "c")
def scanned(p, b):
    def turn(x, w):
        return jnp.tanh(x @ w), jnp.mean(x)

    x, means = jax.lax.scan(turn, b["x"], jnp.stack([p["a"], p["b"], p["a"]]))
    return _mean(x @ p["c"], b) + 0.1 * jnp.mean(means)


@_loss("a", "b", "c", "d")
def rematerialised(p, b):
    x = b["x"]
    for name in "abcd":
        x = jax.checkpoint(lambda x, w: jnp.tanh(jnp.tanh(x @ w) @ w))(x, p[name])
    return _mean(x, b)


@_loss("a", "b", "c")
def own_derivative(p, b):
    @jax.custom_vjp
    def product(x, w):
        return jnp.tanh(x @ w)

    def forward(x, w):
        return product(x, w), (x, w)

    def backward(kept, cotangent):
        x, w = kept
        cotangent = cotangent * (1 - jnp.tanh(x @ w) ** 2)
        return cotangent @ w.T, x.T @ cotangent

    product.defvjp(forward, backward)
    x = b["x"]
    for name in "abc":
        x = product(x, p[name])
    return _mean(x, b)


# Terms of the loss


@_loss("a", "b", "c", "d")
def early_loss(p, b):
    x = jnp.tanh(jnp.tanh(b["x"] @ p["a"]) @ p["b"])
    early = 0.3 * _mean(x, b)
    return early + _mean(jnp.tanh(jnp.tanh(x @ p["c"]) @ p["d"]), b)


@_loss("a", "b", "c", "d")
def losses_of_all_layers(p, b):
    x, total = b["x"], 0.0
    for name in "abcd":
        x = jnp.tanh(x @ p[name])
        total = total + 0.1 * jnp.mean(x**2) + 0.3 * _mean(x, b)
    return total


@_loss("a", "b", "c", "d")
def weight_decay(p, b):
    return _mean(_chain(p, b["x"]), b) + 0.01 * sum(jnp.sum(w**2) for w in p.values())


@_loss("a", "b", "c")
def gradient_penalty(p, b):
    slopes = jax.grad(lambda x: jnp.sum(_chain(p, x)))(b["x"])
    return _mean(_chain(p, b["x"]), b) + jnp.mean(slopes**2)


# What a step computes and returns besides


@_step("a", "b", "c", "d")
def auxiliary_losses(value_and_grad):
    def step(p, b):
        def loss(p):
            x = jnp.tanh(jnp.tanh(b["x"] @ p["a"]) @ p["b"])
            early = _mean(x, b)
            late = _mean(jnp.tanh(jnp.tanh(x @ p["c"]) @ p["d"]), b)
            return early + late, {"early": early, "late": late, "constant": 0.5, "weights": p["a"]}

        (value, aux), g = value_and_grad(loss, has_aux=True)(p)
        return _descended(p, g), value, aux

    return step


@_step("a", "b", "c", "d")
def constants_and_arguments(value_and_grad):
    table = np.arange(3, dtype=np.float32)

    def step(p, b):
        value, g = value_and_grad(lambda p: _mean(_chain(p, b["x"]), b))(p)
        return _descended(p, g), {
            "zero": 0.0, "value": value, "again": value, "table": table, "count": 3, "flag": True,
            "same": p["a"], "finite": jnp.isfinite(value), "gradient": g["a"], "integer": jnp.int32(value * 100),
        }  # fmt: skip

    return step


@_step("a", "b", "c", "d")
def prepared_outside(value_and_grad):
    def step(p, b):
        x = (b["x"] - 0.5) * 2
        target = jax.nn.one_hot(b["label"], WIDTH)
        scaled = jax.tree_util.tree_map(lambda w: w * 0.9, p)
        rate = 0.1 * jnp.mean(jnp.abs(p["a"]))
        value, g = value_and_grad(lambda p: jnp.mean((_chain(p, x) - target) ** 2) + rate)(scaled)
        return jax.tree_util.tree_map(lambda w, d: w - rate * d, scaled, g), value

    return step


@_step("a", "b", "c", "d")
def results_first(value_and_grad):
    def step(p, b):
        value, g = value_and_grad(lambda p: _mean(_chain(p, b["x"]), b))(p)
        return value, _descended(p, g)

    return step


@_step("a", "b", "c", "d")
def norms(value_and_grad):
    def step(p, b):
        value, g = value_and_grad(lambda p: _mean(_chain(p, b["x"]), b))(p)
        return _descended(p, g), value, norm_of(g)

    return step


class Momentum(NamedTuple):
    """A state of a named tuple in a dictionary."""

    count: Any
    momentum: Any


@_step(state={
    "parameters": weights("a", "b", "c"), "rest": Momentum(np.int32(0), weights("a", "b", "c", seed=3)),
})  # fmt: skip
def named_tuple_state(value_and_grad):
    def step(state, b):
        value, g = value_and_grad(lambda p: _mean(_chain(p, b["x"]), b))(state["parameters"])
        momentum = jax.tree_util.tree_map(lambda m, d: 0.9 * m + d, state["rest"].momentum, g)
        rest = Momentum(state["rest"].count + 1, momentum)
        return {"parameters": _descended(state["parameters"], momentum), "rest": rest}, value

    return step


@_step("a", "b", "c", "d")
def frozen_and_trained(value_and_grad):
    def step(p, b):
        trained = {name: p[name] for name in "cd"}
        value, g = value_and_grad(lambda q: _mean(_chain({**p, **q}, b["x"]), b))(trained)
        return {**p, **_descended(trained, g)}, value

    return step


# Optimizers


def _optimizer(name: str, optimizer: optax.GradientTransformation) -> None:
    def make(value_and_grad: Any) -> Callable[..., Any]:
        def step(state: Any, b: Any) -> Any:
            parameters, kept = state
            value, g = value_and_grad(lambda p: _mean(_chain(p, b["x"]), b))(parameters)
            updates, kept = optimizer.update(g, kept, parameters)
            return (optax.apply_updates(parameters, updates), kept), value

        return step

    parameters = weights("a", "b", "c", "d")
    kept = jax.tree_util.tree_map(np.asarray, optimizer.init(parameters))
    STEPS[name] = Step(make, ((parameters, kept), batch()))


_rate = optax.warmup_cosine_decay_schedule(0.0, 0.1, 2, 10)
_optimizer("adam", optax.adam(1e-2))
_optimizer("adamw_with_a_schedule", optax.adamw(_rate))
_optimizer("clipped_by_global_norm", optax.chain(optax.clip_by_global_norm(0.05), optax.adam(1e-2)))
_optimizer("apply_if_finite", optax.apply_if_finite(optax.adam(1e-2), 3))
_optimizer("several_steps", optax.MultiSteps(optax.adam(1e-2), 2))
_optimizer("masked", optax.masked(optax.adam(1e-2), {"a": True, "b": False, "c": True, "d": False}))
_optimizer("layerwise", optax.lamb(1e-2))


def _train_state() -> TrainState:
    def apply(p: Any, x: Any) -> Any:
        return _chain(p, x)

    state = TrainState.create(apply_fn=apply, params=weights("a", "b", "c"), tx=optax.adam(1e-2))
    return jax.tree_util.tree_map(np.asarray, state)


@_step(state=_train_state())
def flax_state(value_and_grad):
    def step(state, b):
        value, g = value_and_grad(lambda p: _mean(state.apply_fn(p, b["x"]), b))(state.params)
        return state.apply_gradients(grads=g), value

    return step
