"""Chakra's execution traces of a plan's step, for ASTRA-sim and other simulators: one for each rank.

In: a `Plan`, and the cost model that priced it.
Out: files of nodes: each layer's forward and backward pass, each collective and each transfer of every micro-batch.
"""

from alpa_dejavu.exports.chakra._traces import chakra_files

__all__ = ["chakra_files"]
