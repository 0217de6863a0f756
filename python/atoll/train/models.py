"""The model that a program gives, as a list of tensors."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np


def open_model(model: Any, optimizers: list[Any], buffers: str, names: Mapping[str, str] | None) -> Any:
    """A TorchModel or a NumpyModel. Raises TypeError for anything else, and InvalidError for one that cannot train."""
    first = next(iter(model.values()), None) if isinstance(model, Mapping) else None
    if isinstance(first, np.ndarray):
        from .numpy_model import NumpyModel

        return NumpyModel(model)
    torch = sys.modules.get("torch")
    if torch and (isinstance(model, torch.nn.Module) or isinstance(first, torch.Tensor)):
        from .torch_model import TorchModel, refuse_sharded

        refuse_sharded(model, optimizers)
        found = TorchModel(model, buffers=buffers, names=names)
        found.set_optimizers(optimizers)
        return found
    raise TypeError(
        f"the first argument of atoll.Worker is of type {type(model).__name__}: give a torch.nn.Module, or a dict "
        "of name -> torch tensor or float32 numpy array"
    )
