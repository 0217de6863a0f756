"""The public name of atoll.train.hf."""

from .train.hf import Callback

__all__ = ["Callback"]
