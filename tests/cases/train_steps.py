"""Small train steps, each of another kind, with real arguments."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import grad, value_and_grad

OPTIMIZER = optax.adam(1e-2)


def norm_of(tree):
    """The global norm; optax calls its own by another name in each version."""
    return jnp.sqrt(sum(jnp.vdot(leaf, leaf) for leaf in jax.tree.leaves(tree)))


def start(parameters):
    return parameters, OPTIMIZER.init(parameters)


def apply(state, gradients):
    updates, inner = OPTIMIZER.update(gradients, state[1], state[0])
    return optax.apply_updates(state[0], updates), inner


def weights_and_data(batch_size=16, depth=6, hidden=8):
    rng = np.random.default_rng(0)
    weights = [jnp.array(rng.normal(0, 0.5, (hidden, hidden)), jnp.float32) for _ in range(depth)]
    x, y = (jnp.array(rng.normal(size=(batch_size, hidden)), jnp.float32) for _ in range(2))
    return weights, {"x": x, "y": y}


def predict(weights, x):
    for weight in weights:
        x = jnp.tanh(x @ weight)
    return x


def predict_in_stages(weights, x):
    """The same with a boundary of Alpa's before each layer but the first."""
    import alpa

    for n, weight in enumerate(weights):
        if n:
            alpa.mark_pipeline_boundary()
        x = jnp.tanh(x @ weight)
    return x


def mean_square(weights, batch):
    return ((predict(weights, batch["x"]) - batch["y"]) ** 2).mean()


def plain(batch_size=16):
    def step(state, batch):
        loss, gradients = jax.value_and_grad(mean_square)(state[0], batch)
        return apply(state, gradients), loss

    weights, batch = weights_and_data(batch_size)
    return step, (start(weights), batch)


def with_aux(batch_size=16):
    """Gradients by a second argument, with auxiliary results, under jit, by a function imported from jax."""

    @jax.jit
    def step(state, batch):
        def loss(batch, weights, scale):
            answer = predict(weights, batch["x"]) * scale
            return ((answer - batch["y"]) ** 2).mean(), {"largest": answer.max()}

        (loss_value, aux), gradients = value_and_grad(loss, argnums=1, has_aux=True)(batch, state[0], 2.0)
        return apply(state, gradients), (loss_value, aux)

    weights, batch = weights_and_data(batch_size)
    return step, (start(weights), batch)


def tied(batch_size=16):
    """The first weight is used again by the last layer; the norm of all gradients scales them."""

    def step(state, batch):
        def loss(weights):
            return ((predict(weights, batch["x"]) @ weights[0].T - batch["y"]) ** 2).mean()

        gradients = grad(loss)(state[0])
        norm = norm_of(gradients)
        return apply(state, jax.tree.map(lambda g: g / norm, gradients))

    weights, batch = weights_and_data(batch_size)
    return step, (start(weights), batch)


def skipping(batch_size=16):
    """What the first layers make is used by the last one; all others are rematerialised, one has its own rules."""

    @jax.custom_vjp
    def double(x):
        return 2 * x

    double.defvjp(lambda x: (2 * x, None), lambda _, g: (2 * g,))

    def step(state, batch):
        def loss(weights):
            first = jax.nn.relu(batch["x"] @ weights[0])
            last = double(first)
            for weight in weights[1:]:
                last = jax.checkpoint(predict)([weight], last)
            return ((last + jnp.where(first > 0, first, jnp.sin(first)) - batch["y"]) ** 2).mean()

        return apply(state, jax.grad(loss)(state[0]))

    weights, batch = weights_and_data(batch_size)
    return step, (start(weights), batch)


def branching(batch_size=16):
    """A scan over stacked weights, a branch, a loop and a jitted function."""

    def step(state, batch):
        def loss(weights):
            x = predict(weights[:2], batch["x"])
            x = jax.lax.scan(lambda x, weight: (predict([weight], x), None), x, jnp.stack(weights[2:4]))[0]
            x = jax.lax.cond(x.sum() > 0, lambda: predict([weights[2]], x), lambda: x)
            x = jax.lax.fori_loop(0, 2, lambda _, x: jnp.sin(x), x)
            return ((jax.jit(predict)(weights[4:], x) - batch["y"]) ** 2).mean()

        return apply(state, jax.grad(loss)(state[0]))

    weights, batch = weights_and_data(batch_size)
    return step, (start(weights), batch)


STEPS = [plain, with_aux, tied, skipping, branching]
