"""The record of an anneal: the probabilities of layers being in stages, and the cost, at each temperature."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, final

import numpy as np

from alpa_dejavu.slicing.relaxation._batch import FloatArray
from alpa_dejavu.slicing.relaxation._chain import Annealed, BoundAndPrices, softs
from alpa_dejavu.slicing.relaxation._draws import StageChances
from alpa_dejavu.slicing.relaxation._lattice import Lattice

if TYPE_CHECKING:
    from alpa_dejavu.slicing.relaxation._solve import AnnealEnd

ENOUGH = 1e-3
"""The probability that some layer has to have in the last place that a trace shows."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Trace:
    """The history of one start of an anneal, round by round, for plots: that whose relaxed cost came out least among
    those that ended near the plan that was found.

    Attributes:
        assignment: shape (T, L, K), the probability of each of L layers to be in each of K stages, in each of T rounds.
        cost_s: shape (T,), the relaxed plan's cost. By the objectives that have a name it is the Lagrangian's, which
            may be under any plan's.
        temperature_s: shape (T,), the temperature of each round, in seconds.
    """

    assignment: FloatArray
    cost_s: FloatArray
    temperature_s: FloatArray


def trace(ended: AnnealEnd, cost_s: float) -> Trace:
    """Returns the history of the best start that ended near the plan that was found, which costs `cost_s`."""
    lattice, placed = ended.lattice, ended.placed
    if placed is None:
        return _of_chain(lattice, ended.chain, cost_s)
    best = int(placed.seconds[-1].argmin())
    layers = placed.layers[:, best, :, : lattice.problem.num_layers]
    return Trace(_likely(np.swapaxes(layers, 1, 2)), placed.seconds[:, best], placed.temperatures * lattice.unit_s)


def _of_chain(lattice: Lattice, ended: Annealed, cost_s: float) -> Trace:
    best = int(np.abs(ended.values[-1] * lattice.unit_s - cost_s).argmin())
    bounds, prices = (part[:, best] for part in ended.history)
    values = softs(lattice.arrays, BoundAndPrices(bounds, prices), ended.temperatures, lattice.limited)
    rests, laters = (np.asarray(part)[:, None] for part in values)
    rows = []
    for n, temperature in enumerate(ended.temperatures.tolist()):
        chain = BoundAndPrices(bounds[[n]], prices[[n]])
        rows.append(_assignment(lattice, StageChances(lattice, chain, rests[n], laters[n], temperature)))
    return Trace(_likely(np.stack(rows)), ended.values[:, best] * lattice.unit_s, ended.temperatures * lattice.unit_s)


def _assignment(lattice: Lattice, chances: StageChances) -> FloatArray:
    """Returns the probability of each layer being in each stage, counted from the first; shape (L, L)."""
    size = lattice.problem.num_layers
    by_choice, by_end = chances.by_choice[0], chances.by_end[0]
    at: Any = np.zeros((size + 1, by_choice.shape[1]))
    at[0, 0] = 1.0
    rows = []
    for _ in range(size):
        begun = np.einsum("ig,igz->iz", at[:size], by_choice)
        stage = np.einsum("iz,izj->jz", begun, by_end)
        ends = stage.sum(axis=1)
        rows.append(np.cumsum(begun.sum(axis=1)) - np.cumsum(ends) + ends)
        at = np.concatenate([np.zeros_like(at[:1]), stage @ lattice.arrays.group])
    return np.stack(rows, axis=1)


def _likely(assignment: FloatArray) -> FloatArray:
    """Returns the probabilities without the places at the end that are never likely."""
    likely = np.flatnonzero(assignment.max(axis=(0, 1)) > ENOUGH)
    return np.asarray(assignment[:, :, : int(likely.max(initial=0)) + 1], dtype=np.float64)
