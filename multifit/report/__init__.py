"""The HTML report of one or more runs."""

from .folder import RunFolder, read_run
from .html_page import page, write_report

__all__ = ["RunFolder", "page", "read_run", "write_report"]
