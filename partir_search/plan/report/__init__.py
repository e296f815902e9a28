"""Reports of a plan: tables, and the whole plan as one self-contained HTML page."""

from partir_search.plan.report.page import report_page

__all__ = ["report_page"]
