"""Adam's update of parameters on a host's processors, by JAX in a process of its own that has all of them.

References:
    Kingma and Ba, Adam: a method for stochastic optimization, ICLR 2015.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from alpa_dejavu._util.child_process import child_process
from alpa_dejavu.calibration.host_probes._copies import received

if TYPE_CHECKING:
    import jax

__all__ = ["updater"]

_PATIENCE_S = 2.0
_FEWEST_RUNS = 3
_RATE, _FIRST, _SECOND, _EPSILON = 1e-3, 0.9, 0.999, 1e-8


@contextlib.contextmanager
def updater(num_parameters: int) -> Iterator[Callable[[float], Callable[[], list[float]]]]:
    """Yields a function that begins to update float32 parameters by Adam, again and again for so many seconds, and
    returns a function that waits until that is over and returns the seconds of each update.

    Args:
        num_parameters: how many parameters there are, each with its gradient and two moments.
    """
    serving = child_process(_serve, num_parameters, name="host-updates", patience_s=_PATIENCE_S)
    with serving as connection:
        received(connection)

        def begin(window_s: float) -> Callable[[], list[float]]:
            connection.send(window_s)
            return lambda: list(received(connection))

        yield begin


def _serve(connection: Connection, num_parameters: int) -> None:
    """Says when it is ready; then updates for as long as it is asked to, and sends the seconds."""
    os.environ["XLA_FLAGS"] = ""
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_platforms", "cpu")
    update = jax.jit(_adam, donate_argnums=(0, 1, 2))
    parameters, first, second, gradients = (
        jnp.full(num_parameters, value, jnp.float32) for value in (1.0, 0.0, 0.0, 0.01)
    )
    step = 0.0

    def updated_s() -> float:
        nonlocal parameters, first, second, step
        step += 1.0
        started = time.perf_counter()
        parameters, first, second = update(parameters, first, second, gradients, jnp.float32(step))
        jax.block_until_ready((parameters, first, second))
        return time.perf_counter() - started

    updated_s()
    connection.send(None)
    with contextlib.suppress(EOFError):
        while True:
            stop = connection.recv() + time.perf_counter()
            found = list[float]()
            while len(found) < _FEWEST_RUNS or time.perf_counter() < stop:
                found.append(updated_s())
            connection.send(found)


def _adam(
    parameters: jax.Array, first: jax.Array, second: jax.Array, gradients: jax.Array, step: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns the parameters and both moments after a step of Adam, each of shape (N,)."""
    import jax.numpy as jnp

    first = _FIRST * first + (1 - _FIRST) * gradients
    second = _SECOND * second + (1 - _SECOND) * gradients * gradients
    scaled = jnp.sqrt(second / (1 - _SECOND**step)) + _EPSILON
    return parameters - _RATE * (first / (1 - _FIRST**step)) / scaled, first, second
