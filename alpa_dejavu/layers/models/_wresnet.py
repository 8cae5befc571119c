"""Wide-ResNet in single precision: bottleneck blocks whose inner convolution is wide, with batch normalisation.

A block is a jitted function, so blocks that are alike are traced once.

References:
    Zagoruyko and Komodakis, Wide Residual Networks, BMVC 2016.
    Zheng et al., Alpa, OSDI 2022, section 8.1.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from alpa_dejavu.layers.models._sizes import WideResNet
from alpa_dejavu.layers.models._training import (
    Group,
    Shapes,
    TrainedGroups,
    abstract_state,
    apply_gradients,
    momentum,
    updating,
)

Statistics = list[Group]


def wresnet_step(size: WideResNet, batch_size: int) -> Any:
    """Returns the train step of a Wide-ResNet image classifier, and its abstract arguments: state and batch."""
    optimizer = momentum()
    update = updating(optimizer)

    def train_step(state: tuple[TrainedGroups, Statistics], batch: Group) -> Any:
        trained, statistics = state

        def loss(parameters: list[Group]) -> tuple[jax.Array, Any]:
            return _loss(size, parameters, statistics, batch)

        gradients, (statistics, accuracy) = jax.grad(loss, has_aux=True)(trained.parameters)
        return (apply_gradients(trained, gradients, update), statistics), accuracy

    shapes = wresnet_shapes(size)
    state = abstract_state(shapes, jnp.float32, optimizer, master=False)
    statistics = [_statistics(group) for group in shapes]
    images = jax.ShapeDtypeStruct((batch_size, size.image, size.image, 3), jnp.float32)
    labels = jax.ShapeDtypeStruct((batch_size,), jnp.int32)
    return train_step, ((state, statistics), {"images": images, "labels": labels})


def wresnet_shapes(size: WideResNet) -> list[Shapes]:
    """Returns the shapes of the parameters: the first convolution, blocks, the head."""
    groups: list[Shapes] = [_convolution("first", 7, 3, size.channels)]
    before = size.channels
    for stage, num_blocks in enumerate(size.blocks):
        narrow = size.channels * 2**stage
        for n in range(num_blocks):
            block = {
                **_convolution("enter", 1, before, narrow),
                **_convolution("inner", 3, narrow, narrow * size.width),
                **_convolution("leave", 1, narrow * size.width, narrow * 4),
            }
            if n == 0:
                block.update(_convolution("project", 1, before, narrow * 4))
            groups.append(block)
            before = narrow * 4
    return [*groups, {"head": (before, size.classes), "head_bias": (size.classes,)}]


def _convolution(name: str, side: int, inputs: int, outputs: int) -> Shapes:
    return {name: (side, side, inputs, outputs), f"{name}_scale": (outputs,), f"{name}_shift": (outputs,)}


def _statistics(shapes: Shapes) -> Group:
    """The running mean and variance of each normalisation."""
    scales = {name: shape for name, shape in shapes.items() if name.endswith("_scale")}
    return {
        name.replace("_scale", f"_{what}"): jax.ShapeDtypeStruct(shape, jnp.float32)
        for name, shape in scales.items()
        for what in ("mean", "variance")
    }


def _loss(size: WideResNet, groups: list[Group], statistics: Statistics, batch: Group) -> tuple[jax.Array, Any]:
    first, *blocks, last = groups
    images = batch["images"].astype(jnp.float16) if size.half else batch["images"]
    x, started = _convolve(first, statistics[0], "first", images, 2)
    x = jax.lax.reduce_window(jax.nn.relu(x), -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
    new: Statistics = [started]
    place = 1
    for stage, num_blocks in enumerate(size.blocks):
        for n in range(num_blocks):
            x, changed = _block(blocks[place - 1], statistics[place], x, 2 if stage and n == 0 else 1)
            new.append(changed)
            place += 1
    logits = x.mean((1, 2)).astype(jnp.float32) @ last["head"] + last["head_bias"]
    labels = jax.nn.one_hot(batch["labels"], size.classes)
    loss = -jnp.sum(labels * jax.nn.log_softmax(logits), axis=-1).mean()
    accuracy = jnp.mean(jnp.argmax(logits, -1) == batch["labels"])
    return loss, ([*new, {}], accuracy)


@functools.partial(jax.jit, static_argnums=3, inline=True)
def _block(weights: Group, statistics: Group, x: jax.Array, stride: int) -> tuple[jax.Array, Group]:
    y, first = _convolve(weights, statistics, "enter", x, 1)
    y, second = _convolve(weights, statistics, "inner", jax.nn.relu(y), stride)
    y, third = _convolve(weights, statistics, "leave", jax.nn.relu(y), 1)
    new = {**first, **second, **third}
    if "project" in weights:
        x, fourth = _convolve(weights, statistics, "project", x, stride)
        new.update(fourth)
    return jax.nn.relu(x + y), new


def _convolve(weights: Group, statistics: Group, name: str, x: jax.Array, stride: int) -> tuple[jax.Array, Group]:
    """A convolution with batch normalisation in single precision, and the running statistics after it."""
    side = weights[name].shape[0]
    padding = [(side // 2, side // 2)] * 2 if name == "first" else "SAME"
    y = jax.lax.conv_general_dilated(
        x, weights[name].astype(x.dtype), (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
    ).astype(jnp.float32)
    mean = y.mean((0, 1, 2))
    variance = jnp.maximum((y**2).mean((0, 1, 2)) - mean**2, 0)
    normal = (y - mean) * (jax.lax.rsqrt(variance + 1e-5) * weights[f"{name}_scale"]) + weights[f"{name}_shift"]
    new = {
        f"{name}_mean": 0.9 * statistics[f"{name}_mean"] + 0.1 * mean,
        f"{name}_variance": 0.9 * statistics[f"{name}_variance"] + 0.1 * variance,
    }
    return normal.astype(x.dtype), new
