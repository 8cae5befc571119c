"""Preparations of the replicas' gradients before a rule: mixing, bucketing, clipping, momentum and noise.

In: gradients of N replicas, [N, ...]. Out: as many or fewer of them.
"""

from __future__ import annotations

from alpa_dejavu.training.robust.before._base import Preparation
from alpa_dejavu.training.robust.before._mixing import Bucketing, NearestNeighbours
from alpa_dejavu.training.robust.before._single import Clipping, Noise, WorkerMomentum

__all__ = ["BEFORE", "Bucketing", "Clipping", "NearestNeighbours", "Noise", "Preparation", "WorkerMomentum"]

BEFORE: dict[str, type[Preparation]] = {
    "bucketing": Bucketing,
    "nearest-neighbours": NearestNeighbours,
    "clipping": Clipping,
    "momentum": WorkerMomentum,
    "noise": Noise,
}
"""The preparations by name, frozen dataclasses."""
