"""A scalar that one mesh makes and another reads is sent as one tile, which all devices have.

Alpa counts the tiles of an array by `np.prod` of their numbers in each dimension, which is 1.0 where there is none, and
can't count up to that.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from alpa_stock_jax._patch import Patch


def _give_scalars_a_tile(module: ModuleType) -> None:
    stock = module.VirtualDistributedArray.tiles

    def tiles(self: Any) -> Any:
        """As Alpa's, of scalars too."""
        if self.tensor_shape or self._tiles is not None:
            return stock.fget(self)
        devices = list(range(self.device_mesh.num_devices))
        self._tiles = np.empty((), dtype=object)
        self._tiles[()] = module.Tile(
            index=[], index_flat=0, replica_device_ids=devices, indices=[],
            replica_device_strs=[self.device_mesh.device_strs[device] for device in devices],
        )  # fmt: skip
        return self._tiles

    module.VirtualDistributedArray.tiles = property(tiles)


PATCHES: tuple[Patch, ...] = (
    Patch(
        module="alpa.pipeline_parallel.resharding_tensor",
        reason="a scalar is sent from mesh to mesh as one tile (the number of its tiles was 1.0)",
        apply=_give_scalars_a_tile,
        expects={
            "VirtualDistributedArray.tiles": None,
            "Tile": ("index", "index_flat", "replica_device_ids", "replica_device_strs", "indices"),
        },
    ),
)
