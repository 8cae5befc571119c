"""Train steps by robust gradients of which some replicas' have other signs."""

import jax
import optax


def make_step(gradient):
    """A step of plain gradient descent; each replica's gradient is multiplied by its sign before it is judged."""
    def step(params, state, batch, signs):
        def tamper(gradients):
            return jax.tree_util.tree_map(lambda x: x * signs.reshape(-1, *(1,) * (x.ndim - 1)), gradients)

        value, judged, state = gradient(params, batch, state, tamper=tamper)
        params = optax.apply_updates(params, jax.tree_util.tree_map(lambda g: -0.5 * g, judged.gradients))
        return params, state, value, judged.suspicion

    return step
