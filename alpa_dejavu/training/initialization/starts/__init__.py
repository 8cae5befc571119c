"""The starts, which say with which parameters candidates begin; each has one method, and is chosen by name.

In: the shapes of a model's parameters, and seeds. Out: parameters for each candidate.
"""

from __future__ import annotations

from alpa_dejavu._util.by_name import resolve
from alpa_dejavu.training.initialization.starts._base import Ask, Own, Start, Started
from alpa_dejavu.training.initialization.starts._by_shape import (
    ByShape,
    KaimingNormal,
    KaimingUniform,
    Lecun,
    Orthogonal,
    TruncatedNormal,
    XavierNormal,
    XavierUniform,
)
from alpa_dejavu.training.initialization.starts._coarse_to_fine import CoarseToFine
from alpa_dejavu.training.initialization.starts._optuna_sampler import OptunaSampler
from alpa_dejavu.training.initialization.starts._scales import LatinHypercube, Scales, Sobol

__all__ = [
    "Ask",
    "ByShape",
    "CoarseToFine",
    "LatinHypercube",
    "OptunaSampler",
    "Own",
    "Scales",
    "Sobol",
    "Start",
    "Started",
    "TruncatedNormal",
    "start",
]

KNOWN: dict[str, type[Start]] = {
    "coarse_to_fine": CoarseToFine,
    "kaiming_normal": KaimingNormal,
    "kaiming_uniform": KaimingUniform,
    "latin_hypercube": LatinHypercube,
    "lecun": Lecun,
    "model": Own,
    "optuna": OptunaSampler,
    "orthogonal": Orthogonal,
    "sobol": Sobol,
    "truncated_normal": TruncatedNormal,
    "xavier_normal": XavierNormal,
    "xavier_uniform": XavierUniform,
}


def start(choice: str | Start) -> Start:
    """Returns the start (of candidates' first weights) that a name in `KNOWN` stands for, or the given start itself.

    >>> start("sobol")
    Sobol(lowest=0.25, highest=4.0)
    """
    return resolve("start", choice, KNOWN, Start)  # type: ignore[type-abstract]
