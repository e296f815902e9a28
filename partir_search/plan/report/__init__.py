"""What people look at: tables of a plan, and all of it as one self-contained HTML page."""

from partir_search.plan.report.page import report_page

__all__ = ["report_page"]
