"""The passes that read, edit and write HLO modules.

In: an `HloModuleProto`, as XLA has it.
Out: another one, or figures of it; each pass is a pure function.
"""

from alpa_dejavu.sharding.hlo.schema import HloModuleProto
from alpa_dejavu.sharding.hlo.simplify import inline_calls, simplify

__all__ = ["HloModuleProto", "inline_calls", "simplify"]
