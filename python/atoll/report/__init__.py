"""Reports of runs and comparisons as a page, tables and plots: `atoll report`."""

from .cmd import main

__all__ = ["main"]
