"""The starts, which say with which parameters candidates begin; each has one method, and is chosen by name.

In: the shapes of a model's parameters, and seeds. Out: parameters for each candidate.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, final

import numpy as np

from alpa_dejavu._util.by_name import resolve
from alpa_dejavu.training.initialization._layout import TensorLayout

if TYPE_CHECKING:
    from jaxtyping import Float
    from scipy.stats.qmc import QMCEngine

    from alpa_dejavu.training.initialization._layout import Leaves

__all__ = [
    "Ask", "ByShape", "LatinHypercube", "Mixed", "Own", "Scales", "Sobol", "Start", "Started", "name_of_start", "start",
]  # fmt: skip

_SHAPE_SALT = 0x57A27
"""Keys of initializers are folded once more, so that they aren't those of the model's own start."""
_SCALES_SALT = 0x5CA1E


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Started:
    """The first weights of a candidate, in the order and shapes of the tensors that were asked for, and the coordinates
    that they were made from, such as scales of tensors; (): none.
    """

    weights: Leaves
    point: tuple[float, ...] = ()


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Ask:
    """A request for the first weights of candidates.

    Attributes:
        tensors: name, shape and dtype of the model's parameters.
        own: gives the weights with which the model itself begins, for a candidate's number.
    """

    tensors: tuple[TensorLayout, ...]
    own: Callable[[int], Leaves]
    numbers: tuple[int, ...]
    seed: int


class Start(abc.ABC):
    """An interface of starts, which give candidates their first weights: initializations to be trained side by side."""

    @property
    def members(self) -> tuple[Start, ...]:
        """Returns the starts that candidates take in turn: this one alone, unless it is made of several."""
        return (self,)

    @abc.abstractmethod
    def start(self, ask: Ask) -> tuple[Started, ...]:
        """Returns the first weights of each candidate asked for; the same request always gets the same answer."""


@final
@dataclasses.dataclass(frozen=True)
class Own(Start):
    """A start that gives each candidate the weights with which the model begins by itself."""

    def start(self, ask: Ask) -> tuple[Started, ...]:
        return tuple(Started(ask.own(number)) for number in ask.numbers)


@final
@dataclasses.dataclass(frozen=True)
class Mixed(Start):
    """A start by several in turn, which so race against each other: candidate n by `starts[n % len(starts)]`."""

    starts: tuple[Start, ...]

    def __post_init__(self) -> None:
        if not self.starts or any(isinstance(member, Mixed) for member in self.starts):
            raise ValueError(f"init is {self.starts!r}, but must be one or more starts, none of them made of several")

    @property
    def members(self) -> tuple[Start, ...]:
        return self.starts

    def start(self, ask: Ask) -> tuple[Started, ...]:
        begun: dict[int, Started] = {}
        for place, member in enumerate(self.starts):
            numbers = tuple(number for number in ask.numbers if number % len(self.starts) == place)
            if numbers:
                begun.update(zip(numbers, member.start(dataclasses.replace(ask, numbers=numbers)), strict=True))
        return tuple(begun[number] for number in ask.numbers)


@final
@dataclasses.dataclass(frozen=True)
class ByShape(Start):
    """A start that draws each tensor of two axes or more anew by its shape; others, as biases and scales, stay the
    model's own.

    Like jax's initializers, it takes the last axis for the outputs, the one before for the inputs, and the rest for a
    convolution's window. Where a model splits an axis, as attention does its heads, its own initialization is another.

    Attributes:
        initializer: the name of the function of `jax.nn.initializers`.
        arguments: the function's, such as a standard deviation.

    References:
        Glorot and Bengio, Understanding the Difficulty of Training Deep Feedforward Networks, 2010 (Xavier).
        He et al., Delving Deep into Rectifiers, ICCV 2015 (Kaiming).
        LeCun et al., Efficient BackProp, Neural Networks: Tricks of the Trade, 1998.
        Saxe et al., Exact Solutions to the Nonlinear Dynamics of Learning in Deep Linear Networks, 2014 (orthogonal).
    """

    initializer: str
    arguments: tuple[float, ...] = ()

    def start(self, ask: Ask) -> tuple[Started, ...]:
        import jax
        import jax.numpy as jnp

        initializer = getattr(jax.nn.initializers, self.initializer)(*self.arguments)
        started = []
        for number in ask.numbers:
            key = jax.random.fold_in(jax.random.fold_in(jax.random.PRNGKey(ask.seed), number), _SHAPE_SALT)
            weights = list(ask.own(number))
            for n, tensor in enumerate(ask.tensors):
                if tensor.is_matrix:
                    drawn = initializer(jax.random.fold_in(key, n), tensor.shape, jnp.float32)
                    weights[n] = np.asarray(drawn).astype(tensor.dtype)
            started.append(Started(tuple(weights)))
        return tuple(started)


@dataclasses.dataclass(frozen=True)
class Scales(Start):
    """A start that multiplies each of the model's tensors of two axes or more by a log-uniform scale of a range."""

    name: ClassVar[str]
    lowest: float = 0.25
    highest: float = 4.0

    def __post_init__(self) -> None:
        if not (0 < self.lowest < self.highest < math.inf):
            raise ValueError(f"{self.name}: scales from {self.lowest!r} to {self.highest!r}, but must be from above 0 "
                             "to more")  # fmt: skip

    @abc.abstractmethod
    def _sequence(self, dimensions: int, seed: Sequence[int]) -> QMCEngine:
        """Returns the sequence of scipy that points of the unit cube are of."""

    @final
    def start(self, ask: Ask) -> tuple[Started, ...]:
        dimensions = sum(tensor.is_matrix for tensor in ask.tensors)
        if not dimensions:
            raise ValueError("none of the model's parameters has two axes, so there is nothing to scale; use "
                             "init='model'")  # fmt: skip
        sequence, count = self._sequence(dimensions, [ask.seed, ask.numbers[0], _SCALES_SALT]), len(ask.numbers)
        # A power of two of them, which is what Sobol's are even for; the first ones are as they would be alone.
        is_sobol = hasattr(sequence, "random_base2")
        points = sequence.random_base2((count - 1).bit_length())[:count] if is_sobol else sequence.random(count)
        low, high = math.log(self.lowest), math.log(self.highest)
        scales = np.exp(low + (high - low) * points)
        return tuple(
            Started(_scaled(ask.own(number), ask.tensors, row), tuple(row.tolist()))
            for number, row in zip(ask.numbers, scales, strict=True)
        )


