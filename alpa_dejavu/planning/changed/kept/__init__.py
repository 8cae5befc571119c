"""Keeps in files what planning knew of a model and a cluster, so that planning again traces nothing.

Beside `plan.json` it is `plan.json.kept.json.gz`, compressed JSON, version 1: the digest of the plan's file, operators
and tensors of the layers, how the sharding engine cuts these on the meshes that were asked for, and the cluster. The
cache of models keeps a model alone, in the same format.
"""

from alpa_dejavu.planning.changed.kept._kept import Kept
from alpa_dejavu.planning.changed.kept._pair import (
    Written,
    kept_files,
    kept_path,
    read_kept,
    write_with_kept,
)

__all__ = [
    "Kept",
    "Written",
    "kept_files",
    "kept_path",
    "read_kept",
    "write_with_kept",
]
