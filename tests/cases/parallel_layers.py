"""Transformer layers that are parallel in two ways: as Megatron's, and as Kraken's, whose exchange waits for nothing.

References:
    Prabhakar et al., Kraken: Inherently Parallel Transformers For Efficient Multi-Device Inference, NeurIPS 2024.
"""

import jax
import jax.numpy as jnp


def norm(x):
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)


def trained(layer, parameters, x, num_layers, enters=lambda x: x):
    """A function of a batch size that returns a train step of so many equal layers."""
    weights = [{name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in parameters.items()}] * num_layers

    def model(batch):
        def loss(weights, x):
            y = enters(x)
            for one in weights:
                y = layer(one, y)
            return (y**2).mean()

        def step(weights, x):
            gradients = jax.grad(loss)(weights, x)
            return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)

        return step, (weights, jax.ShapeDtypeStruct((batch, *x), jnp.float32))

    return model


def kraken(ways=4, length=128, hidden=256, heads=4, num_layers=3):
    """Each way has its own attention and feed-forward part; the ways' inputs are added up beside the attention."""

    def layer(p, x):  # batch, way, length, hidden
        y = norm(x)
        q, k, v = (jnp.einsum("bstd,sdhe->bsthe", y, p[name]) for name in "qkv")
        weights = jax.nn.softmax(jnp.einsum("bsthe,bsuhe->bshtu", q, k), axis=-1)
        mixed = jnp.einsum("bshtu,bsuhe->bsthe", weights, v)
        own = x + jnp.einsum("bsthe,shed->bstd", mixed, p["o"])
        others = x.sum(1)[:, None] - x
        inner = jax.nn.relu(jnp.einsum("bstd,sdf->bstf", norm(own + others), p["up"]))
        return own + jnp.einsum("bstf,sfd->bstd", inner, p["down"])

    each = hidden // heads
    parameters = dict.fromkeys("qkv", (ways, hidden, heads, each))
    parameters |= {"o": (ways, heads, each, hidden)}
    parameters |= {"up": (ways, hidden, 2 * hidden), "down": (ways, 2 * hidden, hidden)}

    def spread(x):
        return jnp.broadcast_to(x[:, None], (x.shape[0], ways, *x.shape[1:]))

    return trained(layer, parameters, (length, hidden), num_layers, spread)


def megatron(length=128, hidden=256, heads=4, num_layers=3):
    """Standard blocks: attention, then a feed-forward part, each with a sum over tensor-parallel devices."""

    def layer(p, x):
        y = norm(x)
        q, k, v = (jnp.einsum("btd,dhe->bthe", y, p[name]) for name in "qkv")
        weights = jax.nn.softmax(jnp.einsum("bthe,buhe->bhtu", q, k), axis=-1)
        x = x + jnp.einsum("bhtu,buhe,hed->btd", weights, v, p["o"])
        return x + jax.nn.relu(norm(x) @ p["up"]) @ p["down"]

    each = hidden // heads
    parameters = dict.fromkeys("qkv", (hidden, heads, each))
    parameters |= {"o": (heads, each, hidden), "up": (hidden, 4 * hidden), "down": (4 * hidden, hidden)}
    return trained(layer, parameters, (length, hidden), num_layers)
