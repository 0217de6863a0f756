"""Atoll: train one model on machines in different places.

    with atoll.Worker(model, optimizer, join="tcp://...", every=30) as worker:
        for batch in atoll.batches(dataset, worker, batch_size=16):
            loss = worker.loss(loss_of(model, batch))
            loss.backward(); optimizer.step(); optimizer.zero_grad()

The first line joins a run. `optimizer.step` is hooked: after the run's number of steps the worker sends what changed,
waits for the update, and goes on from the run's parameters. The batches are the samples leased to this worker. A loop
with data of its own runs `while not worker.done`, and a learning rate of its own follows `int(worker.position)`.
"""

from __future__ import annotations

from typing import Any

from ._lib import (
    Done,
    Error,
    Info,
    InvalidError,
    NonFiniteError,
    RefusedError,
    StoppedError,
    UnreachableError,
    program,
    version,
)
from .train.batches import Batches, Tokens, batches
from .train.worker import Worker

__all__ = [
    "Batches",
    "Done",
    "Error",
    "Info",
    "InvalidError",
    "NonFiniteError",
    "RefusedError",
    "Tokens",
    "StoppedError",
    "UnreachableError",
    "Worker",
    "batches",
    "hf",
    "launch",
    "program",
    "version",
]

for _public in (Done, Error, InvalidError, NonFiniteError, RefusedError, StoppedError, UnreachableError):
    _public.__module__ = __name__  # as the user writes it; a traceback shows this name


def __getattr__(name: str) -> Any:
    """Loads what needs more than numpy when it is first used."""
    import importlib

    if name == "hf":
        return importlib.import_module(".hf", __name__)
    if name == "launch":
        value = importlib.import_module(".train.launch", __name__).launch
        globals()["launch"] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
