"""Plans drawn from what the differentiable program makes of its paths."""

from __future__ import annotations

from typing import Any, final

import numpy as np

from alpa_dejavu.slicing.relaxation._batch import FloatArray, IntArray
from alpa_dejavu.slicing.relaxation._lattice import OVERRUN, Lattice


@final
class Policy:
    """The probabilities of the next stage's submesh, config and last layer, for each of N starts of an anneal, from
    which plans are drawn.

    Of L layers, Z choices are pairs of submesh and config for a stage, and G groups are submeshes with equal links.

    Attributes:
        path: shape (N, L, L, Z), the cost of a stage and of all after it, in units of time, prices of devices included.
        by_choice: shape (N, L, G, Z), the probability of a choice for a stage that begins with a layer after a group.
        by_end: shape (N, L, Z, L), the probability of that stage's last layer.
    """

    def __init__(
        self, lattice: Lattice, log_bound: Any, prices: Any, rest: Any, later: Any, temperature: float
    ) -> None:
        arrays, size = lattice.arrays, lattice.problem.num_layers
        self._group = arrays.group.argmax(axis=1)
        bound = np.exp(log_bound)[:, None, None, None]
        cost = (arrays.cost + arrays.entry_cost[:, None])[None, :size, :size]
        path = arrays.weight[None, :size, :size] + arrays.steepness * np.maximum(cost - bound, 0.0)
        path = path + (prices @ arrays.uses.T)[:, None, None] + arrays.per_stage * bound
        path = path + (rest[:, 1 : size + 1] @ arrays.group.T)[:, None]
        if lattice.limited:
            followed = (later[:, 1 : size + 1] @ arrays.group.T)[:, None]
            path = path + OVERRUN * np.maximum(followed - arrays.room[None, :size, :size], 0.0)
        self.path = path
        low = path.min(axis=2, keepdims=True)
        shares = np.exp((low - path) / temperature)
        total = shares.sum(axis=2)
        self.by_end = np.swapaxes(shares / total[:, :, None], 2, 3)
        after = (low[:, :, 0] - temperature * np.log(total))[:, :, None] + arrays.entry[None, :size]
        chosen = np.exp((after.min(axis=3, keepdims=True) - after) / temperature)
        self.by_choice = chosen / chosen.sum(axis=3, keepdims=True)

    def drawn(self, rng: np.random.Generator, samples: int) -> tuple[IntArray, IntArray, IntArray]:
        """Draws `samples` plans for each of N starts; the first of each start takes the likeliest stage at every step.

        Returns:
            One past each stage's last layer, and each stage's choice (a submesh and config), both of shape
            (N * samples, K); and the number of stages.
        """
        num_starts, size = self.path.shape[:2]
        start = np.repeat(np.arange(num_starts), samples)
        greedy = np.arange(len(start)) % samples == 0
        layer, group = np.zeros_like(start), np.zeros_like(start)
        ends, chosen, count = [], [], np.zeros_like(start)
        while (layer < size).any():
            going, at = layer < size, np.minimum(layer, size - 1)
            choice = picked(self.by_choice[start, at, group], greedy, rng)
            last = picked(self.by_end[start, at, choice], greedy, rng)
            layer = np.where(going, np.maximum(last, at) + 1, layer)
            group = np.where(going, self._group[choice], group)
            count += going
            ends.append(layer)
            chosen.append(np.where(going, choice, 0))
        return np.stack(ends, axis=1), np.stack(chosen, axis=1), count


def picked(probabilities: FloatArray, greedy: Any, rng: np.random.Generator) -> IntArray:
    """Returns an index for each row of probabilities, drawn by them, or the likeliest where `greedy` is true."""
    sums = probabilities.cumsum(axis=1)
    drawn = (sums < rng.random((len(sums), 1)) * sums[:, -1:]).sum(axis=1)
    return np.asarray(np.where(greedy, probabilities.argmax(axis=1), np.minimum(drawn, sums.shape[1] - 1)))
