"""The record of an anneal: the probabilities of layers being in stages, and the cost, at each temperature."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, final

import numpy as np

from alpa_dejavu.slicing.relaxation._batch import FloatArray
from alpa_dejavu.slicing.relaxation._chain_search import Annealed
from alpa_dejavu.slicing.relaxation._lattice import Lattice
from alpa_dejavu.slicing.relaxation._sample import Policy
from alpa_dejavu.slicing.relaxation._slot_search import Placed

if TYPE_CHECKING:
    from alpa_dejavu.problem import SlicingProblem
    from alpa_dejavu.slicing.relaxation._solve import Relaxed

ENOUGH = 1e-3
"""The probability that some layer has to have in the last place that a trace shows."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Trace:
    """The history of one start of an anneal, round by round, for plots.

    It is the start whose relaxed cost came out least among those that ended near the plan that was found.

    Attributes:
        assignment: shape (T, L, K), the probability of each of L layers to be in each of K stages, in each of T rounds.
        cost_s: shape (T,), the relaxed plan's cost. By the objectives that have a name it is the Lagrangian's, which
            may be under any plan's.
        temperature_s: shape (T,), the temperature of each round, in seconds.
    """

    assignment: FloatArray
    cost_s: FloatArray
    temperature_s: FloatArray


def trace(problem: SlicingProblem, relaxed: Relaxed, cost_s: float) -> Trace:
    """Returns the history, round by round, of the best start that ended near the plan that a problem's anneal found.

    Args:
        problem: the slicing problem.
        relaxed: the end of the problem's anneal.
        cost_s: the cost of the plan that was found.
    """
    lattice = Lattice(problem)
    if relaxed.placed is not None:
        return _of_places(lattice, relaxed.placed)
    return _of_chain(lattice, relaxed.chain, cost_s)


def _of_places(lattice: Lattice, placed: Placed) -> Trace:
    best = int(placed.seconds[-1].argmin())
    layers = placed.layers[:, best, :, : lattice.problem.num_layers]
    return Trace(_told(np.swapaxes(layers, 1, 2)), placed.seconds[:, best], placed.temperatures * lattice.unit_s)


def _of_chain(lattice: Lattice, ended: Annealed, cost_s: float) -> Trace:
    from alpa_dejavu.slicing.relaxation._chain import Chain, softs

    best = int(np.abs(ended.values[-1] * lattice.unit_s - cost_s).argmin())
    bounds, prices = (part[:, best] for part in ended.history)
    found = softs(lattice.arrays, Chain(bounds, prices), ended.temperatures, lattice.limited)
    rests, laters = (np.asarray(part)[:, None] for part in found)
    rows = [
        _likely(lattice, Policy(lattice, bounds[[n]], prices[[n]], rests[n], laters[n], temperature))
        for n, temperature in enumerate(ended.temperatures.tolist())
    ]
    return Trace(_told(np.stack(rows)), ended.values[:, best] * lattice.unit_s, ended.temperatures * lattice.unit_s)


def _likely(lattice: Lattice, policy: Policy) -> FloatArray:
    """Returns the probability of each layer being in each stage, counted from the first; shape (L, L)."""
    size = lattice.problem.num_layers
    by_choice, by_end = policy.by_choice[0], policy.by_end[0]
    at: Any = np.zeros((size + 1, by_choice.shape[1]))
    at[0, 0] = 1.0
    rows = []
    for _ in range(size):
        taken = np.einsum("ig,igz->iz", at[:size], by_choice)
        stage = np.einsum("iz,izj->jz", taken, by_end)
        ends = stage.sum(axis=1)
        rows.append(np.cumsum(taken.sum(axis=1)) - np.cumsum(ends) + ends)
        at = np.concatenate([np.zeros_like(at[:1]), stage @ lattice.arrays.group])
    return np.stack(rows, axis=1)


def _told(assignment: FloatArray) -> FloatArray:
    """Returns the probabilities without the places at the end that are never likely."""
    likely = np.flatnonzero(assignment.max(axis=(0, 1)) > ENOUGH)
    return np.asarray(assignment[:, :, : int(likely.max(initial=0)) + 1], dtype=np.float64)
