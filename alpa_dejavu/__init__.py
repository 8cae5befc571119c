"""alpa-dejavu."""
