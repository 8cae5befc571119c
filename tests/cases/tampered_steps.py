"""Train steps by robust gradients of a chain of layers, of which some replicas' have other signs."""

import jax
import jax.numpy as jnp
import numpy as np
import optax


def layers(width, count, draw):
    return {f"layer{n}": {"b": np.zeros(width, np.float32),
                          "w": (draw.standard_normal((width, width)) / width**0.5).astype(np.float32)}
            for n in range(count)}  # fmt: skip


def loss(params, batch):
    values = batch["x"]
    for layer in params.values():
        values = jnp.tanh(values @ layer["w"] + layer["b"])
    return jnp.mean((values - batch["y"]) ** 2)


def make_step(gradient):
    """A step of plain gradient descent; each replica's gradient is multiplied by its sign before it is judged."""

    def step(params, state, batch, signs):
        def tamper(gradients):
            return jax.tree.map(lambda x: x * signs.reshape(-1, *(1,) * (x.ndim - 1)), gradients)

        value, judged, state = gradient(params, batch, state, tamper=tamper)
        params = optax.apply_updates(params, jax.tree.map(lambda g: -0.5 * g, judged.gradients))
        return params, state, value, judged.suspicion

    return step


def trained(step, params, state, batches, replicas):
    """Losses, suspicions and parameters of a training whose second replica flips signs from the third step on."""
    losses, suspicion = [], []
    for number, batch in enumerate(batches):
        signs = np.where((np.arange(replicas) == 1) & (number >= 2), -1, 1).astype(np.float32)
        params, state, value, suspected = step(params, state, batch, signs)
        losses.append(float(np.asarray(value)))
        suspicion.append(np.array([np.asarray(x) for x in suspected.values()]))
    return losses, suspicion, params


def one_after_another(batches, micro_batches, replicas):
    """Batches with each replica's samples one after the other, for plain steps: a micro-batch is cut among all."""

    def moved(x):
        return x.reshape(micro_batches, replicas, -1, x.shape[-1]).swapaxes(0, 1).reshape(x.shape)

    return [{name: moved(x) for name, x in batch.items()} for batch in batches]
