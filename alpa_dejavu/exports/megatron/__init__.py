"""Megatron-Core as a target: its arguments, with the layout of stages, and back.

In: a plan and the sizes of its model, or a script with Megatron's command line.
Out: the script, or the outline of the plan that it says.
"""

from __future__ import annotations

from alpa_dejavu.exports.megatron._reader import megatron_sizes, read_megatron
from alpa_dejavu.exports.megatron._writer import RELEASE, megatron_files

__all__ = ["RELEASE", "megatron_files", "megatron_sizes", "read_megatron"]
