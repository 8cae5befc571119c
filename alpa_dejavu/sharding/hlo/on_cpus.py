"""Which collectives XLA's CPU compiler has, to say what it says in words of LLVM's."""

from __future__ import annotations

from alpa_dejavu.sharding.hlo._collectives import COLLECTIVES, reduction_of
from alpa_dejavu.sharding.hlo._schema import HloModuleProto
from alpa_dejavu.sharding.hlo._shapes import dtype_name


def check_collectives(module: HloModuleProto) -> None:
    """Raises ValueError, with the way out, for the first collective of a module that XLA's CPU compiler doesn't have.

    It doesn't reduce floating-point numbers of 8 bits, and of complex numbers it makes sums and products only.
    """
    for part in module.computations:
        for node in part.instructions:
            dtype = dtype_name(node.shape)
            unordered = "complex" in dtype and reduction_of(module, node) not in ("add", "multiply")
            if node.opcode in COLLECTIVES and node.called_computation_ids and ("float8" in dtype or unordered):
                raise ValueError(
                    f"the step has an {node.opcode} of {dtype} between the devices of a mesh, but XLA's "
                    f"CPU compiler has none; convert to {'real numbers' if unordered else 'float32'} before what is "
                    "reduced there, or give it to one device"
                )
