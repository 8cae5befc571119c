"""Plans for other runtimes and for simulators: targets as data, each with a writer of its files.

In: a `Plan`, and the sizes of its model; or a configuration of a target's.
Out: the files that a target reads, or a sentence on which stage it can't run, by which rule, and what would do; or the
plan that a configuration says, estimated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from alpa_dejavu._util.lazy import loaded_when_used

if TYPE_CHECKING:
    from alpa_dejavu.exports._import import Imported, import_plan
    from alpa_dejavu.exports._model_file import read_model
    from alpa_dejavu.exports._target import Files, Foreign, Reader, Target, Writer
    from alpa_dejavu.exports._targets import SOURCES, TARGETS, export, named_target

__all__ = [
    "SOURCES", "TARGETS", "Files", "Foreign", "Imported", "Reader", "Target", "Writer", "export", "import_plan",
    "named_target", "read_model",
]  # fmt: skip

__getattr__, __dir__ = loaded_when_used(
    __name__,
    dict.fromkeys(("SOURCES", "TARGETS", "export", "named_target"), "_targets")
    | dict.fromkeys(("Files", "Foreign", "Reader", "Target", "Writer"), "_target")
    | {"Imported": "_import", "import_plan": "_import", "read_model": "_model_file"},
)
