"""The interface of readers: what another runtime's configuration says of a plan, and what of it is left aside."""

from __future__ import annotations

import abc
import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any, final

from alpa_dejavu.exports._outline import Outline
from alpa_dejavu.layers.models import Transformer

__all__ = ["Foreign", "Reader", "short"]

_LONGEST = 100


@final
@dataclasses.dataclass(frozen=True)
class Foreign:
    """The plan in another runtime's configuration.

    Attributes:
        outline: the plan.
        model: the sizes of its model; None: the configuration doesn't say them.
        ignored: sentences on what was left aside, with its line: what changes neither the model nor its division, its
            memory or its price.
        priced_by: how it is priced where nothing else is asked for, by the names of `PlanEstimator`'s arguments.
        otherwise: sentences on what is priced otherwise than it runs, and by how much.
        sequence_parallel: whether tensor-parallel devices divide norms and residuals, where the runtime can choose.
    """

    outline: Outline
    model: Transformer | None
    ignored: tuple[str, ...] = ()
    priced_by: Mapping[str, str] = dataclasses.field(default_factory=dict)
    otherwise: tuple[str, ...] = ()
    sequence_parallel: bool = True


class Reader(abc.ABC):
    """A reader of plans from the configurations of another runtime. It runs nothing of what it reads."""

    @abc.abstractmethod
    def read(self, path: pathlib.Path, num_devices: int, model: Transformer | None = None) -> Foreign:
        """Returns the plan that a configuration says.

        Args:
            path: the configuration's file.
            num_devices: the devices that it runs on.
            model: the sizes of the model, where the caller knows them; they win over those in the file.

        Raises:
            ValueError: the file can't be read, or contradicts itself, or asks for what isn't planned; says in which
                line, and what would do.
        """


def short(value: Any) -> str:
    """Returns a value as an error shows it, cut where it is long.

    >>> short("a" * 1000)[-9:]
    'aaaaa ...'
    """
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."
