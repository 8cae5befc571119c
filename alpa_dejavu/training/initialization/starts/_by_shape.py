"""The initializations of the literature, by the shape of each tensor."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, final

import numpy as np

from alpa_dejavu.problem import checks
from alpa_dejavu.training.initialization.starts._base import Ask, Start, Started

_SALT = 0x57A27
"""Keys of initializers are folded once more, so that they aren't those of the model's own start."""


@dataclasses.dataclass(frozen=True)
class ByShape(Start):
    """A start that draws each tensor of two axes or more anew by its shape; others, as biases and scales, stay the
    model's own.

    Like jax's initializers, it takes the last axis for the outputs, the one before for the inputs, and the rest for a
    convolution's window. Where a model splits an axis, as attention does its heads, its own initialization is another.

    Attributes:
        initializer: the name of the function of `jax.nn.initializers`, which takes the fields of the start.

    References:
        Glorot and Bengio, Understanding the Difficulty of Training Deep Feedforward Networks, 2010 (Xavier).
        He et al., Delving Deep into Rectifiers, ICCV 2015 (Kaiming).
        LeCun et al., Efficient BackProp, Neural Networks: Tricks of the Trade, 1998.
        Saxe et al., Exact Solutions to the Nonlinear Dynamics of Learning in Deep Linear Networks, 2014 (orthogonal).
    """

    initializer: ClassVar[str]

    @final
    def start(self, ask: Ask) -> tuple[Started, ...]:
        import jax
        import jax.numpy as jnp

        initializer = getattr(jax.nn.initializers, self.initializer)(*dataclasses.astuple(self))
        started = []
        for number in ask.numbers:
            key = jax.random.fold_in(jax.random.fold_in(jax.random.PRNGKey(ask.seed), number), _SALT)
            weights = list(ask.own(number))
            for n, tensor in enumerate(ask.tensors):
                if tensor.is_matrix:
                    drawn = initializer(jax.random.fold_in(key, n), tensor.shape, jnp.float32)
                    weights[n] = np.asarray(drawn).astype(tensor.dtype)
            started.append(Started(tuple(weights)))
        return tuple(started)


@final
class XavierNormal(ByShape):
    """A start that draws weights by Xavier initialization from a normal distribution."""

    initializer = "xavier_normal"


@final
class XavierUniform(ByShape):
    """A start that draws weights by Xavier initialization from a uniform distribution."""

    initializer = "xavier_uniform"


@final
class KaimingNormal(ByShape):
    """A start that draws weights by Kaiming initialization from a normal distribution."""

    initializer = "kaiming_normal"


@final
class KaimingUniform(ByShape):
    """A start that draws weights by Kaiming initialization from a uniform distribution."""

    initializer = "kaiming_uniform"


@final
class Lecun(ByShape):
    """A start that draws weights by LeCun initialization from a normal distribution."""

    initializer = "lecun_normal"


@final
class Orthogonal(ByShape):
    """A start that draws each tensor's weights as a random orthogonal matrix."""

    initializer = "orthogonal"


@final
@dataclasses.dataclass(frozen=True)
class TruncatedNormal(ByShape):
    """A start that draws weights from a normal distribution truncated at two standard deviations.

    Attributes:
        stddev: the standard deviation of the normal numbers before they are truncated.

    Raises ValueError for a stddev that isn't positive.
    """

    initializer = "truncated_normal"
    stddev: float = 0.02

    def __post_init__(self) -> None:
        checks.positive("truncated_normal", "stddev", self.stddev)
