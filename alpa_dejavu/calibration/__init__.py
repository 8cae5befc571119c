"""Calibrations: what was learned of devices and links, as files that the planner takes.

    plan_model("gpt-1.3b", "p3.16xlarge", calibration="none")
    DejavuStageOption(calibration="measured.json")

Where a bundled one knows a cluster's devices, it is taken unless another one, or "none", is chosen. Bundled ones
(`bundled_names()`) are fitted to open measurements, which each file names, with the errors on what a fit had left out;
`make calibrations` builds them again.
"""

from alpa_dejavu.calibration._bundled import bundled, bundled_names, chosen_calibration
from alpa_dejavu.calibration._calibration import Calibration, Fit, MeasuredLink
from alpa_dejavu.calibration._file import read_calibration, write_calibration
from alpa_dejavu.calibration._host_links import HostLinks
from alpa_dejavu.calibration._prices import Prices, check_choice, prices

__all__ = [
    "Calibration",
    "Fit",
    "HostLinks",
    "MeasuredLink",
    "Prices",
    "bundled",
    "bundled_names",
    "check_choice",
    "chosen_calibration",
    "prices",
    "read_calibration",
    "write_calibration",
]
