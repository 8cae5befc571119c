"""Units of layers, such as filters, and whole blocks that a worker leaves out of a gradient, and the problem without
them.

References:
    Rapp, Khalili, Pfeiffer and Henkel, DISTREAL: Distributed Resource-Aware Learning in Heterogeneous Systems, AAAI
    2022.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from alpa_dejavu.playground.job import Problem

__all__ = ["Narrowable", "drop_multipliers", "kept_units", "layer_widths", "narrowable", "narrowed_problem"]


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
    """Returns how many units of each layer are kept: the nearest to their share, but one at least; of a block that is
    left out none.

    >>> kept_units((8, 16, 4), (0.25, 0.99, 1))
    (6, 1, 0)
    """
    every = zip(widths, rates, strict=True)
    return tuple(0 if rate == 1 else max(1, round(width * (1 - rate))) for width, rate in every)


def narrowed_problem(problem: Problem, rates: Sequence[float]) -> Problem:
    """Returns a problem without the units that are left out: what is then computed is as much as that of it.

    Raises:
        ValueError: no narrower one is known.
    """
    if problem.narrowed is None:
        raise ValueError(f"problem {problem.name}: narrowed is None, but must make a narrower one to have its "
                         "seconds predicted; give compute_s as numbers")  # fmt: skip
    return problem.narrowed(kept_units(layer_widths(problem), rates))


def drop_multipliers(
    problem: Problem, params: Any, rates: Sequence[float], draw: np.random.Generator
) -> NDArray[np.float32] | None:
    """Returns by what each parameter is multiplied where drawn units are left out, shape (P,): 0 for weights to a unit
    that is left out, and from one; weights from units that are kept are raised so that the next layer's inputs are the
    same in the mean. Of a block that is left out no weight is left, so that it adds nothing. None: all are kept.

    Args:
        problem: has the layers.
        params: a pytree of the parameters, for its shapes.
        rates: the share of each layer's units that is left out.
        draw: draws them.
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
