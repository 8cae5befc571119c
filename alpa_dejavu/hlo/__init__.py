"""Reading, editing and writing HLO modules."""
from alpa_dejavu.hlo._schema import HloModuleProto
