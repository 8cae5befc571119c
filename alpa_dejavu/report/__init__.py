"""The reports that people look at: a page of HTML, a trace of the timeline, and explanations of what bounds a plan.

In: a `PlanningResult`, or a plan with its simulated step.
Out: a page that opens without network, events for Perfetto, and rows of what each device, link and layer weighs.
"""

from typing import TYPE_CHECKING

from alpa_dejavu._util.lazy import loaded_when_used

if TYPE_CHECKING:
    from alpa_dejavu.report._page import Section, html_report, render, sections_page, serving_report
    from alpa_dejavu.report._style import PALETTE, SCALE, add_curve, color_of, finished, log_axis

__all__ = [
    "PALETTE", "SCALE", "Section", "add_curve", "color_of", "finished", "html_report", "log_axis", "render",
    "sections_page", "serving_report",
]  # fmt: skip

_HOME = {
    **dict.fromkeys(("Section", "html_report", "render", "sections_page", "serving_report"), "_page"),
    **dict.fromkeys(("PALETTE", "SCALE", "add_curve", "color_of", "finished", "log_axis"), "_style"),
}
__getattr__, __dir__ = loaded_when_used(__name__, _HOME)
