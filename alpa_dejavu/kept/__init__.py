"""What planning knew of a model and a cluster, kept in a file beside a plan: planning again then traces nothing.

Beside `plan.json` it is `plan.kept.json.gz`, compressed JSON, version 1: the layers' operators and tensors, how the
sharding engine cuts the layers on the meshes that were asked for, and the cluster.
"""

from alpa_dejavu.kept._file import kept_path, read_kept, write_kept
from alpa_dejavu.kept._kept import Kept

__all__ = ["Kept", "kept_path", "read_kept", "write_kept"]
