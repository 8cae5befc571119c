"""The commands of `alpa-dejavu`, a file each, and what they print with."""
