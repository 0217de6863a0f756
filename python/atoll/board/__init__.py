"""Follows the metrics of a run into TensorBoard, W&B or trackio: `atoll board`."""

from .cmd import main

__all__ = ["main"]
