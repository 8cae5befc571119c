"""DeepSpeed as a target: its JSON, with a subclass of its pipeline module that takes the stages' layers from it, and
back.

In: a plan and the sizes of its model, or DeepSpeed's JSON.
Out: the JSON and the module, or the outline of the plan that the JSON says.

References:
    Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models, SC 2020.
"""

from __future__ import annotations

from alpa_dejavu.exports.deepspeed._reader import read_deepspeed
from alpa_dejavu.exports.deepspeed._writer import RELEASE, deepspeed_files

__all__ = ["RELEASE", "deepspeed_files", "read_deepspeed"]
