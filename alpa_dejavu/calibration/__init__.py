"""Calibrations: what was measured of a cluster's devices and links, as files that the planner takes.

    plan_model("gpt-1.3b", "p3.16xlarge", calibration="measured.json")
    DejavuStageOption(calibration="measured.json")

Without one, GPUs go by models that are fitted to open measurements (`costs.kernels`, `costs.communication`), and other
devices by their data sheets; "none" is data sheets for all.
"""

from alpa_dejavu.calibration._calibration import Calibration
from alpa_dejavu.calibration._prices import (
    NONE,
    Prices,
    calibration_format,
    check_choice,
    chosen_calibration,
    models_of,
    prices,
    read_calibration,
    write_calibration,
)
from alpa_dejavu.calibration.measured_hosts import HostLinks
from alpa_dejavu.calibration.parts import Fit, MeasuredLink

__all__ = [
    "NONE", "Calibration", "Fit", "HostLinks", "MeasuredLink", "Prices", "calibration_format", "check_choice",
    "chosen_calibration", "models_of", "prices", "read_calibration", "write_calibration",
]  # fmt: skip
