"""What planning knew of a model and a cluster, kept in files: planning again then traces nothing.

Beside `plan.json` it is `plan.kept.json.gz`, compressed JSON, version 1: the layers' operators and tensors, how the
sharding engine cuts the layers on the meshes that were asked for, and the cluster. What is kept of a model alone is
`entry_of`, in the same format.
"""

from alpa_dejavu.kept._bytes import packed_json, read_packed, unpacked_json
from alpa_dejavu.kept._entry import entry_of, meshes_of, model_of_entry, remembering
from alpa_dejavu.kept._file import kept_path, read_kept, write_kept
from alpa_dejavu.kept._kept import Kept

__all__ = [
    "Kept",
    "entry_of",
    "kept_path",
    "meshes_of",
    "model_of_entry",
    "packed_json",
    "read_kept",
    "read_packed",
    "remembering",
    "unpacked_json",
    "write_kept",
]