@final
@dataclasses.dataclass(frozen=True)
class LatinHypercube(Scales):
    """A start by scales from a Latin hypercube: for each tensor, N candidates have their scales in N different equal
    parts of the range.

    References:
        McKay, Beckman and Conover, A Comparison of Three Methods for Selecting Values of Input Variables, 1979.
    """

    name = "latin_hypercube"

    def _sequence(self, dimensions: int, seed: Sequence[int]) -> QMCEngine:
        from scipy.stats import qmc

        return qmc.LatinHypercube(dimensions, seed=np.random.default_rng(seed))


@final
@dataclasses.dataclass(frozen=True)
class Sobol(Scales):
    """A start by scales from a scrambled Sobol sequence, a point for each candidate.

    References:
        Sobol, On the Distribution of Points in a Cube and the Approximate Evaluation of Integrals, 1967.
    """

    name = "sobol"

    def _sequence(self, dimensions: int, seed: Sequence[int]) -> QMCEngine:
        from scipy.stats import qmc

        return qmc.Sobol(dimensions, seed=np.random.default_rng(seed))


def _scaled(own: Leaves, tensors: Sequence[TensorLayout], scales: Float[np.ndarray, " matrices"]) -> Leaves:
    left = iter(scales.tolist())
    return tuple(
        (weight.astype(np.float64) * next(left)).astype(tensor.dtype) if tensor.is_matrix else weight
        for weight, tensor in zip(own, tensors, strict=True)
    )


KNOWN: dict[str, Start] = {
    "kaiming_normal": ByShape("kaiming_normal"),
    "kaiming_uniform": ByShape("kaiming_uniform"),
    "latin_hypercube": LatinHypercube(),
    "lecun": ByShape("lecun_normal"),
    "model": Own(),
    "orthogonal": ByShape("orthogonal"),
    "sobol": Sobol(),
    "truncated_normal": ByShape("truncated_normal", (0.02,)),
    "xavier_normal": ByShape("xavier_normal"),
    "xavier_uniform": ByShape("xavier_uniform"),
    "kaiming": ByShape("kaiming_normal"),
    "xavier": ByShape("xavier_normal"),
}


def start(choice: str | Start | Sequence[str | Start]) -> Start:
    """Returns the start (of candidates' first weights) that a name in `KNOWN` stands for, the given start itself, or
    one in which several take turns.

    >>> start(["model", "sobol"])
    Mixed(starts=(Own(), Sobol(lowest=0.25, highest=4.0)))
    """
    if isinstance(choice, Sequence) and not isinstance(choice, str):
        return Mixed(tuple(map(start, choice)))
    if isinstance(choice, str) and choice in KNOWN:
        return KNOWN[choice]
    return resolve("start", choice, dict.fromkeys(KNOWN, Start), Start)  # type: ignore[type-abstract]


def name_of_start(chosen: Start) -> str:
    """Returns the name by which users choose a start, or that of its class."""
    return next((name for name, candidate in KNOWN.items() if candidate == chosen), type(chosen).__name__)
