"""Megatron-Core as a target: its arguments, with the layout of stages, and back.

In: a plan and the sizes of its model; a script with Megatron's command line; or a recipe whose fields stand for one.
Out: the script, or the outline of the plan that it says.
"""

from __future__ import annotations

from alpa_dejavu.exports.megatron._reader import megatron_sizes, read_megatron
from alpa_dejavu.exports.megatron._recipes import read_megatron_bridge, read_nemo
from alpa_dejavu.exports.megatron._writer import RELEASE, megatron_files

__all__ = ["RELEASE", "megatron_files", "megatron_sizes", "read_megatron", "read_megatron_bridge", "read_nemo"]
