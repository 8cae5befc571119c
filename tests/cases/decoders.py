"""Small language models for inference: a Kraken, and a standard transformer beside it."""

import functools

import jax
import jax.numpy as jnp

from alpa_dejavu.layers.models import Kraken, KrakenModule
from alpa_dejavu.planning.inference import Decoder

STANDARD = Kraken(hidden=512, num_blocks=3, num_heads=4, ways=1, expansion=4, vocabulary=50304, sequence=4096)
WAYS = Kraken(hidden=256, num_blocks=3, num_heads=4, ways=4, vocabulary=50304, sequence=4096)


def forward(size, batch_size, tokens):
    module = KrakenModule(size, jnp.float16, jnp.float16)
    prompts = jax.ShapeDtypeStruct((batch_size, tokens), jnp.int32)
    key = jax.eval_shape(lambda: jax.random.PRNGKey(0))
    parameters = jax.eval_shape(module.init, key, prompts)

    def step(parameters, batch):
        return module.apply(parameters, batch["tokens"], method="next_token")

    return step, (parameters, {"tokens": prompts})


def trained(batch_size, tokens):
    """A step with gradients."""

    def step(weights, batch):
        return jax.grad(lambda weights: (batch @ weights).mean())(weights)

    shapes = (8, 8), (batch_size, tokens, 8)
    return step, tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)


def cache_bytes(size):
    return 2 * size.num_blocks * size.ways * size.hidden * 2


@functools.cache  # what a decoder has traced and divided is kept by it
def small(size=STANDARD):
    name, divided = ("kraken", size.ways) if size.ways > 1 else ("standard", size.num_heads)
    function = functools.partial(forward, size)
    return Decoder(name, function, cache_bytes(size), size.num_blocks, divided, "ways" if size.ways > 1 else "heads")
