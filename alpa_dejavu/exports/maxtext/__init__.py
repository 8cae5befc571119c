"""MaxText as a target: a YAML of settings over its own defaults, and back.

In: a plan and the sizes of its model, or a job's YAML, or the script that runs it.
Out: the YAML, or the outline of the plan that a configuration says.
"""

from __future__ import annotations

from alpa_dejavu.exports.maxtext._reader import read_maxtext
from alpa_dejavu.exports.maxtext._writer import RELEASE, maxtext_files

__all__ = ["RELEASE", "maxtext_files", "read_maxtext"]
