"""Pictures as SVG text, which browsers and README pages show by themselves: curves, and strips of heat maps."""

from alpa_dejavu.report.pictures._curves import Curve, curves
from alpa_dejavu.report.pictures._strip import Frame, strip

__all__ = ["Curve", "Frame", "curves", "strip"]
