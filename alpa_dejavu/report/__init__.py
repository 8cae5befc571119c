"""The report of a plan: one page that opens without network."""

from alpa_dejavu.report._page import html_report

__all__ = ["html_report"]
