"""The starts, which say with which parameters candidates begin; each has one method, and is chosen by name.

In: the shapes of a model's parameters, and seeds. Out: parameters for each candidate.
"""

from __future__ import annotations

from collections.abc import Sequence

from alpa_dejavu._util.by_name import resolve
from alpa_dejavu.training.initialization.starts._base import Ask, Mixed, Own, Start, Started
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
from alpa_dejavu.training.initialization.starts._scales import LatinHypercube, OptunaSampler, Scales, Sobol

__all__ = [
    "Ask", "ByShape", "CoarseToFine", "LatinHypercube", "Mixed", "OptunaSampler", "Own", "Scales", "Sobol", "Start",
    "Started", "TruncatedNormal", "start",
]  # fmt: skip

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
    "kaiming": KaimingNormal,
    "xavier": XavierNormal,
}


def start(choice: str | Start | Sequence[str | Start]) -> Start:
    """Returns the start (of candidates' first weights) that a name in `KNOWN` stands for, the given start itself, or
    one in which several take turns.

    >>> start(["model", "sobol"])
    Mixed(starts=(Own(), Sobol(lowest=0.25, highest=4.0)))
    """
    if isinstance(choice, Sequence) and not isinstance(choice, str):
        return Mixed(tuple(map(start, choice)))
    return resolve("start", choice, KNOWN, Start)  # type: ignore[type-abstract]
