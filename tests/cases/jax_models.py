"""Small jax models for the tests of layers and features: a loss each, with its parameters and a batch."""

import jax
import jax.numpy as jnp

HIDDEN, SEQUENCE, BATCH = 64, 32, 4


def block_weights(hidden=HIDDEN, dtype=jnp.float32):
    shapes = {"qkv": (hidden, 3 * hidden), "out": (hidden, hidden), "wide": (hidden, 4 * hidden)}
    shapes["narrow"] = (4 * hidden, hidden)
    return {name: jnp.zeros(shape, dtype) for name, shape in shapes.items()}


def attention(weights, x, mask=None):
    query, key, value = (jnp.reshape(part, (*x.shape[:2], 4, -1)) for part in jnp.split(x @ weights["qkv"], 3, -1))
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key)
    if mask is not None:
        scores = jnp.where(mask[:, None, None, :] > 0, scores, -1e9)
    together = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), value)
    return together.reshape(x.shape) @ weights["out"]


def norm(x):
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


def block(weights, x, mask=None):
    x = norm(x + attention(weights, x, mask))
    return norm(x + jax.nn.gelu(x @ weights["wide"]) @ weights["narrow"])


def bert(parameters, batch, block=block):
    x = parameters["embedding"][batch["tokens"]]
    for weights in parameters["blocks"]:
        x = block(weights, x, batch["mask"])
    scores = jax.nn.log_softmax(x @ parameters["embedding"].T)
    return -jnp.take_along_axis(scores, batch["labels"][..., None], -1).mean()


def bert_arguments(num_blocks=2, vocabulary=256):
    blocks = [block_weights() for _ in range(num_blocks)]
    tokens = jnp.zeros((BATCH, SEQUENCE), jnp.int32)
    parameters = {"embedding": jnp.zeros((vocabulary, HIDDEN)), "blocks": blocks}
    return parameters, {"tokens": tokens, "labels": tokens, "mask": tokens}


def vit(parameters, batch):
    patches = jax.lax.conv_general_dilated(
        batch["images"], parameters["patch"], (8, 8), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    x = patches.reshape(patches.shape[0], -1, HIDDEN) + parameters["position"]
    for weights in parameters["blocks"]:
        x = x + attention(weights, norm(x))
        x = x + jax.nn.gelu(norm(x) @ weights["wide"]) @ weights["narrow"]
    logits = norm(x).mean(1) @ parameters["head"]
    return -(jax.nn.one_hot(batch["labels"], 10) * jax.nn.log_softmax(logits)).sum(-1).mean()


def vit_arguments(num_blocks=2):
    parameters = {"patch": jnp.zeros((8, 8, 3, HIDDEN)), "position": jnp.zeros((16, HIDDEN))}
    parameters |= {"blocks": [block_weights() for _ in range(num_blocks)], "head": jnp.zeros((HIDDEN, 10))}
    return parameters, {"images": jnp.zeros((BATCH, 32, 32, 3)), "labels": jnp.zeros(BATCH, jnp.int32)}


def scanned(parameters, batch):
    """All blocks by a scan over stacked weights."""
    return (jax.lax.scan(lambda x, weights: (block(weights, x), None), batch, parameters)[0] ** 2).mean()


def unrolled(parameters, batch):
    """The same as `scanned`, block by block."""
    for n in range(len(parameters["qkv"])):
        batch = block(jax.tree.map(lambda leaf, n=n: leaf[n], parameters), batch)
    return (batch**2).mean()


def stacked_arguments(num_blocks=4):
    weights = jax.tree.map(lambda leaf: jnp.zeros((num_blocks, *leaf.shape)), block_weights())
    return weights, jnp.zeros((BATCH, SEQUENCE, HIDDEN))


def mlp(parameters, batch):
    for weight in parameters:
        batch = jax.nn.relu(batch @ weight)
    return (batch**2).mean()


def mlp_arguments(depth=10, hidden=64):
    return [jnp.zeros((hidden, hidden))] * depth, jnp.zeros((8, hidden))


def convolutions(parameters, images):
    for n, kernel in enumerate(parameters):
        stride = (2, 2) if n % 3 == 2 else (1, 1)
        images = jax.lax.conv_general_dilated(
            images, kernel, stride, "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        images = jax.nn.relu((images - images.mean((0, 1, 2))) * jax.lax.rsqrt(images.var((0, 1, 2)) + 1e-5))
    return images.mean()


def convolution_arguments(depth=12):
    return [jnp.zeros((3, 3, 8, 8))] * depth, jnp.zeros((2, 32, 32, 8))


def trained(batch_size, size=64, depth=4):
    """A model function: a step of gradient descent on layers of tanh."""

    def step(weights, x):
        def loss(weights):
            made = x
            for weight in weights:
                made = jnp.tanh(made @ weight)
            return (made**2).mean()

        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights))

    weights = [jax.ShapeDtypeStruct((size, size), jnp.float32) for _ in range(depth)]
    return step, (weights, jax.ShapeDtypeStruct((batch_size, size), jnp.float32))
