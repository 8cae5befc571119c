"""A pipeline that PyTorch's own `torch.distributed.pipelining` runs, by a split and a schedule of ours, on processes
of this machine.
"""

from __future__ import annotations

from torch_runtime._model import Sizes, gradients_on_one_device
from torch_runtime._processes import LayerSeconds, Processes, Split, started

__all__ = ["LayerSeconds", "Processes", "Sizes", "Split", "gradients_on_one_device", "started"]
