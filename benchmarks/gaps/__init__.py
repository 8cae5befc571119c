"""The parts of `search_gap.py`."""
