"""Models that compile in a moment, for races of candidates."""

import itertools

import numpy as np


def regression(learning_rate=0.05, says_norm=True, seed=3):
    """A linear model with a rest in its state; its functions are closures, so that Ray sends them by value."""
    generator = np.random.default_rng(seed)
    truth = generator.standard_normal((4, 2)).astype(np.float32)
    inputs = generator.standard_normal((8, 16, 4)).astype(np.float32)
    noise = 0.1 * generator.standard_normal((8, 16, 2)).astype(np.float32)
    batches = [(x, x @ truth + e) for x, e in zip(inputs, noise, strict=True)]

    def init_fn(key):
        import jax
        import jax.numpy as jnp

        weights = {"matrix": 2 * jax.random.normal(key, (4, 2)), "bias": jnp.zeros(2)}
        return {"params": weights, "steps": jnp.int32(0), "momentum": jax.tree_util.tree_map(jnp.zeros_like, weights)}

    def train_step(state, batch):
        import jax
        import jax.numpy as jnp

        def loss_fn(params):
            return jnp.mean((batch[0] @ params["matrix"] + params["bias"] - batch[1]) ** 2)

        loss, gradient = jax.value_and_grad(loss_fn)(state["params"])
        momentum = jax.tree_util.tree_map(lambda m, g: 0.5 * m + g, state["momentum"], gradient)
        params = jax.tree_util.tree_map(lambda p, m: p - learning_rate * m, state["params"], momentum)
        new = {"params": params, "steps": state["steps"] + 1, "momentum": momentum}
        norm = jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree_util.tree_leaves(gradient)))
        return (new, loss, norm) if says_norm else (new, loss)

    return init_fn, train_step, batches


def dense(key, sizes):
    """Weights of a chain of layers."""
    import jax
    import jax.numpy as jnp

    keys = jax.random.split(key, len(sizes) - 1)
    return {
        f"Dense_{n}": {"kernel": jax.random.normal(k, shape) / shape[0] ** 0.5, "bias": 0.1 * jnp.arange(shape[1])}
        for n, (k, shape) in enumerate(zip(keys, itertools.pairwise(sizes), strict=True))
    }
