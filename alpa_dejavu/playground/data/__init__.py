"""Where the data go: splits of samples over workers, and policies that move samples while a run goes.

In: the samples, the workers' hosts and speeds, a seed; at the end of each epoch what a worker has.
Out: the samples of each worker (`Shards`), and those that a worker hands on (`Handed`). A job has
one of both each: `Job(shards=split("dirichlet"), moves=move("by-loss"))`. See docs/concepts/playground-workers.md.
"""

from __future__ import annotations

from typing import Any

from alpa_dejavu._util.by_name import resolve
from alpa_dejavu.playground._data import ByLoss, DataMove, Epoch, Handed, RandomShare, Shards, Split, SplitTask
from alpa_dejavu.playground.data._plain_splits import ByLabel, Independent, Sorted
from alpa_dejavu.playground.data._uneven_splits import Clusters, Dirichlet, MovedPoints

__all__ = ["MOVES", "SPLITS", "DataMove", "Epoch", "Handed", "Shards", "Split", "SplitTask", "move", "split"]

SPLITS: dict[str, type[Split]] = {
    "independent": Independent, "by-label": ByLabel, "dirichlet": Dirichlet, "sorted": Sorted, "clusters": Clusters,
    "moved-points": MovedPoints,
}  # fmt: skip
"""For each name the split, a frozen dataclass of its settings."""
MOVES: dict[str, type[DataMove]] = {"random-share": RandomShare, "by-loss": ByLoss}
"""For each name the policy, a frozen dataclass of its settings."""


def split(choice: str | Split, **settings: Any) -> Split:
    """Returns the split of a name of `SPLITS` with its settings, or the given one.

    >>> split("dirichlet", alpha=0.3).definition
    'labels-over-workers'
    """
    return resolve("split", choice, SPLITS, Split, **settings)  # type: ignore[type-abstract]


def move(choice: str | DataMove, **settings: Any) -> DataMove:
    """Returns the policy of a name of `MOVES` with its settings, or the given one.

    >>> move("by-loss", share=0.05)
    ByLoss(share=0.05, rest=10)
    """
    return resolve("move", choice, MOVES, DataMove, **settings)  # type: ignore[type-abstract]
