"""torchtitan as a target: a function that returns its configuration with the schedule as CSV, and back.

In: a plan and the sizes of its model, or a job's TOML, or the function that was written.
Out: the function and the CSV, or the outline of the plan that a configuration says.

References:
    Liang et al., TorchTitan: One-stop PyTorch Native Solution for Production Ready LLM Pretraining, ICLR 2025.
"""

from __future__ import annotations

from alpa_dejavu.exports.torchtitan._reader import read_torchtitan
from alpa_dejavu.exports.torchtitan._writer import RELEASE, torchtitan_files

__all__ = ["RELEASE", "read_torchtitan", "torchtitan_files"]
