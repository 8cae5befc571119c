"""Problems: a model, its loss, and the data that it is trained on and judged by."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, final

import numpy as np

from alpa_dejavu.playground._arrays import Batch, Coordinates, Data, Init, Logits, Loss, Params, Values, Vector
from alpa_dejavu.problem import Device, Model

if TYPE_CHECKING:
    from alpa_dejavu.costs import CostModels


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """A model and its data.

    Attributes:
        accuracy: the share of a batch's targets that the parameters predict; None: there are no classes.
        held_out: that by which the history's loss and accuracy are told.
        coordinates: the indices of the parameters, flat, that the loss of each of some inputs depends on; None: all of
            them.
        chain: names of parts of the parameters in a row, each a kernel of shape (inputs, outputs) and a bias, where the
            outputs of one, such as filters, are the inputs of the next one, the last one's classes; units of all but
            the last one may be left out. Empty: none may.
        blocks: pairs of names of parts of the parameters, each pair a residual block: the outputs of the second part,
            whose inputs are the units of the first one, are added to what comes into the block. Units of the first part
            may be left out, or the whole block.
        narrowed: returns the problem with fewer units in these layers and then blocks, given their numbers, 0 for a
            block that isn't there; None: there is none.
        logits: what the model puts out; None: there are no classes.
    """

    name: str
    init: Init
    loss: Loss
    accuracy: Loss | None
    train: Data
    held_out: Data
    coordinates: Callable[[Values], Coordinates] | None = None
    chain: tuple[str, ...] = ()
    blocks: tuple[tuple[str, str], ...] = ()
    narrowed: Callable[[Sequence[int]], Problem] | None = None
    logits: Logits | None = None

    def __post_init__(self) -> None:
        for field in ("train", "held_out"):
            inputs, targets = getattr(self, field)
            if not 0 < len(inputs) == len(targets):
                raise ValueError(f"problem {self.name}: {field} is {len(inputs)} inputs and {len(targets)} targets, "
                                 "but must be as many of both; give each sample its target")  # fmt: skip


class Narrowable(NamedTuple):
    """A layer of which units may be left out: its part of the parameters, the part that has them as inputs, and whether
    both may be left out whole, as the model has a way around them.
    """

    part: str
    following: str
    whole: bool


def narrowable(problem: Problem) -> tuple[Narrowable, ...]:
    """Returns the layers of a problem of which units may be left out: those of its chain, and then its blocks."""
    chained = (Narrowable(part, following, False) for part, following in itertools.pairwise(problem.chain))
    return (*chained, *(Narrowable(first, second, True) for first, second in problem.blocks))


def layer_widths(problem: Problem) -> tuple[int, ...]:
    """Returns the number of units of each layer of which some may be left out."""
    import jax

    params = problem.init(jax.random.PRNGKey(0))
    return tuple(int(np.size(params[layer.part]["bias"])) for layer in narrowable(problem))


def kept_units(widths: Sequence[int], rates: Sequence[float]) -> tuple[int, ...]:
    """Returns how many units of each layer are kept, the nearest to their share, but one; none of a left-out block.

    >>> kept_units((8, 16, 4), (0.25, 0.99, 1))
    (6, 1, 0)
    """
    every = zip(widths, rates, strict=True)
    return tuple(0 if rate == 1 else max(1, round(width * (1 - rate))) for width, rate in every)


def narrowed_problem(problem: Problem, rates: Sequence[float]) -> Problem:
    """Returns a problem without the units that are left out: what is then computed is as much as that of it."""
    if problem.narrowed is None:
        raise ValueError(f"problem {problem.name}: narrowed is None, but must make a narrower one to have its "
                         "seconds predicted; give compute_s as numbers")  # fmt: skip
    return problem.narrowed(kept_units(layer_widths(problem), rates))


def drop_multipliers(problem: Problem, params: Params, rates: Sequence[float], draw: np.random.Generator
                     ) -> Vector | None:  # fmt: skip
    """Returns by what parameters are multiplied where drawn units, a share of each layer's, are left out: 0 for weights
    to such a unit, and from one; weights from units that are kept are raised so that the next layer's inputs are the
    same in the mean. Of a block that is left out no weight is left. None: all are kept.
    """
    import jax

    factors = jax.tree.map(lambda leaf: np.ones(np.shape(leaf), np.float32), params)
    dropped = False
    for (part, following, _), rate in zip(narrowable(problem), rates, strict=True):
        width = factors[part]["bias"].size
        (count,) = kept_units((width,), (rate,))
        if count == width:
            continue
        dropped, kept = True, np.zeros(width, np.float32)
        if not count:
            for leaf in jax.tree.leaves((factors[part], factors[following])):
                leaf[...] = 0
            continue
        kept[draw.choice(width, count, replace=False)] = 1
        factors[part]["kernel"] *= kept
        factors[part]["bias"] *= kept
        incoming = factors[following]["kernel"]  # a unit's inputs to the next layer stand a width apart
        incoming *= np.tile(kept * np.float32(width / count), len(incoming) // width)[:, None]
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(factors)]) if dropped else None


def compute_seconds(problem: Problem, batch: int, device: Device, models: CostModels | None = None) -> float:
    """Returns the predicted seconds of one gradient of a problem and a plain update by it, on one device, by models of
    operators' latency; None: the analytic one, with what Alpa's runtime adds.
    """
    from alpa_dejavu.costs import CostModels

    used = CostModels.named() if models is None else models
    layers = _described(problem, batch).layers
    operators = [layer.operators(phase) for layer in layers for phase in ("forward", "backward", "step")]
    return sum(used.runtime.latency(used.latency.predict(operator, device), operator).total_s for operator in operators)


def compute_bytes(problem: Problem, batch: int) -> float:
    """Returns the bytes of memory that one gradient of a problem and a plain update by it take, as the planner counts
    them: parameters, gradients, and the most that lives at a time while they are computed.
    """
    described = _described(problem, batch)
    most = max(max(layer.forward_temporary_bytes, layer.backward_temporary_bytes) for layer in described.layers)
    return sum(tensor.num_bytes for tensor in described.tensors) + most


def _described(problem: Problem, batch: int) -> Model:
    import jax

    from alpa_dejavu.layers import trace
    from alpa_dejavu.sharding.solved import model_of_step

    inputs, targets = (part[:1].repeat(batch, axis=0) for part in problem.train)

    def step(params: Params, data: Batch) -> Params:
        gradients = jax.grad(problem.loss)(params, data)
        return jax.tree.map(lambda value, gradient: value - 0.1 * gradient, params, gradients)

    params = problem.init(jax.random.PRNGKey(0))
    return model_of_step(trace(lambda: (step, (params, (inputs, targets)))), 1)
