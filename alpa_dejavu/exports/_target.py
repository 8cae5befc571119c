"""The interface of writers, and targets as data: a runtime or a simulator, and what it can do."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias, final

from alpa_dejavu.exports._foreign import Reader
from alpa_dejavu.layers.models import Transformer
from alpa_dejavu.planning.search.runtimes import Runtime
from alpa_dejavu.problem import Plan

if TYPE_CHECKING:
    from alpa_dejavu.planning.changed.kept import Kept

__all__ = ["Files", "Target", "Writer"]

Files: TypeAlias = Mapping[str, str | bytes]
"""Files by their names, which are relative to the folder that they are written to, each with its content."""


class Writer(abc.ABC):
    """A writer of plans as the files that a runtime, or a simulator, reads.

    `alpa_dejavu.exports.testing.check_target` checks whether an implementation is sound.
    """

    @abc.abstractmethod
    def write(self, plan: Plan, model: Transformer | None) -> Files:
        """Returns the files that say a plan to the target; the same plan always gets the same files.

        Args:
            plan: the plan, which the target's rules allow.
            model: the sizes of its model; None: they aren't known.

        Raises:
            ValueError: the target can't say the plan, or the model's sizes are needed and not known.
        """

    def knowing(self, plan: Plan, kept: Kept | None) -> Writer:
        """Returns the writer that also goes by what planning has kept beside the plan, if that is of use to it."""
        return self


@final
@dataclasses.dataclass(frozen=True)
class Target:
    """A runtime that plans are written for, or a simulator.

    Attributes:
        name: the name by which users choose it.
        release: the release that its files are for.
        writer: the writer of its files.
        runtime: what it can run; None: a simulator, which takes every plan that its writer can write.
        tried: a sentence on what was tried with the real thing.
        reader: the reader of its configurations; None: they aren't read.
    """

    name: str
    release: str
    writer: Writer
    runtime: Runtime | None = None
    tried: str = "nothing was tried with the real thing"
    reader: Reader | None = None
