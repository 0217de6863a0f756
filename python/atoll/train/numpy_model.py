"""A model whose parameters are a dict of numpy arrays, updated in place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from .. import _lib


class NumpyModel:
    """parameters: name -> float32 array, which the program updates in place. mean: names that are averaged only."""

    devices, is_cuda, stage, hooked, frozen, sharded = "cpu", False, None, None, None, False

    def __init__(self, parameters: Mapping[str, np.ndarray]) -> None:
        self.module: Any = parameters
        self._arrays = list(parameters.values())
        for name, array in parameters.items():
            if not isinstance(array, np.ndarray) or array.dtype != np.float32:
                kind = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
                raise _lib.InvalidError(f"parameter {name} is of {kind}: atoll takes float32 numpy arrays")
            if not array.flags.writeable:
                raise _lib.InvalidError(f"parameter {name} is read-only: atoll updates the arrays in place")
        if not self._arrays:
            raise _lib.InvalidError("there are no parameters: give a dict of name -> float32 array")
        self.tensors = [
            _lib.Tensor(name, array.shape, _lib.DECAY if array.ndim > 1 else 0) for name, array in parameters.items()
        ]
        self.files: dict[str, bytes] = {}
        self.objects: list[tuple[str, Any]] = []

    def share(self) -> None:
        """Numpy programs have one process, and the library has the memory."""

    @property
    def memory(self) -> dict[str, Any]:
        """What the library borrows: nothing."""
        return {}

    def attach(self, handle: _lib.Handle) -> None:
        """Takes the run's parameters of the library: they stay valid until detach."""
        flat, self._slices, at = handle.params, [], 0
        for array in self._arrays:
            self._slices.append(flat[at : at + array.size].reshape(array.shape))
            at += array.size

    def place(self, handle: Any) -> None:
        """The parameters lie in the order of the arrays."""

    def detach(self) -> None:
        """The worker has left the run."""
        self._slices = []

    def follow(self) -> None:
        """Takes the arrays that the dict has now. Raises InvalidError if they are not the ones that joined."""
        if len(self.module) != len(self.tensors):
            raise _lib.InvalidError(
                "the dict has other parameters than at the join: a worker keeps those it joined with"
            )
        for i, (tensor, part) in enumerate(zip(self.tensors, self._slices)):
            now = self.module.get(tensor.name)
            if now is self._arrays[i]:
                continue
            if not isinstance(now, np.ndarray) or now.dtype != np.float32 or now.shape != part.shape:
                form = f"{now.dtype} {list(now.shape)}" if isinstance(now, np.ndarray) else type(now).__name__
                raise _lib.InvalidError(
                    f"parameter '{tensor.name}' is {form} now, and was float32 {list(part.shape)} at the join: change "
                    "it before atoll.Worker"
                )
            self._arrays[i] = now

    def put(self, initial: bool = False) -> None:
        """Copies the arrays to the run's parameters."""
        for array, part in zip(self._arrays, self._slices):
            np.copyto(part, array)

    def take(self, begin: bool = False) -> None:
        """Copies the run's parameters to the arrays."""
        for array, part in zip(self._arrays, self._slices):
            np.copyto(array, part)

    @contextmanager
    def evaluating(self) -> Iterator[Any]:
        """The model in evaluation mode."""
        yield self.module
