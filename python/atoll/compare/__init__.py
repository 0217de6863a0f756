"""Trains the cells of a grid and compares them: `atoll compare`."""

from .cmd import main

__all__ = ["main"]
