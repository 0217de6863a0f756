"""Opens what a program gives: its model as a list of tensors, and the library's worker for it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from .. import _lib
from .files import given_files
from .ranks import Ranks
from .state import State


def open_model(
    model: Any, optimizers: list[Any], buffers: str, names: Mapping[str, str] | None, ranks: Ranks
) -> Any:
    """A TorchModel or a NumpyModel. Raises TypeError for anything else, and InvalidError for one that cannot train."""
    first = next(iter(model.values()), None) if isinstance(model, Mapping) else None
    if isinstance(first, np.ndarray):
        from .numpy_model import NumpyModel

        if ranks.size > 1:
            raise _lib.InvalidError(
                "NumPy parameters belong to one process, and torch.distributed has several: start one worker for each "
                "process without torchrun, or give tensors"
            )
        return NumpyModel(model)
    torch = sys.modules.get("torch")
    if torch and (isinstance(model, torch.nn.Module) or isinstance(first, torch.Tensor)):
        from .torch_model import TorchModel, refuse_sharded

        refuse_sharded(model, optimizers)
        found = TorchModel(model, buffers=buffers, names=names, ranks=ranks)
        found.set_optimizers(optimizers)
        return found
    raise TypeError(
        f"the first argument of atoll.Worker is of type {type(model).__name__}: give a torch.nn.Module, or a dict "
        "of name -> torch tensor or float32 numpy array"
    )


def open_handle(model: Any, state: State, frozen: str, files: Any, **options: Any) -> _lib.Handle:
    """The library's worker for a model; on rank 0. Its parameters are attached to the model."""
    fixed = model.frozen
    handle = _lib.Handle(
        model.tensors,
        devices=model.devices,
        files={**model.files, **given_files(files)},
        save=state.save,
        load=state.load,
        frozen=fixed.listed if fixed else (),
        frozen_any=frozen == "any",
        frozen_read=fixed.read if fixed and fixed.in_files else None,
        **model.memory,
        **options,
    )
    try:
        model.attach(handle)
    except BaseException:
        handle.close()
        raise
    return handle
