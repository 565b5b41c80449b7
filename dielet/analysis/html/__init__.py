"""The report: everything that a trace tells, as one HTML file without anything outside it."""

from dielet.analysis.html.page import page_of, write_html

__all__ = ["page_of", "write_html"]
