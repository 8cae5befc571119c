"""What `build_calibrations.py` makes the bundled calibrations of.

`_devices.py` says of which devices, with their data sheets; `_parts.py` fits the models and their errors, `_peaks.py`
has those of memory.
"""
