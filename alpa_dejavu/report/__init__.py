"""The reports that people look at: a page of HTML, a trace of the timeline, and explanations of what bounds a plan.

In: a `PlanningResult`, or a plan with its simulated step.
Out: a page that opens without network, events for Perfetto, and rows of what each device, link and layer weighs.
"""

from alpa_dejavu.report._charts import finished
from alpa_dejavu.report._page import html_report, serving_report, template

__all__ = ["finished", "html_report", "serving_report", "template"]
