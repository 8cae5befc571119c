"""Reading, editing and writing HLO modules: pure functions from one `HloModuleProto` to the next."""

from alpa_dejavu.sharding.hlo._schema import HloModuleProto
from alpa_dejavu.sharding.hlo.simplify import inline_calls, simplify

__all__ = ["HloModuleProto", "inline_calls", "simplify"]
